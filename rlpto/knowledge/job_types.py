"""Speed tables with separate job types for every single job, which hold its estimates and are rewritten in place.

`rlpto.knowledge.job_estimates` writes the estimates. Views, planner and predictions read these tables like any others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rlpto.performance.fitted import SPANS
from rlpto.performance.tables import JobType, SpeedTables

FIRST_JOBS = 64
"""Initial number of jobs in the tables; it doubles whenever they are full."""
_OF_MODELS = ("accuracy", "epochs", "samples", "rescale_delay")
"""Columns of `SpeedTables` that a job's types copy from the type of its model."""
_CHOSEN = ("batch_size", "servers", "most_servers", "floor_size")
_ESTIMATED = ("sizes_seen", "speed_sigma", "written")
"""Columns of `SpeedTables` that hold estimates."""


class JobTypes:
    """Speed tables that append types of single jobs to the types of models: for each job, one per GPU type.

    base: tables of the jobs' models, without speeds. first: number of the first type of each job in `tables`, by job
    number. Each of these types has its own rows of `rates`.
    """

    def __init__(self, base: SpeedTables) -> None:
        self.base, self._per_job = base, len(base.gpu_types)
        self.first: dict[int, int] = {}
        self._make_room(FIRST_JOBS)

    def _make_room(self, jobs: int) -> None:
        firsts = len(self.base.types) + self._per_job * np.arange(jobs)
        taken = set(self.first.values())
        self._room = jobs
        self._free: list[int] = [first for first in firsts[::-1].tolist() if first not in taken]
        self.tables = with_job_types(self.base, jobs, self._per_job)

    def drop(self, job: int) -> None:
        """Forget a job."""
        self._free.append(self.first.pop(job))

    def add(self, job: int, model_type: int) -> None:
        """Add types for a new job. They copy accuracy, epochs, samples and delay of a type of `base`, but no speed."""
        if not self._free:
            self._grow()
        self.first[job] = first = self._free.pop()
        own, base, types = self.tables, self.base, slice(first, first + self._per_job)
        own.accuracy[types] = base.accuracy[model_type]
        own.epochs[types] = own.type_records["epochs"][types] = base.epochs[model_type]
        own.samples[types] = base.samples[model_type]
        own.rescale_delay[types] = own.type_records["delay"][types] = base.rescale_delay[model_type]
        own.accuracy_ahead[types] = base.accuracy_ahead[model_type]
        if own.floor_size.size:
            own.floor_size[types] = base.floor_size[base.by_gpu_type[model_type]]

    def _grow(self) -> None:
        """Make room for twice as many jobs; present jobs keep their types."""
        before, known = self.tables, len(self.tables.types)
        self._make_room(2 * self._room)
        for name in (*_OF_MODELS, "accuracy_ahead", "floor_size", "sizes_seen", "speed_sigma"):
            getattr(self.tables, name)[:known] = getattr(before, name)
        self.tables.rates[: len(before.rates)] = before.rates


def with_job_types(base: SpeedTables, jobs: int, per_job: int) -> SpeedTables:
    """Return the tables with `per_job` more types for each of `jobs` jobs. Each new type has its own rows, for one node
    and for several, whose contents the caller writes. The types of a job are variants of its first type."""
    types, rows, most, count = len(base.types), len(base.rates), base.max_gpus, jobs * per_job
    spans = np.arange(max(SPANS, base.row.shape[1]))
    row = np.zeros((types + count, len(spans), most + 1), dtype=np.int32)
    row[:types] = base.row[:, np.minimum(spans, base.row.shape[1] - 1)]
    own = rows + np.arange(count * SPANS * most, dtype=np.int32).reshape(count, SPANS, most)
    row[types:, :, 1:] = own[:, np.minimum(spans, SPANS - 1)]
    sizes = [base.node_gpus[base.gpu_type == gpu_type].max() for gpu_type in range(per_job)]

    columns: dict[str, Any] = {}
    for name in (*_OF_MODELS, *_CHOSEN, *_ESTIMATED):
        column = getattr(base, name)
        columns[name] = np.concatenate([column, np.repeat(column[:1], count, axis=0)])
    return replace(
        base,
        types=(*base.types, *(JobType("", -1 - types - i) for i in range(count))),
        own=np.concatenate([np.arange(types), np.repeat(types + per_job * np.arange(jobs), per_job)]),
        rates=np.pad(base.rates, ((0, count * SPANS * most), (0, 0)), constant_values=1.0),
        row=row,
        exact_keys=np.zeros(0, dtype=np.int64),
        exact_rows=np.zeros(0, dtype=np.int32),
        gpu_type=np.concatenate([base.gpu_type, np.tile(np.arange(per_job), jobs)]),
        node_gpus=np.concatenate([base.node_gpus, np.tile(sizes, jobs)]),
        **columns,
    )
