"""Coach: growth by gain in speed, and what it makes of the speeds that it has seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterState, Node
from rlpto.core.jobs import EstimateNoise
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.io.errors import ConfigError
from rlpto.knowledge.known import Knowledge
from rlpto.performance.compile import compile_tables
from rlpto.performance.parameter_server import ServerParams
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.policies.coach import SPREAD_PROBES, Coach, CoachOptions, Seen
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import job, served_profiles
from .builders import J, make_state, power

MOST = 6
BATCH = 128
"""Samples; cifar10's own batch, at which its statistical efficiency is always 1."""
LAWS = {
    "m0": ServerParams(0.008, 0.05, 0.3, 0.02, 0.02, 1, MOST),
    "m1": ServerParams(0.016, 0.05, 0.1, 0.01, 0.05, 1, MOST),
    "m2": ServerParams(0.0004, 0.5, 0.01, 0.2, 0.2, 1, MOST),
}
"""m0 gains by workers and servers, m1 by workers, m2 by neither."""


@pytest.fixture(scope="module")
def tables() -> SpeedTables:
    """Models with servers, and one without."""
    types = [JobType(name, BATCH) for name in (*LAWS, "cifar10")]
    compiled = compile_tables(served_profiles(LAWS), types, MOST, 4, choose_servers=True)
    return compiled.with_rescale_delay(10.0)


class Watched(Coach):
    """Coach, and what it decided: time, configurations by job number."""

    def __init__(self, options: CoachOptions | None = None) -> None:
        super().__init__(options)
        self.plans: list[tuple[float, dict[int, tuple[int, int]]]] = []

    def __call__(self, state: ClusterState) -> Allocation:
        found = super().__call__(state)
        assert found.servers is not None
        assert int(found.gpus.sum()) <= state.capacity
        assert int(found.servers.sum()) <= state.cpu_slots
        plan = zip(found.gpus.tolist(), found.servers.tolist(), strict=True)
        self.plans.append((state.time, dict(zip(state.jobs.index.tolist(), plan, strict=True))))
        return found


def train(
    tables: SpeedTables,
    models: list[str],
    policy: Watched,
    nodes: tuple[Node, ...] = (Node(4, 4), Node(4, 4)),
    noise: EstimateNoise | None = None,
    epochs: float = 15.0,
) -> RunRecord:
    data = float(tables.samples[0])
    jobs = [
        replace(job(i, 100.0 * i, epochs, data_size=data), model=model, batch_size=BATCH, min_gpus=1, max_gpus=MOST)
        for i, model in enumerate(models)
    ]
    cluster = SimulatedCluster(nodes, jobs, tables, SimulatorSettings(interval=30.0), knowledge=Knowledge(noise))
    return run(cluster, policy, QueueSettings(), RewardWeights())


def speed(model: str, workers: int, servers: int) -> float:
    return float(1 / LAWS[model].with_servers(servers).step_time(1, workers, BATCH / workers))


class TestWorkersAlone:
    def test_gpus_go_where_they_add_most_speed(self) -> None:
        jobs = [J(speed=power(0.3, 8)), J(speed=power(0.9, 8))]
        assert list(make_policy("coach")(make_state(jobs, 8)).gpus) == [1, 7]

    def test_an_idle_gpu_is_better_than_a_slower_job(self) -> None:
        assert list(make_policy("coach")(make_state([J(speed=(1.0, 1.5, 1.4, 1.6))], 4)).gpus) == [2]

    def test_everybody_starts_before_anybody_grows(self) -> None:
        jobs = [J(speed=power(1.0, 8)), J(speed=power(0.1, 8)), J(speed=power(0.1, 8), lowest=3, requested=3)]
        assert list(make_policy("coach")(make_state(jobs, 6)).gpus) == [2, 1, 3]


