"""What a planner simulates forward: compiled state of one cluster, made of what a policy is told, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.core.job_store import JobStore
from rlpto.core.job_table import Told
from rlpto.core.queues import QueueSettings
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.performance.tables import SpeedTables, elapsed_from_rates
from rlpto.planning.compiled_loop import Loop, build_loop
from rlpto.planning.rollout import Start, start_of
from rlpto.simulator.arrays import build_world
from rlpto.simulator.resuming import take_up_all
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

SPANS = 2
"""Rows for each number of GPUs of a job whose speed is not known exactly: on one node, and on several."""
FIRST_SLOTS = 64
"""Jobs that tables with rows of each job's own have room for at first; twice as many whenever it runs out."""
NO_NOISE = np.zeros((1, 0, 0))


class Scenes:
    """Builds the start of rollouts from states; keeps from one to the next what it had to compute of speeds.

    queue: as that of the scheduler. simulator: how time passes in rollouts; no node fails there. interval: where the
    scheduler decides at events, decisions are taken there at those, and after so many seconds at most. follow_accuracy:
    whether what plans cost depends on when jobs gain their accuracy.
    """

    def __init__(
        self,
        queue: QueueSettings,
        simulator: SimulatorSettings,
        interval: float | None = None,
        follow_accuracy: bool = False,
    ) -> None:
        self._queue, self._follow_accuracy = queue, follow_accuracy
        same: dict[str, object] = {"failures": FailureSettings(), "max_hours": None}
        if interval is not None and simulator.decide_on == "events":
            same["interval"] = max(interval, simulator.interval)
        self._simulator = simulator.model_copy(update=same)
        self._elapsed = np.zeros((0, 0))
        self._own: _OwnRows | None = None

    def forget(self) -> None:
        """Another run begins: its jobs have the numbers of others, and errors of their own."""
        self._own = None

    def build(self, state: ClusterState) -> tuple[Loop, Start]:
        """What rollouts from `state` on run by, and where they begin. At least one GPU must be up."""
        rows = np.argsort(state.jobs.index, kind="stable")
        table = state.jobs.reordered(rows, state.jobs.effective_priority[rows])
        placement, told, store = state.placement(table.index), table.told(), table.columns()
        tables, shown = self._tables(told, table.index, store, state.gpus_per_node)
        store.measured_accuracy[:] = np.nan
        store.rescale_left[:] = placement.pausing
        world = build_world(
            store.records[None],
            *(state.shape.node_gpus, tables, self._simulator, 0),
            keep_log=False,
            follow_accuracy=self._follow_accuracy,
        )
        take_up_all(world, state.time, state.shape, placement)
        loop = build_loop(world, shown, self._queue, state.gpus_per_node, NO_NOISE)
        return loop, start_of(world)

    def _tables(
        self, told: Told, index: IntArray, store: JobStore, gpus_per_node: int
    ) -> tuple[SpeedTables, SpeedTables]:
        """Tables of the speeds that jobs have in rollouts, and those of what is shown of them there.

        The types in the store are changed to types of these tables.
        """
        tables = told.tables
        store.type_index[:] = store.told_type[:] = told.type_index
        if told.noise is not None:
            if self._own is None or self._own.told is not tables:
                self._own = _OwnRows(tables, gpus_per_node)
            store.type_index[:] = store.told_type[:] = self._own.types_of(index, told)
            return self._own.tables, self._own.tables
        if tables.elapsed.size == 0:  # rewritten as jobs learn
            if self._elapsed.shape != (len(tables.rates), tables.rates.shape[1] + 1):
                self._elapsed = np.zeros((len(tables.rates), tables.rates.shape[1] + 1))
                self._elapsed[0, 1:] = np.inf
            types, most = np.unique(told.type_index), tables.max_gpus
            fill_elapsed(tables.rates, tables.row, types, np.full(len(types), most), self._elapsed)
            return replace(tables, elapsed=self._elapsed), tables
        return tables, tables


