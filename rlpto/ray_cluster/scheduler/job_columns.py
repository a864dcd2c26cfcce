"""What has become of the jobs: the columns that policies see, and sums between decisions, from controllers' reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlpto.core.job_store import JobStore
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import ACCURACY_LEVELS, PRIORITY_CLASSES, Job
from rlpto.core.records import INTERVAL
from rlpto.io.arrays import AnyArray, BoolArray, FloatArray, IntArray
from rlpto.performance.tables import SpeedTables
from rlpto.ray_cluster.messages import JobReport
from rlpto.store.jobs import ACTIVE, ENDED, SessionJob

ROUNDING = 1e-9
"""Share of its epochs by which the progress of a job that has all of them may be off."""

OWN_SECONDS = "rescale_seconds", "given_at", "first_given", "delay", "gained", "kept_gpu_seconds"
OWN = np.dtype(
    [("active", np.bool_), ("failed", np.bool_), ("held", np.int64), *((name, np.float64) for name in OWN_SECONDS)]
)
"""Columns of a job besides those of its store."""


class JobColumns:
    """Columns and sums of M jobs. All arrays are [M].

    active: submitted, and neither finished nor failed. failed. held: GPUs of workers that are alive or being started,
    as reported. accuracy: newest measured (NaN: none). rescale_seconds: measured so far.
    given_at: s, when a decision last gave the job other GPUs. delay: s that such a change is believed to take.
    first_given: s, when a decision gave the job its first GPUs; NaN: it has none, or has taken its first step.
    gained: share of the accuracy that the job can gain. kept_gpu_seconds: of training, as reported last.
    totals: [1] INTERVAL, the sum of what was taken. A job has what was measured last until the next measurement.
    """

    def __init__(self, jobs: Sequence[Job], tables: SpeedTables) -> None:
        self.tables = tables
        self.store = JobStore.from_jobs(jobs, tables)
        self._own: AnyArray = np.zeros(0, dtype=OWN)
        self._extend(len(jobs))
        self.totals: AnyArray = np.zeros(1, dtype=INTERVAL)
        self._passed: AnyArray = np.zeros(1, dtype=INTERVAL)

    def append(self, jobs: Sequence[Job]) -> None:
        """Add jobs that were submitted no earlier than those that are there."""
        self.store.append(JobStore.from_jobs(jobs, self.tables).records)
        self._extend(len(jobs))

    def keep(self, index: IntArray) -> None:
        """Forget all jobs but those at `index` [n], ascending; these get new numbers. Sums stay."""
        self.store.keep(index)
        self._own = self._own[index]
        self._extend(0)

    def take_tables(self, tables: SpeedTables, jobs: Sequence[Job]) -> None:
        """Tables with further types, besides those of all `jobs`, which may have other numbers there."""
        self.tables = tables
        self.store.type_index[:] = [tables.type_index(job.type) for job in jobs]
        self._extend(0)

    def _extend(self, more: int) -> None:
        """Columns for the last `more` jobs of the store, and again all that follows from the store and the tables."""
        kinds = self.store.type_index
        added = np.zeros(more, dtype=OWN)
        added["given_at"], added["first_given"] = -np.inf, np.nan
        self._own = own = np.concatenate([self._own, added])
        self.active: BoolArray = own["active"]
        self.failed: BoolArray = own["failed"]
        self.held: IntArray = own["held"]
        self.rescale_seconds: FloatArray = own["rescale_seconds"]
        self.given_at: FloatArray = own["given_at"]
        self.first_given: FloatArray = own["first_given"]
        self.delay: FloatArray = own["delay"]
        self._gained: FloatArray = own["gained"]
        self._kept_gpu_seconds: FloatArray = own["kept_gpu_seconds"]
        self.accuracy: FloatArray = self.store.measured_accuracy
        self._first = self.tables.accuracy[kinds, 0]
        declared = self.store.take(np.arange(len(kinds)))
        declared.believed_type[:] = kinds  # of these tables; policies may believe others
        self._curve = JobTable(declared, self.tables, np.arange(len(kinds)), self.store.priority.copy(), 1)
        self._gainable = np.maximum(self._curve.final_accuracy - self._first, 1e-9)

    @property
    def finished(self) -> BoolArray:
        """[M] jobs that have reached their epochs, or stopped early."""
        return ~np.isnan(self.store.finish_time)

    def restore(self, job: int, row: SessionJob) -> None:
        """A job as the database has it; what it has gained so far was counted before."""
        store = self.store
        self.active[job] = row.state in ACTIVE
        self.failed[job] = row.state in ENDED and row.state != "finished"
        store.progress[job], store.attained_service[job] = row.progress, row.gpu_seconds
        store.rescales[job], self.rescale_seconds[job] = row.rescales, row.rescale_seconds
        store.peak_gpus[job], store.kept[job], self.held[job] = row.peak_gpus, row.kept_seconds, row.gpus_held
        numbers = (row.start_time, row.finish_time, row.accuracy, row.lost_gpu_seconds)
        known = np.array((*numbers, row.reached_90, row.reached_95, row.reached_99), dtype=np.float64)  # NaN for None
        store.start_time[job], store.finish_time[job], self.accuracy[job], store.lost[job] = known[:4]
        self._note_gain(job, np.nan)
        store.reached[job] = known[4:]
        self._passed["accuracy_gain"] = 0.0

    def pass_time(self, seconds: float) -> None:
        """Jobs have held what they hold for that long."""
        self._passed["unfinished"] += np.count_nonzero(self.active) * seconds
        self._passed["gpu_seconds"] += self.held.sum() * seconds
        missing = np.where(self.active, 1.0 - self._gained, 0.0)
        self._passed["shortfall"] += np.bincount(self.store.priority, missing, len(PRIORITY_CLASSES)) * seconds
        self.store.records["attained_service"] += self.held * seconds

    def give(self, job: int, gpus: int, time: float) -> bool:
        """A decision gives a job other GPUs; True if that restarts a job that has run before."""
        store = self.store
        store.gpus[job], self.given_at[job] = gpus, time
        if gpus == 0:
            store.wait_start[job], store.rescale_left[job] = time, 0.0
            self.first_given[job] = np.nan
            return False
        if np.isnan(self.first_given[job]) and store.progress[job] == 0:
            self.first_given[job] = time
        store.wait_start[job] = np.nan
        store.rescale_left[job] = self.delay[job]
        again = bool(store.start_time[job] <= time)
        if again:
            store.rescales[job] += 1
        return again

    def give_again(self, job: int, gpus: int) -> None:
        """After a restart: the decision in force gives a job these GPUs, and did so before."""
        self.store.gpus[job] = gpus
        if gpus:
            self.store.wait_start[job] = np.nan

    def left_of_rescale(self, index: IntArray, time: float) -> FloatArray:
        """[n] seconds that the rescales of some jobs are expected to take still."""
        return np.clip(self.given_at[index] + self.store.rescale_left[index] - time, 0.0, None)

    def heard(self, job: int, report: JobReport, time: float, settled: bool) -> float | None:
        """Take in a report at `time` [s]. settled: what was decided last is wholly in force.

        With the report that first shows a step: the seconds from the decision that gave the job its first GPUs to that
        step; else None.
        """
        store = self.store
        if report.kept_gpu_seconds > 0:  # where a job is not as far as it was, a fault has taken back the rest
            fell = report.progress < store.progress[job]
            back = max(self._kept_gpu_seconds[job] - report.kept_gpu_seconds, 0.0) if fell else 0.0
            store.lost[job] = np.nan_to_num(store.lost[job]) + back
            store.kept[job], self._kept_gpu_seconds[job] = report.kept_seconds, report.kept_gpu_seconds
        store.progress[job] = min(report.progress, store.epochs[job])
        if settled:
            store.rescale_left[job] = 0.0
        if not np.isnan(report.accuracy):
            self.accuracy[job] = report.accuracy
        self._passed["rescale_seconds"] += max(report.rescale_seconds - self.rescale_seconds[job], 0.0)
        self.rescale_seconds[job] = report.rescale_seconds
        self._note_gain(job, time)
        first = float(self.first_given[job])
        if report.progress == 0 or np.isnan(first):
            return None
        self.first_given[job] = np.nan
        return time - first

    def hold(self, job: int, gpus: int, time: float) -> bool:
        """A job holds this number of GPUs from now on; True if it was another before."""
        if gpus == self.held[job]:
            return False
        self.held[job] = gpus
        self.store.peak_gpus[job] = max(self.store.peak_gpus[job], gpus)
        if gpus and np.isnan(self.store.start_time[job]):
            self.store.start_time[job] = time
        return True

    def finish(self, job: int, time: float, stopped_at: float | None = None) -> None:
        """A job has reached its epochs, or stopped early after `stopped_at` of them."""
        self._end(job)
        self.store.finish_time[job] = time
        self.store.progress[job] = self.store.epochs[job] if stopped_at is None else stopped_at
        self._note_gain(job, time)

    def fail(self, job: int) -> None:
        """A job will never finish."""
        self._end(job)
        self.failed[job] = True

    def _end(self, job: int) -> None:
        self.active[job] = False
        self.store.gpus[job] = 0
        self.store.rescale_left[job] = 0.0

    def accuracy_of(self, job: int) -> float:
        """Newest measured accuracy of a job; before there is one, that of the profile's curve."""
        known = float(self.accuracy[job])
        return known if not np.isnan(known) else float(self._curve.accuracy_at(self.store.progress)[job])

    def _note_gain(self, job: int, time: float) -> None:
        """Accuracy counts once, as a share of what the job can gain, and levels of it as reached at `time` [s]: all of
        it once the job has all its epochs, not what was measured then; of one that has stopped early what was."""
        whole = self.finished[job] and self.store.progress[job] >= self.store.epochs[job] * (1 - ROUNDING)
        share = 1.0 if whole else (self.accuracy_of(job) - self._first[job]) / self._gainable[job]
        gained = min(max(share, self._gained[job]), 1.0)
        self._passed["accuracy_gain"][0, self.store.priority[job]] += gained - self._gained[job]
        self._gained[job] = gained
        reached = self.store.reached[job]
        reached[np.isnan(reached) & (gained >= np.array(ACCURACY_LEVELS))] = time

    def take(self, start: float, end: float) -> AnyArray:
        """[1] `rlpto.core.records.INTERVAL` of what has happened since this was last asked."""
        passed, self._passed = self._passed, np.zeros(1, dtype=INTERVAL)
        passed["start"], passed["end"] = start, end
        for name in ("accuracy_gain", "shortfall", "unfinished", "gpu_seconds", "rescale_seconds"):
            self.totals[name] += passed[name]
        return passed
