"""Where controllers live, GPU types, and parameter servers: the scheduler with controllers in memory, and Ray's
resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState, Node
from rlpto.io.errors import ClusterError
from rlpto.performance.compile import compile_tables
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.profiles import builtin_profiles
from rlpto.policies.configuration_manager import ConfigurationManager, ConfigurationManagerOptions
from rlpto.policies.registry import make_policy
from rlpto.ray_cluster.controllers import control_node
from rlpto.ray_cluster.messages import Plan
from rlpto.ray_cluster.nodes.environment import CONTROL
from rlpto.ray_cluster.scheduler.backend import NodeInfo
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.gpu_claims import GpuClaims
from rlpto.ray_cluster.scheduler.job_knowledge import PolicyKnowledge
from rlpto.ray_cluster.scheduler.online_estimates import OnlineEstimates
from rlpto.ray_cluster.scheduler.placement import place_servers, shape_with
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.settings import ProgramSettings
from tests.builders import Scripted, job, linear_tables, with_gpu_types, with_servers
from tests.ray_cluster.fakes import FakeBackend, FakeTime, events_of, said
from tests.ray_cluster.sessions import elastic, make_cluster, play, specs
from tests.slow import few

NODES = {"n1": 2, "n2": 4, "n3": 2}
GPU_TYPES = {"n1": "slow", "n2": "fast", "n3": "slow"}
TABLES = with_gpu_types(linear_tables(0.1, 8), {"slow": (1.0, 2), "fast": (2.0, 4)})


@pytest.mark.parametrize("policy", few(["equal_share", "fifo", "sia", "gavel"], "fifo", "sia"))
def test_no_job_is_on_two_kinds_and_all_finish(policy: str, database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), dict(NODES), gpu_types=GPU_TYPES)
    jobs = [job(number, submit=5.0 * number, epochs=10.0, gpus=1, max_gpus=4) for number in range(4)]
    cluster = make_cluster(backend, jobs, database, tables=TABLES)
    asked = make_policy(policy)
    on: set[str] = set()

    def watched(state: ClusterState) -> Allocation:
        for row, number in enumerate(state.jobs.index.tolist()):
            gpu_types = {GPU_TYPES[node] for node in cluster.tracker.nodes_of(cluster.ids[number])}
            assert len(gpu_types) <= 1
            on.update(gpu_types)
            if gpu_types:
                assert TABLES.gpu_types[TABLES.gpu_type[state.jobs.type_index[row]]] == gpu_types.pop()
        return asked(state)

    asked.reset(0)
    play(cluster, Scripted(watched))
    assert cluster.columns.finished.all()
    assert "fast" in on


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("policy", few(["equal_share", "fifo", "sia", "gavel"], "equal_share", "sia"))
def test_jobs_get_only_gpus_of_types_that_they_may_use(policy: str, online: bool, database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), dict(NODES), gpu_types=GPU_TYPES)
    allowed: list[tuple[str, ...]] = [("slow",), (), ("fast",), ("slow",), ("slow", "fast")]
    jobs = [
        job(number, submit=5.0 * number, epochs=5.0, model="cifar10", max_gpus=2, gpu_types=names)
        for number, names in enumerate(allowed)
    ]
    sizes = {"slow": 2, "fast": 4}
    types = [one.type for one in jobs]
    source = FittedProfiles({"cifar10": replace(builtin_profiles()["cifar10"], gpu_types={})})
    tables = compile_tables(source, types, 8, 4, choose_servers=True, gpu_types=sizes)
    made, more = specs(jobs), PolicyKnowledge()
    if online:
        program = ProgramSettings(training="some.module:Program", samples=1000, epochs=5, batch_size=50)
        more = PolicyKnowledge(estimates=OnlineEstimates(jobs, made, {"cifar10": program}, tables, sizes))
    cluster = make_cluster(backend, jobs, database, tables=tables, given=made, knowledge=more)
    asked = make_policy(policy)

    def watched(state: ClusterState) -> Allocation:
        for number in state.jobs.index.tolist():
            for node in cluster.tracker.nodes_of(cluster.ids[number]):
                assert GPU_TYPES[node] in (allowed[number] or sizes)
        return asked(state)

    asked.reset(0)
    play(cluster, Scripted(watched))
    assert cluster.columns.finished.all()


def test_a_scheduler_that_returns_knows_which_kind_each_job_is_on(database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), dict(NODES), gpu_types=GPU_TYPES)
    cluster = make_cluster(backend, [job(0, epochs=1000.0, gpus=2)], database, tables=TABLES)
    state = cluster.state()
    cluster.apply(state, Allocation(np.array([2]), placement=np.array([[0, 2, 0]])))
    cluster.advance()
    again: RayCluster = make_cluster(backend, list(cluster.jobs), database, tables=TABLES)
    assert TABLES.gpu_types[TABLES.gpu_type[again.store.type_index[0]]] == "fast"


def test_nodes_of_a_kind_without_speeds_are_left_alone(database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), NODES | {"n4": 8}, gpu_types=GPU_TYPES | {"n4": "other"})
    cluster = make_cluster(backend, [job(0)], database, tables=TABLES)
    assert cluster.up_gpus == 8
    alike = make_cluster(FakeBackend(FakeTime(), NODES | {"n4": 8}, gpu_types=GPU_TYPES), [job(0)], database)
    assert alike.up_gpus == 16
    assert alike.shape.gpu_types == ("gpu",)


def test_what_is_missing_of_a_kind_is_down() -> None:
    before = ClusterShape((Node(4, gpu="a"), Node(2, gpu="b"), Node(4, gpu="a")))
    after = shape_with(before, [Node(4, gpu="a")])
    assert [(node.gpus, node.gpu, node.up) for node in after] == [(4, "a", True), (4, "a", False), (2, "b", False)]
    assert after.most_gpus == 8


A100 = {"accelerator_type:A100": 1.0}


@pytest.mark.parametrize(
    ("resources", "labels", "expected"),
    [
        ({}, {}, {}),
        (A100, {}, {"gpu": "a100"}),
        (A100, {"ray.io/accelerator-type": "H100"}, {"gpu": "h100"}),
        ({**A100, "gpu_type:Mine": 1.0}, {"ray.io/accelerator-type": "H100"}, {"gpu": "mine"}),
        ({}, {"ray.io/market-type": "on-demand"}, {}),
        ({}, {"ray.io/market-type": "spot"}, {"spot": True}),
    ],
)
def test_kind_and_market_of_a_node_stand_in_what_ray_says_of_it(
    resources: Mapping[str, float], labels: Mapping[str, str], expected: dict[str, Any]
) -> None:
    entry = {"NodeID": "n", "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "h", "Labels": labels}
    found = NodeInfo.of({**entry, "Resources": {"GPU": 8.0, "CPU": 4.0, **resources}})
    assert found == NodeInfo("n", 8, "10.0.0.1", 4, host="h", **expected)


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
    alive.clear()
    with pytest.raises(ClusterError, match="no node that is alive"):
        control_node()


class TestServers:
    @given(
        slots=st.dictionaries(st.sampled_from("mnop"), st.integers(0, 4), min_size=1),
        held=st.lists(st.integers(0, 3), min_size=1, max_size=4),
        wanted=st.lists(st.integers(0, 4), min_size=4, max_size=4),
    )
    def test_slots_are_never_exceeded_and_servers_stay_where_they_are(
        self, slots: dict[str, int], held: list[int], wanted: list[int]
    ) -> None:
        jobs = [f"job{i}" for i in range(len(held))]
        present = place_servers(slots, {}, dict(zip(jobs, held, strict=True)))
        targets = dict(zip(jobs, wanted, strict=False))
        placed = place_servers(slots, present, targets)
        used = Counter(node for nodes in placed.values() for node in nodes)
        assert all(count <= slots[node] for node, count in used.items())
        for name in jobs:
            common = min(len(present[name]), targets[name])
            assert placed[name][:common] == present[name][:common]
        if sum(targets.values()) <= sum(slots.values()):
            assert [len(placed[name]) for name in jobs] == [targets[name] for name in jobs]
        assert Counter(place_servers({"m": 2, "n": 2}, {}, {"a": 4})["a"]) == {"m": 2, "n": 2}, "they spread"

    def test_a_slot_is_given_on_once_its_server_is_gone(self) -> None:
        claims, numbers = GpuClaims({"m": 2}, {"m": 2}), iter(range(1, 99))
        claims.plan({"a": Plan(("m",), None, ("m", "m"))}, lambda: next(numbers))
        (first,) = claims.due()
        claims.reported(said("a", first.generation, first.generation, ("m",), ("m", "m")))
        claims.plan({"a": Plan(("m",), None, ("m",)), "b": Plan(("m",), None, ("m",))}, lambda: next(numbers))
        (less,) = claims.due()
        assert (less.job, less.plan.servers) == ("a", ("m",))
        claims.reported(said("a", less.generation, first.generation, ("m",), ("m", "m")))
        assert list(claims.due()) == []
        claims.reported(said("a", less.generation, less.generation, ("m",), ("m",)))
        (other,) = claims.due()
        assert other.job == "b"

    def test_more_slots_than_a_node_has_are_refused(self) -> None:
        with pytest.raises(ClusterError, match="plan asks for 2 CPU slots of node m, which has 1"):
            GpuClaims({"m": 2}, {"m": 1}).plan({"a": Plan(("m",), None, ("m", "m"))}, lambda: 1)


def test_jobs_share_the_slots_of_real_nodes(database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), {"m": 2, "n": 2}, cpus={"m": 1, "n": 2})
    rng = np.random.default_rng(0)
    policy = make_policy("equal_share")

    def decide(state: ClusterState) -> Allocation:
        return Allocation(policy(state).gpus, servers=rng.integers(0, 4, len(state.jobs)))

    tables = with_servers(linear_tables(0.1, 8), 3)
    cluster = make_cluster(backend, [elastic(i, epochs=12.0) for i in range(3)], database, tables=tables)
    record = play(cluster, Scripted(decide))
    assert np.isfinite(record.jobs.finish_time).all()
    counts = [len(plan.servers) for plans in backend.commanded.values() for plan in plans if plan.nodes]
    assert min(counts) >= 1
    assert max(counts) > 1


def test_servers_of_a_node_that_dies_come_up_elsewhere(database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), {"m": 1, "n": 1, "o": 1}, cpus={"m": 0, "n": 1, "o": 1}, rate=0.02)
    tables = with_servers(linear_tables(0.1, 8), 2)
    job = elastic(0, epochs=1.0, most=1)
    cluster = make_cluster(backend, [job], database, tables=tables)
    served: list[tuple[str, ...]] = []

    def look(now: RayCluster) -> None:
        plan = now._commands.claims.entry("job0").planned
        served.append(plan.servers)
        if now.time > 20 and plan.servers and set(plan.servers) <= backend.gpus.keys() and len(backend.gpus) == 3:
            backend.kill_node(plan.servers[0])

    cluster._observers = (look,)
    record = play(cluster, "fifo")
    assert np.isfinite(record.jobs.finish_time).all()
    assert len({nodes for nodes in served if nodes}) == 2


def test_a_job_whose_growth_is_rolled_back_keeps_what_trains(database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), {"m": 1, "n": 2}, rate=0.02, broken={"n"})
    job = elastic(0, epochs=2.0, most=3)
    tables = linear_tables(0.02, 8)
    cluster = make_cluster(backend, [job], database, tables=tables)
    policy = ConfigurationManager(ConfigurationManagerOptions(period=10.0, retry=1e6))
    record = play(cluster, policy)
    assert np.isfinite(record.jobs.finish_time).all()
    assert [event.after for event in policy.events] == [(3, 0)]
    rolled = [event for event in events_of(database) if event[1] == "rolled_back"]
    assert [event[5] for event in rolled] == ["new workers or servers did not come up"]
    assert set(record.changes.gpus.tolist()) <= {0, 1, 3}
    assert record.changes.gpus.tolist()[-2:] == [1, 0]
