"""Policies schedule real jobs, some with parameter servers: all of them in turn, and ConfigurationManager.

They decide by estimates with errors of 20 %. With `--soak 120` each takes its turn for a minute.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.core.loop import DecisionLoop
from rlpto.core.queues import QueueSettings
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import prepare
from rlpto.io.errors import JobError
from rlpto.policies.configuration_manager import ConfigurationManager, ConfigurationManagerOptions
from rlpto.policies.registry import BUILT_IN, is_complete
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from tests.ray_cluster.conftest import GPUS, NODES
from tests.ray_cluster.fakes import events_of
from tests.ray_cluster.test_real import STEPS, config, schedule, session, wait_until

DECISIONS_EACH = 1
EPOCHS = 100
POLICIES = [name for name, policy in BUILT_IN.items() if is_complete(policy)]
SERVED = {"architecture": "parameter_server", "servers": 1, "most_servers": 2}


def some_served() -> Config:
    """Two jobs with all-reduce, and one with parameter servers."""
    shared = {"training": "tests.ray_cluster.programs:Plain", "samples": 101, "batch_size": 20, "pace": 0.2}
    jobs: list[dict[str, object]] = [{"max_gpus": 2 * GPUS}, {"max_gpus": 2 * GPUS}, {"model": "served", "max_gpus": 2}]
    return config(
        [{"gpus": 1, "epochs": 100_000, **job} for job in jobs],
        cluster={"nodes": [{"count": NODES, "gpus": GPUS, "cpus": 2}]},
        knowledge={"mode": "noisy", "speed_sigma": 0.2, "remaining_sigma": 0.2, "scaling_sigma": 0.2},
        simulator={"interval": 0.5, "decide_on": "interval"},
        ray={
            "programs": {"tiny": shared, "served": {**shared, **SERVED}},
            "checkpoint_interval": 5,
            "heartbeat_timeout": 60,
        },
        policies=POLICIES,
        evaluation={},
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_controller_is_left")
def test_every_policy_schedules_real_jobs(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    decisions = request.config.getoption("--soak") or DECISIONS_EACH
    policies = {name: prepare(some_served()).policy(name) for name in POLICIES}
    progress = []
    with session(some_served(), tmp_path) as cluster:
        loop = DecisionLoop(cluster, QueueSettings())

        def decide(name: str) -> None:
            loop.invalidate()
            loop.decide(policies[name])
            assert cluster.held_gpus <= cluster.up_gpus
            cluster.advance()

        def all_have_trained() -> bool:
            decide("equal_share")
            return all(row.step > 0 for row in cluster.database.jobs())

        for name, policy in policies.items():
            policy.reset(0)
            for _ in range(decisions):
                decide(name)
            progress.append(cluster.store.progress.sum())
        wait_until(all_have_trained)  # on a busy machine workers may still be starting
        events, rows = events_of(cluster.database), cluster.database.jobs()
    assert progress == sorted(progress)
    assert not [event for event in events if event[1] in ("failed", "job_failed")]
    assert not any(row.recoveries for row in rows)


def served(cpus: int) -> Config:
    return config(
        [{"gpus": 1, "max_gpus": 4, "epochs": EPOCHS}],
        pace=0.1,
        program={**SERVED, "options": {"adam": True}, "guess": {"rescale_delay": 0.1}},  # so that growth pays
        cluster={"nodes": [{"count": NODES, "gpus": GPUS, "cpus": cpus}]},
        simulator={"interval": 1},
        knowledge={"mode": "online"},
        policies=["configuration_manager"],
        evaluation={},
    )


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_job_grows_in_workers_and_servers_and_no_step_is_lost(tmp_path: Path) -> None:
    steps: list[int] = []
    most: list[tuple[int, int]] = []

    def look(cluster: RayCluster) -> None:
        report = cluster.tracker.reports.get("job-000000")
        if report is not None:
            steps.append(report.step)
            most.append((len(report.training_on), len(report.serving_on)))
            assert len(report.holding) <= cluster.up_gpus
            assert len(report.serving_on) <= cluster.shape.up_cpu_slots

    policy = ConfigurationManager(ConfigurationManagerOptions(period=2.0))
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
