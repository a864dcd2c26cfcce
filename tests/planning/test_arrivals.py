"""Plans for jobs that may arrive: what rollouts then cost, and who may plan so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.arrivals.futures import OracleFutures
from rlpto.core.cluster import ClusterState, Future, Node
from rlpto.core.jobs import EstimateNoise
from rlpto.core.loop import run
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.experiments.config import Config
from rlpto.experiments.environments import SMALL
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import PolicyError
from rlpto.planning.compiled_loop import Loop
from rlpto.planning.planner import Planner, PlannerOptions
from rlpto.planning.rollout import Start
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.knowledge import Knowledge
from rlpto.simulator.settings import SimulatorSettings

from ..builders import random_jobs, random_tables

NODES = (Node(4), Node(4))
QUEUE = QueueSettings(aging_normal=500.0, aging_low=700.0)
TIME_ONLY = RewardWeights(accuracy=0, time=1, resources=0, rescale=0)
FAR_S = 1e9


class Noted(Planner):
    """Has nothing but its base to choose, and notes what that costs at every plan, in each future."""

    def __init__(self, simulator: SimulatorSettings, **options: object) -> None:
        settings = PlannerOptions.model_validate({"portfolio": (), "perturbations": 0, "interval": None} | options)
        super().__init__(settings, QUEUE, simulator, TIME_ONLY)
        self.costs: list[float] = []

    def _costs(self, loop: Loop, start: Start, candidates: FloatArray, share: float) -> FloatArray:
        cost = super()._costs(loop, start, candidates, share)
        self.costs.append(float(cost[0]))
        return cost


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("way", [{}, {"growth": "overlap"}, {"placement": "most_free"}])
@settings(max_examples=8)
@given(seed=st.integers(0, 10_000))
def test_a_rollout_in_the_true_future_costs_what_then_happens(way: dict[str, Any], noisy: bool, seed: int) -> None:
    """Where jobs that come are known, the first plan's cost is the sum of all JCTs; also with errors of 0."""
    times, jobs = SimulatorSettings(**way), random_jobs(seed, 14, 8, 8)
    planner = Noted(times, every=FAR_S)
    planner.expect(OracleFutures(FAR_S))
    known = Knowledge(EstimateNoise(np.ones(14), np.ones(14), np.zeros(14))) if noisy else Knowledge()
    cluster = SimulatedCluster(NODES, jobs, random_tables(seed, 8, 13.0), times, 0, known)
    record = run(cluster, planner, QUEUE, TIME_ONLY, seed=5)
    first = record.decisions.time[0]
    there = [job.submit_time for job in cluster.jobs if job.submit_time <= first]
    total = float(np.sum(record.jobs.finish_time - record.jobs.submit_time))
    ahead = (total - sum(first - submit for submit in there)) / 3600.0
    if len(there) > 1:  # with one job nothing is planned: the first cost is of a later state
        assert planner.costs[0] == pytest.approx(ahead, rel=1e-9)


def experiment_with(**config: Any) -> Experiment:
    content = SMALL.model_dump()
    content["workload"] |= {"load": 0.9, "days": 3, "windows": {"hours": 6, "limit": 2}}
    return Experiment(Config.model_validate({**content, **config}))


def finish_times(experiment: Experiment, spec: str) -> FloatArray:
    window = experiment.windows("test")[0]
    return experiment.run_policy(experiment.policy(spec), window, 0).jobs.finish_time


FEW = "perturbations=3,portfolio=[]"


@pytest.mark.parametrize("source", ["forecast", "rates", "oracle"])
@pytest.mark.parametrize("knowledge", [{}, {"mode": "noisy"}, {"mode": "online"}])
def test_every_source_serves_under_all_that_may_be_known(source: str, knowledge: dict[str, str]) -> None:
    """And the same seed makes the same plans."""
    experiment = experiment_with(knowledge=knowledge)
    spec = f"planner:futures={source},samples=3,{FEW}"
    found = finish_times(experiment, spec)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, finish_times(experiment, spec))


def test_a_candidate_costs_its_mean_over_the_futures() -> None:
    """Of two futures one is empty: the mean is halfway between what is planned in each."""
    times, tables = SimulatorSettings(), random_tables(3, 8, 13.0)
    cluster = SimulatedCluster(NODES, random_jobs(3, 14, 8, 8), tables, times)
    while cluster.active_jobs < 3:
        cluster.advance()
    state = cluster_state(cluster)
    (true,) = OracleFutures(FAR_S)(state)
    seen, nothing = state.time, Future(true.jobs[:0], true.like[:0])
    assert len(true.jobs)

    class Both:
        def notice(self, state: ClusterState) -> None:
            assert state.time == seen

        def __call__(self, state: ClusterState) -> tuple[Future, ...]:
            assert state.time == seen
            return nothing, true

    planner, without = Noted(times), Noted(times)
    planner.expect(Both())
    planner(state)
    without(state)
    assert planner.costs[0] == without.costs[0]
    assert planner.costs[1] > planner.costs[0]


def cluster_state(cluster: SimulatedCluster) -> ClusterState:
    return Queue(QUEUE).order(cluster.state())


def test_policies_that_take_turns_plan_for_arrivals_too() -> None:
    experiment = experiment_with()
    assert np.isfinite(finish_times(experiment, f"fifo>3600:planner:futures=rates,samples=2,{FEW}")).all()


def test_without_a_window_there_are_no_futures() -> None:
    planner = Planner(PlannerOptions(futures="rates"), QUEUE)
    cluster = SimulatedCluster(NODES, random_jobs(3, 4, 8, 8), random_tables(3, 8, 13.0), SimulatorSettings())
    with pytest.raises(PolicyError, match="planner: futures"):
        run(cluster, planner, QUEUE, TIME_ONLY)
