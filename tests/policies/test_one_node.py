"""FIFO and Elastic FIFO where every job is on one node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterShape, ClusterState, Node, Placement, nowhere
from rlpto.io.arrays import IntArray
from rlpto.policies.one_node import where_kept
from rlpto.policies.registry import make_policy

from .builders import J, make_state, power, states

FIFO, ELASTIC = "fifo:one_node=true", "elastic_fifo:one_node=true"
CURVE = power(0.9, 4, 0.1)
"""Speed of jobs that run for 1,000 s alone, and gain much by further GPUs."""


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


def placed(spec: str, jobs: list[J], held: list[list[int]], sizes: tuple[int, ...] = (4, 4)) -> list[list[int]]:
    placement = make_policy(spec)(state_on(jobs, held, sizes)).placement
    assert placement is not None
    return [list(map(int, row)) for row in placement]


class TestRunningJobs:
    def test_they_stay_on_their_nodes_with_what_an_elastic_policy_gave_them(self) -> None:
        state = state_on([J(highest=3), J(highest=3), J()], [[0, 3], [1, 1]])
        assert where_kept(state, np.array([4, 4])).tolist() == [[0, 3], [1, 1], [0, 0]]

    def test_what_they_may_not_keep_goes_from_the_node_with_least_of_it(self) -> None:
        assert where_kept(state_on([J(highest=2)], [[1, 3]]), np.array([4, 4])).tolist() == [[0, 2]]


class TestFifo:
    def test_each_job_goes_to_the_first_node_with_room(self) -> None:
        jobs = [J(requested=3), J(requested=2), J(requested=1), J(requested=2)]
        assert placed(FIFO, jobs, []) == [[3, 0], [0, 2], [1, 0], [0, 2]]

    def test_free_gpus_on_several_nodes_are_no_room(self) -> None:
        jobs = [J(requested=3), J(requested=3), J(requested=2), J(requested=1)]
        assert placed(FIFO, jobs, [[3, 0], [0, 3]]) == [[3, 0], [0, 3], [0, 0], [0, 0]]
        assert placed(FIFO + ",backfill=true", jobs, [[3, 0], [0, 3]])[3] == [1, 0]

    def test_a_job_that_no_node_could_hold_is_on_several(self) -> None:
        assert placed(FIFO, [J(requested=6)], []) == [[4, 2]]


class TestElasticFifo:
    def test_a_job_alone_grows_to_its_node(self) -> None:
        assert placed(ELASTIC, [J(requested=2, speed=CURVE)], []) == [[4, 0]]

    def test_surplus_is_taken_back_where_that_is_enough_and_only_as_much_as_is_needed(self) -> None:
        jobs = [J(requested=1, speed=CURVE), J(requested=3, speed=CURVE, highest=3), J(requested=2, speed=CURVE)]
        assert placed(ELASTIC, jobs, [[4, 0], [0, 3]]) == [[2, 0], [0, 3], [2, 0]]

    def test_whoever_came_last_gives_first(self) -> None:
        jobs = [J(requested=1, speed=CURVE), J(requested=1, speed=CURVE), J(requested=1, speed=CURVE)]
        assert placed(ELASTIC, jobs, [[2], [2]], (4,)) == [[2], [1], [1]]

    def test_a_job_starts_on_the_largest_free_block_and_grows_once_there_is_room(self) -> None:
        jobs = [J(requested=3), J(requested=2), J(requested=4, speed=CURVE)]
        assert placed(ELASTIC, jobs, [[3, 0], [0, 2]]) == [[3, 0], [0, 2], [0, 2]]
        assert placed(ELASTIC, jobs[2:], [[0, 2]]) == [[0, 4]]

    def test_it_waits_where_even_its_lowest_has_no_room_and_stops_those_behind_it(self) -> None:
        jobs = [J(requested=3), J(requested=3), J(requested=2, lowest=2), J()]
        assert placed(ELASTIC, jobs, [[3, 0], [0, 3]])[2:] == [[0, 0], [0, 0]]
        assert placed(ELASTIC + ",backfill=true", jobs, [[3, 0], [0, 3]])[2:] == [[0, 0], [1, 0]]

    def test_a_change_that_costs_more_than_it_saves_is_not_made(self) -> None:
        slow, done = J(requested=2, speed=CURVE, delay=4000.0), J(requested=2, speed=CURVE, work=5.0)
        assert placed(ELASTIC, [slow], [[2, 0]]) == [[2, 0]]
        assert placed(ELASTIC, [done], [[2, 0]]) == [[2, 0]]

    def test_a_job_that_no_node_could_hold_is_on_several_and_who_was_put_there_stays(self) -> None:
        jobs = [J(requested=2, speed=CURVE), J(requested=6, speed=CURVE, highest=6)]
        assert placed(ELASTIC, jobs[1:], []) == [[4, 2]]
        assert placed(ELASTIC, jobs[:1], [[1, 1]]) == [[1, 1]]


@settings(max_examples=60)
@given(case=states(), spec=st.sampled_from([FIFO, ELASTIC, ELASTIC + ",backfill=true", "round_robin"]))
def test_nodes_are_never_overfull_nobody_is_moved_and_nobody_falls_below_the_request(
    case: tuple[list[J], int], spec: str
) -> None:
    jobs, _ = case
    sizes = (4, 2, 8, 6)
    start = state_on([replace(job, held=0) for job in jobs], [], sizes)
    first = make_policy(spec)(start).placement
    assert first is not None
    state = state_on(jobs, first.tolist(), sizes)
    sizes_of = np.array(sizes, dtype=np.int64)
    np.testing.assert_array_equal(where_kept(state, sizes_of), first)
    second = make_policy(spec)(state).placement
    assert second is not None
    check(second, jobs, sizes_of)
    running = first.sum(axis=1) > 0
    one = running & (np.count_nonzero(first, axis=1) == 1)
    assert (np.count_nonzero((first > 0) & (second > 0), axis=1)[one] == 1).all()
    count_on = np.minimum(first.sum(axis=1), [job.requested for job in jobs])
    assert (second.sum(axis=1) >= count_on).all()


def check(placement: IntArray, jobs: list[J], sizes: IntArray) -> None:
    """Nodes have room for all, and jobs are within their limits and on one node if any could hold their request."""
    assert (placement.sum(axis=0) <= sizes).all()
    for row, job in zip(placement, jobs, strict=True):
        assert row.sum() == 0 or job.lowest <= row.sum() <= job.top
        assert np.count_nonzero(row) <= 1 or job.requested > sizes.max()
