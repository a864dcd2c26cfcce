"""What a simulated cluster refuses and shows, and jobs that become known while time passes."""

import numpy as np
import pytest

from rlpto.core.cluster import Node
from rlpto.io.errors import ConfigError, JobError
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import give, job, linear_tables, make_cluster


def test_a_cluster_needs_gpus_as_many_as_each_job_wants_and_no_jobs_of_the_past():
    for nodes in ((), (Node(0),)):
        with pytest.raises(ConfigError, match="no GPUs"):
            SimulatedCluster(nodes, [], linear_tables(), SimulatorSettings())
    with pytest.raises(JobError, match="job1 wants 7 GPUs, but the cluster has 6 in all"):
        make_cluster([job(0, gpus=6), job(1, gpus=7)], linear_tables(), [4, 2])
    cluster = make_cluster([job(0, 0.0, epochs=5.0), job(1, 100.0)], linear_tables())
    with pytest.raises(JobError, match="job job2: submitted at 99 s, expected 100 or later"):
        cluster.append([job(2, 99.0)])
    with pytest.raises(JobError, match="wants 9 GPUs"):
        cluster.append([job(2, 100.0, gpus=9)])


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


def test_policies_see_the_rescale_delay_that_the_settings_impose() -> None:
    settings = SimulatorSettings(rescale_delay=42.0)
    cluster = SimulatedCluster((Node(4),), [job()], linear_tables(delay=5.0), settings)
    assert cluster.state().jobs.rescale_delay.tolist() == [42.0]
    assert cluster.rescale_delay.tolist() == [42.0]
