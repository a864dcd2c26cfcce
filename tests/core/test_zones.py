"""Clusters whose nodes name zones, which no job spans, under every policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState, Node
from rlpto.core.jobs import Job
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import Case, Scripted, admit, cases, job, linear_tables, played, random_jobs, random_tables, with_kinds

ZONES, KINDS = ("a", "b", "c"), {"fast": 2.0, "slow": 1.0}


class WatchedCluster(SimulatedCluster):
    """Checks every decision: one zone for each job, no node beyond its GPUs. stay: jobs move for more GPUs alone."""

    stay = False

    def apply(self, state: ClusterState, allocation: Allocation) -> None:
        zones, before = state.shape.node_zones, state.held_nodes
        super().apply(state, allocation)
        after = replace(state).held_nodes
        assert (after.sum(axis=0) <= state.shape.offered).all(), "no node is asked for more than it has"
        for was, now in zip(before, after, strict=True):
            left, on = set(zones[was > 0].tolist()), set(zones[now > 0].tolist())
            assert len(on) <= 1, "a job is in one zone"
            if self.stay and left and on and left != on:
                assert now.sum() > was.sum()


@st.composite
def zoned(draw: st.DrawFn, kinds: Sequence[str]) -> Case:
    """Random workloads on random clusters of up to three zones, whose jobs all fit in one of them, on one kind."""
    case = draw(cases())
    nodes = tuple(
        replace(node, zone=draw(st.sampled_from(ZONES)), gpu=draw(st.sampled_from(kinds))) for node in case.nodes
    )
    alike = Counter[tuple[str, str]]()
    for node in nodes:
        alike[node.zone, node.gpu] += node.gpus
    jobs = random_jobs(case.seed, len(case.jobs), 10, ClusterShape(nodes).most_gpus)
    jobs = [replace(one, min_gpus=min(one.min_gpus, max(alike.values()))) for one in jobs]
    return replace(case, nodes=nodes, jobs=tuple(jobs), tables=random_tables(case.seed, 10, 10.0))


def check(case: Case, counts: bool) -> None:
    """counts: nodes that a policy chooses are not taken."""
    tables, policy = case.tables, make_policy(case.policy)
    if len(sizes := ClusterShape(case.nodes).kind_sizes) > 1:
        tables = with_kinds(tables, {kind: (KINDS[kind], size) for kind, size in sizes.items()})
    policy.reset(case.seed)
    cluster = WatchedCluster(case.nodes, case.jobs, tables, case.settings, case.seed)
    cluster.stay = counts
    decide = (lambda state: replace(policy(state), placement=None)) if counts else policy
    record = played(cluster, Scripted(decide), case.queue, case.seed)
    assert np.isfinite(record.jobs.finish_time).all()


@settings(max_examples=25, deadline=None)
@given(zoned(("fast",)))
def test_no_job_spans_zones_or_moves_without_need_no_node_is_overfilled_and_every_job_finishes(case: Case) -> None:
    check(case, counts=True)


@settings(max_examples=25, deadline=None)
@given(zoned(tuple(KINDS)))
def test_likewise_on_several_kinds_and_where_policies_choose_nodes(case: Case) -> None:
    check(case, counts=False)


@settings(max_examples=10, deadline=None)
@given(cases())
def test_one_zone_with_a_name_changes_nothing(case: Case) -> None:
    finished = []
    for nodes in (case.nodes, tuple(replace(node, zone="a") for node in case.nodes)):
        cluster = SimulatedCluster(nodes, case.jobs, case.tables, case.settings, case.seed)
        finished.append(played(cluster, case.policy, case.queue, case.seed).jobs.finish_time)
    np.testing.assert_array_equal(*finished)


def cluster_of(jobs: Sequence[Job], **zones: Sequence[int]) -> SimulatedCluster:
    """zones: sizes of the nodes of each."""
    nodes = tuple(Node(size, zone=zone) for zone, sizes in zones.items() for size in sizes)
    return SimulatedCluster(nodes, jobs, linear_tables(), SimulatorSettings(interval=60.0))


def decide(cluster: SimulatedCluster, gpus: Sequence[int], **chosen: object) -> list[list[int]]:
    """Decide so; the node of each GPU of every job."""
    admit(cluster, gpus, **chosen)
    return [cluster.nodes_of(number).tolist() for number in range(len(gpus))]


def elastic(number: int, least: int = 1) -> Job:
    return job(number, epochs=50.0, gpus=least, max_gpus=8)


class TestTheRule:
    def test_a_job_starts_where_it_leaves_least_free_else_where_it_gets_most(self) -> None:
        assert decide(cluster_of([elastic(0), elastic(1)], a=[4], b=[2, 1]), [3, 4]) == [[1, 1, 2], [0] * 4]
        assert decide(cluster_of([elastic(0)], a=[4], b=[2, 1]), [7]) == [[0] * 4]

    def test_a_job_stays_where_its_wish_fits_and_moves_where_it_gets_more(self) -> None:
        cluster = cluster_of([elastic(0)], a=[1, 1, 1], b=[4])
        assert decide(cluster, [2]) == [[0, 1]]
        assert decide(cluster, [3]) == [[0, 1, 2]], "whole in the other zone, too, on one node even"
        assert decide(cluster, [4]) == [[3] * 4]
        assert decide(cluster, [2]) == [[3] * 2]
        assert decide(cluster, [7]) == [[3] * 4], "what fits there"

    def test_a_job_that_finds_less_than_its_least_waits(self) -> None:
        cluster = cluster_of([elastic(0, 3), elastic(1, 2)], a=[3], b=[3])
        assert decide(cluster, [3, 3]) == [[0] * 3, [1] * 3]
        cluster = cluster_of([elastic(0), elastic(1), elastic(2, 4)], a=[3], b=[3])
        assert decide(cluster, [1, 1, 4])[2] == []

    @pytest.mark.parametrize(("row", "expected"), [([0, 2, 1], [1, 1, 2]), ([0, 1, 0], [1]), ([3, 0, 1], [0] * 4)])
    def test_what_the_policy_places_in_one_zone_stands(self, row: list[int], expected: list[int]) -> None:
        assert decide(cluster_of([elastic(0)], a=[4], b=[2, 1]), [sum(row)], placement=[row]) == [expected]
