"""What has become of the jobs: the columns that policies see, and sums between decisions, from controllers' reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

OWN_NUMBERS = "rescale_seconds", "given_at", "first_given", "delay", "gained", "shortfall", "kept_gpu_seconds"
OWN = np.dtype(
    [("active", np.bool_), ("failed", np.bool_), ("held", np.int64), *((name, np.float64) for name in OWN_NUMBERS)]
)
"""Columns of a job besides those of its store."""


def gained_share(accuracy: FloatArray, first: float, final: float) -> FloatArray:
    """Return the share that accuracies are of the way from `first`, before training, to `final`, in [0, 1]."""
    return np.clip((accuracy - first) / max(final - first, 1e-9), 0.0, 1.0)


def settle(
    points: Sequence[tuple[float, float]], start: float, end: float, first: float, final: float
) -> tuple[float, FloatArray]:
    """Return a job's shortfall [s] over its life from `start` to `end` [s], and when it reached each level [levels, s].

    points: (time, accuracy) as evaluated; times do not fall. The best accuracy so far counts from its evaluation on. A
    level never reached is NaN.
    """
    times, accuracies = np.array([(start, first), *points], dtype=np.float64).T
    times = np.clip(times, start, end := max(start, end))
    gained = gained_share(np.maximum.accumulate(accuracies), first, final)
    reached = np.array([min(times[gained >= level], default=np.nan) for level in ACCURACY_LEVELS])
    return float((1.0 - gained) @ np.diff(times, append=end)), reached


class JobColumns:
    """Columns and sums of M jobs. All arrays are [M].

    active: submitted, and neither finished nor failed. failed. held: GPUs of workers that are alive or being started,
    as reported. accuracy: newest measured (NaN: none). rescale_seconds: measured so far.
    given_at: s, when a decision last gave the job other GPUs. delay: s that such a change is believed to take.
    first_given: s, when a decision gave the job its first GPUs; NaN: it has none, or has taken its first step.
    final: accuracy that policies expect a job to end with; of one that has ended, see `_end`. gained: share of it.
    shortfall: s, counted so far. kept_gpu_seconds: of training, as reported last.
    improvements: (time, accuracy) of each job's evaluations that were better than all before.
    totals: [1] INTERVAL since this scheduler began. A job has what was measured last until the next measurement.
    """

    def __init__(self, jobs: Sequence[Job], tables: SpeedTables) -> None:
        self.tables = tables
        self.store = JobStore.from_jobs(jobs, tables)
        self._own: AnyArray = np.zeros(0, dtype=OWN)
        self.improvements: list[list[tuple[float, float]]] = []
        self._extend(len(jobs))
        self._counted: AnyArray = np.zeros(3, dtype=INTERVAL)  # that was not taken, that was not written, and all
        self.totals = self._counted[2:]

    def append(self, jobs: Sequence[Job]) -> None:
        """Add jobs that were submitted no earlier than those that are there."""
        self.store.append(JobStore.from_jobs(jobs, self.tables).records)
        self._extend(len(jobs))

    def keep(self, index: IntArray) -> None:
        """Forget all jobs but those at `index` [n], ascending; these get new numbers. Sums stay."""
        self.store.keep(index)
        self._own = self._own[index]
        self.improvements = [self.improvements[job] for job in index.tolist()]
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
        self.gained: FloatArray = own["gained"]
        self._kept_gpu_seconds: FloatArray = own["kept_gpu_seconds"]
        self.accuracy: FloatArray = self.store.measured_accuracy
        self._first = self.tables.accuracy[kinds, 0]
        declared = self.store.take(np.arange(len(kinds)))
        declared.believed_type[:] = kinds  # of these tables; policies may believe others
        self._curve = JobTable(declared, self.tables, np.arange(len(kinds)), self.store.priority.copy(), 1)
        self.store.final_accuracy[len(kinds) - more :] = self._curve.final_accuracy[len(kinds) - more :]
        self.improvements += [[] for _ in range(more)]

    @property
    def finished(self) -> BoolArray:
        """[M] jobs that have reached their epochs, or stopped early."""
        return ~np.isnan(self.store.finish_time)

    @property
    def submitted(self) -> BoolArray:
        """[M] jobs that have been let in, including ended ones."""
        return self.active | self.failed | self.finished

    def restore(self, job: int, row: SessionJob, improvements: Sequence[tuple[float, float]], counted: float) -> None:
        """A job as the database has it. counted: time [s] until which the sums of decisions have what it missed."""
        store = self.store
        self.active[job] = row.state in ACTIVE
        self.failed[job] = row.state in ENDED and row.state != "finished"
        store.progress[job], store.rescales[job], self.held[job] = row.progress, row.rescales, row.gpus_held
        for name, column in self._kept.items():
            if (value := getattr(row, name)) is not None:
                column[job] = value
        self.improvements[job] = list(improvements)
        if self.active[job] and not row.gained:  # not written: it has been missing all
            self._own["shortfall"][job] = max(counted - float(store.submit_time[job]), 0.0)

    def let_in(self, job: int, time: float) -> None:
        """A job becomes active: it was missing all that it can gain since it was submitted."""
        self.active[job] = True
        self._count_shortfall(job, max(time - float(self.store.submit_time[job]), 0.0))

    def expect(self, index: IntArray, final: FloatArray, time: float) -> None:
        """Jobs number `index` [n] are expected to end with these accuracies [n]: their gains are shares of them."""
        changed = index[self.store.final_accuracy[index] != final]
        self.store.final_accuracy[index] = final
        for job in changed.tolist():
            self._note_gain(job, time)

    def evaluated(self, job: int, accuracy: float, time: float) -> bool:
        """A job was evaluated, as reported at `time` [s]; True if it never was as good before."""
        improvements = self.improvements[job]
        if better := bool(accuracy > (improvements[-1][1] if improvements else self._first[job])):  # False of NaN
            improvements.append((time, accuracy))
        return better

    def pass_time(self, seconds: float) -> None:
        """Jobs have held what they hold for that long."""
        self._counted["unfinished"] += np.count_nonzero(self.active) * seconds
        self._counted["gpu_seconds"] += self.held.sum() * seconds
        missing = np.where(self.active, 1.0 - self.gained, 0.0) * seconds
        self._own["shortfall"] += missing
        self._counted["shortfall"] += np.bincount(self.store.priority, missing, len(PRIORITY_CLASSES))
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
        self._counted["rescale_seconds"] += max(report.rescale_seconds - self.rescale_seconds[job], 0.0)
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
        self.store.finish_time[job] = time
        self.store.progress[job] = self.store.epochs[job] if stopped_at is None else stopped_at
        self._end(job, time, bool(self.store.progress[job] >= self.store.epochs[job] * (1 - ROUNDING)))

    def fail(self, job: int, time: float) -> None:
        """A job will never finish."""
        self.failed[job] = True
        self._end(job, time, False)

    def _end(self, job: int, time: float, whole: bool) -> None:
        """A job is over. whole: with all its epochs; its final accuracy is then its best, otherwise the expected one,
        or the best if that is higher. What it was missing in its life is counted again by that, if it was evaluated."""
        store, improvements, final = self.store, self.improvements[job], self.store.final_accuracy
        self.active[job], store.gpus[job], store.rescale_left[job] = False, 0, 0.0
        if improvements:
            final[job] = max(improvements[-1][1], 0.0 if whole else final[job])
        if not np.isnan(self.accuracy[job]):
            settled, store.reached[job] = settle(
                improvements, store.submit_time[job], time, self._first[job], final[job]
            )
            self._count_shortfall(job, settled - self._own["shortfall"][job])
        self._note_gain(job, time, whole)

    def accuracy_of(self, job: int) -> float:
        """Newest measured accuracy of a job; before there is one, that of the profile's curve."""
        known = float(self.accuracy[job])
        return known if not np.isnan(known) else float(self._curve.accuracy_at(self.store.progress)[job])

    def _note_gain(self, job: int, time: float, whole: bool = False) -> None:
        """The best accuracy counts, as a share of what the job can gain, and levels of it as reached at `time` [s]: all
        of it if the job has trained whole; less than before where it is now expected to gain more."""
        best = np.array(self.improvements[job][-1][1] if self.improvements[job] else self.accuracy_of(job))
        gained = 1.0 if whole else float(gained_share(best, self._first[job], self.store.final_accuracy[job]))
        self._counted["accuracy_gain"][:, self.store.priority[job]] += gained - self.gained[job]
        self.gained[job] = gained
        reached = self.store.reached[job]
        reached[np.isnan(reached) & (gained >= np.array(ACCURACY_LEVELS))] = time

    def _count_shortfall(self, job: int, seconds: float) -> None:
        self._own["shortfall"][job] += seconds
        self._counted["shortfall"][:, self.store.priority[job]] += seconds

    @property
    def _kept(self) -> dict[str, AnyArray]:
        """Columns by the names that they have in the database."""
        store = self.store
        same = {name: getattr(store, name) for name in ("start_time", "finish_time", "final_accuracy", "peak_gpus")}
        same |= {name: self._own[name] for name in ("rescale_seconds", "gained", "shortfall")}
        levels = zip(("reached_90", "reached_95", "reached_99"), store.reached.T, strict=True)
        more = {"accuracy": self.accuracy, "gpu_seconds": store.attained_service, "kept_seconds": store.kept}
        return {**same, **more, **dict(levels), "lost_gpu_seconds": store.lost}

    def kept_of(self, job: int) -> dict[str, object]:
        """What the database keeps of a job, by the names of its columns there; None for NaN."""
        return {name: None if np.isnan(column[job]) else column[job].item() for name, column in self._kept.items()}

    def take(self, start: float, end: float) -> AnyArray:
        """[1] `rlpto.core.records.INTERVAL` of what has happened since this was last asked."""
        passed = self._counted[:1].copy()
        passed["start"], passed["end"] = start, end
        self._counted[:1] = np.zeros(1, dtype=INTERVAL)
        return passed

    def write(self, to: Callable[[AnyArray], bool]) -> None:
        """Give `to` [1] INTERVAL of what has happened since it last took that: returned True."""
        if to(self._counted[1:2]):
            self._counted[1:2] = np.zeros(1, dtype=INTERVAL)
