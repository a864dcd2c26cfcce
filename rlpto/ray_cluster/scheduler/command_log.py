"""Plans into commands: from GPU claims through the session database to the controllers, and back after a restart."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from rlpto.ray_cluster.messages import JobReport, JobSpec, Plan
from rlpto.ray_cluster.scheduler.backend import Backend
from rlpto.ray_cluster.scheduler.clock import Clock
from rlpto.ray_cluster.scheduler.gpu_claims import Command, GpuClaims
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.store.jobs import ACTIVE

COMMAND_REPEAT_INTERVAL_S = 2.0
"""A command that has not been confirmed for so long is sent again: the controller may have been restarted."""

ATTACH_TIMEOUT_S = 5.0
"""Longest wait of a restarted scheduler for the first word of the controllers it has found."""


class CommandLog:
    """Sends controllers the commands that were planned, in time and in order. claims: who may use which GPU. specs:
    what each job's controller needs, by job."""

    def __init__(
        self, backend: Backend, database: SessionDatabase, specs: Mapping[str, JobSpec], claims: GpuClaims
    ) -> None:
        self.claims = claims
        self._backend = backend
        self._database = database
        self._specs = specs
        self._there: set[str] = set()
        self._ever: set[str] = set()
        self._sent_at: dict[str, float] = {}

    def plan(self, targets: Mapping[str, Plan], time: float) -> None:
        """Enter plans of jobs in the GPU claims and, before any command is sent, in the database."""
        self._database.plan(targets, self.claims.plan(targets, self._database.next_generation), time)

    def send_due(self, time: float) -> None:
        """Send the commands that may be sent now, and those again that seem not to have arrived."""
        for command in list(self.claims.due()):
            # In the database first: what may have been sent counts as sent.
            self._database.commanded(command.generation, time)
            self._send(command, time)
        # Thousands may wait, and need no command.
        involved = [(job, entry) for job, entry in self.claims.entries.items() if entry.planned.nodes or entry.sent]
        for job, entry in involved:
            if entry.planned.nodes:
                self._start(job)  # while others make room for its workers
            again = self.claims.unconfirmed(job)
            if again is not None and time >= self._sent_at.get(job, -np.inf) + COMMAND_REPEAT_INTERVAL_S:
                self._send(again, time)

    def _send(self, command: Command, time: float) -> None:
        self._start(command.job)
        self._sent_at[command.job] = time
        self._backend.command(command)

    def _start(self, job: str) -> None:
        """See to it that a job has a controller."""
        if job not in self._there:
            self._there.add(job)
            self._database.set_job(job, launched=1)
            self._backend.start(self._specs[job], resume=job in self._ever)
            self._ever.add(job)

    def end(self, job: str) -> None:
        """The job needs no controller any more."""
        self.claims.ended(job)
        self._backend.end(job)

    def gone(self, job: str) -> Plan:
        """A job's controller is gone, and with it its workers. Returns the plan of the job."""
        planned = self.claims.entry(job).planned
        self.claims.released(job)
        self._database.forget_commands(job)
        self._there.discard(job)
        return planned

    def has_controller(self, job: str) -> bool:
        """True while the job has a controller, or may have one."""
        return job in self._there

    def forget(self, jobs: Collection[str]) -> None:
        """These jobs have ended, and their controllers are gone."""
        for job in jobs:
            self.claims.released(job)
            self._sent_at.pop(job, None)
            self._ever.discard(job)

    def reopen(self, controllers: Collection[str]) -> list[str]:
        """Take over what the database says, and the controllers that were found; those that are not needed are ended.
        Returns jobs that had a controller which is gone; they go on from their checkpoints."""
        rows = self._database.jobs()
        active = [row.id for row in rows if row.state in ACTIVE]
        self._ever = {row.id for row in rows if row.launched}
        self._there = {job for job in active if job in controllers}
        commands, unsent = self._database.newest_commands(), self._database.unsent()
        for job in active:
            if job in self._there:
                self.claims.adopt(job, commands.get(job, ()), unsent)
        for job in controllers:
            if job not in self._there:
                self._backend.end(job)
        lost = [job for job in active if job in self._ever - self._there]
        for job in lost:
            self._database.forget_commands(job)
        return lost

    def first_reports(self, clock: Clock) -> list[JobReport]:
        """A report of every controller that there is after a restart, as far as they answer in time."""
        heard: dict[str, JobReport] = {}
        by = clock.now() + ATTACH_TIMEOUT_S
        while self._there - heard.keys() and clock.now() < by:
            heard.update({report.job: report for report in self._backend.reports(0.05)})
        return list(heard.values())
