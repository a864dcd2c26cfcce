"""Bounds of every forecast: a multiple of what was seen, finite counts, points within their own intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.forecasting.base import LARGEST_GROWTH, Batch, Forecaster
from rlpto.forecasting.gru import GruForecaster
from rlpto.forecasting.hybrid import HybridForecaster
from rlpto.forecasting.naive import Naive
from rlpto.forecasting.registry import METHODS, make_forecaster
from rlpto.forecasting.series import ForecastError, TimeSeries
from rlpto.forecasting.trees import TreesForecaster
from rlpto.io.arrays import FloatArray, IntArray

LEVELS = [0.01, 0.1, 0.5, 0.9, 0.99]
QUICK: dict[str, Callable[[], Forecaster]] = {
    **{name: lambda name=name: make_forecaster(name) for name in METHODS},
    "trees": lambda: TreesForecaster(horizon=3, rows=200),
    "gru": lambda: GruForecaster(horizon=3, hidden=4, updates=3),
    "hybrid": lambda: HybridForecaster(horizon=3, hidden=4, updates=3),
}
ALL = pytest.mark.parametrize("name", QUICK)

QUIET_THEN_JOBS = np.array([0.0] * 30 + [1, 158])


@st.composite
def odd_series(draw: st.DrawFn) -> FloatArray:
    """Random counts with a quiet start, growth, a level shift, spikes or nothing but a constant."""
    count, level = draw(st.integers(10, 130)), draw(st.sampled_from([0.0, 1.0, 20.0, 1e5, 1e11]))
    time, rng = np.arange(count), np.random.default_rng(draw(st.integers(0, 99)))
    noise = rng.poisson(5, count) / 5 if draw(st.booleans()) else np.ones(count)
    where = draw(st.integers(1, count - 1))
    shape = {
        "quiet": time >= where,
        "linear": time / count,
        "exponential": np.exp(20 * (time - count) / count),
        "shift": np.where(time < where, 1.0, 0.01),
        "spike": (time == where) + 0.001,
        "constant": np.ones(count),
    }[draw(st.sampled_from(["quiet", "linear", "exponential", "shift", "spike", "constant"]))]
    return np.asarray(np.round(level * noise * shape))


def check(point: FloatArray, mean: FloatArray, quantiles: FloatArray, most: float) -> None:
    """point, mean: [..., H]. quantiles: [..., H, LEVELS]."""
    for numbers in (point, mean, quantiles):
        assert np.isfinite(numbers).all()
        assert (numbers >= 0).all()
        assert (numbers <= LARGEST_GROWTH * most).all()
    assert (quantiles[..., :2] <= point[..., None]).all()
    assert (quantiles[..., 3:] >= point[..., None]).all()
    assert (np.diff(quantiles) >= 0).all()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "hybrid" else []) for name in QUICK]
)
@given(values=odd_series(), newer=odd_series(), step=st.sampled_from(["10min", "1h", "7h"]))
def test_forecasts_stay_within_bounds(name: str, values: FloatArray, newer: FloatArray, step: str) -> None:
    forecaster, most = QUICK[name]().fit(values, step=step), max(values.max(), newer[:5].max())
    found = forecaster.predict(7, LEVELS)
    check(found.point, found.mean, found.values, values.max())
    found = forecaster.update(newer[:5]).predict(30, LEVELS)
    check(found.point, found.mean, found.values, most)
    batch = forecaster.batch(forecaster._observed(), np.arange(1, len(values) + 6), 5, np.array(LEVELS))
    check(batch.point, batch.mean, batch.quantiles, most)


@ALL
def test_a_quiet_start_is_no_reason_for_huge_forecasts(name: str) -> None:
    found = QUICK[name]().fit(QUIET_THEN_JOBS, step="1h").predict(6, LEVELS)
    check(found.point, found.mean, found.values, 158)


@pytest.mark.parametrize("points", [60, 100, 200, 400])
@pytest.mark.parametrize("shape", [lambda t: t, lambda t: np.round(t**2 / 10), lambda t: np.round(10 * t**0.5)])
def test_growth_is_not_taken_for_part_of_a_week(points: int, shape: Callable[[FloatArray], FloatArray]) -> None:
    values = shape(np.arange(1.0, points + 1))
    point = make_forecaster("arima_fourier").fit(values, step="1h").predict(12).point
    assert (point >= 0.99 * values[-1]).all()


def test_bounds_follow_what_a_moved_or_saved_forecaster_was_fitted_on() -> None:
    fitted = Naive().fit(np.full(20, 50.0), step="1h")
    quiet = fitted.moved(TimeSeries(np.array([0.0, 60.0]), 3600.0), 1)
    assert quiet.predict(2).point.tolist() == [60, 60]
    assert Naive.from_state(fitted.state(), "a file").moved(quiet._observed(), 1)._largest == 50


def test_quantiles_ascend_whatever_rounding_does() -> None:
    class Rounded(Naive):
        def _batch(self, series: TimeSeries, origins: IntArray, horizon: int, levels: FloatArray) -> Batch:
            found = super()._batch(series, origins, horizon, levels)
            return replace(found, quantiles=found.point[..., None] - 1e-9 * np.arange(len(levels)))

    found = Rounded().fit(np.full(20, 50.0), step="1h").predict(3, LEVELS)
    check(found.point, found.mean, found.values, 50.0)


def test_counts_that_grow_by_many_orders_of_magnitude_are_forecast() -> None:
    forecaster = QUICK["hybrid"]().fit(np.ones(30), step="1h").update(np.full(5, 1e11))
    found = forecaster.predict(3, LEVELS)
    check(found.point, found.mean, found.values, 1e11)
    again = HybridForecaster.from_state(forecaster.state(), "a file").predict(3, LEVELS)
    np.testing.assert_array_equal(again.values, found.values)


def test_a_forecast_that_is_nan_is_refused() -> None:
    class Broken(Naive):
        def _points(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
            return np.full((len(origins), horizon), np.nan if len(series) > 10 else 1.0)

    forecaster = Broken().fit(np.ones(10), step="1h")
    with pytest.raises(ForecastError, match="Broken forecasts NaN: expected counts"):
        forecaster.update(1).predict(1)
