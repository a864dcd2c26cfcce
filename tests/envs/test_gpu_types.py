"""Agents and planners on clusters with several GPU types, and with jobs that run on some of them only."""

from dataclasses import replace

import numpy as np
import pytest

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.envs.whole_windows import WindowPool
from rlpto.knowledge.known import Knowledge
from rlpto.knowledge.remaining import RemainingKnowledge
from rlpto.performance.size_table import largest_sizes
from rlpto.performance.tables import SpeedTables
from rlpto.policies.bonus_network import NETWORK_SIZE
from rlpto.policies.index import Index
from rlpto.policies.index_weights import WEIGHT_NAMES
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import random_jobs, with_gpu_types
from ..planning.test_planner import TIME_ONLY, Noted
from .builders import START, TABLES, make_setup

NODES = ClusterShape(Node(gpus, gpu=name) for gpus, name in [(4, "slow"), (4, "fast"), (2, "slow"), (4, "fast")])
ONE_TYPE = ClusterShape((Node(4), Node(4), Node(2)))
SIZES = (2, 3, 6)


def tables_of(*, sizes: bool) -> SpeedTables:
    """Fast GPUs are twice as fast. sizes: jobs run on SIZES alone, of every other type on fast ones alone."""
    tables = with_gpu_types(TABLES, {"slow": (1.0, 4), "fast": (2.0, 4)})
    if not sizes:
        return tables
    count, allowed = len(TABLES.types), largest_sizes(SIZES, TABLES.max_gpus)
    floor_size = np.tile(allowed, (2 * count, 1))
    floor_size[:count] = np.where(np.arange(count)[:, None] % 2, floor_size[:count], 0)
    return replace(tables, floor_size=floor_size)


def jobs_of(seed: int, count: int = 25) -> list[Job]:
    return [replace(one, min_gpus=1, max_gpus=6) for one in random_jobs(seed, count, 6, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [False, True])
@pytest.mark.parametrize(
    ("noisy", "failing", "remaining", "shortfall"),
    [(False, False, "declared", 0.0), (True, True, "unknown", 8.0), (True, False, "learnt", 8.0)],
)
def test_windows_on_several_kinds_are_played_as_the_simulator_runs_them(
    sizes: bool, noisy: bool, failing: bool, remaining: RemainingKnowledge, shortfall: float
) -> None:
    failures = FailureSettings(mtbf_hours=1.0, mttr_hours=0.1) if failing else FailureSettings()
    jobs = [jobs_of(seed) for seed in range(3)]
    setup = make_setup(jobs, tables=tables_of(sizes=sizes), noisy=noisy, simulator=SimulatorSettings(failures=failures))
    known, reward = Knowledge(remaining=remaining, tail=2.0), RewardWeights(shortfall=shortfall)
    setup = replace(setup, shape=NODES, knowledge=known, reward=reward)
    vector = np.concatenate([START, np.random.default_rng(1).normal(size=NETWORK_SIZE)])
    vector[WEIGHT_NAMES.index("slope")] = shortfall / 8
    parts, _ = WindowPool(setup).play(np.repeat(vector[None], 3, axis=0), np.arange(3))
    moved = 0
    for window in range(3):
        cluster = setup.make_cluster(window)
        record = run(cluster, Index(index_weights=vector), setup.queue, setup.reward)
        np.testing.assert_allclose(parts[window], record.decisions.reward.sum(axis=0), rtol=1e-9)
        moved += int(np.count_nonzero(cluster.tables.gpu_type[cluster.store.type_index]))
    assert 0 < moved < 75, "jobs have run on both kinds"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_rollouts_know_kinds_where_jobs_do_not_run_on_all(seed: int) -> None:
    """Nothing to choose and nothing to come: the first plan's cost is the sum of all JCTs that follow."""
    jobs = [replace(one, submit_time=0.0) for one in jobs_of(seed, 12)]
    times, queue = SimulatorSettings(), QueueSettings()
    planner = Noted(times, queue=queue, perturbations=0)
    record = run(SimulatedCluster(NODES, jobs, tables_of(sizes=True), times), planner, queue, TIME_ONLY)
    waited, jct = 12 * record.decisions.time[0], record.jobs.finish_time - record.jobs.submit_time
    assert planner.costs[0][0] * 3600.0 + waited == pytest.approx(float(jct.sum()))
