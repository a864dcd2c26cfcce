"""Policies that place jobs on one node each: FIFO, Elastic FIFO, and round robin over nodes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterShape, ClusterState, Node, Placement, nowhere
from rlpto.io.arrays import IntArray
from rlpto.policies.filling import where_kept
from rlpto.policies.registry import make_policy

from .builders import J, make_state, power, states

FIFO, ELASTIC, ROUND_ROBIN = "fifo:one_node=true", "elastic_fifo:one_node=true", "round_robin"
CURVE = power(0.9, 4, 0.1)
"""Speed of jobs that run for 1,000 s alone, and gain much by further GPUs."""
GROWS = J(requested=2, speed=CURVE)
SMALL = J(requested=1, speed=CURVE)


def state_on(jobs: list[J], held: list[list[int]], sizes: tuple[int, ...] = (4, 4)) -> ClusterState:
    """A state in which jobs hold GPUs on nodes as `held` [n, N] says; rows that are not there hold none."""
    rows = np.zeros((len(jobs), len(sizes)), dtype=np.int64)
    for row, gpus in zip(rows, held, strict=False):
        row[:] = gpus
    jobs = [replace(job, held=int(row.sum())) for job, row in zip(jobs, rows, strict=True)]
    state = replace(make_state(jobs, sum(sizes)), shape=ClusterShape(map(Node, sizes)))

    def placement(index: IntArray) -> Placement:
        return replace(nowhere(index), nodes=tuple(np.repeat(np.arange(len(sizes)), rows[job]) for job in index))

    return replace(state, placement=placement)


@pytest.mark.parametrize(
    ("spec", "jobs", "held", "placed"),
    [
        # Each job goes to the first node with room; free GPUs on several nodes are no room.
        (FIFO, [J(requested=3), J(requested=2), J(), J(requested=2)], [], [[3, 0], [0, 2], [1, 0], [0, 2]]),
        (FIFO, [J(requested=3), J(requested=3), J(requested=2), J()], [[3, 0], [0, 3]],
         [[3, 0], [0, 3], [0, 0], [0, 0]]),
        (FIFO + ",backfill=true", [J(requested=3), J(requested=3), J(requested=2), J()], [[3, 0], [0, 3]],
         [[3, 0], [0, 3], [0, 0], [1, 0]]),
        (FIFO, [J(requested=6)], [], [[4, 2]]),  # no node could hold it
        # In rotation each goes to the next node with room; one larger than any empties nodes in turn.
        (ROUND_ROBIN, [J(), J(requested=2), J(), J()], [], [[1, 0], [0, 2], [1, 0], [0, 1]]),
        (ROUND_ROBIN, [J(requested=2), J(requested=3)], [[2, 0]], [[2, 0], [0, 3]]),
        (ROUND_ROBIN, [J(requested=3), J(requested=3), J(requested=2), J()], [[3, 0], [0, 3]],
         [[3, 0], [0, 3], [0, 0], [0, 0]]),
        (ROUND_ROBIN + ":backfill=true", [J(requested=3), J(requested=3), J(requested=2), J()], [[3, 0], [0, 3]],
         [[3, 0], [0, 3], [0, 0], [1, 0]]),
        (ROUND_ROBIN, [J(), J(requested=6)], [], [[1, 0], [2, 4]]),
        # A job alone grows to its node; only as much surplus as needed is taken back, from the last job first.
        (ELASTIC, [GROWS], [], [[4, 0]]),
        (ELASTIC, [SMALL, J(requested=3, speed=CURVE, highest=3), GROWS], [[4, 0], [0, 3]], [[2, 0], [0, 3], [2, 0]]),
        (ELASTIC, [SMALL, SMALL, SMALL, J(requested=4)], [[2, 0], [2, 0], [0, 0], [0, 4]],
         [[2, 0], [1, 0], [1, 0], [0, 4]]),
        # It starts on the largest free block, and grows once there is room.
        (ELASTIC, [J(requested=3), J(requested=2), J(requested=4, speed=CURVE)], [[3, 0], [0, 2]],
         [[3, 0], [0, 2], [0, 2]]),
        (ELASTIC, [J(requested=4, speed=CURVE)], [[0, 2]], [[0, 4]]),
        # Where even its lowest has no room it waits, and stops those behind it.
        (ELASTIC, [J(requested=3), J(requested=3), J(requested=2, lowest=2), J()], [[3, 0], [0, 3]],
         [[3, 0], [0, 3], [0, 0], [0, 0]]),
        (ELASTIC + ",backfill=true", [J(requested=3), J(requested=3), J(requested=2, lowest=2), J()], [[3, 0], [0, 3]],
         [[3, 0], [0, 3], [0, 0], [1, 0]]),
        # No change that costs more than it saves; a job on several nodes stays there.
        (ELASTIC, [replace(GROWS, delay=4000.0)], [[2, 0]], [[2, 0]]),
        (ELASTIC, [replace(GROWS, work=5.0)], [[2, 0]], [[2, 0]]),
        (ELASTIC, [J(requested=6, speed=CURVE, highest=6)], [], [[4, 2]]),
        (ELASTIC, [GROWS], [[1, 1]], [[1, 1]]),
    ],
)  # fmt: skip
def test_a_placement_by_hand(spec: str, jobs: list[J], held: list[list[int]], placed: list[list[int]]) -> None:
    placement = make_policy(spec)(state_on(jobs, held)).placement
    assert placement.tolist() == placed


@given(case=states(), spec=st.sampled_from([FIFO, ELASTIC, ELASTIC + ",backfill=true", ROUND_ROBIN]))
def test_nodes_are_never_overfull_no_job_is_moved_or_falls_below_its_request(
    case: tuple[list[J], int], spec: str
) -> None:
    jobs, _ = case
    sizes = (4, 2, 8, 6)
    start = state_on([replace(job, held=0) for job in jobs], [], sizes)
    first = make_policy(spec)(start).placement
    state = state_on(jobs, first.tolist(), sizes)
    np.testing.assert_array_equal(where_kept(state), first)
    second = make_policy(spec)(state).placement
    assert (second.sum(axis=0) <= sizes).all()
    for row, one in zip(second, jobs, strict=True):
        assert row.sum() == 0 or one.lowest <= row.sum() <= one.top
        assert np.count_nonzero(row) <= 1 or one.requested > max(sizes)
    on_one = np.count_nonzero(first, axis=1) == 1
    assert (np.count_nonzero((first > 0) & (second > 0), axis=1)[on_one] == 1).all()
    count_on = np.minimum(first.sum(axis=1), [job.requested for job in jobs])
    assert (second.sum(axis=1) >= count_on).all()


def test_turns_pass_a_node_that_is_down_and_go_on_until_a_reset() -> None:
    policy, starts = make_policy(ROUND_ROBIN), []
    state = make_state([J(requested=2), J(requested=2), J(requested=2)], 24)
    down = replace(state, shape=ClusterShape([Node(8), Node(8, up=False), Node(8)]))
    placement = policy(down).placement
    assert placement.tolist() == [[2, 0, 0], [0, 0, 2], [2, 0, 0]]
    for again in (True, False, True):
        if again:
            policy.reset(0)
        placement = policy(make_state([J()], 24)).placement
        starts.append(int(placement[0].argmax()))
    assert starts == [0, 1, 0]
