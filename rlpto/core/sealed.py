"""States from which a policy reads what it is shown, and nothing else."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from rlpto.core.cluster import ClusterShape, ClusterState, Placement, nowhere
from rlpto.io.arrays import IntArray
from rlpto.performance.tables import SpeedTables


class SealedStates:
    """Makes sealed states of those of one run, in which a policy decides as it would in the states themselves.

    A state leads to the simulator for those who look behind its columns: by `state.jobs.store`, private attributes or
    the object of a bound method. A sealed state is made of copies of what is shown: jobs as `JobTable.sealed` has them,
    the tables of their speeds, nodes, and where jobs hold their GPUs. It is no sandbox: code in the same process can
    look for frames of the caller and for files, and put functions of its own in place of ours.
    """

    def __init__(self) -> None:
        self._tables: tuple[SpeedTables, SpeedTables] | None = None  # and the copy
        self._shape: tuple[ClusterShape, ClusterShape] | None = None

    def __call__(self, state: ClusterState) -> ClusterState:
        """A sealed state. Raises ConfigError where beliefs are the truth with errors."""
        believed, index = state.jobs.believed(), state.jobs.index.copy()
        if self._tables is None or self._tables[0] is not believed.tables:
            self._tables = believed.tables, copy.deepcopy(believed.tables)
        else:
            self._tables[1].take_over(believed.tables, believed.type_index)
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
