"""Plans into commands: from the ledger through the books to the runners, and back again after a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.scheduler.backend import Backend
from rlpto.ray_cluster.scheduler.gpu_claims import Command, Ledger, Nodes
from rlpto.ray_cluster.scheduler.reconcile import Reopened, reopen
from rlpto.ray_cluster.scheduler.session_database import Store

REPEAT_SECONDS = 2.0
"""A command that has not been confirmed for so long is sent again: the runner may have been restarted."""


class Conductor:
    """Sees to it that runners are told what was planned, in time and in order.

    ledger: who may use which GPU. specs: what each job's runner needs, by job. capacity: GPUs by node that is alive.
    """

    def __init__(
        self, backend: Backend, books: Store, specs: Mapping[str, JobSpec], capacity: Mapping[str, int]
    ) -> None:
        self.ledger = Ledger(capacity)
        self._backend = backend
        self._books = books
        self._specs = specs
        self._there: set[str] = set()
        self._ever: set[str] = set()
        self._sent_at: dict[str, float] = {}

    def plan(self, targets: Mapping[str, Nodes], time: float) -> None:
        """Take over where jobs are to be, in the ledger and, before anybody is told, in the books."""
        self._books.plan(self.ledger.plan(targets, self._books.next_generation), time)

    def send_due(self, time: float) -> None:
        """Tell runners what they may be told now; tell those again who seem not to have heard."""
        for command in list(self.ledger.due()):
            # In the books first: what may have been sent counts as sent.
            self._books.commanded(command.generation, time)
            self._send(command, time)
        for job, entry in list(self.ledger.entries.items()):
            if entry.planned:
                self._start(job)  # while others make room for its workers
            again = self.ledger.unconfirmed(job)
            if again is not None and time >= self._sent_at.get(job, -np.inf) + REPEAT_SECONDS:
                self._send(again, time)

    def _send(self, command: Command, time: float) -> None:
        self._start(command.job)
        self._sent_at[command.job] = time
        self._backend.command(command)

    def _start(self, job: str) -> None:
        """See to it that a job has a runner."""
        if job not in self._there:
            self._there.add(job)
            self._books.set_job(job, started=1)
            self._backend.start(self._specs[job], resume=job in self._ever)
            self._ever.add(job)

    def end(self, job: str) -> None:
        """The job needs no runner any more."""
        self.ledger.ended(job)
        self._backend.end(job)

    def gone(self, job: str) -> Nodes:
        """A job's runner is gone, and with it its workers. Returns where the job was to be."""
        planned = self.ledger.entry(job).planned
        self.ledger.released(job)
        self._books.forget_commands(job)
        self._there.discard(job)
        return planned

    def reopen(self, runners: Sequence[str]) -> Reopened:
        """Take over what the books say, and the runners that were found; those that nobody needs are ended."""
        rows = self._books.jobs()
        self._ever = {row.name for row in rows if row.started}
        found = reopen(
            self.ledger.capacity,
            [row.name for row in rows if row.state == "active"],
            self._ever,
            self._books.newest_commands(),
            self._books.unsent(),
            runners,
        )
        self.ledger = found.ledger
        self._there = set(found.adopted)
        for job in found.strangers:
            self._backend.end(job)
        for job in found.lost:
            self._books.forget_commands(job)
        return found
