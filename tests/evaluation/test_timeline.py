"""Step functions of time."""

from __future__ import annotations

import numpy as np
import pytest

from rlpto.core.records import AllocationChanges
from rlpto.evaluation.runner import Cell
from rlpto.evaluation.timeline import gpus_by_accuracy, held_gpus, step_integral, step_value, utilisation

from .helpers import TINY_GPUS, tiny_record, toy_record


def test_integral_of_a_step_function() -> None:
    time, value = np.array([0.0, 10.0, 20.0]), np.array([1.0, 3.0, 0.5])
    # Before the first time the first value holds, after the last time the last one.
    assert step_integral(time, value, np.array([-4.0, 0.0, 5.0, 10.0, 15.0, 30.0])) == pytest.approx(
        [-4.0, 0.0, 5.0, 10.0, 25.0, 45.0]
    )


def test_value_of_a_step_function_holds_until_the_next_step() -> None:
    time, value = np.array([0.0, 10.0]), np.array([1.0, 3.0])
    assert step_value(time, value, np.array([-1.0, 0.0, 9.9, 10.0, 99.0])).tolist() == [0, 1, 1, 3, 3]


def test_held_gpus_agree_with_the_decisions() -> None:
    record = toy_record(Cell("share", "w", 3))
    now = step_value(*held_gpus(record), record.decisions.time)
    assert now.tolist() == record.decisions.held.tolist()


def test_utilisation_by_stretch_of_time() -> None:
    assert utilisation(tiny_record(), np.array([0.0, 100.0, 200.0, 350.0])) == pytest.approx([1.0, 0.5, 1.0])


def test_gpus_by_stage_of_accuracy() -> None:
    # One job on 4 GPUs until half its gain, then, after a pause, on 1; the two others keep theirs.
    changes = AllocationChanges(
        time=np.array([0.0, 0.0, 100.0, 200.0, 200.0, 250.0, 260.0, 350.0]),
        job=np.array([0, 1, 0, 1, 2, 2, 2, 2]),
        gpus=np.array([2, 2, 0, 0, TINY_GPUS, 0, 1, 0]),
        accuracy=np.array([0.1, 0.1, 0.9, 0.8, 0.1, 0.4, 0.4, 0.7]),
    )
    sums, weights = gpus_by_accuracy(tiny_record(changes=changes), bins=2)
    assert weights == pytest.approx([3.0, 3.0])
    assert sums == pytest.approx([2 + 2 + 4, 2 + 2 + 1])


def test_unfinished_jobs_have_no_stages() -> None:
    _, weights = gpus_by_accuracy(tiny_record(finish=(100.0, np.nan, np.nan)), bins=4)
    assert weights == pytest.approx([1.0] * 4)
