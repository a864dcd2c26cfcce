"""The table of active jobs that a policy sees."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from rlpto.core.job_store import JobStore
from rlpto.core.jobs import JOB, VIEW, EstimateNoise, fill_estimates, fill_limits, fill_speed
from rlpto.io.arrays import AnyArray, BoolArray, FloatArray, IntArray
from rlpto.io.errors import ConfigError
from rlpto.performance.tables import ANY_GPU, NO_TYPE, SpeedTables

NO_BATCH_SIZE = -1
"""Fills the table of batch sizes for jobs that have fewer to choose from."""

_COLUMNS = frozenset(VIEW.names or ())

NO_NOISE = np.zeros((0, 0))
"""Empty noise factors: estimates are exact."""

STRICT: FloatArray = np.zeros(0)
"""Value of `class_weights` for strict classes: a job of a higher class always comes first."""

_SHOWN = (
    "gpus", "rescale_left", "scale", "progress", "accuracy", "trained", "attained_service", "priority", "wait_start",
    "risen", "min_gpus", "requested_gpus", "max_gpus", "submit_time", "start_time", "finish_time", "epochs",
    "stop_epoch", "data_size", "base_progress", "type_index", "user", "estimated_type", "measured_accuracy", "rescales",
    "peak_gpus", "grow_left", "training_gpus", "reserved",
)  # fmt: skip
"""Columns of `JOB` that policies may see through `JobTable.columns`; the others belong to the simulator."""


def seconds_for(work: FloatArray, speed: FloatArray) -> FloatArray:
    """Return the seconds that work takes at a speed; shapes broadcast. Infinity at speed 0, even if no work remains."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(speed > 0, work / speed, np.inf)


@dataclass(frozen=True)
class EstimatedSpeeds:
    """The tables and errors from which a table's speeds and remaining work are computed, for its n rows.

    tables: speed tables with the job types `type_index` [n]. scale: [n] factor on rates. noise: errors of the
    estimates, [n] each. Default: exact estimates.
    """

    tables: SpeedTables
    type_index: IntArray
    scale: FloatArray
    noise: EstimateNoise | None


class RemainingEstimates(Protocol):
    """Estimates of jobs' remaining work, where it is not known exactly."""

    def __call__(self, index: IntArray) -> FloatArray:
        """[n] estimated remaining epochs of the jobs numbered `index` [n]."""

    def known(self, index: IntArray) -> BoolArray:
        """[n] True where the estimate is more than a guess."""

    def drawn(self, index: IntArray, count: int, rng: np.random.Generator, /) -> FloatArray:
        """[count, n] remaining epochs of the jobs numbered `index` [n], in `count` sampled futures."""


class _RemainingShown:
    """Copy of `RemainingEstimates` for the jobs numbered `index` [n]."""

    def __init__(self, index: IntArray, left: FloatArray, known: BoolArray) -> None:
        size = int(index.max(initial=-1)) + 1
        self._left, self._known = np.full(size, np.nan), np.zeros(size, dtype=bool)
        self._left[index], self._known[index] = left, known

    def __call__(self, index: IntArray) -> FloatArray:
        return self._left[index]

    def known(self, index: IntArray) -> BoolArray:
        return self._known[index]

    def drawn(self, index: IntArray, count: int, _: np.random.Generator, /) -> FloatArray:
        return np.tile(self._left[index], (count, 1))


