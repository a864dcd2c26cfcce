"""State of the jobs of a session from controllers' reports: the columns that policies see, and sums between
decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlpto.core.job_store import JobStore
from rlpto.core.jobs import ACCURACY_LEVELS, PRIORITY_CLASSES, Job
from rlpto.core.records import INTERVAL
from rlpto.io.arrays import AnyArray, BoolArray, FloatArray, IntArray
from rlpto.performance.tables import SpeedTables
from rlpto.ray_cluster.messages import JobReport
from rlpto.store.jobs import ACTIVE, ENDED, SessionJob

ROUNDING = 1e-9
"""Relative rounding error up to which a job's progress counts as all of its epochs."""

OWN_NUMBERS = "rescale_seconds", "given_at", "first_given", "delay", "gained", "shortfall", "kept_gpu_seconds"
OWN = np.dtype(
    [("active", np.bool_), ("failed", np.bool_), ("held", np.int64), *((name, np.float64) for name in OWN_NUMBERS)]
)
"""Columns of a job in addition to the columns of `JobStore`."""


def gained_share(accuracy: FloatArray, first: float, final: float) -> FloatArray:
    """Return how far accuracies are from `first`, before training, towards `final`, as a share in [0, 1]."""
    return np.clip((accuracy - first) / max(final - first, 1e-9), 0.0, 1.0)


