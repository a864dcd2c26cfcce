"""Parameter servers in the simulator: what they speed up, what a change costs, and the CPU slots they take."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, BackgroundLoad, ClusterShape, ClusterState, Node, place_background
from rlpto.core.loop import run
from rlpto.core.rewards import RewardWeights
from rlpto.io.errors import ConfigError, JobError, PolicyError
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import Case, Scripted, admit, advance_to, cases, job, linear_tables, played, run_out, with_servers


def one_job(delay: float = 0.0, cpus: int = 4, **more: object) -> SimulatedCluster:
    """A job of one epoch; one GPU with one server does 0.01 a second."""
    tables = with_servers(linear_tables(0.01, delay=delay))
    rules = SimulatorSettings(interval=10.0, **more)
    return SimulatedCluster((Node(8, cpus),), [job(epochs=1.0, max_gpus=4)], tables, rules)


class TestSpeed:
    @pytest.mark.parametrize("growth", ["pause", "overlap"])
    @pytest.mark.parametrize("gpus", [1, 2])
    def test_other_servers_restart_a_job_once(self, growth: str, gpus: int) -> None:
        cluster = one_job(delay=30.0, growth=growth)
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
            one_job(cpus=0)

    @pytest.mark.parametrize(("servers", "said"), [([5], "5 parameter servers at 0 s: expected 0"), ([-1], "-1 param")])
    def test_a_number_that_a_job_cannot_have_is_named(self, servers: list[int], said: str) -> None:
        with pytest.raises(PolicyError, match=said):
            admit(one_job(), [1], servers=servers)

    @settings(max_examples=30)
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
