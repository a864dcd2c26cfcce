"""Estimates for jobs in one form: speed tables in which each job has types of its own.

`JobTypes` holds the tables. A fitter writes them: `EstimatedJobs` writes the truth with the errors of noisy estimates,
`rlpto.knowledge.job_fits.JobFits` the fits of observed steps. Views, planner and predictions read them like any speed
tables.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from rlpto.core.job_table import BelievedSpeeds
from rlpto.io.arrays import IntArray
from rlpto.performance.fitted import SPANS
from rlpto.performance.tables import JobType, SpeedTables, elapsed_from_rates

Key = TypeVar("Key", bound=Hashable)
"""Key of a job: its number, or its number and a type."""
FIRST_JOBS = 64
"""Initial number of jobs in the tables; it doubles whenever they are full."""
_OF_MODELS = ("accuracy", "epochs", "samples", "rescale_delay")
"""Columns of types that jobs take from their models."""
_CHOSEN = ("batch_size", "servers", "most_servers", "fit")
_BELIEVED = ("known_remaining", "known_speed", "sizes_seen", "speed_sigma", "written")
"""Columns of types that hold estimates."""


class JobTypes(Generic[Key]):
    """Speed tables with types for jobs behind the types of their models: for each job one, or one per GPU type.

    base: speeds of the jobs' models. kinds: types per job. room: initial number of jobs.
    first: by job, the number of its first type in `tables`. Each of these types has its own rows.
    """

    def __init__(self, base: SpeedTables, kinds: int = 1, room: int = FIRST_JOBS) -> None:
        self.base, self._kinds = base, kinds
        self.first: dict[Key, int] = {}
        self._make_room(room)

    def _make_room(self, jobs: int) -> None:
        firsts = len(self.base.types) + self._kinds * np.arange(jobs)
        taken = set(self.first.values())
        self._room = jobs
        self._free: list[int] = [first for first in firsts[::-1].tolist() if first not in taken]
        self.tables = with_job_types(self.base, jobs, self._kinds)

    def drop(self, job: Key) -> None:
        """Forget a job."""
        self._free.append(self.first.pop(job))

    def add(self, job: Key, model_type: int) -> int:
        """Return the first type of a new job, with accuracy, samples and delay of a type of `base`, without speed."""
        if not self._free:
            self._grow()
        self.first[job] = first = self._free.pop()
        own, base, types = self.tables, self.base, slice(first, first + self._kinds)
        own.accuracy[types] = base.accuracy[model_type]
        own.epochs[types] = own.type_records["epochs"][types] = base.epochs[model_type]
        own.samples[types] = base.samples[model_type]
        own.rescale_delay[types] = own.type_records["delay"][types] = base.rescale_delay[model_type]
        own.accuracy_ahead[types] = base.accuracy_ahead[model_type]
        if own.fit.size:  # a type for all GPU types uses the one that allows most
            alone = self._kinds == 1
            own.fit[types] = base.fit_anywhere[model_type] if alone else base.fit[base.by_kind[model_type]]
        if self._kinds == 1:
            own.kind[first] = own.type_records["kind"][first] = base.kind[model_type]
            own.node_gpus[first] = base.node_gpus[model_type]
        return first

    def _grow(self) -> None:
        """Make room for twice as many jobs; present jobs keep their types."""
        before, known = self.tables, len(self.tables.types)
        self._make_room(2 * self._room)
        for name in (*_OF_MODELS, "accuracy_ahead", "fit", "sizes_seen", "speed_sigma"):
            if getattr(before, name) is not None:
                getattr(self.tables, name)[:known] = getattr(before, name)
        self.tables.rates[: len(before.rates)] = before.rates


def with_job_types(base: SpeedTables, jobs: int, kinds: int = 1) -> SpeedTables:
    """Append to the tables `kinds` types for each of `jobs` jobs, with rows for SPANS numbers of nodes. The caller
    writes their contents; no two of them share a row. Types of a job are variants of its first."""
    types, rows, most, count = len(base.types), len(base.rates), base.max_gpus, jobs * kinds
    spans = np.arange(max(SPANS, base.row.shape[1]))
    row = np.zeros((types + count, len(spans), most + 1), dtype=np.int32)
    row[:types] = base.row[:, np.minimum(spans, base.row.shape[1] - 1)]
    own = rows + np.arange(count * SPANS * most, dtype=np.int32).reshape(count, SPANS, most)
    row[types:, :, 1:] = own[:, np.minimum(spans, SPANS - 1)]
    sizes = [base.node_gpus[base.kind == kind].max() for kind in range(kinds)]

    columns: dict[str, Any] = {}
    for name in (*_OF_MODELS, *_CHOSEN, *_BELIEVED):
        if (column := getattr(base, name)) is not None:
            columns[name] = np.concatenate([column, np.repeat(column[:1], count, axis=0)])
    for name in ("rates", "elapsed", "score_rates"):
        if (table := getattr(base, name)) is not None and table.size:
            columns[name] = np.pad(table, ((0, count * SPANS * most), (0, 0)), constant_values=1.0)
    return replace(
        base,
        types=(*base.types, *(JobType("", -1 - types - i) for i in range(count))),
        own=np.concatenate([np.arange(types), np.repeat(types + kinds * np.arange(jobs), kinds)]),
        row=row,
        exact_keys=np.zeros(0, dtype=np.int64),
        exact_rows=np.zeros(0, dtype=np.int32),
        kind=np.concatenate([base.kind, np.tile(np.arange(kinds), jobs)]),
        node_gpus=np.concatenate([base.node_gpus, np.tile(sizes, jobs)]),
        **columns,
    )


class EstimatedJobs:
    """Speeds and remaining work of jobs that are known only with errors.

    base: speeds of the jobs' models. tables: with a type for every pair of a job and its type, because its speeds
    differ by GPU type.
    """

    def __init__(self, base: SpeedTables, gpus_per_node: int) -> None:
        self.base = base
        self._gpus_per_node = gpus_per_node
        self._packed = base.packed_rows(gpus_per_node)
        self._start_over(FIRST_JOBS)

    def _start_over(self, room: int) -> None:
        self._types: JobTypes[tuple[int, int]] = JobTypes(self.base, room=room)
        self._room, self.tables = room, self._types.tables

    def types_of(self, index: IntArray, believed: BelievedSpeeds) -> IntArray:
        """[n] types in `tables` of jobs number `index` [n]."""
        jobs = list(zip(index.tolist(), believed.type_index.tolist(), strict=True))
        present = set(jobs)
        for gone in [job for job in self._types.first if job not in present]:
            self._types.drop(gone)
        if len(present) > self._room:
            self._start_over(2 * len(present))
        for row, job in enumerate(jobs):
            if job not in self._types.first:
                self._write(self._types.add(job, job[1]), job[1], believed, row)
        return np.array([self._types.first[job] for job in jobs], dtype=np.int64)

    def _write(self, own_type: int, kind: int, believed: BelievedSpeeds, row: int) -> None:
        """Write the estimates of row `row`, a job of type `kind` of `base`, into its type of `tables`."""
        noise, base, own, packed = believed.noise, self.base, self.tables, self._packed[kind]
        assert noise is not None
        gpus = np.maximum(np.arange(base.max_gpus + 1), 1)
        factor = noise.speed[row] * gpus ** noise.scaling[row]
        several = gpus > min(self._gpus_per_node, int(base.node_gpus[kind]))
        rows = np.where(several, [base.row[kind, 0], packed], [packed, base.row[kind, min(1, base.row.shape[1] - 1)]])
        to = own.row[own_type, :SPANS]
        own.packed_rows(self._gpus_per_node)[own_type] = np.where(several, to[1], to[0])
        own_rows, taken, by_gpus = to[:, 1:], rows[:, 1:], factor[1:, None]
        own.rates[own_rows] = rates = base.rates[taken] * by_gpus
        own.elapsed[own_rows] = elapsed_from_rates(rates)
        if base.score_rates is not None and own.score_rates is not None:
            own.score_rates[own_rows] = base.score_rates[taken] * by_gpus
        if base.known_speed is not None and own.known_speed is not None:
            own.known_speed[own_type] = base.known_speed[kind] * factor
        if base.known_remaining is not None and own.known_remaining is not None:
            own.known_remaining[own_type] = base.known_remaining[kind] * noise.remaining[row]
