"""A cluster in real time that serves: jobs come, are withdrawn and are forgotten for as long as it is up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlpto.core.cluster import OrderSource, Reclass, Withdraw
from rlpto.core.jobs import Job
from rlpto.performance.tables import SpeedTables
from rlpto.ray_cluster.messages import JobReport, JobSpec
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.session_database import CANCELLED


class ServingCluster(RayCluster):
    """As `RayCluster`, with a source through which jobs are withdrawn and reclassed too.

    reported: notified of each report that is written, in the same transaction, and whether it is the last of its job.
    Nothing that fails ends the session: neither that all jobs have failed, nor that no node has GPUs for long.
    """

    serves = True

    def __init__(
        self,
        *arguments: Any,
        source: OrderSource,
        reported: Callable[[ServingCluster, JobReport, bool], None] = lambda *_: None,
        **more: Any,
    ) -> None:
        self._orders, self._reported = source, reported
        more["source"] = source
        super().__init__(*arguments, **more)

    def _write(self, number: int, report: JobReport) -> None:
        super()._write(number, report)
        self._reported(self, report, not bool(self.columns.active[number]))

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Ray's ids of the nodes that are up, in the order of `shape`."""
        return tuple(self._commands.claims.capacity)

    def spec_of(self, job: str) -> JobSpec:
        """What the controller of a job needs."""
        return self._specs[job]

    def take_tables(self, tables: SpeedTables) -> None:
        """Speeds of further models are known, beside those of all that were."""
        self.tables = tables
        self.columns.take_tables(tables)
        self.store = self.columns.store
        if self.estimates is None:
            self.store.believed_type[:] = self.store.type_index

    def _take_in(self) -> None:
        """Jobs and orders that have become known."""
        super()._take_in()
        for order in self._orders.orders(self.time):
            self.changed = True
            if isinstance(order, Withdraw):
                self._withdraw(order.job)
            elif isinstance(order, Reclass):
                self._reclass(order.job, order.priority)

    def _append(self, jobs: Sequence[Job], specs: Sequence[JobSpec]) -> None:
        super()._append(jobs, specs)
        if self.estimates is not None:
            self.estimates.append(jobs, specs, self.tables)
            self._tell_anew(self.estimates)

    def _withdraw(self, job: str) -> None:
        """End a job that nobody wants any more. One that has ended before that stays as it is."""
        number = self._number.get(job)
        if number is None or self.columns.failed[number] or self.columns.finished[number]:
            return
        if number >= self._next:  # submitted for later: it is let in no more
            self._let_in_all_before(number)
        self.columns.fail(number)
        if job in self.reports:
            self._write(number, self.reports[job])
        self.database.end(job, self.time, CANCELLED)
        self._commands.end(job)

    def _let_in_all_before(self, number: int) -> None:
        """Jobs come in order: whoever is to go is let in first, with all before it."""
        while self._next <= number:
            self.columns.arrive(self._next)
            self.database.let_in(self.ids[self._next], self.time)
            self._next += 1

    def _reclass(self, job: str, priority: int) -> None:
        """Move a job to another priority class; it has risen by none there."""
        number = self._number.get(job)
        if number is None:
            return
        moved = replace(self.jobs[number], priority=priority)
        self.jobs = (*self.jobs[:number], moved, *self.jobs[number + 1 :])
        self.store.priority[number], self.store.risen[number] = priority, 0

    def forget_ended(self, kept: Collection[str] = ()) -> tuple[str, ...]:
        """Forget jobs that have ended and whose controllers are gone: their ids. Those that are left are numbered anew.

        kept: ids of jobs to remember.
        Whoever remembers jobs by their numbers, such as a policy, has to be reset.
        """
        there = np.array([self._commands.has_controller(job) for job in self.ids], dtype=np.bool_)
        ended = ~self.columns.active & (self.columns.held == 0) & ~there & (np.arange(len(self.ids)) < self._next)
        ended &= np.array([job not in kept for job in self.ids], dtype=np.bool_)
        lost, left = tuple(self.ids[number] for number in np.flatnonzero(ended).tolist()), np.flatnonzero(~ended)
        if not lost:
            return ()
        self.database.forget(lost)
        self._commands.forget(lost)
        for job in lost:
            self._specs.pop(job)
            self.reports.pop(job, None)
            self._losses.pop(job, None)
        self._next -= len(lost)
        self.columns.keep(left)
        ids = tuple(self.ids[number] for number in left.tolist())
        self._number_anew(tuple(self.jobs[number] for number in left.tolist()), ids)
        if self.estimates is not None:
            self.estimates.keep(left)
            self._tell_anew(self.estimates)
        return lost