def settle(
    points: Sequence[tuple[float, float]], start: float, end: float, first: float, final: float
) -> tuple[float, FloatArray]:
    """Return a job's shortfall [s] over its life from `start` to `end` [s], and when it reached each accuracy level
    [levels, s].

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

    active: submitted, and neither finished nor failed. failed: failed or cancelled. held: GPUs of workers that are
    alive or starting, as reported. accuracy: newest measured accuracy, NaN before the first. rescale_seconds: measured
    so far. given_at: when a decision last changed the job's GPUs [s]. delay: estimated duration of such a change [s].
    first_given: when a decision gave the job its first GPUs [s]; NaN without GPUs and after the first step. final:
    final accuracy that policies expect; for ended jobs, the value set by `_end`. gained: share of `final` gained.
    shortfall: counted so far [s]. kept_gpu_seconds: GPU-seconds of kept training, as last reported. improvements:
    (time, accuracy) of each job's evaluations that were better than all before. totals: [1] INTERVAL since this
    scheduler began. A job keeps its last measurement until the next one.
    """

    def __init__(self, jobs: Sequence[Job], tables: SpeedTables) -> None:
        self.tables = tables
        self.store = JobStore.from_jobs(jobs, tables)
        self._own: AnyArray = np.zeros(0, dtype=OWN)
        self.improvements: list[list[tuple[float, float]]] = []
        self._extend(len(jobs))
        self._counted: AnyArray = np.zeros(3, dtype=INTERVAL)  # not taken yet, not written yet, all
        self.totals = self._counted[2:]

    def append(self, jobs: Sequence[Job]) -> None:
        """Add jobs submitted no earlier than the present ones."""
        self.store.append(JobStore.from_jobs(jobs, self.tables).records)
        self._extend(len(jobs))

    def keep(self, index: IntArray) -> None:
        """Keep only the jobs at `index` [n], ascending, and renumber them. Sums stay."""
        self.store.keep(index)
        self._own = self._own[index]
        self.improvements = [self.improvements[job] for job in index.tolist()]
        self._extend(0)

    def take_tables(self, tables: SpeedTables, jobs: Sequence[Job]) -> None:
        """Replace the tables by ones with more types. They include the types of all `jobs`, possibly renumbered."""
        self.tables = tables
        self.store.type_index[:] = [tables.type_index(job.type) for job in jobs]
        self._extend(0)

    def _extend(self, more: int) -> None:
        """Add columns for the last `more` jobs of the store, and recompute everything derived from store and tables."""
        types = self.store.type_index
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
        self._first = self.tables.accuracy[types, 0]
        new = slice(len(types) - more, None)
        self.store.final_accuracy[new] = self.tables.accuracy_at(types[new], self.store.epochs[new])
        self.improvements += [[] for _ in range(more)]

    @property
    def finished(self) -> BoolArray:
        """Jobs that have reached their epochs or stopped early [M]."""
        return ~np.isnan(self.store.finish_time)

    @property
    def submitted(self) -> BoolArray:
        """Jobs that have been let in, including ended ones [M]."""
        return self.active | self.failed | self.finished

    def restore(self, job: int, row: SessionJob, improvements: Sequence[tuple[float, float]], counted: float) -> None:
        """Restore a job from the database. counted: time up to which the sums of decisions include its shortfall
        [s]."""
        store = self.store
        self.active[job] = row.state in ACTIVE
        self.failed[job] = row.state in ENDED and row.state != "finished"
        store.progress[job], store.rescales[job], self.held[job] = row.progress, row.rescales, row.gpus_held
        for name, column in self._kept.items():
            if (value := getattr(row, name)) is not None:
                column[job] = value
        self.improvements[job] = list(improvements)
        if self.active[job] and not row.gained:  # not written: nothing gained yet
            self._own["shortfall"][job] = max(counted - float(store.submit_time[job]), 0.0)

    def let_in(self, job: int, time: float) -> None:
        """Activate a job. Its shortfall since submission is counted in full."""
        self.active[job] = True
        self._count_shortfall(job, max(time - float(self.store.submit_time[job]), 0.0))

    def expect(self, index: IntArray, final: FloatArray, time: float) -> None:
        """Set the expected final accuracies [n] of jobs `index` [n], and update their gains, which are shares of
        them."""
        changed = index[self.store.final_accuracy[index] != final]
        self.store.final_accuracy[index] = final
        for job in changed.tolist():
            self._note_gain(job, time)

    def evaluated(self, job: int, accuracy: float, time: float) -> bool:
        """Record an evaluation reported at `time` [s]. True if it is the job's best so far."""
        improvements = self.improvements[job]
        if better := bool(accuracy > (improvements[-1][1] if improvements else self._first[job])):  # False of NaN
            improvements.append((time, accuracy))
        return better

    def pass_time(self, seconds: float) -> None:
        """Count an interval [s] during which jobs held their GPUs."""
        self._counted["unfinished"] += np.count_nonzero(self.active) * seconds
        self._counted["gpu_seconds"] += self.held.sum() * seconds
        missing = np.where(self.active, 1.0 - self.gained, 0.0) * seconds
        self._own["shortfall"] += missing
        self._counted["shortfall"] += np.bincount(self.store.priority, missing, len(PRIORITY_CLASSES))
        self.store.records["attained_service"] += self.held * seconds

    def give(self, job: int, gpus: int, time: float) -> bool:
        """Record that a decision changes a job's GPUs. True if this restarts a job that has run before."""
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
        """Restore, after a restart, the GPUs that the decision in force gives to a job."""
        self.store.gpus[job] = gpus
        if gpus:
            self.store.wait_start[job] = np.nan

    def left_of_rescale(self, index: IntArray, time: float) -> FloatArray:
        """Expected remaining seconds of jobs' rescales [n]."""
        return np.clip(self.given_at[index] + self.store.rescale_left[index] - time, 0.0, None)

    def take_report(self, job: int, report: JobReport, time: float, settled: bool) -> float | None:
        """Process a report at `time` [s]. settled: whether the last decision is fully in force.

        With the first report of a step, returns the seconds from the decision that gave the job its first GPUs to that
        step; otherwise None.
        """
        store = self.store
        if report.kept.gpu_seconds > 0:  # progress fell: a fault has rolled back the difference
            fell = report.progress < store.progress[job]
            back = max(self._kept_gpu_seconds[job] - report.kept.gpu_seconds, 0.0) if fell else 0.0
            store.lost[job] = np.nan_to_num(store.lost[job]) + back
            store.kept[job], self._kept_gpu_seconds[job] = report.kept.seconds, report.kept.gpu_seconds
        store.progress[job] = min(report.progress, store.epochs[job])
        if settled:
            store.rescale_left[job] = 0.0
        if not np.isnan(report.accuracy):
            self.accuracy[job] = report.accuracy
        rescaled = report.interruptions.rescale_seconds
        self._counted["rescale_seconds"] += max(rescaled - self.rescale_seconds[job], 0.0)
        self.rescale_seconds[job] = rescaled
        self._note_gain(job, time)
        first = float(self.first_given[job])
        if report.progress == 0 or np.isnan(first):
            return None
        self.first_given[job] = np.nan
        return time - first

    def hold(self, job: int, gpus: int, time: float) -> bool:
        """Set the number of GPUs that a job holds. True if it has changed."""
        if gpus == self.held[job]:
            return False
        self.held[job] = gpus
        self.store.peak_gpus[job] = max(self.store.peak_gpus[job], gpus)
        if gpus and np.isnan(self.store.start_time[job]):
            self.store.start_time[job] = time
        return True

    def finish(self, job: int, time: float, stopped_at: float | None = None) -> None:
        """Finish a job that has reached its epochs, or stopped early after `stopped_at` epochs."""
        self.store.finish_time[job] = time
        self.store.progress[job] = self.store.epochs[job] if stopped_at is None else stopped_at
        self._end(job, time, bool(self.store.progress[job] >= self.store.epochs[job] * (1 - ROUNDING)))

    def fail(self, job: int, time: float) -> None:
        """Mark a job as failed for good."""
        self.failed[job] = True
        self._end(job, time, False)

    def _end(self, job: int, time: float, whole: bool) -> None:
        """End a job. whole: it has trained all its epochs. Its final accuracy is then its best; otherwise the expected
        one, or the best if higher. The shortfall of an evaluated job is recomputed with this final accuracy."""
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
        """Newest measured accuracy of a job; before the first measurement, the accuracy of the profile's curve."""
        known = float(self.accuracy[job])
        job_type, progress = self.store.type_index[job : job + 1], self.store.progress[job : job + 1]
        return known if not np.isnan(known) else float(self.tables.accuracy_at(job_type, progress)[0])

    def _note_gain(self, job: int, time: float, whole: bool = False) -> None:
        """Update a job's gain from its best accuracy, and its levels reached at `time` [s]. The gain is 1 if the job
        has trained whole. It falls if the job's expected final accuracy has risen."""
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
        """Columns by their names in the database."""
        store = self.store
        same = {name: getattr(store, name) for name in ("start_time", "finish_time", "final_accuracy", "peak_gpus")}
        same |= {name: self._own[name] for name in ("rescale_seconds", "gained", "shortfall")}
        levels = zip(("reached_90", "reached_95", "reached_99"), store.reached.T, strict=True)
        more = {"accuracy": self.accuracy, "gpu_seconds": store.attained_service, "kept_seconds": store.kept}
        return {**same, **more, **dict(levels), "lost_gpu_seconds": store.lost}

    def kept_of(self, job: int) -> dict[str, object]:
        """Columns of a job for the database, by their names there; None for NaN."""
        return {name: None if np.isnan(column[job]) else column[job].item() for name, column in self._kept.items()}

    def take(self, start: float, end: float) -> AnyArray:
        """Return and reset the `rlpto.core.records.INTERVAL` since the last call [1]."""
        passed = self._counted[:1].copy()
        passed["start"], passed["end"] = start, end
        self._counted[:1] = np.zeros(1, dtype=INTERVAL)
        return passed

    def write(self, to: Callable[[AnyArray], bool]) -> None:
        """Pass to `to` the [1] INTERVAL of everything since it last returned True."""
        if to(self._counted[1:2]):
            self._counted[1:2] = np.zeros(1, dtype=INTERVAL)
