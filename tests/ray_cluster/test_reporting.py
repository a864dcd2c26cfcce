"""How much work a controller hands out at once."""

from __future__ import annotations

import pytest

from rlpto.ray_cluster.job.reporting import LONG_STEP_S, MAX_CHUNKS_IN_FLIGHT, TrainingStatistics


@pytest.mark.parametrize(
    ("step_seconds", "asynchronous", "chunks"),
    [
        (LONG_STEP_S / 2, False, MAX_CHUNKS_IN_FLIGHT),
        (LONG_STEP_S, False, 1),
        (LONG_STEP_S, True, MAX_CHUNKS_IN_FLIGHT),
    ],
    ids=["short", "long", "asynchronous"],
)
def test_long_steps_are_handed_out_one_at_a_time_unless_workers_are_not_to_wait(
    step_seconds: float, asynchronous: bool, chunks: int
) -> None:
    statistics = TrainingStatistics()
    statistics.step_seconds = step_seconds
    assert statistics.chunks_ahead(asynchronous) == chunks
