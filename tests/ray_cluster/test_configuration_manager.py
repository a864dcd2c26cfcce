"""ConfigurationManager on real parameter-server jobs: they grow into what is free."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.experiments.config import Config
from rlpto.experiments.experiment import prepare
from rlpto.io.errors import JobError
from rlpto.policies.configuration_manager import ConfigurationManager, ConfigurationManagerOptions
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from tests.ray_cluster.conftest import GPUS, NODES
from tests.ray_cluster.fakes import events_of
from tests.ray_cluster.test_real import STEPS, config, schedule, session

EPOCHS = 100


SERVED = {
    "architecture": "parameter_server",
    "servers": 1,
    "most_servers": 2,
    "options": {"adam": True},
    "guess": {"rescale_delay": 0.1},  # so that growth pays although the job is short
}


def served(cpus: int) -> Config:
    return config(
        [{"gpus": 1, "max_gpus": 4, "epochs": EPOCHS}],
        pace=0.1,
        program=SERVED,
        cluster={"nodes": [{"count": NODES, "gpus": GPUS, "cpus": cpus}]},
        simulator={"interval": 1},
        knowledge={"mode": "online"},
        policies=["configuration_manager"],
        evaluation={},
    )


def test_a_job_grows_in_workers_and_servers_and_no_step_is_lost(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    steps: list[int] = []
    most: list[tuple[int, int]] = []

    def look(cluster: RayCluster) -> None:
        report = cluster.reports.get("job-000000")
        if report is not None:
            steps.append(report.step)
            most.append((len(report.training_on), len(report.serving_on)))
            assert len(report.holding) <= cluster.up_gpus
            assert len(report.serving_on) <= cluster.shape.up_cpu_slots

    policy = ConfigurationManager(ConfigurationManagerOptions(period=2.0))
    assert ray_cluster.node_ids
    with session(served(int(RayBackend("").nodes()[0].cpus)), tmp_path, look) as cluster:
        record = schedule(cluster, policy)
        (job,) = cluster.database.jobs()
        assert (job.step, job.recoveries) == (EPOCHS * STEPS, 0)
        assert not [event for event in events_of(cluster.database) if event[1] == "rolled_back"]
    assert [event.after for event in policy.events] == [(4, 1), (4, 2)]
    assert max(most) == (4, 2)
    assert steps == sorted(steps), "the global step went back"
    assert record.jobs.rescales.tolist() == [len(policy.events)]


def test_servers_without_cpu_slots_are_refused_before_anything_starts() -> None:
    with pytest.raises(JobError, match="trains through 1 parameter servers, but the nodes have 0 CPU slots in all"):
        prepare(served(0)).check()
