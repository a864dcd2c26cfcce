"""Speed tables: every performance model, compiled to numbers that kernels and policies look up.

A *job type* is a model together with the way its batch size is chosen. The speed of a type depends on the number of
GPUs, on the number of nodes they span, and on the job's epoch, because the gradient noise scale and with it the useful
batch size change during training. Each row of `rates` holds one speed curve over epochs; `row` maps (type, nodes
spanned, GPUs) to its row.

A type has *variants*, which are types too: one for every batch size that a scheduler may choose, on every GPU type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.performance.accuracy import accuracy_ahead
from rlpto.performance.metrics import DEFAULT_METRIC, METRICS

NO_GPUS = 0
"""Row of a job that holds no GPUs: its rate is zero."""


TYPE = np.dtype([("delay", "f8"), ("epochs", "i8"), ("gpu_type", "i8")], align=True)
"""A job type for compiled code: rescale delay [s], epochs on its accuracy curve, number of its GPU type."""

_UNKNOWN = np.zeros((0, 0))
_ANY_SIZE = np.iinfo(np.int64).max
NO_TYPE = -1
"""Marks the absence of a type."""
ANY_GPU = "gpu"
"""GPU type of nodes that name none."""


def _no_types() -> IntArray:
    return np.zeros(0, dtype=np.int64)


class JobType(NamedTuple):
    """A model and its settings, which determine a job's speed curve.

    batch_size: fixed total batch size in samples. Default: the job adapts it to maximise its metric.
    metric: name in `rlpto.performance.metrics.METRICS`; Pollux maximises goodput.
    servers: parameter servers. Default: the number in the model's profile.
    gpu_types: GPU types of the cluster that jobs of the type may use. Default: all.
    """

    model: str
    batch_size: int | None = None
    metric: str = DEFAULT_METRIC
    servers: int | None = None
    gpu_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class SpeedTables:
    """Progress per second of every job type. T job types, R rows, P epochs, S spans, K GPUs, G GPU types.

    types: the T job types, in the order of the first axis of the arrays below.
    rates: [R, P] float64, epochs per second during epoch p; row 0 is zero (no GPUs).
    elapsed: [R, P + 1] float64, seconds from epoch 0 to the start of epoch p at that row's rates (infinity past epoch 0
    in row 0). Empty in tables that change as jobs learn, which no simulation uses.
    row: [T, S, K + 1] int32, row for `min(nodes spanned, S) - 1` and k GPUs; entry k = 0 is row 0.
    accuracy: [T, P + 1] float64, accuracy in [0, 1] after p epochs. epochs: [T] int64, number of measured epochs; later
    epochs repeat the last. samples: [T] float64, samples in one epoch of the profile's data set.
    rescale_delay: [T] float64, seconds without progress after a change of a job's GPUs.
    exact_keys, exact_rows: [X] int64 sorted and [X] int32: rows measured for one exact placement, by
    `placement_key(type, groups)`; if none matches, `row` applies.
    known_remaining, known_speed: [T, P + 1] and [T, K + 1] float64: remaining work at the start of an epoch and work
    per second by GPUs, in the unit that an operator of these profiles would know (for the Pollux workloads:
    iterations). Default: epochs and `rates` are known.
    own, batch_size, servers: [T] int64. Type t is a *variant* of type own[t], the type with which the job was
    submitted. A variant applies while a scheduler has chosen its batch size, in samples (0 if the job chooses), or its
    number of parameter servers (0 if the model has none), and on GPU type gpu_type[t]. A job's default variant has the
    lowest number. Default: every type has one variant, itself.
    gpu_types: names of the GPU types. gpu_type: [T] int64, index into `gpu_types`; 0 for a type with own[t] = t.
    node_gpus: [T] int64, GPUs of the largest node of that GPU type. With one GPU type both are derived, and nodes may
    have any size.
    most_servers: [T] int64, largest number of parameter servers of a job. Default: `servers`.
    score_rates: [R, P] float64, rates that policies see instead of `rates`, so they allocate GPUs by the metric by
    which jobs choose their batch size. They are scaled so that on one GPU the score of a job's own type equals its
    rate. Default: `rates`.
    sizes_seen, speed_sigma: [T] numbers of GPUs at which steps were measured, and [T, SPANS, K + 1] standard deviation
    of the logarithm of the speed, on one node and on several. Default: speeds are exact, or their errors are unknown.
    floor_size: [T, K + 1] int64, largest size up to k GPUs that is allowed on the type's GPU type, or 0; all zeros if
    the model does not fit on the GPU type or its jobs may not use it. Default: every type may have all sizes ([0, 0]).
    written: [T] how many times each type was written, in tables of jobs that learn. Default: tables never change.
    """

    types: tuple[JobType, ...]
    rates: FloatArray
    elapsed: FloatArray
    row: np.ndarray[tuple[int, int, int], np.dtype[np.int32]]
    accuracy: FloatArray
    epochs: IntArray
    samples: FloatArray
    rescale_delay: FloatArray
    exact_keys: IntArray
    exact_rows: np.ndarray[tuple[int], np.dtype[np.int32]]
    known_remaining: FloatArray | None = None
    known_speed: FloatArray | None = None
    own: IntArray = field(default_factory=_no_types)
    batch_size: IntArray = field(default_factory=_no_types)
    gpu_types: tuple[str, ...] = (ANY_GPU,)
    gpu_type: IntArray = field(default_factory=_no_types)
    node_gpus: IntArray = field(default_factory=_no_types)
    servers: IntArray = field(default_factory=_no_types)
    most_servers: IntArray = field(default_factory=_no_types)
    score_rates: FloatArray | None = None
    sizes_seen: FloatArray | None = None
    speed_sigma: FloatArray | None = None
    written: IntArray | None = None
    floor_size: IntArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    _packed: dict[int, IntArray] = field(default_factory=dict, init=False, repr=False, compare=False)
    _best: dict[int, FloatArray] = field(default_factory=dict, init=False, repr=False, compare=False)
    _delayed: dict[float, SpeedTables] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # One layout, so that code which reads the tables is compiled once.
        for name in ("rates", "elapsed", "accuracy", "known_remaining", "known_speed", "score_rates"):
            array = getattr(self, name)
            if array is not None:
                object.__setattr__(self, name, np.ascontiguousarray(array, dtype=np.float64))
        none = np.zeros(len(self.types), dtype=np.int64)
        usual = {"own": np.arange(len(none)), "batch_size": none, "servers": none}
        for name, column in usual.items():
            if len(getattr(self, name)) == 0:
                object.__setattr__(self, name, column.copy())
        if len(self.gpu_types) == 1:
            object.__setattr__(self, "gpu_type", none)
            object.__setattr__(self, "node_gpus", np.full(len(none), _ANY_SIZE))
        if len(self.most_servers) == 0:
            object.__setattr__(self, "most_servers", self.servers)

    @property
    def max_gpus(self) -> int:
        """Largest number of GPUs the tables cover."""
        return int(self.row.shape[2]) - 1

    @property
    def floor_size_anywhere(self) -> IntArray:
        """[T, K + 1] `floor_size` on the GPU type that allows most; empty if `floor_size` is."""
        if not self.floor_size.size or len(self.gpu_types) == 1:
            return self.floor_size
        most = np.zeros_like(self.floor_size)
        for types in self.by_gpu_type.T:
            np.maximum(most, np.where(types[:, None] == NO_TYPE, 0, self.floor_size[types]), out=most)
        return most

    def within(self, gpus_by_type: Mapping[str, int]) -> SpeedTables:
        """Return these tables without allowed sizes that exceed the GPUs of their type in the cluster."""
        if not self.floor_size.size:
            return self
        every, most = (
            np.arange(self.max_gpus + 1),
            np.array([gpus_by_type[gpu] for gpu in self.gpu_types])[self.gpu_type],
        )
        limited = np.array([bool(job_type.gpu_types) for job_type in self.types])
        most[~limited & (self.floor_size == every).all(axis=1)] = self.max_gpus
        sizes = np.minimum(every, most[:, None])
        return replace(self, floor_size=np.take_along_axis(self.floor_size, sizes, axis=1))

    def take_over(self, other: SpeedTables, types: IntArray) -> None:
        """Copy `types` [n] and their variants from `other`, the original of these tables, if written since."""
        if self.written is None or other.written is None:
            return
        all_types = self.variants[types]
        changed = all_types[(all_types != NO_TYPE) & (self.written[all_types] != other.written[all_types])]
        for name in ("accuracy", "epochs", "samples", "rescale_delay", "accuracy_ahead", "type_records", "gpu_type",
                     "node_gpus", "sizes_seen", "speed_sigma", "written"):  # fmt: skip
            getattr(self, name)[changed] = getattr(other, name)[changed]
        if self.floor_size.size:
            self.floor_size[changed] = other.floor_size[changed]
        for job_type in changed.tolist():
            rows = self.row[job_type, :, 1:]
            first, last = int(rows.min()), int(rows.max()) + 1
            self.rates[first:last] = other.rates[first:last]

    @cached_property
    def type_records(self) -> AnyArray:
        """[T] TYPE."""
        records = np.zeros(len(self.types), dtype=TYPE)
        records["delay"] = self.rescale_delay
        records["epochs"] = self.epochs
        records["gpu_type"] = self.gpu_type
        return records

    @cached_property
    def exponent(self) -> FloatArray:
        """[T] exponent of the efficiency in the score of every type's metric."""
        return np.array([METRICS[job_type.metric].exponent for job_type in self.types])

    @cached_property
    def metric(self) -> IntArray:
        """[T] number of every type's metric in `rlpto.performance.metrics.METRIC_NAMES`."""
        names = list(METRICS)
        return np.array([names.index(job_type.metric) for job_type in self.types], dtype=np.int64)

    @cached_property
    def fixed_batch(self) -> FloatArray:
        """[T] fixed total batch size in samples; NaN where a job of the type chooses its own."""
        return np.array([np.nan if job_type.batch_size is None else job_type.batch_size for job_type in self.types])

    @cached_property
    def batch_choices(self) -> IntArray:
        """[T, V] variants of each type with the same servers and GPU type: the job's own batch size first, then a
        scheduler's choices by size; padded with NO_TYPE."""
        return self._choices(self.batch_size, self.servers, self.gpu_type)

    def unit(self, number: int) -> int:
        """Greatest common divisor of the allowed sizes of a type, in GPUs; 0 where any number is allowed."""
        if not self.floor_size.size or np.array_equal(self.floor_size[number], np.arange(self.max_gpus + 1)):
            return 0
        return int(np.gcd.reduce(self.floor_size[number]))

    @cached_property
    def by_gpu_type(self) -> IntArray:
        """[T, G] variant of each type on each GPU type, with the same batch size and servers."""
        if len(self.gpu_types) == 1:
            return np.arange(len(self.types))[:, None]
        return self._choices(self.gpu_type, self.batch_size, self.servers)

    def _choices(self, by: IntArray, *kept: IntArray) -> IntArray:
        """[T, V] variants of the same job with equal values in `kept` [T] each, in order of `by` [T]."""
        groups: dict[tuple[int, ...], list[int]] = {}
        keys = [*zip(self.own.tolist(), *(column.tolist() for column in kept), strict=True)]
        for job_type in np.argsort(by, kind="stable").tolist():
            groups.setdefault(keys[job_type], []).append(job_type)
        choices = np.full((len(keys), max(map(len, groups.values()), default=1)), NO_TYPE, dtype=np.int64)
        for row, key in zip(choices, keys, strict=True):
            row[: len(groups[key])] = groups[key]
        return choices

    def types_at(self, types: IntArray, batch_size: IntArray, servers: IntArray | None = None) -> IntArray:
        """[n] variants of `types` [n] when a scheduler chooses their batch_size [n]; 0 is the job's own choice.

        servers: [n] parameter servers that the scheduler chooses; 0 is the job's default number. Default: 0 for all.
        NO_TYPE if there is no such variant.
        """
        own = self.own[types]
        wanted = self.servers[own] if servers is None else np.where(servers > 0, servers, self.servers[own])
        choices = self.variants[types]
        fits = (choices != NO_TYPE) & (self.batch_size[choices] == batch_size[:, None])
        fits &= (self.servers[choices] == wanted[:, None]) & (self.gpu_type[choices] == self.gpu_type[types][:, None])
        found = choices[np.arange(len(types)), fits.argmax(axis=1)]
        return np.where(fits.any(axis=1), found, NO_TYPE)

    def types_on(self, types: IntArray, gpu_type: IntArray) -> IntArray:
        """[n] variants of `types` [n] on GPU types number gpu_type [n]; unchanged for negative numbers."""
        return np.where(gpu_type < 0, types, self.by_gpu_type[types, np.maximum(gpu_type, 0)])

    def on_gpu_types(self, types: IntArray, gpu_types: Sequence[str]) -> IntArray:
        """[n, G] variants of `types` [n] on the named GPU types; the types themselves if the tables have only one."""
        if len(self.gpu_types) == 1:
            return np.repeat(types[:, None], len(gpu_types), axis=1)
        return np.ascontiguousarray(self.by_gpu_type[types][:, [self.gpu_types.index(gpu) for gpu in gpu_types]])

    @cached_property
    def has_servers(self) -> bool:
        """True if jobs of some type train through parameter servers."""
        return bool(self.servers.any())

    @cached_property
    def variants(self) -> IntArray:
        """[T, V] all variants of each type in order of their numbers, the default first; padded with NO_TYPE."""
        return self._choices(np.arange(len(self.own)))

    @cached_property
    def pooled(self) -> IntArray:
        """[T] `own` of the same type with all GPU types allowed: jobs share observations across such restrictions."""
        first: dict[JobType, int] = {}
        return np.array([first.setdefault(self.types[own]._replace(gpu_types=()), own) for own in self.own.tolist()])

    @property
    def shown_remaining(self) -> FloatArray:
        """`known_remaining` for compiled code, empty if it is None."""
        return _UNKNOWN if self.known_remaining is None else self.known_remaining

    @property
    def shown_speed(self) -> FloatArray:
        """`known_speed` for compiled code, empty if it is None."""
        return _UNKNOWN if self.known_speed is None else self.known_speed

    @cached_property
    def accuracy_ahead(self) -> FloatArray:
        """[T, P] steepest rise of accuracy from each epoch on, by `rlpto.performance.accuracy.accuracy_ahead`."""
        return accuracy_ahead(self.accuracy, self.epochs, self.shown_remaining)

    @property
    def shown_rates(self) -> FloatArray:
        """[R, P] epochs per second that policies see."""
        return self.rates if self.score_rates is None else self.score_rates

    def accuracy_at(self, types: IntArray, progress: FloatArray) -> FloatArray:
        """[n] accuracy in [0, 1] of jobs of `types` [n] after `progress` [n] epochs, by their profiles' curves."""
        last = self.epochs[types]
        at = np.minimum(progress, last)
        low = np.minimum(at.astype(np.int64), last - 1)
        start, end = self.accuracy[types, low], self.accuracy[types, low + 1]
        return np.asarray(start + (at - low) * (end - start))

    def packed_rows(self, gpus_per_node: int) -> IntArray:
        """[T, K + 1] rows of k GPUs placed by `packed_groups`, measured for exactly that placement, else by size. If
        the nodes of a type's GPU type are smaller, their size applies. Computed once for each node size."""
        if gpus_per_node not in self._packed:
            size = np.minimum(gpus_per_node, self.node_gpus)[:, None]
            gpus = np.arange(self.max_gpus + 1)
            nodes = np.clip(-(-gpus // size), 1, self.row.shape[1])
            rows = self.row[np.arange(len(self.types))[:, None], nodes - 1, gpus].astype(np.int64)
            for each in np.unique(size) if len(self.exact_keys) else ():
                self._take_exact_rows(rows, np.flatnonzero(size[:, 0] == each), int(each))
            self._packed[gpus_per_node] = np.ascontiguousarray(rows)
        return self._packed[gpus_per_node]

    def _take_exact_rows(self, rows: IntArray, types: IntArray, gpus_per_node: int) -> None:
        """Copy the rows measured for packed placements on nodes of `gpus_per_node` into rows [T, K + 1] of `types`."""
        if gpus_per_node >= PLACEMENT_BASE:
            return
        for k in range(1, min(self.max_gpus, MAX_EXACT_GROUPS * gpus_per_node) + 1):
            keys = placement_key(0, packed_groups(k, gpus_per_node)) + TYPE_STRIDE * types
            at = np.minimum(np.searchsorted(self.exact_keys, keys), len(self.exact_keys) - 1)
            rows[types, k] = np.where(self.exact_keys[at] == keys, self.exact_rows[at], rows[types, k])

    def best_rates(self, job_type: int) -> FloatArray:
        """[K + 1, P] best rate of a type in every epoch with at most k GPUs, over all placements. Computed once."""
        if job_type not in self._best:
            by_gpus = self.rates[self.row[job_type]].max(axis=0)
            first, last = np.searchsorted(self.exact_keys, [job_type * TYPE_STRIDE, (job_type + 1) * TYPE_STRIDE])
            for key, row in zip(self.exact_keys[first:last], self.exact_rows[first:last], strict=True):
                gpus, code = 0, int(key) - job_type * TYPE_STRIDE
                while code:
                    code, digit = divmod(code, PLACEMENT_BASE)
                    gpus += digit
                if gpus < len(by_gpus):
                    by_gpus[gpus] = np.maximum(by_gpus[gpus], self.rates[row])
            self._best[job_type] = np.maximum.accumulate(by_gpus, axis=0)
        return self._best[job_type]

    def with_rescale_delay(self, seconds: float | None) -> SpeedTables:
        """Return the same tables with one rescale delay for every type, cached by delay. If None, delays stay."""
        if seconds is None:
            return self
        if seconds not in self._delayed:
            self._delayed[seconds] = replace(self, rescale_delay=np.full(len(self.types), seconds))
        return self._delayed[seconds]

    @cached_property
    def submitted(self) -> dict[JobType, int]:
        """Positions on the first axis of the types with which jobs are submitted; policies choose others."""
        return {self.types[number]: number for number in np.flatnonzero(self.own == np.arange(len(self.own))).tolist()}

    def type_index(self, job_type: JobType) -> int:
        """Return the position of a type on the first axis. Raises ValueError if the tables do not contain it."""
        return self.types.index(job_type)


def elapsed_from_rates(rates: FloatArray) -> FloatArray:
    """Cumulative seconds [..., P + 1] at the start of every epoch for rates [..., P] in epochs/s."""
    elapsed = np.zeros((*rates.shape[:-1], rates.shape[-1] + 1))
    with np.errstate(divide="ignore"):
        np.cumsum(1.0 / rates, axis=-1, out=elapsed[..., 1:])
    return elapsed


PLACEMENT_BASE = 10
"""Base of placement codes: one decimal digit of GPUs per node, the format of the measurements."""
MAX_EXACT_GROUPS = 16
"""Longest placement that has an exact code; longer ones always use the (nodes, GPUs) row."""
TYPE_STRIDE = 10**16
"""Distance between the codes of two types: PLACEMENT_BASE to the power of MAX_EXACT_GROUPS."""
MAX_EXACT_TYPES = np.iinfo(np.int64).max // TYPE_STRIDE
"""Most types of tables with exact placements: keys are 64-bit numbers."""


def placement_key(type_index: int, groups: tuple[int, ...]) -> int:
    """Key in `SpeedTables.exact_keys` of a placement given as GPUs per node, in order."""
    code = 0
    for gpus in smallest_rotation(groups):
        code = code * PLACEMENT_BASE + gpus
    return int(type_index * TYPE_STRIDE + code)


def smallest_rotation(groups: tuple[int, ...]) -> tuple[int, ...]:
    """Return the rotation of a placement (GPUs per node, in order) that represents all its rotations."""
    return min(groups[i:] + groups[:i] for i in range(len(groups)))


def packed_groups(gpus: int, gpus_per_node: int) -> tuple[int, ...]:
    """Return the GPUs per node on as few nodes as possible: full nodes, then the rest."""
    full, rest = divmod(gpus, gpus_per_node)
    return (gpus_per_node,) * full + ((rest,) if rest else ())
