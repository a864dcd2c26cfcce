"""What policies choose in addition to GPUs: batch sizes and parameter servers."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, BackgroundLoad, ClusterShape, ClusterState, Node, place_background
from rlpto.core.loop import run
from rlpto.core.rewards import RewardWeights
from rlpto.io.errors import ConfigError, JobError, PolicyError
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import (
    Case,
    Scripted,
    admit,
    advance_to,
    cases,
    give,
    job,
    linear_tables,
    make_cluster,
    played,
    run_out,
    with_batch_sizes,
    with_servers,
)

FACTORS = {100: 1.0, 200: 2.0, 400: 3.0}
"""Batch sizes, and how much faster than at its own choice a job is with them."""


def batched(delay: float = 0.0, **settings: object) -> SimulatedCluster:
    """A job of one epoch; one GPU does 0.01 a second."""
    tables = with_batch_sizes(linear_tables(0.01, delay=delay), FACTORS)
    return make_cluster([job(epochs=1.0, max_gpus=4)], tables, interval=10.0, **settings)


class TestBatchSizes:
    def test_a_change_costs_nothing_and_counts_as_no_rescale(self) -> None:
        cluster = batched(delay=30.0)
        give(cluster, [1])
        advance_to(cluster, 50.0)  # 30 s of them to start: 0.2 epochs
        give(cluster, [1], batch_size=[200])
        assert run_out(cluster) == pytest.approx(50 + 0.8 / 0.02)
        assert cluster.store.rescales.tolist() == [0]
        assert cluster.changes().gpus.tolist() == [1, 0]

    def test_workers_that_train_while_others_start_change_too(self) -> None:
        cluster = batched(delay=30.0, growth="overlap")
        give(cluster, [1])
        advance_to(cluster, 40.0)  # 0.1 epochs
        give(cluster, [2])  # one goes on alone until 70 s
        advance_to(cluster, 50.0)  # 0.2
        give(cluster, [2], batch_size=[200])
        assert run_out(cluster) == pytest.approx(70 + 0.4 / 0.04)  # 0.6 at 70 s

    @given(case=cases(["fifo", "optimus", "las", "equal_share"]), seed=st.integers(0, 1000))
    def test_sizes_of_one_speed_change_nothing(self, case: Case, seed: int) -> None:
        """Any batch sizes may be chosen in between, as long as jobs are as fast with them.

        A node's failure takes jobs back to the last change of their batch size, and rounded ends of epochs count from
        there, so there is neither here.
        """
        tables = with_batch_sizes(case.tables, {100: 1.0, 200: 1.0})
        calm = case.settings.model_copy(update={"failures": type(case.settings.failures)(), "epoch_resolution": 0.0})
        rng = np.random.default_rng(seed)
        policy = make_policy(case.policy)

        def mixed(state: ClusterState) -> Allocation:
            found = policy(state)
            return Allocation(found.gpus, found.order, rng.choice([0, 100, 200], len(state.jobs)))

        records = [
            run(SimulatedCluster(case.nodes, case.jobs, tables, calm, case.seed), asked, case.queue, RewardWeights())
            for asked in (Scripted(policy), Scripted(mixed))
        ]
        np.testing.assert_allclose(records[0].jobs.finish_time, records[1].jobs.finish_time, rtol=1e-9)
        np.testing.assert_array_equal(records[0].jobs.rescales, records[1].jobs.rescales)

    def test_who_gets_no_gpus_has_its_own_choice(self) -> None:
        cluster = make_cluster([job(0), job(1)], with_batch_sizes(linear_tables(), FACTORS), [1])
        admitted = admit(cluster, [1, 1], batch_size=[100, 100])
        assert (admitted.gpus.tolist(), admitted.batch_size.tolist()) == ([1, 0], [100, 0])


def test_a_batch_in_use_stays_unless_another_is_so_many_times_as_fast() -> None:
    """With 4 GPUs a batch of 400 is 1.5 times as fast as one of 200 (AdaptDL's rule, there with 1.05)."""
    for above, used, expected in ((1.6, 200, 200), (1.4, 200, 400), (1.6, 0, 400)):
        cluster = batched()
        give(cluster, [4], batch_size=[used])
        decide = make_policy(f"max_throughput:choose_batch_size=true,change_above={above}")
        found = decide(cluster.state())
        assert found.batch_size.tolist() == [expected]
        give(cluster, [2], batch_size=[used])
        again = decide(cluster.state())
        assert again.batch_size.tolist() == [400], "on other GPUs it is chosen again"
    with pytest.raises(ConfigError, match=r"change_above 1\.05 needs choose_batch_size=true"):
        make_policy("max_throughput:change_above=1.05")


def served(delay: float = 0.0, cpus: int = 4, **more: object) -> SimulatedCluster:
    """A job of one epoch; one GPU with one server does 0.01 a second."""
    tables = with_servers(linear_tables(0.01, delay=delay))
    rules = SimulatorSettings(interval=10.0, **more)
    return SimulatedCluster((Node(8, cpus),), [job(epochs=1.0, max_gpus=4)], tables, rules)


class TestServers:
    @pytest.mark.parametrize("growth", ["pause", "overlap"])
    @pytest.mark.parametrize("gpus", [1, 2])
    def test_other_servers_restart_a_job_once(self, growth: str, gpus: int) -> None:
        cluster = served(delay=30.0, growth=growth)
        admit(cluster, [1])
        advance_to(cluster, 50.0)  # 0.2 epochs
        admit(cluster, [gpus], servers=[2])
        assert run_out(cluster) == pytest.approx(50 + 30 + 0.8 / (0.02 * gpus))
        assert cluster.store.rescales.tolist() == [1]


class TestSlots:
    def test_jobs_share_the_slots_in_queue_order_and_keep_what_they_have(self) -> None:
        tables = with_servers(linear_tables(0.001))
        jobs = [job(0, submit=0.0), job(1, submit=0.0), job(2, submit=0.0)]
        cluster = SimulatedCluster((Node(4, 2), Node(4, 1)), jobs, tables, SimulatorSettings())
        admitted = admit(cluster, [1, 1, 1], servers=[1, 0, 2])
        assert admitted.servers.tolist() == [1, 1, 1]
        admitted = admit(cluster, [1, 1, 1], servers=[3, 1, 1])  # no job loses a server to another's growth
        assert admitted.servers.tolist() == [1, 1, 1]

    def test_a_job_without_slots_gets_no_gpus(self) -> None:
        tables = with_servers(linear_tables(0.001))
        cluster = SimulatedCluster((Node(8, 1),), [job(0), job(1)], tables, SimulatorSettings())
        admitted = admit(cluster, [1, 1])
        assert (admitted.gpus.tolist(), admitted.servers.tolist()) == ([1, 0], [1, 0])
        with pytest.raises(
            JobError, match="job job0 trains through 1 parameter servers, but the nodes have 0 CPU slots"
        ):
            served(cpus=0)

    @given(
        case=cases(["fifo", "optimus", "las", "equal_share", "elastic_fifo"]),
        seed=st.integers(0, 1000),
        first=st.integers(1, 3),
        until=st.sampled_from([0.0, 100.0, 1500.0]),
    )
    def test_slots_and_gpus_are_never_exceeded(self, case: Case, seed: int, first: int, until: float) -> None:
        """For any wishes, failures of nodes, and GPUs that other processes hold."""
        rng = np.random.default_rng(seed)
        tables = with_servers(case.tables, 3, first)
        nodes = tuple(Node(node.gpus, int(rng.integers(0, 4))) for node in case.nodes[:-1])
        nodes = (*nodes, Node(case.nodes[-1].gpus, 3))
        shape = ClusterShape(nodes)
        loads = [BackgroundLoad(gpus=shape.capacity // 2, cpus=shape.cpu_slots // 2, until=until)] if until else []
        held = place_background(loads, shape)
        cluster = SimulatedCluster(nodes, case.jobs, tables, case.settings, case.seed, background=held)
        policy = make_policy(case.policy)

        def mixed(state: ClusterState) -> Allocation:
            found, most = policy(state), state.jobs.most_servers
            return replace(found, servers=rng.integers(0, most + 1))

        apply = cluster.apply

        def checked(state: ClusterState, allocation: Allocation) -> None:
            apply(state, allocation)
            jobs, there = cluster.state().jobs, cluster.shape
            assert int(jobs.servers[jobs.gpus > 0].sum()) <= there.up_cpu_slots
            assert int(jobs.gpus.sum()) <= there.up_gpus == cluster.up_gpus
            used = cluster.state().held_nodes.sum(axis=0)
            assert (used <= there.offered).all()

        cluster.apply = checked
        record = run(cluster, Scripted(mixed), case.queue, RewardWeights())
        assert np.isfinite(record.jobs.finish_time).all()


class TestBackground:
    def test_jobs_get_what_other_processes_free_at_that_moment(self) -> None:
        tables = linear_tables(0.001)
        held = place_background([BackgroundLoad(gpus=6, until=100.0)], ClusterShape((Node(4), Node(4))))
        cluster = SimulatedCluster((Node(4), Node(4)), [job(max_gpus=8)], tables, SimulatorSettings(), background=held)
        seen = []

        def all_of_it(state: ClusterState) -> Allocation:
            seen.append((state.time, state.capacity, state.shape.offered.tolist()))
            return Allocation(np.minimum(state.capacity, state.jobs.max_gpus))

        record = played(cluster, Scripted(all_of_it))
        assert seen[0] == (0.0, 2, [0, 2])
        assert (100.0, 8, [4, 4]) in seen
        assert record.jobs.finish_time.tolist() == pytest.approx([100 + 0.8 / 0.008])
        assert record.capacity == 8
        with pytest.raises(ConfigError, match=r"workload\.background: 5 GPUs until 9 s, but the nodes have 4 left"):
            place_background([BackgroundLoad(gpus=5, until=9.0)], ClusterShape((Node(4),)))


@pytest.mark.parametrize(("cluster", "chosen", "said"), [
    (batched, {"batch_size": [300]}, r"a batch size of 300 at 0 s: expected 0 \(its own choice\) or one of \[100"),
    (batched, {"batch_size": [-1]}, "a batch size of -1"),
    (batched, {"batch_size": [100, 100]}, r"samples in a batch of shape \(2,\): expected \(1,\), one per job"),
    (batched, {"batch_size": [1.5]}, "1.5 samples in a batch: expected whole numbers"),
    (served, {"servers": [5]}, "gave job 0 5 parameter servers at 0 s: expected 0"),
    (served, {"servers": [-1]}, "-1 parameter servers"),
])  # fmt: skip
def test_what_a_job_cannot_have_is_named(
    cluster: Callable[[], SimulatedCluster], chosen: dict[str, list[float]], said: str
) -> None:
    with pytest.raises(PolicyError, match=f"policy mine .*{said}"):
        admit(cluster(), [2], **chosen)
