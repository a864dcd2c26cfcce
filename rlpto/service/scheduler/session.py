"""Environment of a service's scheduler, and the state that it takes over from the previous one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from rlpto.arrivals.volume import VolumeForecast
from rlpto.core.cluster import ClusterShape
from rlpto.core.jobs import FinishedJob, Job
from rlpto.core.policy import Policy
from rlpto.core.queue_order import HALF_LIFE_S
from rlpto.experiments.config import Config
from rlpto.io.errors import JobError, RlptoError
from rlpto.knowledge.remaining import LEARNING
from rlpto.performance.tables import JobType
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.job_knowledge import MOST_PAST
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_rules import Clock
from rlpto.service.scheduler.catalogue import Catalogue, ProgramChecks
from rlpto.service.scheduler.retention import DAY_S
from rlpto.store.curves import close_spans
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import change_job, list_jobs

MOST_GPUS = "most_gpus"
"""Database key of the most GPUs that one job could ever hold."""
LOOKS_BACK_S, MOST_LOOKED_BACK = 14 * 86_400.0, 20_000
"""Seconds and jobs before a start of the scheduler from which its forecast of arrivals learns."""
HALF_LIVES = 10
"""Half-lives after which a user's past GPU time no longer counts."""


@dataclass(frozen=True)
class Environment:
    """External interfaces of a scheduler.

    wall: present time [s]. clock: makes the session's clock from the time of its second 0, or from None if it begins
    now. make: makes a policy from its spec. checks: checks of programs. look_ahead: whether starts and finishes are
    predicted. executor: runs the predictions. Default: a process of its own. timer: clock for intervals [s]. ready:
    whether a policy, given by its spec, can decide without a wait. stopping: whether the scheduler is asked to stop.
    """

    backend: RayBackend
    wall: Callable[[], float]
    clock: Callable[[float | None], Clock]
    make: Callable[[str], Policy]
    checks: ProgramChecks
    look_ahead: bool = True
    executor: Executor | None = None
    timer: Callable[[], float] = time.monotonic
    ready: Callable[[str], bool] = lambda _: True
    stopping: Callable[[], bool] = lambda: False


def known_shape(config: Config, database: SessionDatabase) -> ClusterShape:
    """The cluster's nodes, plus missing ones up to its former size, because jobs that wait for them must not be
    refused."""
    found = config.cluster.shape
    before = int(database.number(MOST_GPUS) or 0)
    if before > found.most_gpus and found:
        largest = max(found, key=lambda node: node.gpus)
        found = ClusterShape((*found, replace(largest, gpus=before - found.most_gpus, up=False)))
    database.set_fact(MOST_GPUS, str(found.most_gpus))
    return found


def known_jobs(database: SessionDatabase, catalogue: Catalogue, now: float) -> tuple[list[Job], list[JobSpec]]:
    """The jobs of the session, as they were entered. Jobs fail and are forgotten if their program is gone, or if its
    changed profile allows none of their allowed GPUs."""
    jobs, specs, unknown = [], [], []
    entered = database.rows("SELECT spec, submit_time FROM jobs WHERE number IS NOT NULL ORDER BY number")
    for row, (text, submitted) in zip(database.jobs(), entered, strict=True):
        try:
            if row.program not in catalogue.programs:
                raise JobError(f"program {row.program} is not in the catalogue any more")
            known = catalogue.job(row, submitted)
            catalogue.check(known)
        except RlptoError as wrong:
            unknown.append(row.id)
            if not row.is_over:
                with database.transaction():
                    change_job(database, row.id, now, state="failed", reason=str(wrong), ended=now, gpus_held=0)
                    close_spans(database, row.id, now)
                    add_event(database, "job", now, row.id, row.owner, {"state": "failed", "reason": str(wrong)})
            continue
        jobs.append(known)
        specs.append(JobSpec.from_json(text))
    if unknown:
        database.forget(unknown)
    return jobs, specs


def finished_jobs(store: Store, config: Config, now: float) -> tuple[FinishedJob, ...] | None:
    """Finished jobs that the session has forgotten, oldest first, from which lengths are learnt; None if none count."""
    known, usual = config.knowledge, config.workload.metric
    if known.remaining not in LEARNING or known.history_days == 0:
        return None
    since = -math.inf if known.history_days is None else now - known.history_days * DAY_S
    found = store.rows(
        "SELECT program, metric, owner, progress FROM jobs WHERE state = 'finished' AND number IS NULL AND ended >= ? "
        "ORDER BY seq DESC LIMIT ?",
        (since, MOST_PAST),
    )
    found.reverse()
    return tuple(FinishedJob(JobType(name, None, metric or usual), user, done) for name, metric, user, done in found)


def volume_forecast(
    config: Config, catalogue: Catalogue, shape: ClusterShape, store: Store, clock: Clock, now: float
) -> VolumeForecast | None:
    """The forecast of arrivals, if the settings ask for one, trained on the submissions so far."""
    if config.forecast.mode != "on":
        return None
    rows = list_jobs(store, limit=MOST_LOOKED_BACK)[::-1]
    complete = rows[0].submitted if len(rows) == MOST_LOOKED_BACK else clock.began
    since = max(now - LOOKS_BACK_S, complete, clock.began)
    volume = VolumeForecast(config.forecast, clock.began, config.seed, clock.of(since))
    before = [
        catalogue.job(row, clock.of(row.submitted))
        for row in rows
        if row.submitted >= since and row.queued is not None and row.program in catalogue.programs
        and row.gpus <= catalogue.most_gpus
    ]  # fmt: skip
    volume.arrived(before, catalogue.tables, shape.gpus_per_node)
    return volume


def gpu_time_had(store: Store, now: float) -> Mapping[str, float]:
    """Decayed GPU-seconds of each user's finished jobs."""
    found: dict[str, float] = {}
    rows = store.rows("SELECT owner, ended, gpu_seconds FROM jobs WHERE ended > ?", (now - HALF_LIVES * HALF_LIFE_S,))
    for owner, ended, seconds in rows:
        found[owner] = found.get(owner, 0.0) + seconds * 0.5 ** ((now - ended) / HALF_LIFE_S)
    return found
