"""Policies that solve a programme or share time in rounds: what each aims at, and what they do on a small cluster."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Node
from rlpto.core.gpu_types import room_of
from rlpto.core.jobs import Job
from rlpto.core.loop import starved
from rlpto.core.queues import Queue, QueueSettings
from rlpto.io.arrays import FloatArray
from rlpto.performance.tables import elapsed_from_rates
from rlpto.policies.registry import make_policy
from rlpto.policies.sia import Choices, configurations, solve
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import job, linear_tables, make_cluster, make_tables, shape_of, with_gpu_types


@pytest.mark.parametrize("policy", ["gavel"])  # the plug-in calls it with others
def test_shares_stand_and_newcomers_wait_until_they_are_renewed(policy: str) -> None:
    jobs = [job(0, gpus=1, epochs=1e4), job(1, submit=70.0, gpus=1, epochs=1e4)]
    for renew, starts in ((600.0, 660.0), (0.0, 120.0)):
        cluster = make_cluster(jobs, linear_tables(), (4,), decide_on="interval", interval=60.0)
        decides = make_policy(f"{policy}:round=60,renew={renew:g}")
        while np.isnan(cluster.store.start_time).any():
            decide(cluster, decides)
            cluster.advance()
        assert cluster.store.start_time.tolist() == [60.0, starts]


def cluster_of(jobs: Sequence[Job], fast: float = 3.0, **settings: object) -> SimulatedCluster:
    """Two nodes of four slow GPUs and one of four fast ones."""
    tables = with_gpu_types(linear_tables(delay=30.0), {"slow": (1.0, 4), "fast": (fast, 4)})
    nodes = (Node(4, gpu="slow"), Node(4, gpu="slow"), Node(4, gpu="fast"))
    return SimulatedCluster(nodes, jobs, tables, SimulatorSettings(**({"interval": 60.0} | settings)))


def decide(cluster: SimulatedCluster, policy: object) -> list[list[int]]:
    """Let a policy decide once; returns the nodes of every job's GPUs."""
    state = Queue(QueueSettings()).order(cluster.state())
    cluster.apply(state, Queue(QueueSettings()).admit(state, policy(state), "test"))
    return [cluster.nodes_of(j).tolist() for j in range(len(cluster.jobs))]


