"""Task volume of a service: which jobs count in which step, and how much each of them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rlpto.arrivals.settings import ForecastSettings
from rlpto.arrivals.volume import VolumeForecast
from rlpto.forecasting.registry import make_forecaster
from rlpto.forecasting.series import HOUR, TimeSeries

from ..builders import SAMPLES, job, linear_tables, make_tables

TEN_MINUTES = ForecastSettings(mode="on")
BEGAN = 1_600_000_000.0


def test_a_job_counts_by_its_own_samples_and_the_speed_of_each_of_its_epochs() -> None:
    tables = make_tables([[[[0.01, 0.02], [0.02, 0.04]]]])
    volume = VolumeForecast(TEN_MINUTES, BEGAN, 0)
    volume.arrived([job(submit=10.0, epochs=2.0, gpus=2, data_size=3 * SAMPLES)], tables, 8)
    (row,) = volume.rows(600.0)
    assert row.at == BEGAN
    assert row.seen == pytest.approx(2 * 3 * (1 / 0.02 + 1 / 0.04))


def test_the_first_step_is_one_whose_arrivals_are_all_known() -> None:
    volume = VolumeForecast(TEN_MINUTES, BEGAN, 0, since=900.0)
    volume.arrived([job(0, submit=1000.0), job(1, submit=1300.0)], linear_tables(), 8)
    assert [(row.at - BEGAN, row.seen) for row in volume.rows(1800.0)] == [(1200.0, pytest.approx(100.0))]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the time zone of this process."""

    def change(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield change
    monkeypatch.undo()
    time.tzset()


def test_a_model_forecasts_by_the_local_clock_of_the_service(zone: Callable[[str], None], tmp_path: Path) -> None:
    hours = np.arange(24 * 14)
    counts = np.random.default_rng(0).poisson(6 + 5 * np.sin(2 * np.pi * hours / 24)).astype(float)
    make_forecaster("arima_fourier").fit(TimeSeries(counts, HOUR)).save(tmp_path / "hourly")
    settings, means = ForecastSettings(model=tmp_path / "hourly", every="1h", horizon=12), []
    for name, began in (("UTC0", BEGAN), ("UTC0", BEGAN + 8 * HOUR), ("EAST-8", BEGAN)):
        zone(name)
        volume = VolumeForecast(settings, began, 0)
        means.append(volume(3 * HOUR).mean)
        assert volume.rows(3 * HOUR)[0].at == began
    np.testing.assert_array_equal(means[1], means[2])
    assert (means[0] != means[1]).any()
