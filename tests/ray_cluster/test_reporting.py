"""How much work a controller hands out at once."""

from __future__ import annotations

import pytest

from rlpto.ray_cluster.job.reporting import AHEAD, LONG_STEP, Tally


@pytest.mark.parametrize(
    ("step_seconds", "asynchronous", "chunks"),
    [(LONG_STEP / 2, False, AHEAD), (LONG_STEP, False, 1), (LONG_STEP, True, AHEAD)],
    ids=["short", "long", "asynchronous"],
)
def test_long_steps_are_handed_out_one_at_a_time_unless_workers_are_not_to_wait(
    step_seconds: float, asynchronous: bool, chunks: int
) -> None:
    tally = Tally()
    tally.step_seconds = step_seconds
    assert tally.chunks_ahead(asynchronous) == chunks
