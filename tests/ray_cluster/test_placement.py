"""Where controllers live, and kinds of GPU: the scheduler with controllers in memory, and Ray's resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState, Node
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.errors import ClusterError, JobError
from rlpto.policies.registry import make_policy
from rlpto.ray_cluster.controllers import control_node, kind_of
from rlpto.ray_cluster.nodes.environment import CONTROL
from rlpto.ray_cluster.scheduler.backend import NodeInfo
from rlpto.ray_cluster.scheduler.clock import SessionRules
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.placement import shape_with
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.store.status import nodes
from tests.builders import Scripted, job, linear_tables, with_kinds
from tests.ray_cluster.fakes import FakeBackend, FakeTime
from tests.ray_cluster.test_cluster import make_cluster

NODES = {"n1": 2, "n2": 4, "n3": 2}
KINDS = {"n1": "slow", "n2": "fast", "n3": "slow"}
TABLES = with_kinds(linear_tables(0.1, 8), {"slow": (1.0, 2), "fast": (2.0, 4)})


@pytest.mark.parametrize("policy", ["equal_share", "fifo", "sia", "gavel"])
def test_no_job_is_on_two_kinds_and_all_finish(policy: str, database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), dict(NODES), kinds=KINDS)
    jobs = [job(number, submit=5.0 * number, epochs=30.0, gpus=1, max_gpus=4) for number in range(4)]
    cluster = make_cluster(backend, jobs, database, tables=TABLES)
    asked = make_policy(policy)
    on: set[str] = set()

    def watched(state: ClusterState) -> Allocation:
        for row, number in enumerate(state.jobs.index.tolist()):
            kinds = {KINDS[node] for node in cluster.nodes_of(cluster.ids[number])}
            assert len(kinds) <= 1
            on.update(kinds)
            if kinds:
                assert TABLES.kinds[TABLES.kind[state.jobs.type_index[row]]] == kinds.pop()
        return asked(state)

    asked.reset(0)
    run(cluster, Scripted(watched), QueueSettings(), RewardWeights())
    assert cluster.columns.finished.all()
    assert "fast" in on


def test_a_scheduler_that_returns_knows_which_kind_each_job_is_on(database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), dict(NODES), kinds=KINDS)
    cluster = make_cluster(backend, [job(0, epochs=1000.0, gpus=2)], database, tables=TABLES)
    state = cluster.state()
    cluster.apply(state, Allocation(np.array([2]), placement=np.array([[0, 2, 0]])))
    cluster.advance()
    again: RayCluster = make_cluster(backend, list(cluster.jobs), database, tables=TABLES)
    assert TABLES.kinds[TABLES.kind[again.store.type_index[0]]] == "fast"


def test_nodes_of_a_kind_without_speeds_are_left_alone(database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), NODES | {"n4": 8}, kinds=KINDS | {"n4": "other"})
    cluster = make_cluster(backend, [job(0)], database, tables=TABLES)
    assert cluster.up_gpus == 8
    alike = make_cluster(FakeBackend(FakeTime(), NODES | {"n4": 8}, kinds=KINDS), [job(0)], database)
    assert alike.up_gpus == 16
    assert alike.shape.kinds == ("gpu",)


def test_what_is_missing_of_a_kind_is_down() -> None:
    before = ClusterShape((Node(4, gpu="a"), Node(2, gpu="b"), Node(4, gpu="a")))
    after = shape_with(before, [Node(4, gpu="a")])
    assert [(node.gpus, node.gpu, node.up) for node in after] == [(4, "a", True), (4, "a", False), (2, "b", False)]
    assert after.most_gpus == 8


def test_a_node_that_will_go_is_down_and_says_when(database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), dict(NODES), kinds=KINDS | {"n4": "slow"})
    cluster = make_cluster(backend, [job(0, epochs=1000.0)], database, tables=TABLES)
    backend.drain("n2", 300.0)
    cluster.advance()
    state = cluster.state()
    assert [(node.gpus, node.gpu, node.up) for node in state.shape] == [
        (2, "slow", True),
        (2, "slow", True),
        (4, "fast", False),
    ]
    assert state.leaves_in.tolist() == [np.inf, np.inf, pytest.approx(300.0, abs=1.0)]
    assert [node.leaves is None for node in nodes(database)] == [True, True, False]
    backend.going.clear()  # it is gone
    backend.gpus["n4"] = 2
    cluster.advance()
    assert np.isinf(cluster.state().leaves_in).all()
    assert (cluster.shape.capacity, cluster.up_gpus) == (10, 6)


def test_no_job_spans_zones_and_one_that_fits_none_is_refused(database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), dict(NODES), zones={"n1": "a", "n2": "b", "n3": "a"})
    rules = SessionRules(10.0, one_zone=True)
    with pytest.raises(JobError, match="job job0 needs 5 GPUs, and no zone has more than 4"):
        make_cluster(backend, [job(0, gpus=5)], database, rules)
    jobs = [job(number, submit=5.0 * number, epochs=30.0, gpus=1, max_gpus=8) for number in range(3)]
    cluster = make_cluster(backend, jobs, database, rules)
    asked, on = make_policy("equal_share"), set[frozenset[str]]()

    def watched(state: ClusterState) -> Allocation:
        on.update(frozenset(cluster.nodes_of(cluster.ids[number])) for number in state.jobs.index.tolist())
        return asked(state)

    run(cluster, Scripted(watched), QueueSettings(), RewardWeights())
    assert on <= {frozenset(there) for there in ([], ["n2"], ["n1", "n3"], ["n1"], ["n3"])}
    assert frozenset(["n1", "n3"]) in on


@pytest.mark.parametrize(
    ("resources", "labels", "kind"),
    [
        ({"CPU": 4}, {}, "gpu"),
        ({"accelerator_type:A100": 1.0}, {}, "a100"),
        ({"accelerator_type:A100": 1.0}, {"ray.io/accelerator-type": "H100"}, "h100"),
        ({"accelerator_type:A100": 1.0, "gpu_kind:Mine": 1.0}, {"ray.io/accelerator-type": "H100"}, "mine"),
    ],
)
def test_what_names_a_kind(resources: Mapping[str, float], labels: Mapping[str, str], kind: str) -> None:
    assert kind_of({"Resources": resources, "Labels": labels}) == kind


@pytest.mark.parametrize(
    ("labels", "zone", "spot"),
    [
        ({}, "", False),
        ({"ray.io/availability-region": "us-east-1", "ray.io/market-type": "on-demand"}, "us-east-1", False),
        (
            {"ray.io/availability-region": "us", "ray.io/availability-zone": "a", "ray.io/market-type": "spot"},
            "a",
            True,
        ),
    ],
)
def test_zone_and_market_of_a_node_stand_in_the_labels_of_ray(labels: Mapping[str, str], zone: str, spot: bool) -> None:
    entry = {"NodeID": "n", "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "h", "Labels": labels}
    found = NodeInfo.of({**entry, "Resources": {"GPU": 8.0, "CPU": 4.0, "accelerator_type:T4": 1.0}})
    assert found == NodeInfo("n", 8, "10.0.0.1", 4, "t4", "h", zone, spot)


HEAD: Mapping[str, float] = {"node:__internal_head__": 1.0}


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ([{"GPU": 2.0}, {}, HEAD, {CONTROL: 1.0}], 3),
        ([{"GPU": 2.0}, {}, HEAD], 2),
        ([{"GPU": 2.0}, {}, {**HEAD, "GPU": 1.0}], 2),
        ([{"GPU": 2.0}, {}], 1),
        ([{"GPU": 2.0}, {"GPU": 1.0}], 0),
    ],
    ids=["kept for them", "head", "head with GPUs", "without GPUs", "any"],
)
def test_controllers_live_where_workers_need_the_room_least(
    resources: Sequence[Mapping[str, float]], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = [{"NodeID": str(number), "Resources": own} for number, own in enumerate(resources)]
    monkeypatch.setattr("rlpto.ray_cluster.controllers.alive_nodes", lambda: alive)
    assert control_node() == str(expected)


def test_a_cluster_without_nodes_has_no_place_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlpto.ray_cluster.controllers.alive_nodes", list)
    with pytest.raises(ClusterError, match="no node that is alive"):
        control_node()
