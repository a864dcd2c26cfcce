"""The boosted trees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.forecasting.registry import load
from rlpto.forecasting.series import TimeSeries
from rlpto.forecasting.trees import TreesForecaster, add_up, forest_of
from rlpto.io.arrays import FloatArray, IntArray


def switched(seed: int = 0) -> TimeSeries:
    """Counts that no sum of lags and clock explains: afternoons bring ten times as many, on two days of the week."""
    hour = np.arange(24 * 60)
    rate = np.where((hour // 24 % 7 < 2) & (hour % 24 > 11), 40.0, 4.0)
    return TimeSeries(np.random.default_rng(seed).poisson(rate).astype(float), 3600.0)


def error(said: FloatArray, whole: TimeSeries, origins: IntArray) -> float:
    return float(np.abs(said[:, 0] - whole.values[origins]).mean())


def test_what_lags_and_clock_tell_together_is_learnt() -> None:
    whole = switched()
    origins = np.arange(24 * 50, len(whole))
    said = TreesForecaster(horizon=2).fit(whole.head(24 * 50)).forecasts(whole, origins, 2)
    yesterday = whole.values[origins - 24][:, None]
    assert error(said, whole, origins) < 0.5 * error(yesterday, whole, origins)
    # Not far from the least error there can be, that of who knows the rate.
    hour = np.arange(len(whole))[origins]
    known = np.where((hour // 24 % 7 < 2) & (hour % 24 > 11), 40.0, 4.0)[:, None]
    assert error(said, whole, origins) < 1.5 * error(known, whole, origins)


@given(st.integers(0, 10_000), st.integers(1, 40))
@settings(max_examples=15)
def test_trees_say_what_scikit_learn_says(seed: int, trees: int) -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    rng = np.random.default_rng(seed)
    columns = np.round(rng.normal(size=(300, 4)), 1)
    truth = columns[:, 0] * (columns[:, 1] > 0) + rng.normal(size=300)
    model = HistGradientBoostingRegressor(loss="absolute_error", max_iter=trees, random_state=0).fit(columns, truth)
    asked = np.round(2 * rng.normal(size=(100, 4)), 1)
    np.testing.assert_allclose(add_up(forest_of(model, trees), asked), model.predict(asked), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(add_up(forest_of(model, 0), asked), np.median(truth), atol=1e-9)


@pytest.mark.parametrize(
    ("values", "fallback"),
    [
        (np.arange(30.0), "30 points: no trees were grown, expected 200 or more"),
        (np.full(800, 5.0), "constant series: no trees were grown"),
    ],
    ids=["short", "constant"],
)
def test_where_nothing_can_be_learnt_the_recent_level_is_said_and_that_is_on_record(
    values: FloatArray, fallback: str, tmp_path: Path
) -> None:
    fitted = TreesForecaster().fit(values, step="1h")
    assert fitted.fallback.endswith(fallback)
    level = np.expm1(np.log1p(values[-3:]).mean())
    np.testing.assert_allclose(fitted.predict(12).point, level, rtol=1e-12)
    fitted.save(tmp_path / "f")
    assert getattr(load(tmp_path / "f"), "fallback", None) == fitted.fallback
