"""Speed tables in which each job is a type of its own: what is believed of its speed and of its work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlpto.core.job_table import BelievedSpeeds
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.knowledge.beliefs import SPANS
from rlpto.performance.tables import JobType, SpeedTables

FIRST_SLOTS = 64
"""Jobs that the tables of estimates have room for at first; twice as many whenever it runs out."""
COPIED = ("accuracy", "epochs", "samples", "rescale_delay")
"""Columns that a job's type has of its model's."""


def with_job_types(base: SpeedTables, jobs: int, kinds: int = 1) -> SpeedTables:
    """The tables, and behind their types `kinds` types for each of `jobs` jobs, with rows for SPANS numbers of nodes.

    The caller writes what these types hold; no two of them share a row. No type is a variant of another one.
    """
    types, rows, most, count = len(base.types), len(base.rates), base.max_gpus, jobs * kinds
    spans = np.arange(max(SPANS, base.row.shape[1]))
    row = np.zeros((types + count, len(spans), most + 1), dtype=np.int32)
    row[:types] = base.row[:, np.minimum(spans, base.row.shape[1] - 1)]
    own = rows + np.arange(count * SPANS * most, dtype=np.int32).reshape(count, SPANS, most)
    row[types:, :, 1:] = own[:, np.minimum(spans, SPANS - 1)]

    def room(column: AnyArray) -> AnyArray:
        return np.concatenate([column, np.repeat(column[:1], count, axis=0)])

    def more_rows(table: FloatArray) -> FloatArray:
        return np.concatenate([table, np.ones((count * SPANS * most, table.shape[1]))])

    return replace(
        base,
        types=(*base.types, *(JobType("", -1 - types - i) for i in range(count))),
        own=np.arange(types + count),
        rates=more_rows(base.rates),
        elapsed=more_rows(base.elapsed) if base.elapsed.size else base.elapsed,
        score_rates=None if base.score_rates is None else more_rows(base.score_rates),
        known_remaining=None if base.known_remaining is None else room(base.known_remaining),
        known_speed=None if base.known_speed is None else room(base.known_speed),
        row=row,
        exact_keys=np.zeros(0, dtype=np.int64),
        exact_rows=np.zeros(0, dtype=np.int32),
        accuracy=room(base.accuracy),
        epochs=room(base.epochs),
        samples=room(base.samples),
        rescale_delay=room(base.rescale_delay),
        batch_size=room(base.batch_size),
        kind=room(base.kind),
        node_gpus=room(base.node_gpus),
        servers=room(base.servers),
        most_servers=room(base.most_servers),
    )


class EstimatedJobs:
    """Tables with a type of its own for every job of which only estimates with errors are known: speed and work left.

    base: speeds of the jobs' models. tables: behind the types of these, those of jobs, with the errors of each.
    """

    def __init__(self, base: SpeedTables, gpus_per_node: int) -> None:
        self.base = base
        self._gpus_per_node = gpus_per_node
        self._packed = base.packed_rows(gpus_per_node)
        self._slots: dict[tuple[int, int], int] = {}  # by job and type: on another kind of GPU it has other speeds
        self._make_room(FIRST_SLOTS)

    def _make_room(self, jobs: int) -> None:
        first = len(self.base.types)
        self._free = list(range(first + jobs - 1, first - 1, -1))
        self.tables = with_job_types(self.base, jobs)
        self._unused = np.zeros_like(self.tables.elapsed)

    def types_of(self, index: IntArray, believed: BelievedSpeeds) -> IntArray:
        """[n] types in `tables` of jobs number `index` [n]."""
        jobs = list(zip(index.tolist(), believed.type_index.tolist(), strict=True))
        present = set(jobs)
        for gone in [job for job in self._slots if job not in present]:
            self._free.append(self._slots.pop(gone))
        if len(present) > len(self._slots) + len(self._free):
            self._slots.clear()
            self._make_room(2 * len(present))
        for row, job in enumerate(jobs):
            if job not in self._slots:
                slot = self._slots[job] = self._free.pop()
                self._write(slot, job[1], believed, row)
        return np.array([self._slots[job] for job in jobs], dtype=np.int64)

    def _write(self, slot: int, kind: int, believed: BelievedSpeeds, row: int) -> None:
        """Write what is estimated of row `row`, a job of type `kind` of `base`, into type `slot`."""
        noise, base, own, packed = believed.noise, self.base, self.tables, self._packed[kind]
        assert noise is not None
        gpus = np.maximum(np.arange(base.max_gpus + 1), 1)
        factor = noise.speed[row] * gpus ** noise.scaling[row]
        several = gpus > min(self._gpus_per_node, int(base.node_gpus[kind]))
        rows = np.where(several, [base.row[kind, 0], packed], [packed, base.row[kind, min(1, base.row.shape[1] - 1)]])
        to = own.row[slot, :SPANS]
        own.packed_rows(self._gpus_per_node)[slot] = np.where(several, to[1], to[0])
        fill_own(base.rates, rows, factor, to, own.rates, own.elapsed)
        if base.score_rates is not None and own.score_rates is not None:
            fill_own(base.score_rates, rows, factor, to, own.score_rates, self._unused)
        if base.known_speed is not None and own.known_speed is not None:
            own.known_speed[slot] = base.known_speed[kind] * factor
        if base.known_remaining is not None and own.known_remaining is not None:
            own.known_remaining[slot] = base.known_remaining[kind] * noise.remaining[row]
        for name in (*COPIED, "facts", "accuracy_ahead"):
            getattr(own, name)[slot] = getattr(base, name)[kind]


@njit()
def fill_own(
    rates: FloatArray, rows: IntArray, factor: FloatArray, own: AnyArray, to: FloatArray, elapsed: FloatArray
) -> None:
    """Fill rows own [S, K + 1] of `to` [R, P] with factor [K + 1] times rows [S, K + 1] of rates, and their times."""
    for s in range(own.shape[0]):
        for k in range(1, own.shape[1]):
            at, clock = own[s, k], 0.0
            for p in range(to.shape[1]):
                rate = rates[rows[s, k], p] * factor[k]
                to[at, p] = rate
                elapsed[at, p] = clock
                clock += 1.0 / rate if rate > 0.0 else np.inf
            elapsed[at, to.shape[1]] = clock