class JobTable:
    """n active jobs of a store as columns, gathered when first accessed.

    Every column of `VIEW` is an attribute, [n]; the properties below add others.
    store, tables: sources of the columns. index: [n] numbers of the jobs, which are their positions in the store unless
    they are `renumbered`. effective_priority: [n] priority class after aging. noise: errors of the estimates. Default:
    exact. left: estimates of the remaining epochs by job number. Default: exact. gpus_per_node: GPUs of the largest
    node. class_weights: [3] weights of the classes, high to low; or STRICT.
    """

    def __init__(
        self,
        store: JobStore,
        tables: SpeedTables,
        index: IntArray,
        effective_priority: IntArray,
        gpus_per_node: int,
        noise: EstimateNoise | None = None,
        left: RemainingEstimates | None = None,
        class_weights: FloatArray = STRICT,
    ) -> None:
        self.store = store
        self._tables = tables
        self._gpus_per_node = gpus_per_node
        self._noise = noise
        self._left = left
        self.index = self._rows = index
        self.effective_priority = effective_priority
        self._class_weights = class_weights

    def __len__(self) -> int:
        return len(self.index)

    def __getattr__(self, name: str) -> AnyArray:
        if name not in _COLUMNS:
            raise AttributeError(f"a JobTable has no column {name}")
        found = self.records[name].copy()  # a policy may write into it, also where there is only one row
        self.__dict__[name] = found  # found without this function from now on
        return found

    @cached_property
    def records(self) -> AnyArray:
        """[n] VIEW of the jobs in their present state: all columns, for compiled code."""
        tables = self._tables
        view = np.empty(len(self.index), dtype=VIEW)
        noise = NO_NOISE if self._noise is None else self._noise.factors(tables.max_gpus + 1)
        jobs = self.store.records
        fill_limits(jobs, self._rows, self.effective_priority, not len(self._class_weights), view)
        curves = (tables.accuracy, tables.accuracy_ahead)
        fill_estimates(jobs, tables.type_records, *curves, tables.shown_remaining, noise, view)
        if self._left is not None:
            left = self._left(self._rows)
            if tables.known_remaining is not None:  # in the operator's unit, to the last epoch: scale it
                whole = tables.epochs[view["type_index"]] - view["progress"]
                view["remaining"] *= np.divide(left, whole, out=np.ones_like(left), where=whole > 0)
            if self._noise is not None:
                left = left * self._noise.remaining[self._rows]
            if tables.known_remaining is None:
                view["remaining"] = left
            view["epochs"] = view["progress"] + left
            view["final_accuracy"] = tables.accuracy_at(view["type_index"], view["epochs"])
        if tables.sizes_seen is not None and tables.speed_sigma is not None:
            job_type, more = view["type_index"], np.clip(2 * view["gpus"], 1, view["max_gpus"])
            spread = more > np.minimum(self._gpus_per_node, tables.node_gpus[job_type])
            view["sizes_seen"] = tables.sizes_seen[job_type]
            view["speed_sigma"] = tables.speed_sigma[job_type, spread.astype(np.int64), more]
        return view

    @cached_property
    def speed(self) -> FloatArray:
        """[n, K + 1] work per second with 0..K GPUs on as few nodes as possible, in the present epoch.

        Entries beyond a job's max_gpus are valid speeds of its type, but an `Allocation` may not use them.
        """
        return self._speed_of()

    @cached_property
    def class_weight(self) -> FloatArray:
        """[n] weight of each job's class after aging; 1 where classes are strict."""
        weights = self._class_weights
        return weights[self.effective_priority] if len(weights) else np.ones(len(self.index))

    @property
    def waiting(self) -> BoolArray:
        """[n] True for jobs that hold no GPUs."""
        waits: BoolArray = self.gpus == 0
        return waits

    @property
    def keepable(self) -> IntArray:
        """[n] GPUs that each job may keep: the GPUs it holds, at most its max_gpus, which may have been lowered."""
        return np.minimum(self.gpus, self.max_gpus)

    @property
    def remaining_known(self) -> BoolArray:
        """[n] True for jobs whose `remaining` was declared or learnt from other jobs; False where it is a guess."""
        return np.ones(len(self.index), dtype=bool) if self._left is None else self._left.known(self._rows)

    @property
    def remaining_declared(self) -> bool:
        """True if the jobs' remaining work is declared, exactly or with errors, and not estimated."""
        return self._left is None

    def drawn_remaining(self, count: int, rng: np.random.Generator) -> FloatArray | None:
        """[count, n] remaining epochs in `count` sampled futures; None if remaining work is declared."""
        return None if self._left is None else self._left.drawn(self._rows, count, rng)

    @property
    def metric(self) -> IntArray:
        """[n] number of each job's metric in `rlpto.performance.metrics.METRIC_NAMES`."""
        return self._tables.metric[self.type_index]

    @property
    def servers(self) -> IntArray:
        """[n] parameter servers of each job, or its default while it waits; 0 for jobs without servers."""
        return self._tables.servers[self.type_index]

    @property
    def own_servers(self) -> IntArray:
        """[n] default number of parameter servers of each job."""
        return self._tables.servers[self._tables.own[self.type_index]]

    @property
    def most_servers(self) -> IntArray:
        """[n] largest number of parameter servers of each job."""
        return self._tables.most_servers[self.type_index]

    @property
    def has_servers(self) -> bool:
        """True if some jobs of the workload train through parameter servers."""
        return self._tables.has_servers

    @property
    def chosen_batch_size(self) -> IntArray:
        """[n] batch size of each job at present, one of its `batch_sizes` (0: the job chooses)."""
        return self._tables.batch_size[self.type_index]

    @property
    def batch_sizes(self) -> IntArray:
        """[n, V] batch sizes [samples] that a policy may choose for each job, ascending.

        The first is 0, the job's own choice. NO_BATCH_SIZE fills the rows of jobs that have fewer.
        """
        choices = self._tables.batch_choices[self.type_index]
        return np.where(choices == NO_TYPE, NO_BATCH_SIZE, self._tables.batch_size[choices])

    @property
    def speed_at_batch_sizes(self) -> FloatArray:
        """[V, n, K + 1] `speed` at each of `batch_sizes`, in units of the present `remaining`; 0 at NO_BATCH_SIZE."""
        tables, found = self._tables, []
        work, exponent, samples = tables.known_remaining, tables.exponent[self.type_index], tables.fixed_batch
        for types in tables.batch_choices[self.type_index].T:
            job_type = np.where(types == NO_TYPE, self.type_index, types)
            speed = np.where(types[:, None] == NO_TYPE, 0.0, self._speed_of(job_type))
            if work is not None:  # counts steps, and a step at a larger batch is worth more
                worth = work[self.type_index, self.epoch] / work[job_type, self.epoch]
                larger = samples[job_type] / samples[self.type_index]
                speed *= (worth**exponent * larger ** (1 - exponent))[:, None]
            found.append(speed)
        return np.stack(found)

    def estimates(self) -> EstimatedSpeeds:
        """Return the tables and noise from which `speed` and `remaining` are computed."""
        noise = self._noise
        if noise is not None:
            noise = EstimateNoise(*(part[self._rows] for part in (noise.remaining, noise.speed, noise.scaling)))
        return EstimatedSpeeds(self._tables, self.type_index, self.scale, noise)

    def types_at(self, batch_size: IntArray, servers: IntArray | None = None) -> IntArray:
        """[n] types of the jobs after a scheduler has chosen batch_size and servers [n], by `SpeedTables.types_at`."""
        return self._tables.types_at(self.type_index, batch_size, servers)

    def columns(self) -> JobStore:
        """Copy these n jobs into a store of their own, with their estimated numbers of epochs.

        No job in the copy stops early, because early stops are not known in advance.
        """
        columns = self.store.take(self._rows)
        if self._left is not None or self._noise is not None:
            columns.epochs[:] = self.epochs
        columns.stop_epoch[:] = columns.epochs
        return columns

    def sealed(self, tables: SpeedTables) -> JobTable:
        """Return the same table over copies of visible columns only. tables: a copy of the table's speed tables.

        Raises ConfigError if estimates are the truth with noise, because the noise would reveal the truth.
        """
        if self._noise is not None:
            raise ConfigError("knowledge.mode noisy: estimates cannot be kept apart from the truth")
        shown, store = self.columns().records, JobStore(np.zeros(int(self.index.max(initial=-1)) + 1, dtype=JOB))
        store.records["finish_at"] = np.inf
        for name in _SHOWN:
            store.records[name][self.index] = shown[name]
        left = None if self._left is None else _RemainingShown(self.index, self._left(self._rows), self.remaining_known)
        classes, weights = self.effective_priority.copy(), self._class_weights.copy()
        table = JobTable(store, tables, self.index.copy(), classes, self._gpus_per_node, None, left, weights)
        table.records = self.records.copy()
        return table

    def reordered(
        self, rows: IntArray, effective_priority: IntArray, class_weights: FloatArray | None = None
    ) -> JobTable:
        """Return the same jobs in another order: row i is the present row rows[i].

        effective_priority: [n] classes after aging, in the new order. class_weights: weights of the classes. Default:
        unchanged.
        """
        weights = self._class_weights if class_weights is None else class_weights
        knowledge = (self._gpus_per_node, self._noise, self._left)
        table = JobTable(self.store, self._tables, self._rows[rows], effective_priority, *knowledge, weights)
        table.index = self.index[rows]
        return table

    def renumbered(self, index: IntArray) -> JobTable:
        """Return the same jobs under other numbers [n]; `records["index"]` stays their position in the store."""
        table = copy.copy(self)
        table.index, table.records = index, self.records
        return table

    def speed_on(self, spans: int) -> FloatArray:
        """[n, K + 1] speeds with 0..K GPUs on `spans` nodes, or with one GPU a node where there are fewer GPUs."""
        rows = self._tables.row
        return self._speed_of(rows=rows[:, min(spans, rows.shape[1]) - 1].astype(np.int64))

    def speed_on_gpu(self, gpu: str) -> FloatArray:
        """[n, K + 1] `speed` on GPUs of a type, in units of the present `remaining`.

        0 for numbers of GPUs below the job's smallest allowed size on that type. If the speed tables have one GPU type
        only, all types have the same speed. Raises ConfigError for a GPU type that the tables lack.
        """
        tables = self._tables
        if tables.gpu_types == (ANY_GPU,):
            return self.speed
        if gpu not in tables.gpu_types:
            raise ConfigError(f"no speeds on GPUs of type {gpu!r}; known: {', '.join(tables.gpu_types)}")
        types = tables.by_gpu_type[self.type_index, tables.gpu_types.index(gpu)]
        speed = self.speed if np.array_equal(types, self.type_index) else self._speed_of(types)
        return np.where(tables.floor_size[types] > 0, speed, 0.0) if tables.floor_size.size else speed

    @property
    def floor_size_anywhere(self) -> IntArray:
        """[T, K + 1] `SpeedTables.floor_size_anywhere`, by job type (`type_index`); empty if all sizes are allowed."""
        return self._tables.floor_size_anywhere

    @property
    def floor_size(self) -> IntArray | None:
        """[n, K + 1] largest allowed size of each job up to k GPUs, on the GPU type that allows most.

        None if all sizes are allowed.
        """
        return self.floor_size_anywhere[self.type_index] if self._tables.floor_size.size else None

    def floor_size_on(self, gpu_types: Sequence[str]) -> IntArray | None:
        """[G, n, K + 1] largest allowed size of each job up to k GPUs of each GPU type. None if all are allowed."""
        types, floor_size = self.on_gpu_types(gpu_types)
        return floor_size[types.T] if floor_size.size else None

    def on_gpu_types(self, gpu_types: Sequence[str]) -> tuple[IntArray, IntArray]:
        """[n, G] type of each job on each of `gpu_types`, and [T, K + 1] `SpeedTables.floor_size`."""
        return self._tables.on_gpu_types(self.type_index, gpu_types), self._tables.floor_size

    def types_on(self, types: IntArray, gpu_type: IntArray, gpu_types: Sequence[str]) -> IntArray:
        """[n] variants of job types `types` [n] on other GPU types.

        gpu_type: [n] indices into `gpu_types`; a negative one leaves a type as it is.
        """
        tables = self._tables
        if len(tables.gpu_types) == 1:
            return types
        number = np.array([tables.gpu_types.index(gpu) for gpu in gpu_types])
        return tables.types_on(types, np.where(gpu_type < 0, gpu_type, number[np.maximum(gpu_type, 0)]))

    def remaining_time(self, gpus: IntArray) -> FloatArray:
        """[n] seconds to finish with `gpus` [n] GPUs at the present speed; infinity without GPUs."""
        if self._noise is None and self._tables.known_speed is None:
            # Computing all speeds would take fifty times as long, for one entry per job.
            row = self._tables.packed_rows(self._gpus_per_node)[self.type_index, gpus]
            speed = self._tables.shown_rates[row, self.epoch] * self.scale
        else:
            speed = self.speed[np.arange(len(self)), gpus]
        return seconds_for(self.remaining, speed)

    def accuracy_at(self, progress: FloatArray) -> FloatArray:
        """[n] accuracy in [0, 1] of each job after `progress` [n] epochs, by its profile's curve."""
        return self._tables.accuracy_at(self.type_index, progress)

    def ranked(self, key: FloatArray | IntArray) -> IntArray:
        """[n] row numbers by rank of the class, then by ascending `key`, then in queue order.

        Weighted classes all have the same rank: divide an amount, such as a remaining time, by `class_weight`.
        """
        return np.lexsort((key, self.class_rank))

    def _speed_of(self, types: IntArray | None = None, rows: IntArray | None = None) -> FloatArray:
        """[n, K + 1] speeds of the jobs. types: [n] job types to use instead of their own. rows: [T, K + 1] rows of the
        speed tables. Default: rows of packed placements.
        """
        tables, records = self._tables, self.records
        if types is not None:
            records = records.copy()
            records["type_index"] = types
        noise = NO_NOISE if self._noise is None else self._noise.factors(tables.max_gpus + 1)
        speed = np.empty((len(records), tables.max_gpus + 1))
        rows = tables.packed_rows(self._gpus_per_node) if rows is None else rows
        fill_speed(records, tables.shown_rates, rows, tables.shown_speed, noise, tables.max_gpus, speed)
        return speed
