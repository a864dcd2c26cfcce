"""Coach: growth by gain in speed, and what it makes of the speeds that it has seen."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterState, Node
from rlpto.core.jobs import EstimateNoise
from rlpto.core.records import RunRecord
from rlpto.io.arrays import FloatArray
from rlpto.knowledge.known import Knowledge
from rlpto.performance.compile import compile_tables
from rlpto.performance.parameter_server import ServerParams
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.policies.coach import SPREAD_PROBES, Coach, CoachOptions, Limits, allocate
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import job, played, served_profiles

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
    return played(cluster, policy)


def speed(model: str, workers: int, servers: int) -> float:
    return float(1 / replace(LAWS[model], servers=servers).step_time(1, workers, BATCH / workers))


class TestServers:
    def test_a_job_tries_spread_configurations_and_then_the_best(self, tables: SpeedTables) -> None:
        policy = Watched()
        first = train(tables, ["m0"], policy)
        tried = [plan[0] for _, plan in policy.plans if 0 in plan]
        assert len(set(tried[:-1])) >= SPREAD_PROBES
        best = max(speed("m0", w, p) for w in range(1, MOST + 1) for p in range(1, MOST + 1))
        assert speed("m0", *tried[-1]) >= 0.99 * best
        assert tried[len(tried) // 2 :] == [tried[-1]] * len(tried[len(tried) // 2 :]), "and stays there"
        again = train(tables, ["m0"], policy)
        assert first.jobs.finish_time.tolist() == again.jobs.finish_time.tolist(), "what was seen before is forgotten"
        train(tables, ["m2"], policy)
        assert policy.plans[-1][1] == {0: (1, 1)}, "it gains nothing"

    @pytest.mark.parametrize("form", ["sync", "parabola"])
    def test_four_corners_leave_five_parameters_open(self, tables: SpeedTables, form: str) -> None:
        policy = Watched(CoachOptions.model_validate({"form": form, "probes": "corners"}))
        train(tables, ["m0"], policy)
        assert max(max(plan[0]) for _, plan in policy.plans) == 2, "nothing is said of what was not seen"

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


def plan(speed: FloatArray, gpus: int, slots: int) -> list[tuple[int, int]]:
    one, few = np.ones(len(speed), dtype=np.int64), np.full(len(speed), 4)
    workers, servers = allocate(speed, Limits(one, few, one, few), gpus, slots)
    return list(zip(workers.tolist(), servers.tolist(), strict=True))


def additive(by_worker: list[float], by_server: list[float]) -> FloatArray:
    """[W + 1, P + 1] speeds that are sums of what each worker and each server adds."""
    return np.cumsum([0.0, *by_worker])[:, None] + np.cumsum([0.0, *by_server])[None, :]


def test_the_largest_gain_comes_first_and_jobs_start_in_order_while_there_is_room_for_both() -> None:
    speed = np.stack([additive([5, 1, 0, 0], [5, 3, 0, 0]), additive([5, 2, 2, 0], [5, 0, 0, 0])])
    assert plan(speed, gpus=3, slots=3) == [(1, 2), (2, 1)]
    assert plan(speed, gpus=9, slots=9) == [(2, 2), (3, 1)]
    speed = np.stack([additive([1, 1, 1, 1], [1, 1, 1, 1])] * 3)
    assert plan(speed, gpus=9, slots=2) == [(4, 1), (4, 1), (0, 0)]
    assert plan(speed, gpus=2, slots=9) == [(1, 4), (1, 4), (0, 0)]
