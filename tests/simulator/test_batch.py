"""A batch of clusters does exactly what the same clusters do one by one."""

from __future__ import annotations

import numpy as np
import pytest

from rlpto.cluster import Allocation, ClusterState, Node
from rlpto.queues import QueueSettings
from rlpto.rewards import RewardWeights
from rlpto.scheduler import run
from rlpto.simulator.batch import BatchSimulator
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings
from tests.builders import random_jobs, random_tables

NODES = (Node(4), Node(4), Node(2))


class Requested:
    """The trivial policy that is compiled into the batch."""

    name = "requested"

    def reset(self, seed: int) -> None:
        """Nothing is remembered."""

    def __call__(self, state: ClusterState) -> Allocation:
        return Allocation(state.jobs.requested_gpus)


@pytest.mark.parametrize("decide_on", ["events", "interval"])
@pytest.mark.parametrize("mtbf_hours", [0.0, 20.0])
def test_a_batch_equals_its_clusters_one_by_one(decide_on, mtbf_hours):
    tables = random_tables(1, gpus=8, delay=20.0)
    settings = SimulatorSettings(decide_on=decide_on, failures=FailureSettings(mtbf_hours=mtbf_hours))
    queue = QueueSettings(aging_normal=300, aging_low=600)
    workloads = [random_jobs(seed, 30 + 5 * seed, 8, 10) for seed in range(4)]
    batch = BatchSimulator(NODES, workloads, tables, settings, queue, seed=7)
    finished = [np.full(len(jobs), np.nan) for jobs in workloads]
    # Short strides: a cluster that is done starts over, and its times must be read before that.
    for _ in range(4000):
        batch.run_requested(1)
        for b, times in enumerate(finished):
            seen = batch.world.jobs["finish_time"][b, : len(times)]
            times[:] = np.where(np.isnan(times), seen, times)
        if not any(np.isnan(times).any() for times in finished):
            break
    for b, jobs in enumerate(workloads):
        cluster = SimulatedCluster(NODES, jobs, tables, settings, seed=7 + b)
        record = run(cluster, Requested(), queue, RewardWeights())
        np.testing.assert_array_equal(finished[b], record.jobs.finish_time)
