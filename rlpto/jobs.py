"""Jobs, the store that holds them as a struct of arrays, and the table a policy sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from rlpto.arrays import AnyArray, BoolArray, FloatArray, IntArray
from rlpto.compiled import njit
from rlpto.errors import JobError
from rlpto.performance.tables import JobType, SpeedTables

PRIORITY_CLASSES = ("high", "normal", "low")
"""Names of the priority classes; class 0 is served first."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training task.

    name: unique within a workload.
    submit_time: seconds since the start of the workload.
    model: name of a performance profile.
    epochs: work, in scale-invariant epochs over the job's own data.
    data_size: samples in one epoch.
    requested_gpus: what the user asked for; rigid policies give exactly this.
    min_gpus, max_gpus: limits of an elastic policy.
    priority: class, 0 (high) to 2 (low).
    batch_size: fixed total batch size in samples; None lets the job adapt it.
    """

    name: str
    submit_time: float
    model: str
    epochs: float
    data_size: float
    requested_gpus: int = 1
    min_gpus: int = 1
    max_gpus: int = 1
    priority: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.submit_time) and self.submit_time >= 0):
            raise JobError(f"job {self.name}: submit_time {self.submit_time} s, expected 0 or more")
        if not (np.isfinite(self.epochs) and self.epochs > 0):
            raise JobError(f"job {self.name}: epochs {self.epochs}, expected more than 0")
        if not (np.isfinite(self.data_size) and self.data_size > 0):
            raise JobError(f"job {self.name}: data_size {self.data_size} samples, expected more than 0")
        if not 1 <= self.min_gpus <= self.requested_gpus <= self.max_gpus:
            raise JobError(
                f"job {self.name}: expected 1 <= min_gpus <= requested_gpus <= max_gpus, "
                f"got {self.min_gpus}, {self.requested_gpus}, {self.max_gpus}"
            )
        if not 0 <= self.priority < len(PRIORITY_CLASSES):
            raise JobError(f"job {self.name}: priority {self.priority}, expected 0 to {len(PRIORITY_CLASSES) - 1}")


@dataclass
class JobStore:
    """All jobs a cluster knows, as arrays over M jobs in order of submission.

    Given by the workload:
        submit_time [s], epochs, data_size [samples], requested_gpus, min_gpus, max_gpus, priority,
        type_index (into the speed tables), scale (profile samples / data_size: factor on rates).
    Changed by the cluster:
        gpus (held now), progress [epochs], rescale_left [s], attained_service [GPU-s],
        start_time [s] (first GPU; NaN before), finish_time [s] (NaN before), rescales, peak_gpus (most held so far),
        wait_start [s]: since when the job holds no GPUs (NaN while it holds some).
    """

    submit_time: FloatArray
    epochs: FloatArray
    data_size: FloatArray
    requested_gpus: IntArray
    min_gpus: IntArray
    max_gpus: IntArray
    priority: IntArray
    type_index: IntArray
    scale: FloatArray
    gpus: IntArray = field(init=False)
    progress: FloatArray = field(init=False)
    rescale_left: FloatArray = field(init=False)
    attained_service: FloatArray = field(init=False)
    start_time: FloatArray = field(init=False)
    finish_time: FloatArray = field(init=False)
    wait_start: FloatArray = field(init=False)
    rescales: IntArray = field(init=False)
    peak_gpus: IntArray = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.submit_time)
        self.gpus = np.zeros(count, dtype=np.int64)
        self.progress = np.zeros(count)
        self.rescale_left = np.zeros(count)
        self.attained_service = np.zeros(count)
        self.start_time = np.full(count, np.nan)
        self.finish_time = np.full(count, np.nan)
        self.wait_start = self.submit_time.copy()
        self.rescales = np.zeros(count, dtype=np.int64)
        self.peak_gpus = np.zeros(count, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.submit_time)

    def take(self, index: IntArray) -> JobStore:
        """A copy of the jobs at `index` [n], as they stand."""
        given = {column.name: getattr(self, column.name)[index] for column in fields(self) if column.init}
        taken = JobStore(**given)
        for column in fields(self):
            if not column.init:
                setattr(taken, column.name, getattr(self, column.name)[index])
        return taken

    @classmethod
    def from_jobs(cls, jobs: Sequence[Job], tables: SpeedTables) -> JobStore:
        """Columns for `jobs`, which must be sorted by submit time; tables must hold all their types.

        Raises JobError if the jobs are not sorted, or the tables lack a job's type or its max_gpus.
        """
        index = {job_type: i for i, job_type in enumerate(tables.types)}
        submit = np.array([job.submit_time for job in jobs], dtype=np.float64)
        if np.any(np.diff(submit) < 0):
            raise JobError("jobs must be sorted by submit_time")
        types = [JobType(job.model, job.batch_size) for job in jobs]
        foreign = next((job for job, job_type in zip(jobs, types, strict=True) if job_type not in index), None)
        if foreign is not None:
            raise JobError(
                f"job {foreign.name}: no speed table for model {foreign.model} with batch_size {foreign.batch_size}"
            )
        type_index = np.array([index[job_type] for job_type in types], dtype=np.int64)
        data_size = np.array([job.data_size for job in jobs], dtype=np.float64)
        max_gpus = np.array([job.max_gpus for job in jobs], dtype=np.int64)
        if len(jobs) and max_gpus.max() > tables.max_gpus:
            worst = jobs[int(max_gpus.argmax())]
            raise JobError(f"job {worst.name}: max_gpus {worst.max_gpus}, but speed tables end at {tables.max_gpus}")
        return cls(
            submit_time=submit,
            epochs=np.array([job.epochs for job in jobs], dtype=np.float64),
            data_size=data_size,
            requested_gpus=np.array([job.requested_gpus for job in jobs], dtype=np.int64),
            min_gpus=np.array([job.min_gpus for job in jobs], dtype=np.int64),
            max_gpus=max_gpus,
            priority=np.array([job.priority for job in jobs], dtype=np.int64),
            type_index=type_index,
            scale=tables.samples[type_index] / data_size if len(jobs) else np.zeros(0),
        )


@dataclass(frozen=True)
class EstimateNoise:
    """Errors of what policies are told, per job of the store ([M] each).

    remaining: factor on the remaining work. speed: factor on the speed at any number of GPUs.
    scaling: exponent e of a further factor k**e on the speed with k GPUs.
    """

    remaining: FloatArray
    speed: FloatArray
    scaling: FloatArray


@dataclass(frozen=True)
class Told:
    """What a table's speeds and remaining work are made of, for its n rows.

    tables: `type_index` [n] are types of theirs. scale: [n] factor on their rates. noise: errors of what is told, [n]
    each, or None.
    """

    tables: SpeedTables
    type_index: IntArray
    scale: FloatArray
    noise: EstimateNoise | None


class JobTable:
    """The n active jobs of a store as arrays, gathered when first asked for.

    Column attributes (all [n], units as in JobStore): submit_time, epochs, data_size,
    requested_gpus, min_gpus, max_gpus, priority, gpus, progress, rescale_left, attained_service,
    start_time, wait_start, rescales, peak_gpus. Further ones are properties below.
    """

    def __init__(
        self,
        store: JobStore,
        tables: SpeedTables,
        index: IntArray,
        effective_priority: IntArray,
        gpus_per_node: int,
        noise: EstimateNoise | None = None,
    ) -> None:
        self._store = store
        self._tables = tables
        self._gpus_per_node = gpus_per_node
        self._noise = noise
        self.index: IntArray = index
        """[n] position of each job in the workload: stays the same while the job lives."""
        self.effective_priority: IntArray = effective_priority
        """[n] priority class after aging."""

    def __len__(self) -> int:
        return len(self.index)

    def reordered(self, rows: IntArray, effective_priority: IntArray) -> JobTable:
        """The same jobs with row i = present row rows[i], and their priority classes after aging."""
        return JobTable(
            self._store, self._tables, self.index[rows], effective_priority, self._gpus_per_node, self._noise
        )

    def limited(self, max_gpus: IntArray) -> JobTable:
        """The same rows, with `max_gpus` [n] as their limits, and requested_gpus cut to them."""
        table = self.reordered(np.arange(len(self)), self.effective_priority)
        table.max_gpus = max_gpus
        table.requested_gpus = np.minimum(self.requested_gpus, max_gpus)
        return table

    def told(self) -> Told:
        """What `speed` and `remaining` are made of; only both together, with the noise, are known to a policy."""
        noise = self._noise
        if noise is not None:
            noise = EstimateNoise(noise.remaining[self.index], noise.speed[self.index], noise.scaling[self.index])
        return Told(self._tables, self.type_index, self._column("scale"), noise)

    def columns(self) -> JobStore:
        """A copy of the columns of these n jobs, as a store of their own."""
        return self._store.take(self.index)

    def _column(self, name: str) -> AnyArray:
        column: AnyArray = getattr(self._store, name)
        return column[self.index]

    @cached_property
    def submit_time(self) -> FloatArray:
        return self._column("submit_time")

    @cached_property
    def epochs(self) -> FloatArray:
        return self._column("epochs")

    @cached_property
    def data_size(self) -> FloatArray:
        return self._column("data_size")

    @cached_property
    def requested_gpus(self) -> IntArray:
        return self._column("requested_gpus")

    @cached_property
    def min_gpus(self) -> IntArray:
        return self._column("min_gpus")

    @cached_property
    def max_gpus(self) -> IntArray:
        return self._column("max_gpus")

    @cached_property
    def priority(self) -> IntArray:
        return self._column("priority")

    @cached_property
    def gpus(self) -> IntArray:
        return self._column("gpus")

    @cached_property
    def progress(self) -> FloatArray:
        return self._column("progress")

    @cached_property
    def rescale_left(self) -> FloatArray:
        return self._column("rescale_left")

    @cached_property
    def attained_service(self) -> FloatArray:
        return self._column("attained_service")

    @cached_property
    def start_time(self) -> FloatArray:
        return self._column("start_time")

    @cached_property
    def wait_start(self) -> FloatArray:
        return self._column("wait_start")

    @cached_property
    def rescales(self) -> IntArray:
        return self._column("rescales")

    @cached_property
    def peak_gpus(self) -> IntArray:
        return self._column("peak_gpus")

    @cached_property
    def type_index(self) -> IntArray:
        """[n] job type: jobs of one type share their speed and accuracy curves."""
        return self._column("type_index")

    @cached_property
    def waiting(self) -> BoolArray:
        """[n] True for jobs that hold no GPUs."""
        waiting: BoolArray = self.gpus == 0
        return waiting

    @cached_property
    def keepable(self) -> IntArray:
        """[n] GPUs a job may keep: what it holds, or its limit where that has been lowered since."""
        keepable: IntArray = np.minimum(self.gpus, self.max_gpus)
        return keepable

    @cached_property
    def rescale_delay(self) -> FloatArray:
        """[n] seconds without progress that a change of the job's GPUs costs."""
        delay: FloatArray = self._tables.rescale_delay[self.type_index]
        return delay

    @cached_property
    def epoch(self) -> IntArray:
        """[n] epoch the job is in, capped at the last one measured."""
        last = self._tables.epochs[self.type_index] - 1
        return np.minimum(self.progress.astype(np.int64), last)

    @cached_property
    def remaining(self) -> FloatArray:
        """[n] work left, in the unit of `speed` per second (epochs, or what the profile's operator knows)."""
        known = self._tables.known_remaining
        left = self.epochs - self.progress if known is None else known[self.type_index, self.epoch]
        return left if self._noise is None else left * self._noise.remaining[self.index]

    @cached_property
    def speed(self) -> FloatArray:
        """[n, K + 1] work per second with 0..K GPUs on as few nodes as possible, in the present epoch.

        Beyond a job's max_gpus the entries are those of its type; `Allocation`s must stay below.
        """
        known = self._tables.known_speed
        if known is not None:
            speed = known[self.type_index]
        else:
            packed = self._tables.packed_rows(self._gpus_per_node)
            speed = gather_speeds(self._tables.rates, packed, self.type_index, self.epoch, self._column("scale"))
        if self._noise is None:
            return speed
        gpus = np.maximum(np.arange(speed.shape[1]), 1)
        scaling = gpus[None, :] ** self._noise.scaling[self.index][:, None]
        noisy: FloatArray = speed * self._noise.speed[self.index][:, None] * scaling
        return noisy

    def remaining_time(self, gpus: IntArray) -> FloatArray:
        """[n] seconds to finish with `gpus` [n] GPUs at the present speed; infinity with none."""
        if self._noise is None and self._tables.known_speed is None:
            # The whole table of speeds would be fifty times the work for one entry a job.
            row = self._tables.packed_rows(self._gpus_per_node)[self.type_index, gpus]
            speed = self._tables.rates[row, self.epoch] * self._column("scale")
        else:
            speed = self.speed[np.arange(len(self)), gpus]
        with np.errstate(divide="ignore"):
            seconds: FloatArray = self.remaining / speed
        return seconds

    def accuracy_at(self, progress: FloatArray) -> FloatArray:
        """[n] accuracy in [0, 1] of each job after `progress` [n] epochs."""
        curve = self._tables.accuracy
        last = self._tables.epochs[self.type_index]
        at = np.minimum(progress, last)
        low = np.minimum(at.astype(np.int64), last - 1)
        start, end = curve[self.type_index, low], curve[self.type_index, low + 1]
        accuracy: FloatArray = start + (at - low) * (end - start)
        return accuracy

    @cached_property
    def accuracy(self) -> FloatArray:
        """[n] present accuracy in [0, 1]."""
        return self.accuracy_at(self.progress)

    @cached_property
    def final_accuracy(self) -> FloatArray:
        """[n] accuracy in [0, 1] each job will have when finished."""
        return self.accuracy_at(self.epochs)

    def ranked(self, key: FloatArray | IntArray) -> IntArray:
        """[n] row numbers by effective priority class, then by ascending `key`, then in queue order."""
        return np.lexsort((key, self.effective_priority))


@njit()
def gather_speeds(
    rates: FloatArray, packed: IntArray, type_index: IntArray, epoch: IntArray, scale: FloatArray
) -> FloatArray:
    """[n, K + 1] rates of n jobs with 0..K packed GPUs, each times its job's scale."""
    speed = np.empty((len(type_index), packed.shape[1]))
    for i in range(len(type_index)):
        for k in range(packed.shape[1]):
            speed[i, k] = rates[packed[type_index[i], k], epoch[i]] * scale[i]
    return speed
