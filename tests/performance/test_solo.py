from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.solo import seconds_to_finish
from rlpto.performance.tables import JobType, SpeedTables

TABLES = compile_tables(load_profiles(None), [JobType("bert"), JobType("cifar10")], 16, 4)


def in_steps(tables: SpeedTables, type_index: int, epochs: float, gpus: int) -> float:
    """Seconds, one epoch after the other."""
    row = tables.row[type_index, 0 if gpus <= 4 else 1, gpus]
    seconds, epoch = 0.0, 0
    while epochs > 0:
        part = min(epochs, 1.0)
        seconds += part / tables.rates[row, min(epoch, tables.rates.shape[1] - 1)]
        epochs -= part
        epoch += 1
    return seconds


@given(
    type_index=st.integers(0, 1),
    epochs=st.floats(0.01, 130.0),
    gpus=st.integers(1, 16),
    scale=st.floats(0.1, 10.0),
)
def test_time_is_the_sum_over_epochs(type_index: int, epochs: float, gpus: int, scale: float) -> None:
    seconds = seconds_to_finish(TABLES, type_index, scale, epochs, gpus, 4)
    assert seconds == pytest.approx(in_steps(TABLES, type_index, epochs, gpus) / scale)


@given(progress=st.floats(0.0, 50.0), more=st.floats(0.0, 50.0))
def test_time_from_a_point_is_the_rest(progress: float, more: float) -> None:
    whole = seconds_to_finish(TABLES, 1, 1.0, progress + more, 3, 4)
    done = seconds_to_finish(TABLES, 1, 1.0, progress, 3, 4)
    rest = seconds_to_finish(TABLES, 1, 1.0, progress + more, 3, 4, progress=progress)
    assert done + rest == pytest.approx(whole)


def test_a_packed_placement_measured_by_itself_is_used(measured_folder: Path) -> None:
    tables = compile_tables(load_profiles(measured_folder), [JobType("toy", 16), JobType("toy", 64)], 8, 3)
    # On nodes of 3, 4 GPUs are packed as 3 and 1, which is half as slow again as the mean of its size would say.
    for i in range(2):
        by_size = tables.elapsed[tables.row[i, 1, 4], 4]
        assert seconds_to_finish(tables, i, 1.0, 4.0, 4, 3) == pytest.approx(by_size * 1.5 / 1.25)


def test_without_gpus_work_takes_for_ever_and_no_work_no_time() -> None:
    seconds = seconds_to_finish(TABLES, np.array([0, 0]), np.ones(2), np.array([2.0, 1.0]), 0, 4, progress=1.0)
    assert seconds.tolist() == [np.inf, 0.0]