class TestServers:
    def test_a_job_tries_spread_configurations_and_then_the_best(self, tables: SpeedTables) -> None:
        policy = Watched()
        train(tables, ["m0"], policy)
        tried = [plan[0] for _, plan in policy.plans if 0 in plan]
        assert len(set(tried[:-1])) >= SPREAD_PROBES
        best = max(speed("m0", w, p) for w in range(1, MOST + 1) for p in range(1, MOST + 1))
        assert speed("m0", *tried[-1]) >= 0.99 * best
        assert tried[len(tried) // 2 :] == [tried[-1]] * len(tried[len(tried) // 2 :]), "and stays there"

    def test_a_job_that_gains_nothing_keeps_one_of_each(self, tables: SpeedTables) -> None:
        policy = Watched()
        train(tables, ["m2"], policy)
        assert policy.plans[-1][1] == {0: (1, 1)}

    @pytest.mark.parametrize("form", ["sync", "parabola"])
    def test_four_corners_leave_five_parameters_open(self, tables: SpeedTables, form: str) -> None:
        policy = Watched(CoachOptions.model_validate({"form": form, "probes": "corners"}))
        train(tables, ["m0"], policy)
        assert max(max(plan[0]) for _, plan in policy.plans) == 2, "nothing is said of what was not seen"

    def test_jobs_with_and_without_servers_share_a_cluster(self, tables: SpeedTables) -> None:
        policy = Watched()
        record = train(tables, ["m0", "cifar10", "m1", "m2"], policy)
        assert np.all(np.isfinite(record.jobs.finish_time))
        assert {plan[1][1] for _, plan in policy.plans if 1 in plan} == {0}, "no servers for a job that has none"

    def test_what_was_seen_of_earlier_workloads_is_forgotten(self, tables: SpeedTables) -> None:
        policy = Watched()
        first = train(tables, ["m0"], policy)
        again = train(tables, ["m0"], policy)
        assert first.jobs.finish_time.tolist() == again.jobs.finish_time.tolist()
        plans = [plan for _, plan in policy.plans]
        assert plans[: len(plans) // 2] == plans[len(plans) // 2 :]

    @settings(max_examples=15, deadline=None)
    @given(
        models=st.lists(st.sampled_from([*LAWS, "cifar10"]), min_size=1, max_size=5),
        sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=3),
        seed=st.integers(0, 99),
        corners=st.booleans(),
    )
    def test_every_job_ends_on_any_cluster_under_noise(
        self, tables: SpeedTables, models: list[str], sizes: list[tuple[int, int]], seed: int, corners: bool
    ) -> None:
        rng = np.random.default_rng(seed)
        noise = EstimateNoise(
            *np.exp(0.2 * rng.standard_normal((2, len(models)))), 0.2 * rng.standard_normal(len(models))
        )
        policy = Watched(CoachOptions(probes="corners" if corners else "spread"))
        nodes = (Node(MOST, 1), *(Node(gpus, cpus) for gpus, cpus in sizes))
        record = train(tables, models, policy, nodes, noise, epochs=4.0)
        assert np.all(np.isfinite(record.jobs.finish_time))

    def test_probes_wait_for_jobs_that_start(self, tables: SpeedTables) -> None:
        policy = Watched()
        train(tables, ["m0", "m0", "m0"], policy, (Node(MOST, 3),))
        assert all(min(min(at) for at in plan.values()) >= 1 for _, plan in policy.plans)


class TestSeen:
    def test_nothing_is_known_of_what_was_not_seen_while_the_fit_is_open(self) -> None:
        seen = Seen()
        assert not seen.grid("sync", 3, 3).any()
        seen.add(1, 1, 0.5)
        grid = seen.grid("sync", 3, 3)
        assert grid[1, 1] == 0.5
        assert grid.sum() == 0.5

    def test_a_speed_that_drifts_moves_all_others(self) -> None:
        seen = Seen()
        seen.add(1, 1, 0.5)
        seen.add(2, 1, 0.8)
        seen.add(2, 1, 1.6)
        assert seen.grid("sync", 2, 1)[1:, 1].tolist() == [1.0, 1.6]


def test_a_form_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"policy coach: option form: .*'cubic'"):
        make_policy("coach:form=cubic")
