"""The compiled kernels against plain searches."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.policies.filling import fill_evenly
from rlpto.policies.greedy import grow, hull_steps

values = st.lists(st.floats(-5, 10, allow_nan=False), min_size=2, max_size=9)


@settings(max_examples=100)
@given(values)
def test_hull_is_concave_and_lies_above_all_values(numbers: list[float]) -> None:
    value = np.array([numbers])
    top = len(numbers) - 1
    steps = hull_steps(value, np.array([1]), np.array([top]))
    vertices = [0]
    while steps.target[0, vertices[-1]] > vertices[-1]:
        vertices.append(int(steps.target[0, vertices[-1]]))
    assert vertices[-1] == top
    slopes = [steps.gain[0, k] for k in vertices[:-1]]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(slopes))
    hull = np.interp(np.arange(top + 1), vertices, value[0, vertices])
    assert np.all(hull >= value[0] - 1e-9)


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(1, 20), min_size=4, max_size=4), min_size=1, max_size=4), st.integers(0, 12))
def test_growing_concave_values_is_optimal(gains: list[list[int]], capacity: int) -> None:
    concave = np.array([sorted(row, reverse=True) for row in gains], dtype=np.float64)
    value = np.concatenate([np.zeros((len(gains), 1)), concave.cumsum(axis=1)], axis=1)
    ones, fours = np.ones(len(gains), dtype=np.int64), np.full(len(gains), 4)
    steps = hull_steps(value, ones, fours)
    gpus = grow(np.zeros_like(ones), steps.target, steps.gain, ones, capacity, 0.0)
    best = max(
        sum(value[row, k] for row, k in enumerate(choice))
        for choice in itertools.product(range(5), repeat=len(gains))
        if sum(choice) <= capacity
    )
    assert value[np.arange(len(gains)), gpus].sum() == pytest.approx(best)


def test_straight_lines_are_single_steps_and_a_start_that_does_not_fit_whole_is_made_with_the_lowest_number() -> None:
    straight = hull_steps(0.1 * np.arange(65)[None, :], np.array([1]), np.array([64]))
    assert np.array_equal(straight.target[0, :-1], np.arange(1, 65))
    value = np.array([[0.0, 1.0, 2.5, 4.5]])
    steps = hull_steps(value, np.array([1]), np.array([3]))
    assert steps.target[0, 0] == 3
    assert list(grow(np.array([0]), steps.target, steps.gain, np.array([1]), 2, 0.0)) == [1]


@settings(max_examples=100)
@given(st.data())
def test_even_filling_is_max_min_fair(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    lowest = np.array(data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count)))
    highest = lowest + np.array(data.draw(st.lists(st.integers(0, 6), min_size=count, max_size=count)))
    capacity = int(lowest.sum()) + data.draw(st.integers(0, 20))
    gpus = fill_evenly(lowest, highest, np.zeros(count, dtype=np.int64), capacity)
    assert gpus.sum() == min(capacity, highest.sum())
    for poor, rich in itertools.permutations(range(count), 2):
        movable = gpus[poor] < highest[poor] and gpus[rich] > lowest[rich]
        assert not (movable and gpus[rich] > gpus[poor] + 1), "a GPU could go from a richer job to a poorer one"
