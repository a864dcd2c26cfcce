"""Sessions in memory: a real-time cluster over fake controllers, and what happens to it at set times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.policy import Policy
from rlpto.core.queues import QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import AnyArray
from rlpto.performance.tables import SpeedTables
from rlpto.policies.registry import make_policy
from rlpto.ray_cluster.messages import FaultTolerance, JobSpec
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_rules import SessionRules
from tests.builders import job as make_job
from tests.builders import linear_tables
from tests.ray_cluster.fakes import FakeBackend

RULES = SessionRules(interval=10.0)


def elastic(i: int, submit: float = 0.0, epochs: float = 4.0, most: int = 4) -> Job:
    """A job of 1 to `most` GPUs. submit: when [s]."""
    return make_job(i, submit, epochs, max_gpus=most)


def specs(jobs: list[Job], retries: int = 3) -> list[JobSpec]:
    """What the jobs' controllers need."""
    faults = FaultTolerance(retries=retries)
    return [
        JobSpec(job.name, job.name, "s", "some.module:Program", f"jobs/{job.name}", 8, job.epochs, 100, faults=faults)
        for job in jobs
    ]


def make_cluster(
    backend: FakeBackend,
    jobs: list[Job],
    database: SessionDatabase,
    rules: SessionRules = RULES,
    tables: SpeedTables | None = None,
    given: Sequence[JobSpec] = (),
    **more: Any,
) -> RayCluster:
    """A cluster in the time of the backend's world. given: specifications of controllers. more: arguments of
    `RayCluster`."""
    timing = replace(rules, clock=backend.world.clock)
    shown = tables or linear_tables(0.1, 8)
    return RayCluster(backend, jobs, given or specs(jobs), shown, database, timing, **more)


def play(cluster: Any, policy: str | Policy = "equal_share") -> RunRecord:
    """Schedule until all jobs have ended."""
    asked = make_policy(policy) if isinstance(policy, str) else policy
    return run(cluster, asked, QueueSettings(), RewardWeights(), window="w")


class Interrupted:
    """A cluster to which something happens once it is late enough."""

    def __init__(self, cluster: RayCluster, at: float, by: Callable[[], object]) -> None:
        self._cluster, self._at = cluster, at
        self._by: Callable[[], object] | None = by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def advance(self, until: float) -> AnyArray:
        passed = self._cluster.advance(until)
        if self._by is not None and self._cluster.time >= self._at:
            by, self._by = self._by, None
            by()
        return passed


def run_until(cluster: RayCluster, time: float, policy: str = "equal_share") -> None:
    """Schedule until then, and leave everything as it is: the scheduler dies."""

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(Interrupted(cluster, time, die), policy)
