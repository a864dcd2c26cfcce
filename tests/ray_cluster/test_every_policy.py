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
from rlpto.policies.registry import BUILT_IN, is_complete
from tests.ray_cluster.conftest import GPUS, NODES
from tests.ray_cluster.fakes import events_of
from tests.ray_cluster.test_real import config, session, wait_until

DECISIONS_EACH = 1
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
        ray={"programs": {"tiny": shared, "served": {**shared, **SERVED}}, "checkpoint_interval": 5},
        policies=POLICIES,
        evaluation={},
    )


@pytest.mark.usefixtures("no_controller_is_left")
def test_every_policy_schedules_real_jobs(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    decisions = request.config.getoption("--soak") or DECISIONS_EACH
    policies = {name: prepare(some_served()).policy(name) for name in POLICIES}
    progress = []
    with session(some_served(), tmp_path) as cluster:
        loop = DecisionLoop(cluster, QueueSettings())

        def decide(name: str) -> None:
            state = loop.state()
            loop.carry_out(state, policies[name](state), name)
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
