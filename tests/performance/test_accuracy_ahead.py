"""How steeply accuracy rises ahead, against a search over all stretches of epochs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.io.arrays import FloatArray
from rlpto.performance.accuracy import STEEPEST, accuracy_ahead

NO_WORK = np.zeros((0, 0))


def ahead_of(curve: FloatArray, work: FloatArray | None = None) -> list[float]:
    """Of one type with this curve [P + 1]; work [P] of each epoch."""
    left = NO_WORK if work is None else np.append(np.cumsum(work[::-1])[::-1], 0.0)[None]
    found: list[float] = accuracy_ahead(curve[None], np.array([len(curve) - 1]), left)[0].tolist()
    return found


def test_an_even_curve_is_as_steep_as_what_is_left_of_it() -> None:
    assert ahead_of(np.linspace(0.1, 0.9, 5)) == pytest.approx([1.0, 0.75, 0.5, 0.25])


def test_a_plateau_is_looked_past() -> None:
    """Nothing for two epochs, then all: worth as much as if it came evenly over three; then nothing is left to gain."""
    assert ahead_of(np.array([0.1, 0.1, 0.1, 0.9, 0.9])) == pytest.approx([4 / 3, 3 / 2, 2.0, 0.0])


def test_work_counts_where_it_is_known() -> None:
    """The second epoch takes three times as long as the first."""
    assert ahead_of(np.array([0.0, 0.5, 1.0]), np.array([1.0, 3.0])) == pytest.approx([2.0, 0.5])


def test_what_costs_no_work_is_steepest_and_what_gains_nothing_flat() -> None:
    assert ahead_of(np.array([0.0, 0.5, 1.0]), np.array([0.0, 1.0])) == [STEEPEST, pytest.approx(0.5)]
    assert ahead_of(np.full(4, 0.7)) == [0.0, 0.0, 0.0]


def test_types_end_where_they_were_measured() -> None:
    curves = np.array([[0.0, 0.5, 1.0, 1.0], [0.0, 0.2, 0.4, 0.6]])
    assert accuracy_ahead(curves, np.array([2, 3]), NO_WORK).tolist() == [
        pytest.approx([1.0, 0.5, 0.0]),
        pytest.approx([1.0, 2 / 3, 1 / 3]),
    ]


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=11),
    st.lists(st.floats(0.1, 10.0), min_size=11, max_size=11),
)
def test_it_is_the_best_of_all_stretches(values: list[int], costs: list[float]) -> None:
    curve = np.array([0, *sorted(values)]) / 1000.0
    work = np.array(costs)[: len(curve) - 1]
    found, left = ahead_of(curve, work), np.append(np.cumsum(work[::-1])[::-1], 0.0)
    for epoch, value in enumerate(found):
        gained = (curve[epoch + 1 :] - curve[epoch]) / max(curve[-1], 1e-9)
        best = float((gained / ((left[epoch] - left[epoch + 1 :]) / left[epoch])).max()) if curve[-1] > 0 else 0.0
        assert value == pytest.approx(min(best, STEEPEST), rel=1e-6, abs=1e-9)
