"""What all forecasters have in common."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.gru import GruForecaster
from rlpto.forecasting.hybrid import HybridForecaster
from rlpto.forecasting.naive import ExponentialSmoothing, MovingAverage, Naive, SeasonalNaive
from rlpto.forecasting.registry import METHODS, load, make_forecaster
from rlpto.forecasting.series import ForecastError, TimeSeries, local_seconds
from rlpto.forecasting.trees import TreesForecaster
from tests.slow import few

from .builders import LEARNT, MAKERS, WEDNESDAY, changed

FITTED = 480

every_kind = pytest.mark.parametrize("name", MAKERS)


@every_kind
def test_no_forecast_sees_the_future_and_the_past_matters(
    name: str, fitted: dict[str, Forecaster], whole: TimeSeries
) -> None:
    origins, forecaster = np.arange(1, len(whole) + 1), fitted[name]
    levels = np.array([0.1, 0.9])
    before = forecaster.batch(whole, origins, 6, levels)
    for first in (FITTED + 30,) if name in LEARNT else (30, FITTED + 30):
        known = origins <= first
        after = forecaster.batch(changed(whole, first, 9999.0), origins, 6, levels)
        for part in ("point", "mean", "quantiles"):
            one, two = getattr(before, part), getattr(after, part)
            tolerance = 1e-4 if name in LEARNT else 0.0
            np.testing.assert_allclose(one[known], two[known], rtol=tolerance, atol=tolerance)
    week = 24 * 7  # as far as the longest season
    last = changed(whole, len(whole) - 1, 900.0)
    said = [forecaster.batch(series, np.array([600]), week).point for series in (whole, last)]
    assert not np.array_equal(*said)


@every_kind
def test_a_saved_forecaster_goes_on_online_with_the_numbers_of_the_batch(
    name: str, fitted: dict[str, Forecaster], whole: TimeSeries, tmp_path: Path
) -> None:
    fitted[name].save(tmp_path / "folder" / "f.safetensors")
    online = load(tmp_path / "folder" / "f.safetensors")
    assert online.settings() == fitted[name].settings()
    np.testing.assert_array_equal(online.predict(6).point, fitted[name].predict(6).point)
    levels, known = np.array([0.1, 0.5, 0.9]), FITTED
    tolerance = 1e-3 if name in LEARNT else 1e-9
    # One by one, several at once, and further ahead than was learnt.
    for origin, horizon in ((FITTED, 6), (FITTED + 1, 6), (FITTED + 2, 9), (FITTED + 6, 30)):
        if origin > known:
            online.update(whole.values[known:origin])
        known = origin
        found, batch = online.predict(horizon, levels), fitted[name].batch(whole, np.array([origin]), horizon, levels)
        for one, other in ((found.point, batch.point), (found.mean, batch.mean), (found.values, batch.quantiles)):
            np.testing.assert_allclose(one, other[0], rtol=tolerance, atol=tolerance)
        assert (np.diff(found.values, axis=1) >= 0).all()
        assert found.start == WEDNESDAY + 3600.0 * origin


ODD = {
    "zeros": np.zeros(200),
    "constant": np.full(60, 7.0),
    "large constant": np.full(60, 1e8),
    "10 points": np.random.default_rng(2).poisson(5, 10),
    "level shift": np.repeat([3, 300], [100, 60]),
    "one burst": np.where(np.arange(300) == 250, 50_000, np.random.default_rng(2).poisson(1, 300)),
}


@every_kind
@pytest.mark.parametrize("shape", few(ODD, "zeros", "level shift"))
def test_odd_series_are_forecast_with_finite_counts(name: str, shape: str) -> None:
    tiny: dict[str, Callable[[], Forecaster]] = {
        "gru": lambda: GruForecaster(horizon=3, hidden=4, updates=5),
        "hybrid": lambda: HybridForecaster(horizon=3, hidden=4, updates=5),
    }
    values = ODD[shape].astype(float)
    forecaster = tiny.get(name, MAKERS[name])().fit(values, step="1h")
    found = forecaster.update(values[-5:]).predict(12, [0.1, 0.9])
    every = forecaster.batch(TimeSeries(values, 3600.0), np.arange(1, len(values) + 1), 5).point
    for numbers in (found.point, found.mean, found.values, every):
        assert np.isfinite(numbers).all()
        assert (numbers >= 0).all()
    assert (np.diff(found.values, axis=1) >= 0).all()
    if shape in ("zeros", "constant", "large constant"):
        np.testing.assert_allclose(found.point, values[-1], rtol=0.05, atol=0.05)
    elif shape == "level shift":
        # Only a season of a week may still be at the old level.
        assert found.point[0] > 100 or name in ("season_168h", "trees", *LEARNT)


@pytest.mark.parametrize(
    "make",
    [lambda seed: GruForecaster(seed, 6, 8, 10), lambda seed: TreesForecaster(seed, rows=500)],
    ids=["gru", "trees"],
)
def test_the_same_seed_gives_the_same_forecasts(make: Callable[[int], Forecaster], whole: TimeSeries) -> None:
    first, again, other = (make(seed).fit(whole.head(240)).predict(6).mean for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-6


def test_updates_must_follow_the_history() -> None:
    counts = pd.Series(np.ones(48), index=pd.date_range("2020-04-01", periods=48, freq="1h"))
    naive = Naive().fit(counts)
    with pytest.raises(ForecastError, match="starts at 2020-04-02 12:00:00: expected 2020-04-03 00:00:00"):
        naive.update(counts.iloc[36:])
    following = pd.Series([4.0, 5.0], index=pd.date_range("2020-04-03", periods=2, freq="1h"))
    assert naive.update(following).predict(1).point.tolist() == [5]
    assert naive.update(following.iloc[:1].shift(2, freq="1h")).predict(1).point.tolist() == [4]
    assert naive.update(9).update([7.0, 8.0]).predict(1).point.tolist() == [8]
    for bad in ([np.nan], [-1.0], [], "many"):
        with pytest.raises(ForecastError):
            naive.update(bad)
    assert naive.predict(1).start == local_seconds("2020-04-03 06:00")


def test_what_was_learnt_can_be_put_on_another_series() -> None:
    model = SeasonalNaive(24).fit(np.arange(72.0), step="1h")
    other = TimeSeries(np.arange(50.0) + 100, 3600.0, 86400.0)
    for updated in (1, 10):
        found = model.moved(other, updated).predict(3)
        np.testing.assert_array_equal(found.point, [126, 127, 128])
        assert found.start == other.start + 50 * 3600
    np.testing.assert_array_equal(model.predict(1).point, [48])


def test_arguments_out_of_range_are_refused() -> None:
    y = np.ones(20)
    naive = Naive().fit(y, step="1h")
    for call, message in (
        (lambda: naive.predict(0), "horizon 0: expected an integer, 1 to 10000"),
        (lambda: naive.predict(True), "horizon True"),
        (lambda: naive.predict(1, [0.0]), "between 0 and 1"),
        (lambda: naive.update(TimeSeries(y, 60.0)), "step of 60 s: expected 3600 s"),
        (lambda: naive.fit(np.ones(9), step="1h"), "9 points: expected at least 10"),
        (lambda: Naive().predict(1), "nothing fitted yet"),
        (lambda: MovingAverage(0), "hours 0"),
        (lambda: ExponentialSmoothing(1.5), "alpha 1.5"),
        (lambda: GruForecaster(horizon=0), "horizon 0: expected an integer, 1 to"),
        (lambda: TreesForecaster(rows=1), "rows 1: expected an integer, 4 to"),
        (lambda: make_forecaster("prophet"), f"expected one of {', '.join(METHODS)}"),
    ):
        with pytest.raises(ForecastError) as caught:
            call()
        assert message in str(caught.value)


def test_the_package_alone_is_light() -> None:
    heavy = ("torch", "statsmodels", "pandas", "scipy", "numba", "sklearn", "matplotlib")
    code = f"import sys, rlpto.forecasting; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
