"""The combination: its parts, its weights, and that it is close to its best part."""

from __future__ import annotations

import numpy as np
import pytest

from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.hybrid import LABELS, NAMES, HybridForecaster
from rlpto.forecasting.series import TimeSeries

FITTED = 480


@pytest.fixture
def hybrid(fitted: dict[str, Forecaster]) -> HybridForecaster:
    return HybridForecaster.from_state(fitted["hybrid"].state(), "copy")


def test_a_count_changes_what_is_predicted_after_it(hybrid: HybridForecaster) -> None:
    twin = HybridForecaster.from_state(hybrid.state(), "twin")
    np.testing.assert_array_equal(hybrid.predict(6).point, twin.predict(6).point)
    assert np.abs(hybrid.update(500.0).predict(6).point - twin.update(0.0).predict(6).point).max() > 0.1


def test_parts_and_weights_explain_the_forecast(hybrid: HybridForecaster, whole: TimeSeries) -> None:
    origins = np.array([FITTED + 5, FITTED + 40])
    parts, weights = hybrid.parts(whole, origins, 6), hybrid.weights(whole, origins)
    assert tuple(parts) == NAMES
    assert weights.shape == (2, 6, len(LABELS))
    np.testing.assert_allclose(weights.sum(axis=2), 1.0)
    assert (weights > 0).all()
    # Between the smallest and the largest of its experts; corrected copies may lie a little outside the parts.
    found, all_parts = hybrid.forecasts(whole, origins, 6), np.stack(list(parts.values()))
    assert (found >= 0.5 * all_parts.min(axis=0)).all()
    assert (found <= 2.0 * all_parts.max(axis=0)).all()


@pytest.mark.parametrize(("factor", "first", "most"), [(1, 0, 1.05), (4, 48, 1.1)], ids=["as fitted", "level shift"])
def test_it_is_close_to_its_best_part(
    hybrid: HybridForecaster, whole: TimeSeries, factor: int, first: int, most: float
) -> None:
    values = whole.values * np.where(np.arange(len(whole)) >= FITTED, factor, 1)
    series, origins = TimeSeries(values, whole.step, whole.start), np.arange(FITTED + first, len(whole) - 6)
    truth = np.stack([values[origins + h] for h in range(6)], axis=1)
    error = np.abs(hybrid.forecasts(series, origins, 6) - truth).mean()
    best = min(np.abs(part - truth).mean() for part in hybrid.parts(series, origins, 6).values())
    assert error < most * best
