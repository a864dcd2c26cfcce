"""The GRU and the trees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.gru import GruForecaster
from rlpto.forecasting.naive import Naive
from rlpto.forecasting.registry import load
from rlpto.forecasting.series import ForecastError, TimeSeries
from rlpto.forecasting.trees import TreesForecaster
from rlpto.io.arrays import FloatArray

QUICK = {"hidden": 8, "updates": 30, "horizon": 6}


def quick() -> list[Forecaster]:
    return [TreesForecaster(horizon=6), GruForecaster(**QUICK)]


def by_kind(forecaster: Forecaster) -> str:
    return forecaster.kind


every_kind = pytest.mark.parametrize("forecaster", quick(), ids=by_kind)


def days(count: int, seed: int = 0) -> TimeSeries:
    """Hourly counts with a daily pattern, more on weekdays."""
    rng, hour = np.random.default_rng(seed), np.arange(24 * count)
    rate = 20 * np.exp(0.8 * np.sin(2 * np.pi * hour / 24)) * np.where(hour // 24 % 7 < 5, 1.0, 0.5)
    return TimeSeries(rng.poisson(rate).astype(float), 3600.0)


@every_kind
def test_online_and_batched_forecasts_are_the_same(forecaster: Forecaster) -> None:
    whole = days(15)
    forecaster.fit(whole.head(300))
    for origin in range(301, 306):
        found = forecaster.update(whole.values[origin - 1]).predict(9, [0.1, 0.9])
        np.testing.assert_allclose(found.point, forecaster.forecasts(whole, [origin], 9)[0], rtol=1e-4, atol=1e-4)
        quantiles = forecaster.batch_forecasts(whole, [origin], 9, [0.1, 0.9]).quantiles[0]
        np.testing.assert_allclose(found.values, quantiles, rtol=1e-4, atol=1e-4)
    several = forecaster.update(whole.values[305:310]).predict(9).point
    np.testing.assert_allclose(several, forecaster.forecasts(whole, [310], 9)[0], rtol=1e-4, atol=1e-4)


@every_kind
def test_no_forecast_sees_the_future(forecaster: Forecaster) -> None:
    whole = days(15)
    forecaster.fit(whole.head(300))
    origins = np.arange(250, 331)
    changed = whole.values.copy()
    changed[330:] = 10_000.0
    before = forecaster.forecasts(whole, origins, 9)
    after = forecaster.forecasts(TimeSeries(changed, whole.step, whole.start), origins, 9)
    np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-5)


@every_kind
def test_saved_forecaster_goes_on_as_if_nothing_had_happened(forecaster: Forecaster, tmp_path: Path) -> None:
    whole = days(15)
    forecaster.fit(whole.head(300)).update(whole.values[300:303])
    forecaster.save(tmp_path / "saved.npz")
    again = load(tmp_path / "saved.npz")
    for count in whole.values[303:306]:
        expected, found = forecaster.update(count).predict(9, [0.5]), again.update(count).predict(9, [0.5])
        np.testing.assert_array_equal(found.point, expected.point)
        np.testing.assert_array_equal(found.values, expected.values)


@every_kind
@pytest.mark.parametrize(
    "values",
    [np.zeros(60), np.full(60, 7.0), days(2).values[:30], np.r_[np.full(100, 3.0), np.full(60, 300.0)]],
    ids=["zeros", "constant", "30 points", "level shift"],
)
def test_odd_series_give_finite_counts(forecaster: Forecaster, values: FloatArray) -> None:
    found = forecaster.fit(values, step=3600.0).predict(12, [0.1, 0.9])
    assert np.isfinite(found.point).all()
    assert (found.point >= 0).all()
    assert np.isfinite(found.values).all()
    if np.ptp(values) == 0:
        np.testing.assert_allclose(found.point, values[0], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("forecaster", [TreesForecaster(), GruForecaster(updates=150)], ids=by_kind)
def test_daily_pattern_is_learnt(forecaster: Forecaster) -> None:
    whole = days(40)
    origins = np.arange(800, 940)
    truth = np.stack([whole.values[origins + h] for h in range(12)], axis=1)
    errors = [
        np.abs(member.fit(whole.head(800)).forecasts(whole, origins, 12) - truth).mean()
        for member in (forecaster, Naive())
    ]
    assert errors[0] < 0.6 * errors[1]


def test_same_seed_same_forecasts_and_another_seed_others() -> None:
    whole = days(12)
    first, second, other = (GruForecaster(**QUICK | {"seed": seed}).fit(whole).predict(6).point for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - other).max() > 1e-6


def test_training_leaves_torchs_own_random_numbers_alone() -> None:
    import torch

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    GruForecaster(**QUICK).fit(days(3))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", ["horizon", "hidden", "updates"])
def test_sizes_below_one_are_refused(name: str) -> None:
    with pytest.raises(ForecastError, match=f"{name} 0: expected an integer, 1 to"):
        GruForecaster(**{name: 0})
