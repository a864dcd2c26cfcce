"""Parameter servers as the scheduler of real jobs sees them, with controllers in memory."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.errors import ClusterError
from rlpto.policies.configuration_manager import ConfigurationManager, ConfigurationManagerOptions
from rlpto.policies.registry import make_policy
from rlpto.ray_cluster.messages import Plan
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.gpu_claims import GpuClaims
from rlpto.ray_cluster.scheduler.placement import place_servers
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from tests.builders import Scripted, linear_tables, with_servers
from tests.ray_cluster.fakes import FakeBackend, FakeTime, events_of, said
from tests.ray_cluster.test_cluster import elastic, make_cluster, play


class TestPlacement:
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
        for job in jobs:
            common = min(len(present[job]), targets[job])
            assert placed[job][:common] == present[job][:common]
        if sum(targets.values()) <= sum(slots.values()):
            assert [len(placed[job]) for job in jobs] == [targets[job] for job in jobs]

    def test_they_spread_over_nodes(self) -> None:
        assert Counter(place_servers({"m": 2, "n": 2}, {}, {"a": 4})["a"]) == {"m": 2, "n": 2}


class TestClaims:
    def test_a_slot_is_given_on_once_its_server_is_gone(self) -> None:
        claims, numbers = GpuClaims({"m": 2}, {"m": 2}), iter(range(1, 99))
        claims.plan({"a": Plan(("m",), None, ("m", "m"))}, lambda: next(numbers))
        (first,) = claims.due()
        claims.reported(said("a", first.generation, first.generation, ("m",), 1, ("m", "m")))
        claims.plan({"a": Plan(("m",), None, ("m",)), "b": Plan(("m",), None, ("m",))}, lambda: next(numbers))
        (less,) = claims.due()
        assert (less.job, less.plan.servers) == ("a", ("m",))
        claims.reported(said("a", less.generation, first.generation, ("m",), 2, ("m", "m")))
        assert list(claims.due()) == []
        claims.reported(said("a", less.generation, less.generation, ("m",), 3, ("m",)))
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
    record = run(cluster, Scripted(decide), QueueSettings(), RewardWeights())
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
    record = run(cluster, policy, QueueSettings(), RewardWeights())
    assert np.isfinite(record.jobs.finish_time).all()
    assert [event.after for event in policy.events] == [(3, 0)]
    rolled = [event for event in events_of(database) if event[1] == "rolled_back"]
    assert [event[5] for event in rolled] == ["new workers or servers did not come up"]
    assert set(record.changes.gpus.tolist()) <= {0, 1, 3}
    assert record.changes.gpus.tolist()[-2:] == [1, 0]
