"""What a simulated cluster refuses, and what it shows."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from rlpto.core.cluster import Node
from rlpto.io.errors import ConfigError, JobError
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import give, job, linear_tables, make_cluster


def test_a_job_that_wants_more_than_there_is_is_named():
    with pytest.raises(JobError, match="job1 wants 7 GPUs, but the cluster has 6 in all"):
        make_cluster([job(0, gpus=6), job(1, gpus=7)], linear_tables(), [4, 2])


def test_a_job_may_scale_beyond_the_cluster():
    assert make_cluster([job(0, gpus=2, max_gpus=8)], linear_tables(), [4, 2]).shape.capacity == 6


@pytest.mark.parametrize("nodes", [(), (Node(0),)])
def test_a_cluster_needs_gpus(nodes):
    with pytest.raises(ConfigError, match="no GPUs"):
        SimulatedCluster(nodes, [], linear_tables(), SimulatorSettings())


def test_rounded_epochs_need_decisions_at_intervals():
    with pytest.raises(ValidationError, match="epoch_resolution 1 needs decide_on: interval"):
        SimulatorSettings(epoch_resolution=1)
    assert SimulatorSettings(epoch_resolution=1, decide_on="interval").epoch_resolution == 1


def test_states_show_jobs_in_order_of_submission():
    cluster = make_cluster([job(i, 0.0 if i < 2 else 5.0) for i in range(3)], linear_tables(), interval=5)
    assert cluster.state().jobs.index.tolist() == [0, 1]
    give(cluster, [1, 0])
    cluster.advance()
    jobs = cluster.state().jobs
    assert jobs.index.tolist() == [0, 1, 2]
    assert jobs.gpus.tolist() == [1, 0, 0]
    assert jobs.waiting.tolist() == [False, True, True]
    assert jobs.attained_service.tolist() == [5.0, 0.0, 0.0]


def test_nothing_is_forgotten_however_often_allocations_are_applied():
    """Every change is in the log, also when the caller never lets time pass."""
    cluster = make_cluster([job()], linear_tables(), interval=1)
    for _ in range(500):
        give(cluster, [1])
        give(cluster, [0])
    changes = cluster.changes()
    assert changes.gpus.tolist() == [1, 0] * 500
    assert np.unique(changes.time).tolist() == [0.0]
    assert cluster.store.peak_gpus.tolist() == [1]


def test_policies_are_told_the_rescale_delay_that_the_settings_impose() -> None:
    settings = SimulatorSettings(rescale_delay=42.0)
    cluster = SimulatedCluster((Node(4),), [job()], linear_tables(delay=5.0), settings)
    assert cluster.state().jobs.rescale_delay.tolist() == [42.0]
    assert cluster.rescale_delay.tolist() == [42.0]
