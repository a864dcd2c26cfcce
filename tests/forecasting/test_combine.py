"""The combination: its weights, what it says, and that it is close to its best part."""

import numpy as np
import pytest

from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.combine import FEATURES, CombinationRules, Combined, combine, new_state
from rlpto.forecasting.gru import QUANTILES
from rlpto.forecasting.hybrid import HybridForecaster
from rlpto.forecasting.series import TimeSeries
from rlpto.io.arrays import FloatArray

H, K = 3, 4


def run(counts: FloatArray, members: FloatArray, whole: bool = True) -> Combined:
    rules, levels = CombinationRules(), np.array(QUANTILES)
    spread = np.full((len(counts), H, len(levels)), 0.3)
    state = new_state(H, K, [0, 1], levels, 4.0, whole, rules)
    return combine(state, rules, counts, members, spread, np.ones((len(counts), H, FEATURES)), True)


def test_whole_counts_are_said_in_whole_numbers_which_are_medians() -> None:
    rng = np.random.default_rng(0)
    counts, members = rng.poisson(6.0, 200).astype(float), np.log1p(6.0 + rng.uniform(0, 4, (200, K, H)))
    said = run(counts, members).point
    np.testing.assert_array_equal(said, np.floor(said))
    said = run(counts / 7, members / 7, whole=False).point
    assert (said != np.floor(said)).any()
    said = run(rng.poisson(0.3, 600).astype(float), np.full((600, K, H), np.log1p(0.3))).point
    assert said[100:].max() == 0, "the median of Poisson counts with mean 0.3"


@pytest.mark.parametrize("width", [0.3, 3.0])
def test_intervals_cover_as_often_as_they_say_whatever_the_spread_they_are_given(width: float) -> None:
    rng = np.random.default_rng(1)
    points = 1500
    newest = rng.normal(3, width, points).clip(0)
    found = run(np.expm1(newest), np.full((points, K, H), 3.0), whole=False)
    low, high = QUANTILES.index(0.1), QUANTILES.index(0.9)
    for h in range(H):
        actual, bounds = newest[500 + 1 + h :], found.bounds[500 : points - 1 - h, h]
        assert 0.77 <= ((actual >= bounds[:, low]) & (actual <= bounds[:, high])).mean() <= 0.83


FITTED = 480


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "first", "most"), [(1, 0, 1.05), (4, 48, 1.1)], ids=["as fitted", "level shift"])
def test_it_is_close_to_its_best_part(
    fitted: dict[str, Forecaster], whole: TimeSeries, factor: int, first: int, most: float
) -> None:
    hybrid = fitted["hybrid"]
    assert isinstance(hybrid, HybridForecaster)
    values = whole.values * np.where(np.arange(len(whole)) >= FITTED, factor, 1)
    series, origins = TimeSeries(values, whole.step, whole.start), np.arange(FITTED + first, len(whole) - 6)
    truth = np.stack([values[origins + h] for h in range(6)], axis=1)
    error = np.abs(hybrid.batch(series, origins, 6).point - truth).mean()
    best = min(np.abs(part - truth).mean() for part in hybrid.parts(series, origins, 6).values())
    assert error < most * best
