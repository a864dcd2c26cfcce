"""Progress of a session's jobs: controllers' reports, and their effects on columns, GPU claims and database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from rlpto.core.jobs import FinishedJob, Job
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import JobError, RlptoError
from rlpto.performance.tables import SpeedTables
from rlpto.ray_cluster.messages import JobReport, JobSpec, Nodes, Plan, last_report, raised_in
from rlpto.ray_cluster.scheduler.gpu_claims import CommandSender
from rlpto.ray_cluster.scheduler.job_columns import JobColumns
from rlpto.ray_cluster.scheduler.job_knowledge import JobKnowledge, PolicyKnowledge
from rlpto.ray_cluster.scheduler.placement import NodeInventory, remaining_plans
from rlpto.ray_cluster.scheduler.session_database import CANCELLED, SessionDatabase
from rlpto.ray_cluster.scheduler.session_rules import Clock
from rlpto.store.jobs import EXPECTED


class JobTracker:
    """The jobs of a `RayCluster`, by number and by id. specs: by id, in the order of `jobs`; the mapping grows with the
    session. on_report: called with each written report, in the same transaction, and whether it is its controller's
    last.

    ids: ids of the jobs in order. reports: newest report of each job by id. knowledge: what policies know of the jobs.
    submitted: number of jobs submitted so far. changed: whether something has happened since the last decision. fatal:
    reason to end the session. time: the present second. Times are seconds of the session.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        specs: dict[str, JobSpec],
        tables: SpeedTables,
        database: SessionDatabase,
        nodes: NodeInventory,
        commands: CommandSender,
        known: PolicyKnowledge,
        on_report: Callable[[JobTracker, JobReport, bool], None],
    ) -> None:
        self.database, self._on_report = database, on_report
        self.columns = JobColumns(jobs, tables)
        self.store = self.columns.store
        self.reports: dict[str, JobReport] = {}
        self._specs, self._nodes, self._commands = specs, nodes, commands
        self._renumber(tuple(jobs), tuple(specs))
        self.knowledge = JobKnowledge(known, self.columns, database, nodes, self._accuracy_at)
        self._losses: dict[str, tuple[float, int]] = {}
        self._improvements: list[tuple[str, float, float]] = []  # not in the database yet
        self.submitted = 0
        self._clock, self.time, self._last_look = Clock(), 0.0, 0.0
        self.fatal: RlptoError | None = None
        self.changed = True

    def _renumber(self, jobs: tuple[Job, ...], ids: tuple[str, ...]) -> None:
        self.jobs, self.ids = jobs, ids
        self._number = {job: number for number, job in enumerate(ids)}

    def pass_time(self, now: float) -> None:
        """Count the time until `now`, during which jobs held their GPUs."""
        self.columns.pass_time(now - self.time)
        self._last_look, self.time = self.time, now

    @property
    def all_ended(self) -> bool:
        """True if every job has been submitted and has ended."""
        return self.submitted == len(self.jobs) and not self.columns.active.any()

    @property
    def next_submit(self) -> float:
        """Submit time of the next job; infinity after the last one."""
        return self.jobs[self.submitted].submit_time if self.submitted < len(self.jobs) else np.inf

    def spec_of(self, job: str) -> JobSpec:
        """Specification of a job's controller."""
        return self._specs[job]

    def nodes_of(self, job: str) -> Nodes:
        """Ray's node id of each GPU that the plan gives to a job."""
        return self._commands.claims.entry(job).planned.nodes

    def planned_by_node(self) -> Counter[str]:
        """GPUs that the plan in force gives to jobs, by node id."""
        return Counter(node for entry in self._commands.claims.entries.values() for node in entry.planned.nodes)

    def claimed(self) -> set[str]:
        """Ids of nodes whose GPUs or CPU slots controllers may hold, including draining nodes."""
        return {node for entry in self._commands.claims.entries.values() for _, node in entry.claim}

    def _planned(self) -> dict[int, Plan]:
        """Plans in force, by job number."""
        entries = self._commands.claims.entries
        return {number: entries[job].planned for number, job in enumerate(self.ids) if job in entries}

    def _accuracy_at(self, index: IntArray, progress: FloatArray) -> FloatArray:
        """Accuracy of jobs after `progress` epochs, interpolated from evaluations [n]; NaN before a job's first one."""
        found = np.full(len(index), np.nan)
        first = self.columns.tables.accuracy[self.store.type_index[index], 0]
        for at, job in enumerate(index.tolist()):
            report = self.reports.get(self.ids[job])
            if report is not None and report.accuracy_curve:
                epochs, accuracy = zip((0.0, float(first[at])), *report.accuracy_curve, strict=True)
                found[at] = np.interp(progress[at], epochs, accuracy)
        return found

    # reports

    def take_report(self, report: JobReport) -> None:
        """Process a controller's report."""
        job, number = report.job, self._number.get(report.job)
        claims = self._commands.claims
        if number is None:  # it ended long ago
            return
        claims.reported(report)
        if not self.columns.active[number]:  # it has ended, and releases its GPUs
            self.hold(number, report.holding)
            return
        before = self.reports.get(job)
        self.reports[job] = report
        for one in (*report.earlier, report):
            if self.columns.evaluated(number, one.accuracy, at := self.reported_at(one)):
                self._improvements.append((job, at, one.accuracy))
        started = self.columns.take_report(number, report, self.time, settled=claims.settled(job))
        if started is not None:
            self.knowledge.note_start(started)
        self.knowledge.take_report(number, report)
        if report.earlier:  # now, because a newer report may replace this one before the next write
            self._write(number, report)
            self.reports[job] = report = replace(report, earlier=())
        if not report.ended:
            self.hold(number, report.holding, before)
            if report.training_on:
                self.database.trains(job, self.time)
        at = self.reported_at(report)
        if before is None or report.applied > before.applied:
            self.database.applied(job, report.applied, at)
        self._note_events(at, before or JobReport(job), report)
        if report.ended:  # before it releases GPUs: it does not wait again
            self._take_end(number, report)
            self.hold(number, report.holding)
        elif claims.rolled_back(job):
            self._roll_back(job, report)

    def _note_events(self, at: float, before: JobReport, report: JobReport) -> None:
        """Record new pauses, recoveries and failures of a report, as far as the report still holds them."""
        job, now, earlier = report.job, report.interruptions, before.interruptions
        pauses, recoveries = now.rescales - earlier.rescales, now.recoveries - earlier.recoveries
        for pause in now.pauses[-pauses:] if pauses > 0 else ():
            self.database.event(at, "rescale", job, value=pause, detail=f"{len(report.training_on)} workers")
        for seconds in now.recovery_seconds[-recoveries:] if recoveries > 0 else ():
            self.database.event(at, "recovery", job, value=seconds)
        if report.failure and report.failure != before.failure and not report.ended:
            self.database.event(at, "fault", job, detail=report.failure)

    def reported_at(self, report: JobReport) -> float:
        """When a report was made [s]; never before the last look, even if its machine's clock has jumped."""
        return min(max(self._clock.of(report.time), self._last_look), self.time)

    def hold(self, number: int, holding: Nodes, before: JobReport | None = None) -> None:
        """Record the GPUs that a job's controller holds, if changed. before: its previous report."""
        job = self.ids[number]
        if not self.columns.hold(number, len(holding), self.time):
            if before is not None and sorted(before.holding) != sorted(holding):
                self.database.moved(self.time, job, holding)
            return
        self.database.change(self.time, job, len(holding), self.columns.accuracy_of(number), holding)
        started = float(self.store.start_time[number])
        self.database.set_job(job, start_time=None if np.isnan(started) else started)

    def _roll_back(self, job: str, report: JobReport) -> None:
        """Reduce a job's plan to its training workers after its growth failed, which frees the other GPUs."""
        before = self._commands.claims.entry(job).planned
        after = replace(before, nodes=report.training_on, servers=report.serving_on if before.servers else ())
        self._commands.plan({job: after}, self.time)
        self.columns.give_again(self._number[job], len(after.nodes))
        self.knowledge.take_plans({self._number[job]: after})
        self.database.event(self.time, "rolled_back", job, detail=raised_in(report.failure))
        self.changed = True

    def _take_end(self, number: int, report: JobReport) -> None:
        """End a job whose controller reports that it has finished, or failed for good."""
        at = max(self.reported_at(report), self.jobs[number].submit_time)
        if report.state == "finished":
            self.columns.finish(number, at, report.progress if report.note else None)
            self.knowledge.note_finish()
            self._end(number, "finished", at, report.note, report)
        else:
            self.columns.fail(number, at)
            self._end(number, "failed", at, report.failure, report)

    def _end(self, number: int, kind: str, at: float, detail: str = "", report: JobReport | None = None) -> None:
        """Record the end of a job, whose columns have ended, and let its controller end.

        kind, detail: arguments of `SessionDatabase.end`. report: last report, None if its controller is gone or has not
        reported.
        """
        job = self.ids[number]
        if report is None:
            self.database.set_job(job, **self.columns.kept_of(number))
        else:
            self._write(number, report, last=True)
        self.database.end(job, at, kind, detail)
        self._commands.end(job)
        self.changed = True
        if kind == "failed" and self.columns.failed.all():  # raised once this look is in the database
            self.fatal = JobError(f"all {len(self.jobs)} jobs have failed, the last one of: {raised_in(detail)}")

    def controller_gone(self, job: str, reason: str) -> None:
        """Handle a controller that is gone with its workers, either ended or lost by a fault."""
        planned = self._commands.gone(job)
        number = self._number.get(job)
        if number is None:
            return
        self.hold(number, ())
        if not self.columns.active[number]:
            return
        if (report := self.reports.pop(job, None)) is not None:
            self._write(number, report, last=True)
        progress, losses = self._losses.get(job, (-1.0, 0))
        known = float(self.store.progress[number])
        losses = 1 if known > progress else losses + 1
        self._losses[job] = (known, losses)
        self.database.event(self.time, "controller_lost", job, value=losses, detail=reason)
        if losses > self._specs[job].faults.retries:
            self.columns.fail(number, self.time)
            self._end(number, "failed", self.time, f"its controller was lost {losses} times in a row: {reason}")
        else:
            self._commands.plan({job: planned}, self.time)

    def nodes_down(self, nodes: Sequence[str]) -> None:
        """Remove nodes. Their jobs continue on their remaining GPUs, or wait if these are too few."""
        surviving = self._nodes.remove(nodes, self.time)
        largest = self.knowledge.largest_size
        after = remaining_plans(self._commands.claims, surviving, lambda job, gpus: largest(self._number[job], gpus))
        self.give(after)
        self.knowledge.take_plans({self._number[job]: plan for job, plan in after.items()})
        self.changed = True

    def let_in_until(self, time: float, least: int = 0) -> None:
        """Activate jobs submitted by a time, and in any case the first `least` jobs."""
        while self.submitted < len(self.jobs) and (self.submitted < least or self.next_submit <= time):
            self.columns.let_in(self.submitted, self.time)
            self.database.let_in(self.ids[self.submitted], self.time)
            self.submitted += 1
            self.changed = True

    def cancel(self, job: str) -> None:
        """Cancel a job, unless it has already ended."""
        number = self._number.get(job)
        if number is None or self.columns.failed[number] or self.columns.finished[number]:
            return
        self.let_in_until(-np.inf, least=number + 1)
        self.columns.fail(number, self.time)
        self._end(number, CANCELLED, self.time, report=self.reports.get(job))

    def set_priority(self, job: str, priority: int) -> None:
        """Move a job to another priority class, and reset its priority rises."""
        number = self._number.get(job)
        if number is not None:
            moved = replace(self.jobs[number], priority=priority)
            self.jobs = (*self.jobs[:number], moved, *self.jobs[number + 1 :])
            self.store.priority[number], self.store.risen[number] = priority, 0
            self.changed = True

    def restore(self, clock: Clock, left: float, controllers: Sequence[str], counted: float) -> list[JobReport]:
        """Restore the state from the database and the controllers. left: time at which the session was left. counted:
        time up to which the sums of decisions include jobs' shortfalls. Returns the last reports of jobs that finished
        without a scheduler, and the first ones of the controllers."""
        self._clock, self.time, rows = clock, left, self.database.jobs()
        for number, row in enumerate(rows):
            query = "SELECT time, accuracy FROM improvements WHERE job = ? ORDER BY id"
            self.columns.restore(number, row, self.database.rows(query, (row.id,)), counted)
        self.submitted = sum(row.state not in EXPECTED for row in rows)
        ended = list[JobReport]()
        for job in self._commands.reopen(rows, controllers):
            if (last := last_report(self._specs[job])) is not None:
                ended.append(last)
                continue
            self.hold(self._number[job], ())
            self.database.event(left, "controller_lost", job)
        for row in rows:  # ended jobs that released GPUs while no scheduler was running
            if row.gpus_held and row.id not in controllers:
                self.hold(self._number[row.id], ())
        claims = self._commands.claims
        planned = {job: entry.planned for job, entry in claims.entries.items()}
        for job, plan in planned.items():
            self.columns.give_again(self._number[job], len(plan.nodes))
        self.knowledge.take_plans({self._number[job]: plan for job, plan in planned.items()})
        gone = {node for plan in planned.values() for node in plan.nodes} - claims.capacity.keys()
        if gone:
            self.nodes_down(sorted(gone))
        self._nodes.note_lost(left)
        return [*ended, *self._commands.first_reports(self._clock)]

    # plans

    def give(self, targets: dict[str, Plan]) -> None:
        """Plan jobs' training from now on, and count a change of workers as a rescale."""
        present = {job: self._commands.claims.entry(job).planned for job in targets}
        self._commands.plan(targets, self.time)
        for job, plan in targets.items():
            number = self._number[job]
            moved = (plan.nodes, plan.servers) != (present[job].nodes, present[job].servers)
            if moved and self.columns.give(number, len(plan.nodes), self.time):
                self.database.set_job(job, rescales=int(self.store.rescales[number]))

    # the database

    def write_all(self) -> None:
        """Write all active jobs to the database, with the sums that count them, in one transaction."""
        trained = np.flatnonzero(self.columns.active & (self.store.progress > 0))
        self.columns.expect(trained, self.knowledge.table_of(trained).final_accuracy, self.time)
        for number in np.flatnonzero(self.columns.active).tolist():
            report = self.reports.get(self.ids[number])
            if report is not None:
                self._write(number, report)
            elif self.columns.gained[number]:  # its controller is gone; without a gain nothing needs writing
                self.database.set_job(self.ids[number], **self.columns.kept_of(number))
        self.columns.write(self.database.add_interval)
        self.database.set_fact("beat", repr(self.time))

    def _write(self, number: int, report: JobReport, last: bool = False) -> None:
        """Write a job's columns and its newest report. last: whether its controller reports no more."""
        for improvement in self._improvements:
            self.database.improvement(*improvement)
        self._improvements.clear()
        self.database.note_report(report, **self.columns.kept_of(number))
        self._on_report(self, report, last)

    # changes of the workload

    def append(self, jobs: Sequence[Job], specs: Sequence[JobSpec]) -> None:
        """Append jobs with their controllers' specifications."""
        self.columns.append(jobs)
        self._specs.update((spec.id, spec) for spec in specs)
        self._renumber((*self.jobs, *jobs), (*self.ids, *(spec.id for spec in specs)))
        self.database.add_jobs([(spec, job.submit_time) for job, spec in zip(jobs, specs, strict=True)])
        self.knowledge.append(jobs, specs, self._planned())

    def take_tables(self, tables: SpeedTables) -> None:
        """Replace the speed tables by ones that include more models."""
        self.columns.take_tables(tables, self.jobs)
        self.knowledge.take_tables(self._planned())

    def forget_ended(self, kept: Collection[str] = ()) -> tuple[str, ...]:
        """Forget ended jobs whose controllers are gone, and return their ids. Remaining jobs are renumbered. kept: ids
        of jobs to remember. A policy that stores job numbers must be reset."""
        there = np.array([self._commands.has_controller(job) or job in kept for job in self.ids], dtype=np.bool_)
        ended = ~self.columns.active & (self.columns.held == 0) & ~there & (np.arange(len(self.ids)) < self.submitted)
        lost, left = tuple(self.ids[number] for number in np.flatnonzero(ended).tolist()), np.flatnonzero(~ended)
        if not lost:
            return ()
        self.database.forget(lost)
        self._commands.forget(lost)
        for job in lost:
            self._specs.pop(job)
            self.reports.pop(job, None)
            self._losses.pop(job, None)
        self.submitted -= len(lost)
        past = np.flatnonzero(ended & self.columns.finished)
        progress = self.columns.store.progress[past].tolist()
        jobs = [self.jobs[number] for number in past.tolist()]
        finished = [FinishedJob(job.type, job.user, epochs) for job, epochs in zip(jobs, progress, strict=True)]
        self.columns.keep(left)
        self._renumber(tuple(self.jobs[i] for i in left.tolist()), tuple(self.ids[i] for i in left.tolist()))
        self.knowledge.keep(left, self._planned(), finished)
        return lost

    def learn(self) -> None:
        """Update estimates after reports."""
        if self.knowledge.learn():
            self.knowledge.refresh(self._planned())
