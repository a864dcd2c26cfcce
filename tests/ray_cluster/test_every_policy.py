"""Every policy schedules real jobs, parameter-server jobs among them, by estimates with errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.config import Config
from rlpto.experiment import prepare
from rlpto.policies.registry import BUILT_IN, is_complete
from rlpto.policies.switching import SwitchingPolicy
from rlpto.queues import QueueSettings
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.rewards import RewardWeights
from rlpto.runs.real import real_cluster, session_of
from rlpto.scheduler import run
from tests.ray_cluster.conftest import GPUS
from tests.ray_cluster.test_real import CELL

SECONDS_EACH = 4
POLICIES = [name for name, policy in BUILT_IN.items() if is_complete(policy)]
PROGRAM = {"training": "tests.ray_cluster.programs:Plain", "samples": 101, "batch_size": 20, "pace": 0.05}
SERVED = {"architecture": "parameter_server", "servers": 1, "most_servers": 2}


def config() -> Config:
    last = SECONDS_EACH * len(POLICIES)
    jobs = [{"name": f"reduce-{i}", "model": "tiny", "gpus": 1, "max_gpus": 2 * GPUS} for i in range(2)]
    jobs += [{"name": "served", "model": "served", "gpus": 1, "max_gpus": 2}]
    return Config.model_validate(
        {
            "cluster": {"nodes": [{"count": 4, "gpus": GPUS, "cpus": 2}]},
            "workload": {"source": "jobs", "jobs": [{"epochs": 5000, **job} for job in jobs]},
            "knowledge": {"mode": "noisy", "speed_sigma": 0.2, "remaining_sigma": 0.2},
            "simulator": {"interval": 2, "max_hours": last / 3600},
            "ray": {"programs": {"tiny": PROGRAM, "served": {**PROGRAM, **SERVED}}, "checkpoint_interval": 5},
            "policies": [">".join(name if i == 0 else f"{i * SECONDS_EACH}:{name}" for i, name in enumerate(POLICIES))],
        }
    )


@pytest.mark.usefixtures("ray_cluster")
def test_every_policy_schedules_real_jobs(tmp_path: Path) -> None:
    session, experiment = session_of(tmp_path, CELL), prepare(config())
    (spec,) = experiment.config.policies
    backend = RayBackend(session)
    try:
        with SessionDatabase(tmp_path / "state.sqlite") as database:
            cluster = real_cluster(experiment, "jobs", 0, backend, database, session, [])
            policy = experiment.policy(spec)
            run(cluster, policy, QueueSettings(), RewardWeights())
            rows, failed = database.jobs(), [event for event in database.events() if event[1] == "failed"]
            cluster.close()
    finally:
        if backend.find():
            backend.end_all()
    assert isinstance(policy, SwitchingPolicy)
    assert set(policy.switches().policy) == set(POLICIES)
    assert all(row.step > 0 for row in rows)
    assert not failed
    assert not any(row.recoveries for row in rows)
