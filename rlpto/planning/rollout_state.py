"""What a planner simulates forward: compiled state of one cluster, made of what a policy knows, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.core.job_store import JobStore
from rlpto.core.job_table import BelievedSpeeds
from rlpto.core.queues import QueueSettings
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.knowledge.job_types import EstimatedJobs
from rlpto.performance.tables import SpeedTables
from rlpto.planning.compiled_loop import Loop, build_loop
from rlpto.planning.rollout import Start, start_of
from rlpto.simulator.arrays import build_world
from rlpto.simulator.kernels import take_up_all
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

NO_NOISE = np.zeros((1, 0, 0))


class RolloutStates:
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
        self._own: EstimatedJobs | None = None

    def forget(self) -> None:
        """Another run begins: its jobs have the numbers of others, and errors of their own."""
        self._own = None

    def build(self, state: ClusterState) -> tuple[Loop, Start]:
        """What rollouts from `state` on run by, and where they begin. At least one GPU must be up."""
        rows = np.argsort(state.jobs.index, kind="stable")
        table = state.jobs.reordered(rows, state.jobs.effective_priority[rows])
        placement, believed, store = state.placement(table.index), table.believed(), table.columns()
        tables, shown = self._tables(believed, table.index, store, state.gpus_per_node)
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
        self, believed: BelievedSpeeds, index: IntArray, store: JobStore, gpus_per_node: int
    ) -> tuple[SpeedTables, SpeedTables]:
        """Tables of the speeds that jobs have in rollouts, and those of what is shown of them there.

        The types in the store are changed to types of these tables.
        """
        tables = believed.tables
        store.type_index[:] = store.believed_type[:] = believed.type_index
        if believed.noise is not None:
            if self._own is None or self._own.base is not tables:
                self._own = EstimatedJobs(tables, gpus_per_node)
            store.type_index[:] = store.believed_type[:] = self._own.types_of(index, believed)
            return self._own.tables, self._own.tables
        if tables.elapsed.size == 0:  # rewritten as jobs learn
            if self._elapsed.shape != (len(tables.rates), tables.rates.shape[1] + 1):
                self._elapsed = np.zeros((len(tables.rates), tables.rates.shape[1] + 1))
                self._elapsed[0, 1:] = np.inf
            types, most = np.unique(believed.type_index), tables.max_gpus
            fill_elapsed(tables.rates, tables.row, types, np.full(len(types), most), self._elapsed)
            return replace(tables, elapsed=self._elapsed), tables
        return tables, tables


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