class TestSia:
    def test_configurations_of_the_published_cluster(self) -> None:
        shape = shape_of(*[("t4", 4)] * 6, *[("a100", 8)] * 2, *[("rtx", 8)] * 3)
        assert configurations(shape) == [[1, 2, 4, 8, 12, 16, 20, 24], [1, 2, 4, 8, 16], [1, 2, 4, 8, 16, 24]]

    @given(st.integers(0, 10_000))
    def test_as_good_as_trying_everything(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows, options = np.repeat(np.arange(4), 3), rng.integers(1, 5, 12)
        choices = Choices(rows, rng.integers(0, 2, 12), options, np.round(rng.uniform(0.1, 1.6, 12), 2))
        room = rng.integers(0, 7, 2)

        def cost(chosen: Sequence[int]) -> float:
            used = np.zeros(2, dtype=np.int64)
            np.add.at(used, choices.gpu_type[list(chosen)], choices.gpus[list(chosen)])
            return np.inf if (used > room).any() else choices.cost[list(chosen)].sum() + 1.1 * (4 - len(chosen))

        everything = product(*([None, 3 * row, 3 * row + 1, 3 * row + 2] for row in range(4)))
        best = min(cost([one for one in chosen if one is not None]) for chosen in everything)
        assert cost(solve(choices, room, 1.1).tolist()) == pytest.approx(best, rel=2e-3)

    def test_starts_small_and_doubles_on_the_kind_that_is_fastest(self) -> None:
        cluster = cluster_of([job(0, epochs=1000.0, gpus=1, max_gpus=8)])
        sia = make_policy("sia")
        assert decide(cluster, sia) == [[2]]
        sizes = []
        for _ in range(20):
            cluster.advance()
            sizes.append(len(decide(cluster, sia)[0]))
        assert sizes == sorted(sizes)
        assert set(sizes) == {2, 4}, "eight slow GPUs are slower than four fast ones"

    def test_gives_fast_gpus_to_whom_they_help_most(self) -> None:
        tables = with_gpu_types(
            make_tables([[[[0.01 * k] for k in range(1, 5)]]] * 2), {"slow": (1.0, 4), "fast": (1.0, 4)}
        )
        rates = tables.rates.copy()
        rates[tables.row[2, :, 1:]] *= 10  # m0 gains on fast GPUs, m1 does not
        tables = replace(tables, rates=rates, elapsed=elapsed_from_rates(rates))
        jobs = [job(0, gpus=4, model="m1", epochs=100.0), job(1, gpus=4, model="m0", epochs=100.0)]
        cluster = SimulatedCluster((Node(4, gpu="slow"), Node(4, gpu="fast")), jobs, tables, SimulatorSettings())
        assert decide(cluster, make_policy("sia")) == [[0] * 4, [1] * 4]

    def test_leaves_jobs_that_are_starting_alone(self) -> None:
        cluster = cluster_of(
            [job(0, epochs=1000.0, gpus=1, max_gpus=8), job(1, submit=10.0, gpus=4, epochs=10.0)], interval=20.0
        )
        sia = make_policy("sia")
        first = decide(cluster, sia)[0]
        cluster.advance()
        assert cluster.store.rescale_left[0] > 0
        assert decide(cluster, sia)[0] == first


def test_gavel_takes_turns_in_proportion_to_the_programme() -> None:
    jobs = [job(j, gpus=4, epochs=1e4) for j in range(4)]  # on three nodes
    cluster, gavel = cluster_of(jobs, fast=2.0), make_policy("gavel:round=60")
    gavel.reset(0)
    had: FloatArray = np.zeros((4, 3))
    for _ in range(200):
        for number, nodes in enumerate(decide(cluster, gavel)):
            if nodes:
                had[number, nodes[0]] += 1
        cluster.advance()
    throughput = had @ [1.0, 1.0, 2.0]
    assert throughput.min() > 0.93 * throughput.max()
    cluster, gavel = cluster_of(jobs), make_policy("gavel:round=300")  # which keeps all jobs for a round
    gavel.reset(0)
    first = decide(cluster, gavel)
    for _ in range(4):
        cluster.advance()
        assert decide(cluster, gavel) == first
    cluster.advance()
    assert decide(cluster, gavel) != first


def test_time_before_gavel_decides_counts_for_no_job() -> None:
    """Two of three jobs have trained for up to an hour when Gavel takes over. All take turns at once."""
    jobs = [job(j, submit=submit, epochs=1e4) for j, submit in enumerate((0.0, 3000.0, 3300.0))]
    cluster = make_cluster(jobs, linear_tables(), (2,), decide_on="interval", interval=60.0)
    policy, turns = make_policy("fifo>3600:gavel:round=60"), np.zeros(3)
    while cluster.time < 5400.0:
        nodes = decide(cluster, policy)
        turns += cluster.time >= 3600.0 and np.array([len(nodes[j]) > 0 for j in range(3)])
        cluster.advance()
    assert turns / turns.sum() == pytest.approx(1 / 3, abs=0.07)


def test_a_job_starves_only_while_one_kind_has_the_gpus_it_asked_for() -> None:
    failures = FailureSettings(mtbf_hours=1.0, mttr_hours=1.0)
    cluster = cluster_of([job(0, gpus=8)], failures=failures, decide_on="interval")
    seen = {}
    while len(seen) < 6:
        cluster.advance()
        slow, fast = room_of(cluster.state().shape).tolist()
        seen[slow, fast] = starved(cluster)
    assert seen == {(slow, fast): slow == 8 for slow in (0, 4, 8) for fast in (0, 4)}
