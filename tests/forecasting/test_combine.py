from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.forecasting.combine import FEATURES, CombinationRules, CombinationState, Combined, combine, new_state
from rlpto.forecasting.gru import QUANTILES, at_levels
from rlpto.io.arrays import FloatArray

H, K = 3, 4
RULES = CombinationRules()


def blank(whole: bool = True) -> CombinationState:
    return new_state(H, K, [0, 1], np.array(QUANTILES), 4.0, whole, RULES)


def run(state: CombinationState, counts: FloatArray, members: FloatArray, learning: bool = True) -> Combined:
    spread = np.full((len(counts), members.shape[2], len(QUANTILES)), 0.3)
    features = np.ones((len(counts), members.shape[2], FEATURES))
    return combine(state, RULES, counts, members, spread, features, learning)


def world(points: int, seed: int = 0, level: float = 6.0) -> tuple[FloatArray, FloatArray]:
    """Counts around a level, and members that are off by 0, 2, 3 and 4 counts or so."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(level, points).astype(float)
    off = np.array([0.0, 2.0, 3.0, 4.0])[None, :, None]
    return counts, np.log1p(level + off + rng.uniform(0, 0.1, (points, K, H)))


def error(said: FloatArray, counts: FloatArray, first: int) -> float:
    """Mean absolute error of all steps of the origins from `first` on; origin i knows counts[: i + 1]."""
    origins = np.arange(first, len(counts) - H)
    truth = counts[origins[:, None] + 1 + np.arange(H)]
    return float(np.abs(said[origins] - truth).mean())


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.booleans())
@settings(max_examples=20)
def test_value_by_value_is_the_same_as_all_at_once(seed: int, points: int, whole: bool) -> None:
    counts, members = world(points, seed)
    at_once, state = run(blank(whole), counts, members), blank(whole)
    for i in range(points):
        one = run(state, counts[i : i + 1], members[i : i + 1])
        for together, alone in zip(at_once, one, strict=True):
            np.testing.assert_array_equal(together[i : i + 1], alone)


@given(st.integers(0, 2**32 - 1), st.integers(1, 58))
@settings(max_examples=20)
def test_no_forecast_sees_the_future(seed: int, changed: int) -> None:
    counts, members = world(60, seed)
    other = np.where(np.arange(60) >= changed, 500.0, counts)
    for before, after in zip(*(run(blank(), y, members) for y in (counts, other)), strict=True):
        np.testing.assert_array_equal(before[:changed], after[:changed])


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_weights_are_shares_no_member_is_ever_left_out_and_bounds_ascend(seed: int) -> None:
    found = run(blank(), *world(80, seed))
    np.testing.assert_allclose(found.weights.sum(axis=2), 1.0)
    assert (found.weights > 0).all()
    assert (np.diff(found.bounds, axis=2) >= 0).all()
    assert (found.bounds >= 0).all()


def test_weight_goes_to_the_member_with_the_smallest_errors_and_leaves_one_that_stops_working() -> None:
    counts, members = world(1200)
    weights = run(blank(), counts, members).weights[-1]
    assert (weights[:, 0] > weights[:, 2]).all()
    assert (weights[:, 2] > weights[:, 3]).all()
    members[600:, 0] += 1.0
    weights = run(blank(), counts, members).weights
    assert (weights[-1, :, 0] < 0.5 * weights[599, :, 0]).all()


def test_whole_counts_are_said_in_whole_numbers_and_others_are_not() -> None:
    counts, members = world(200)
    said = run(blank(), counts, members).point
    np.testing.assert_array_equal(said, np.floor(said))
    said = run(blank(whole=False), counts / 7, members / 7).point
    assert (said != np.floor(said)).any()


def test_rare_jobs_are_not_expected_in_every_interval() -> None:
    counts = np.random.default_rng(1).poisson(0.3, 600).astype(float)
    said = run(blank(), counts, np.full((600, K, H), np.log1p(0.3))).point
    assert said[100:].max() == 0, "the median of Poisson counts with mean 0.3"


@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_a_member_that_is_always_right_is_followed_exactly(scale: float) -> None:
    counts, members = world(900)
    y = counts * scale
    for h in range(H):
        members[: -1 - h, 2, h] = np.log1p(y[1 + h :])
    assert error(run(blank(scale == 1.0), y, members).point, y, 400) == pytest.approx(0, abs=1e-9)


def test_steps_beyond_those_learnt_are_like_the_last_and_leave_no_trace() -> None:
    counts, members = world(100)
    state = blank()
    run(state, counts, members)
    before = [array.copy() for array in state]
    found = run(state, counts[-1:], np.concatenate([members, members[..., -1:]], axis=2)[-1:], learning=False)
    assert found.point[0, H] == found.point[0, H - 1]
    np.testing.assert_array_equal(found.weights[0, H], found.weights[0, H - 1])
    for array, old in zip(state, before, strict=True):
        np.testing.assert_array_equal(array, old)


@pytest.mark.parametrize("width", [0.3, 3.0])
def test_intervals_cover_as_often_as_they_say_whatever_the_spread_they_are_given(width: float) -> None:
    rng = np.random.default_rng(1)
    points = 1500
    newest = rng.normal(3, width, points).clip(0)
    found = run(blank(whole=False), np.expm1(newest), np.full((points, K, H), 3.0))
    low, high = QUANTILES.index(0.1), QUANTILES.index(0.9)
    for h in range(H):
        actual, bounds = newest[500 + 1 + h :], found.bounds[500 : points - 1 - h, h]
        assert 0.77 <= ((actual >= bounds[:, low]) & (actual <= bounds[:, high])).mean() <= 0.83


def test_quantiles_at_any_levels_ascend_and_agree_at_those_learnt() -> None:
    learnt = np.log1p(np.array([0.0, 1.0, 2.0, 4.0, 7.0, 12.0, 20.0]))
    levels = np.array([0.001, 0.1, 0.3, 0.5, 0.8, 0.9, 0.999])
    found = at_levels(learnt, levels)
    assert (np.diff(found) >= 0).all()
    np.testing.assert_allclose(found[[1, 3, 5]], [1.0, 4.0, 12.0])
