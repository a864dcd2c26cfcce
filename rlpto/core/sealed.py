"""States that give a policy access to the visible columns, and to nothing else."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from rlpto.core.cluster import ClusterShape, ClusterState, Placement, nowhere
from rlpto.io.arrays import IntArray
from rlpto.performance.tables import SpeedTables


class SealedStates:
    """Seals the states of one run: a policy decides on a sealed state exactly as on the state itself.

    An ordinary state leads to the simulator for code that looks behind its columns: by `state.jobs.store`, private
    attributes or the object of a bound method. A sealed state consists of copies of the visible data: jobs from
    `JobTable.sealed`, their speed tables, nodes, and placements. It is no sandbox: code in the same process can inspect
    the caller's frames, read files, and replace functions of RLPTO.
    """

    def __init__(self) -> None:
        self._tables: tuple[SpeedTables, SpeedTables] | None = None  # and the copy
        self._shape: tuple[ClusterShape, ClusterShape] | None = None

    def __call__(self, state: ClusterState) -> ClusterState:
        """Return a sealed state. Raises ConfigError if estimates are the truth with noise."""
        estimates, index = state.jobs.estimates(), state.jobs.index.copy()
        if self._tables is None or self._tables[0] is not estimates.tables:
            self._tables = estimates.tables, copy.deepcopy(estimates.tables)
        else:
            self._tables[1].take_over(estimates.tables, estimates.type_index)
        if self._shape is None or self._shape[0] is not state.shape:
            self._shape = state.shape, copy.deepcopy(state.shape)
        row, placed = np.full(int(index.max(initial=-1)) + 1, -1), state.placement(index)
        leaves_in = state.leaves_in
        row[index] = np.arange(len(index))

        def placement(jobs: IntArray) -> Placement:
            there = np.array([job < len(row) and row[job] >= 0 for job in jobs.tolist()], dtype=bool)
            return placed.take(row[jobs]) if there.all() else nowhere(jobs)

        return replace(
            state,
            jobs=state.jobs.sealed(self._tables[1]),
            shape=self._shape[1],
            placement=placement,
            notices=None if state.notices is None else leaves_in.copy,
            forecast=copy.deepcopy(state.forecast),
        )
