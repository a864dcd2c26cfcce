from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.forecasting.intervals import LEAST_SPREAD, QUANTILES, at_levels, mean_of, spread_of
from rlpto.forecasting.pool import FEATURES, CombinationRules, Combined, PoolState, advance, new_state
from rlpto.io.arrays import FloatArray

H, K = 3, 4
RULES = CombinationRules()


def pool() -> PoolState:
    return new_state(H, np.ones(K + 2), K, [1], np.array(QUANTILES), 4.0, RULES)


def run(state: PoolState, newest: FloatArray, parts: FloatArray, learning: bool = True) -> Combined:
    spread = np.full((len(newest), parts.shape[2], len(QUANTILES)), 0.3)
    features = np.ones((len(newest), parts.shape[2], FEATURES))
    return advance(state, RULES, newest, parts, spread, features, learning)


def world(points: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Values around 2, and parts that forecast them with errors of 0.1, 0.4, 0.7 and 1."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(2, 0.1, points + H).clip(0)
    parts = np.empty((points, K, H))
    for k in range(K):
        for h in range(H):
            parts[:, k, h] = truth[1 + h : points + 1 + h] + rng.normal(0, 0.1 + 0.3 * k, points)
    return truth[:points], parts


@given(st.integers(0, 2**32 - 1), st.integers(2, 60))
@settings(max_examples=20)
def test_value_by_value_is_the_same_as_all_at_once(seed: int, points: int) -> None:
    newest, parts = world(points, seed)
    at_once, state = run(pool(), newest, parts), pool()
    for i in range(points):
        one = run(state, newest[i : i + 1], parts[i : i + 1])
    for whole, last in zip(at_once, one, strict=True):
        np.testing.assert_array_equal(whole[-1:], last)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_weights_are_shares_and_no_part_is_ever_left_out(seed: int) -> None:
    newest, parts = world(80, seed)
    found = run(pool(), newest, parts)
    np.testing.assert_allclose(found.weights.sum(axis=2), 1.0)
    assert (found.weights >= RULES.floor / (K + 2) - 1e-12).all()
    assert (np.diff(found.bounds, axis=2) >= 0).all()
    assert (found.bounds >= 0).all()


def test_weight_goes_to_the_part_with_the_smallest_errors() -> None:
    newest, parts = world(200)
    weights = run(pool(), newest, parts).weights[-1]
    assert (weights[:, 0] > weights[:, 2]).all()
    assert (weights[:, 2] > weights[:, 3]).all()


def test_a_forecast_enters_the_weights_only_when_its_target_is_known() -> None:
    newest, parts = world(100)
    worse = parts.copy()
    worse[60, 0] += 5.0  # a blunder at one origin, 60, whose step h aims at the value that origin 61 + h knows first
    before, after = run(pool(), newest, parts).weights, run(pool(), newest, worse).weights
    for h in range(H):
        # Part of the loss is pooled over horizons, so the first of them to be settled moves all.
        np.testing.assert_array_equal(before[:61, h], after[:61, h])
        assert (before[61 + h : 66 + h, h, 0] > after[61 + h : 66 + h, h, 0]).all()


def test_weights_leave_a_part_that_stops_working() -> None:
    newest, parts = world(400)
    parts[200:, 0] += 1.0
    weights = run(pool(), newest, parts).weights
    assert (weights[199, :, 0] > 0.3).all()
    assert (weights[-1, :, 0] < 0.1).all()


def test_corrected_copy_takes_over_when_a_part_is_off_by_a_constant() -> None:
    newest, parts = world(300)
    parts[:, 1] = parts[:, 0] - 0.8
    parts[:, [0, 2, 3]] += 2.0
    found = run(pool(), newest, parts)
    # The regression on all parts may do the same.
    assert (found.weights[-1, :, K : K + 2].sum(axis=1) > 0.6).all()
    assert (found.weights[-1, :, K] > 2 * found.weights[-1, :, 1]).all()


def test_regression_finds_a_mix_that_is_better_than_every_part() -> None:
    newest, parts = world(600)
    # Two parts with opposite errors: their mean is right, neither of them is.
    parts[:, 1], parts[:, 2] = parts[:, 0] + 0.6, parts[:, 0] - 0.6
    parts[:, [0, 3]] += 2.0
    state = pool()
    found = run(state, newest, parts)
    mixed = np.einsum("hk,nkh->nh", state.mix[0], parts[300:-1])
    error = [np.abs(mixed[: 290 - h, h] - newest[301 + h : 591]).mean() for h in range(H)]
    assert max(error) < 0.2
    assert (found.weights[-1, :, K + 1] > 0.3).all()


def test_combining_without_learning_changes_nothing() -> None:
    newest, parts = world(50)
    state = pool()
    run(state, newest, parts)
    before = [array.copy() for array in state]
    wide = np.concatenate([parts[-1:], parts[-1:]], axis=2)
    found = run(state, newest[-1:], wide, learning=False)
    for array, old in zip(state, before, strict=True):
        np.testing.assert_array_equal(array, old)
    # Steps beyond those learnt are weighted like the last of them.
    np.testing.assert_array_equal(found.weights[0, H:], np.tile(found.weights[0, H - 1], (H, 1)))


@pytest.mark.parametrize("width", [0.3, 3.0])
def test_intervals_cover_as_often_as_they_say_whatever_the_spread_they_are_given(width: float) -> None:
    rng = np.random.default_rng(1)
    points = 1500
    newest = rng.normal(3, width, points).clip(0)
    found = run(pool(), newest, np.full((points, K, H), 3.0))
    for h in range(H):
        actual, bounds = newest[500 + 1 + h :], found.bounds[500 : points - 1 - h, h]
        low, high = QUANTILES.index(0.1), QUANTILES.index(0.9)
        covered = ((actual >= bounds[:, low]) & (actual <= bounds[:, high])).mean()
        assert 0.77 <= covered <= 0.83


def test_intervals_of_a_constant_are_that_constant() -> None:
    found = run(pool(), np.full(200, 2.0), np.full((200, K, H), 2.0))
    np.testing.assert_allclose(found.bounds[-1], 2.0)


def test_quantiles_at_any_levels_ascend_and_agree_at_those_learnt() -> None:
    learnt = np.log1p(np.array([0.0, 1.0, 2.0, 4.0, 7.0, 12.0, 20.0]))
    levels = np.array([0.001, 0.1, 0.3, 0.5, 0.8, 0.9, 0.999])
    found = at_levels(learnt, levels)
    assert (np.diff(found) >= 0).all()
    np.testing.assert_allclose(found[[1, 3, 5]], [1.0, 4.0, 12.0])


def test_spread_and_mean_are_those_of_the_learnt_quantiles() -> None:
    narrow = np.array([1.7, 1.8, 1.99, 2.0, 2.1, 2.2, 2.3])
    expected = np.abs(narrow - 2.0).clip(LEAST_SPREAD) * (np.array(QUANTILES) != 0.5)
    np.testing.assert_allclose(spread_of(narrow), expected)
    assert mean_of(np.zeros(7)) == pytest.approx(0.0)
    # A skewed distribution has its mean above its median.
    assert mean_of(narrow) > np.expm1(2.0)
