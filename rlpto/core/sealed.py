"""States from which a policy reads what it is shown, and nothing else."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from rlpto.core.cluster import ClusterShape, ClusterState, Placement
from rlpto.io.arrays import IntArray
from rlpto.performance.tables import SpeedTables

Source = TypeVar("Source")


class SealedStates:
    """Makes sealed states of those of one run, in which a policy decides as it would in the states themselves.

    A state leads to the simulator for those who look behind its columns: by `state.jobs.store`, private attributes or
    the object of a bound method. A sealed state is made of copies of what is shown: jobs as `JobTable.sealed` has them,
    nodes, and where jobs hold their GPUs. Beliefs that are rewritten as jobs learn are not copied: the cluster does not
    go by them. It is no sandbox: code in the same process can look for frames of the caller and for files.
    """

    def __init__(self) -> None:
        self._tables, self._shapes = _Copy[SpeedTables](), _Copy[ClusterShape]()

    def __call__(self, state: ClusterState) -> ClusterState:
        """A sealed state. Raises ConfigError where beliefs are the truth with errors."""
        believed = state.jobs.believed().tables
        jobs = state.jobs.sealed(believed if believed.rewritten else self._tables.of(believed))
        placement = _PlacementShown(jobs.index, state.placement(jobs.index))
        return replace(state, jobs=jobs, shape=self._shapes.of(state.shape), placement=placement)


class _Copy(Generic[Source]):
    """A copy of what does not change, made once for each."""

    def __init__(self) -> None:
        self._source: Source | None = None
        self._copy: Source | None = None

    def of(self, source: Source) -> Source:
        """The copy."""
        if self._copy is None or source is not self._source:
            self._source, self._copy = source, copy.deepcopy(source)
        return self._copy


class _PlacementShown:
    """Where jobs hold their GPUs: `placement` of the jobs numbered `index` [n]."""

    def __init__(self, index: IntArray, placement: Placement) -> None:
        self._row = np.zeros(int(index.max(initial=-1)) + 1, dtype=np.int64)
        self._row[index] = np.arange(len(index))
        self._placement = placement

    def __call__(self, index: IntArray) -> Placement:
        """As `ClusterState.placement`."""
        return self._placement.take(self._row[index])
