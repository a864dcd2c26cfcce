from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.forecasting.decision import SHIFTS, Criteria, DecisionState, decide, new_decision
from rlpto.io.arrays import FloatArray

H, K = 3, 4
CRITERIA = Criteria()


def blank(whole: bool = True) -> DecisionState:
    return new_decision(H, K, whole, CRITERIA)


def twice(pool: FloatArray) -> FloatArray:
    """Regressions that say what the pool says."""
    return np.stack([pool, pool], axis=1)


def world(points: int, seed: int = 0, level: float = 6.0) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Counts around a level, a pool that says the level, and parts that are off by 0, 2, 3 and 4 counts or so."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(level, points).astype(float)
    pool = np.full((points, H), np.log1p(level))
    parts = np.log1p(level + np.array([0.0, 2.0, 3.0, 4.0])[None, :, None] + rng.uniform(0, 0.1, (points, K, H)))
    return counts, pool, parts


def error(said: FloatArray, counts: FloatArray, first: int) -> float:
    """Mean absolute error of all steps of the origins from `first` on; origin i knows counts[: i + 1]."""
    origins = np.arange(first, len(counts) - H)
    truth = counts[origins[:, None] + 1 + np.arange(H)]
    return float(np.abs(said[origins] - truth).mean())


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.booleans())
@settings(max_examples=20)
def test_value_by_value_is_the_same_as_all_at_once(seed: int, points: int, whole: bool) -> None:
    counts, pool, parts = world(points, seed)
    at_once = decide(blank(whole), CRITERIA, counts, pool, twice(pool), parts, True)
    state, mixes = blank(whole), twice(pool)
    for i in range(points):
        one = slice(i, i + 1)
        np.testing.assert_array_equal(
            decide(state, CRITERIA, counts[one], pool[one], mixes[one], parts[one], True)[0], at_once[i]
        )


@given(st.integers(0, 2**32 - 1), st.integers(1, 58))
@settings(max_examples=20)
def test_no_decision_sees_the_future(seed: int, changed: int) -> None:
    counts, pool, parts = world(60, seed)
    other = np.where(np.arange(60) >= changed, 500.0, counts)
    before, after = (decide(blank(), CRITERIA, y, pool, twice(pool), parts, True) for y in (counts, other))
    np.testing.assert_array_equal(before[:changed], after[:changed])


def test_whole_counts_are_said_in_whole_numbers_and_others_are_not() -> None:
    counts, pool, parts = world(200)
    said = decide(blank(), CRITERIA, counts, pool + 0.03, twice(pool + 0.03), parts, True)
    np.testing.assert_array_equal(said, np.floor(said))
    said = decide(blank(whole=False), CRITERIA, counts / 7, pool / 7 + 0.03, twice(pool / 7 + 0.03), parts / 7, True)
    assert (said != np.floor(said)).any()


def test_a_pool_that_says_too_much_is_corrected() -> None:
    counts, pool, parts = world(800, level=40.0)
    high = pool + 0.12
    corrected = error(decide(blank(), CRITERIA, counts, high, twice(high), parts + 0.5, True), counts, 400)
    assert corrected < 0.95 * error(np.expm1(high), counts, 400)


def test_a_part_that_is_always_right_is_followed_exactly() -> None:
    counts, pool, parts = world(700)
    for whole, scale in ((True, 1.0), (False, 0.37)):
        y = counts * scale
        for h in range(H):
            parts[: -1 - h, 2, h] = np.log1p(y[1 + h :])
        said = decide(blank(whole), CRITERIA, y, pool, twice(pool), parts, True)
        assert error(said, y, 300) == pytest.approx(0, abs=1e-9)


def test_a_regression_that_is_better_than_the_pool_and_every_part_is_followed() -> None:
    counts, pool, parts = world(700)
    mixes = twice(pool)
    for h in range(H):
        mixes[: -1 - h, 0, h] = np.log1p(counts[1 + h :])
    said = decide(blank(), CRITERIA, counts, pool, mixes, parts, True)
    assert error(said, counts, 300) == pytest.approx(0, abs=1e-9)


def test_steps_beyond_those_learnt_are_decided_like_the_last_and_leave_no_trace() -> None:
    counts, pool, parts = world(100)
    state = blank()
    decide(state, CRITERIA, counts, pool, twice(pool), parts, True)
    before = [array.copy() for array in state]
    wide = [np.concatenate([array, array[..., -1:]], axis=-1) for array in (pool, parts)]
    said = decide(state, CRITERIA, counts[-1:], wide[0][-1:], twice(wide[0][-1:]), wide[1][-1:], False)
    assert said[0, H] == said[0, H - 1]
    for array, old in zip(state, before, strict=True):
        np.testing.assert_array_equal(array, old)


def test_before_anything_is_known_the_pool_decides() -> None:
    far, pool = np.full((1, K, H), 5.0), np.full((1, H), 2.0)
    said = decide(blank(whole=False), CRITERIA, np.zeros(1), pool, twice(pool), far, False)
    assert SHIFTS.min() - 1e-9 <= np.log1p(said[0, 0]) - 2.0 <= SHIFTS.max() + 1e-9
