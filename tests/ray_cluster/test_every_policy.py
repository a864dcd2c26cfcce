"""Every policy schedules real jobs, some with parameter servers, by estimates with errors of 20 %: twenty seconds.

`--soak 120` has each policy decide for a minute.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.core.loop import DecisionLoop
from rlpto.core.queues import QueueSettings
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import prepare
from rlpto.experiments.on_ray import real_cluster, session_of
from rlpto.policies.registry import BUILT_IN, is_complete
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from tests.ray_cluster.conftest import GPUS
from tests.ray_cluster.fakes import events_of
from tests.ray_cluster.test_real import CELL, wait_until

DECISIONS_EACH = 1
POLICIES = [name for name, policy in BUILT_IN.items() if is_complete(policy)]
PROGRAM = {"training": "tests.ray_cluster.programs:Plain", "samples": 101, "batch_size": 20, "pace": 0.05}
SERVED = {"architecture": "parameter_server", "servers": 1, "most_servers": 2}


def config() -> Config:
    jobs = [{"name": f"reduce-{i}", "model": "tiny", "gpus": 1, "max_gpus": 2 * GPUS} for i in range(2)]
    jobs += [{"name": "served", "model": "served", "gpus": 1, "max_gpus": 2}]
    return Config.model_validate(
        {
            "cluster": {"nodes": [{"count": 4, "gpus": GPUS, "cpus": 2}]},
            "workload": {"source": "jobs", "jobs": [{"epochs": 100_000, **job} for job in jobs]},
            "knowledge": {"mode": "noisy", "speed_sigma": 0.2, "remaining_sigma": 0.2, "scaling_sigma": 0.2},
            "simulator": {"interval": 0.5, "decide_on": "interval"},
            "ray": {"programs": {"tiny": PROGRAM, "served": {**PROGRAM, **SERVED}}, "checkpoint_interval": 5},
            "policies": POLICIES,
        }
    )


@pytest.mark.usefixtures("ray_cluster")
def test_every_policy_schedules_real_jobs(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    decisions = request.config.getoption("--soak") or DECISIONS_EACH
    session, experiment = session_of(tmp_path, CELL), prepare(config())
    backend = RayBackend(session)
    progress = []
    try:
        with SessionDatabase(tmp_path / "state.sqlite") as database:
            cluster = real_cluster(experiment, "jobs", 0, backend, database, session, [])
            loop = DecisionLoop(cluster, QueueSettings())
            policies = {name: experiment.policy(name) for name in POLICIES}

            def decide(name: str) -> None:
                state = loop.state()
                loop.carry_out(state, policies[name](state), name)
                assert cluster.held_gpus <= cluster.up_gpus
                cluster.advance()

            def all_have_trained() -> bool:
                decide("equal_share")
                return all(row.step > 0 for row in database.jobs())

            for name, policy in policies.items():
                policy.reset(0)
                for _ in range(decisions):
                    decide(name)
                progress.append(cluster.store.progress.sum())
            wait_until(all_have_trained)  # on a busy machine workers may still be starting
            events, rows = events_of(database), database.jobs()
            cluster.close()
    finally:
        if backend.find():
            backend.end_all()
    assert progress == sorted(progress)
    assert not [event for event in events if event[1] in ("failed", "job_failed")]
    assert not any(row.recoveries for row in rows)