class _OwnRows:
    """Tables with a type of its own for every job of which only estimates with errors are known: speed and work left.

    told: speeds of the jobs' models. tables: behind the types of these, those of jobs, with the errors of each.
    """

    def __init__(self, told: SpeedTables, gpus_per_node: int) -> None:
        self.told = told
        self._gpus_per_node = gpus_per_node
        self._packed = told.packed_rows(gpus_per_node)
        self._slots: dict[tuple[int, int], int] = {}  # by job and type: on another kind of GPU it has other speeds
        self._make_room(FIRST_SLOTS)

    def types_of(self, index: IntArray, told: Told) -> IntArray:
        """[n] types in `tables` of jobs number `index` [n]."""
        jobs = list(zip(index.tolist(), told.type_index.tolist(), strict=True))
        present = set(jobs)
        for gone in [job for job in self._slots if job not in present]:
            self._free.append(self._slots.pop(gone))
        if len(present) > len(self._slots) + len(self._free):
            self._slots.clear()
            self._make_room(2 * len(present))
        noise = told.noise
        assert noise is not None
        gpus = np.maximum(np.arange(self.told.max_gpus + 1), 1)
        for row, job in enumerate(jobs):
            if job in self._slots:
                continue
            slot = self._slots[job] = self._free.pop()
            kind = job[1]
            factor = noise.speed[row] * gpus ** noise.scaling[row]
            own, packed = self.tables, self._packed[kind]
            several = gpus > min(self._gpus_per_node, int(self.told.node_gpus[kind]))
            rows = np.where(several, [self.told.row[kind, 0], packed], [packed, self._row_on_two(kind)])
            own.packed_rows(self._gpus_per_node)[slot] = np.where(several, own.row[slot, 1], own.row[slot, 0])
            fill_own(self.told.rates, rows, factor, own.row[slot], own.rates, own.elapsed)
            if self.told.score_rates is not None and own.score_rates is not None:
                fill_own(self.told.score_rates, rows, factor, own.row[slot], own.score_rates, self._unused)
            if self.told.known_speed is not None and own.known_speed is not None:
                own.known_speed[slot] = self.told.known_speed[kind] * factor
            if self.told.known_remaining is not None and own.known_remaining is not None:
                own.known_remaining[slot] = self.told.known_remaining[kind] * noise.remaining[row]
            for name in ("accuracy", "epochs", "samples", "rescale_delay", "facts", "accuracy_ahead"):
                getattr(own, name)[slot] = getattr(self.told, name)[kind]
        return np.array([self._slots[job] for job in jobs], dtype=np.int64)

    def _row_on_two(self, kind: int) -> IntArray:
        """[K + 1] rows of a type on two nodes."""
        rows: IntArray = self.told.row[kind, min(1, self.told.row.shape[1] - 1)].astype(np.int64)
        return rows

    def _make_room(self, slots: int) -> None:
        told, most = self.told, self.told.max_gpus
        types = len(told.types)
        self._free = list(range(types + slots - 1, types - 1, -1))
        row = np.zeros((types + slots, SPANS, most + 1), dtype=np.int32)
        row[types:, :, 1:] = 1 + np.arange(slots * SPANS * most, dtype=np.int32).reshape(slots, SPANS, most)
        rates = np.zeros((1 + slots * SPANS * most, told.rates.shape[1]))
        elapsed = elapsed_from_rates(rates)
        self._unused = np.zeros_like(elapsed)

        def room(column: AnyArray) -> AnyArray:
            return np.concatenate([column, np.repeat(column[:1], slots, axis=0)])

        self.tables = replace(
            told,
            types=(*told.types, *(told.types[0] for _ in range(slots))),
            rates=rates,
            elapsed=elapsed,
            row=row,
            exact_keys=np.zeros(0, dtype=np.int64),
            exact_rows=np.zeros(0, dtype=np.int32),
            known_remaining=None if told.known_remaining is None else room(told.known_remaining),
            known_speed=None if told.known_speed is None else room(told.known_speed),
            score_rates=None if told.score_rates is None else np.zeros_like(rates),
            own=np.arange(types + slots),
            accuracy=room(told.accuracy),
            epochs=room(told.epochs),
            samples=room(told.samples),
            rescale_delay=room(told.rescale_delay),
            batch_size=room(told.batch_size),
            kind=room(told.kind),
            node_gpus=room(told.node_gpus),
            servers=room(told.servers),
            most_servers=room(told.most_servers),
        )


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


@njit()
def fill_elapsed(rates: FloatArray, row: AnyArray, types: IntArray, most: IntArray, elapsed: FloatArray) -> None:
    """Fill elapsed [R, P + 1] of all rows of types [n], up to most [n] GPUs, as `elapsed_from_rates` does."""
    for i in range(len(types)):
        for s in range(row.shape[1]):
            if s > 0 and row[types[i], s, 1] == row[types[i], s - 1, 1]:
                break  # further spans have the rows of this one
            for k in range(1, most[i] + 1):
                at, clock = row[types[i], s, k], 0.0
                for p in range(rates.shape[1]):
                    elapsed[at, p] = clock
                    clock += 1.0 / rates[at, p] if rates[at, p] > 0.0 else np.inf
                elapsed[at, rates.shape[1]] = clock
