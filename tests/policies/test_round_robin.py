"""Round robin over nodes: whose turn it is, what is passed over, and that nobody is moved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import IntArray
from rlpto.policies.one_node import place_waiting
from rlpto.policies.registry import make_policy

from ..builders import job, linear_tables, make_cluster, on_nodes
from .builders import J, make_state


def turns(requests: list[int], free: list[int], turn: int = 0, backfill: bool = False) -> tuple[list[list[int]], int]:
    """Where waiting jobs go on nodes of four GPUs, and on whose turn it is then."""
    placement = np.zeros((len(requests), len(free)), dtype=np.int64)
    waiting = np.ones(len(requests), dtype=np.bool_)
    after = place_waiting(np.array(requests), waiting, np.array(free), 4, turn, True, backfill, placement)
    return placement.tolist(), after


class TestRotation:
    def test_jobs_go_round(self) -> None:
        placed, after = turns([1, 2, 1, 1], [4, 4, 4])
        assert placed == [[1, 0, 0], [0, 2, 0], [0, 0, 1], [1, 0, 0]]
        assert after == 1

    def test_a_node_without_room_is_passed_over(self) -> None:
        assert turns([3], [2, 4, 4]) == ([[0, 3, 0]], 2)
        assert turns([4], [0, 0, 4], turn=2) == ([[0, 0, 4]], 0)

    def test_a_job_waits_for_room_on_one_node_and_stops_those_behind_it(self) -> None:
        assert turns([4, 1], [3, 3, 3]) == ([[0, 0, 0], [0, 0, 0]], 0)
        assert turns([4, 1], [3, 3, 3], backfill=True) == ([[0, 0, 0], [1, 0, 0]], 1)

    def test_a_job_larger_than_any_node_empties_nodes_in_turn(self) -> None:
        assert turns([6], [4, 3, 1], turn=1) == ([[2, 3, 1]], 1)
        assert turns([9], [4, 3, 1]) == ([[0, 0, 0]], 0)
        assert turns([9, 1], [4, 3, 1], backfill=True) == ([[0, 0, 0], [1, 0, 0]], 1)

    @settings(max_examples=60)
    @given(st.lists(st.integers(1, 9), max_size=12), st.lists(st.integers(0, 4), min_size=1, max_size=5), st.booleans())
    def test_no_node_is_overfull_and_nobody_spans_nodes_who_fits_one(
        self, requests: list[int], free: list[int], backfill: bool
    ) -> None:
        placed, after = turns(requests, free, backfill=backfill)
        rows = np.array(placed, dtype=np.int64).reshape(len(requests), len(free))
        assert (rows.sum(axis=0) <= free).all()
        assert all(row.sum() in (0, wish) for row, wish in zip(rows, requests, strict=True))
        assert all(np.count_nonzero(row) <= 1 for row, wish in zip(rows, requests, strict=True) if wish <= 4)
        assert 0 <= after < len(free)


class TestPolicy:
    def test_nobody_is_on_a_node_that_is_down(self) -> None:
        policy = make_policy("round_robin")
        state = make_state([J(requested=2), J(requested=2), J(requested=2)], 24)
        shape = ClusterShape([Node(8), Node(8, up=False), Node(8)])
        allocation = policy(replace(state, shape=shape))
        assert allocation.placement is not None
        assert allocation.placement.tolist() == [[2, 0, 0], [0, 0, 2], [2, 0, 0]]

    def test_the_turn_goes_on_from_decision_to_decision_and_a_reset_begins_anew(self) -> None:
        policy = make_policy("round_robin")
        state = make_state([J()], 24)
        starts: list[int] = []
        for again in (False, False, True):
            if again:
                policy.reset(0)
            placement = policy(state).placement
            assert placement is not None
            starts.append(int(placement[0].argmax()))
        assert starts == [0, 1, 0]


class TestOnACluster:
    def test_equal_jobs_are_spread_evenly_where_fifo_packs_them(self) -> None:
        jobs = [job(i, float(i), epochs=3.0) for i in range(6)]
        spread, packed = (make_cluster(jobs, linear_tables(), (4, 4, 4)) for _ in range(2))
        play_until(spread, "round_robin", 7.0)
        play_until(packed, "fifo", 7.0)
        assert nodes_of(spread).tolist() == [0, 1, 2, 0, 1, 2]
        assert nodes_of(packed).tolist() == [0, 0, 0, 0, 1, 1]

    def test_no_job_is_moved_while_it_runs(self) -> None:
        jobs = [job(i, 20.0 * i, epochs=0.5 + i % 3, gpus=1 + i % 3) for i in range(12)]
        record = run(
            make_cluster(jobs, linear_tables(), (4, 4)), make_policy("round_robin"), QueueSettings(), RewardWeights()
        )
        assert np.isfinite(record.jobs.finish_time).all()
        assert (record.jobs.rescales == 0).all()
        assert (np.diff(record.jobs.start_time) >= 0).all()


def play_until(cluster: object, spec: str, time: float) -> None:
    """Decide at every event until then."""
    policy = make_policy(spec)
    while cluster.time < time:  # type: ignore[attr-defined]
        state = cluster.state()  # type: ignore[attr-defined]
        cluster.apply(state, policy(state))  # type: ignore[attr-defined]
        cluster.advance()  # type: ignore[attr-defined]


def nodes_of(cluster: object) -> IntArray:
    """Node of the first GPU of each job."""
    return np.array([nodes[0] for nodes in on_nodes(cluster, range(len(cluster.jobs)))])  # type: ignore[arg-type,attr-defined]
