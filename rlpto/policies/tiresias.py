"""Tiresias with two queues, as its users simulate it.

Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019
(discretised 2D-LAS), in the form of the Pollux simulator (Qiao et al., OSDI 2021).
Adapted: priority classes come before the two queues or, where they weigh, multiply the threshold; without them it is
that simulator's policy.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy
from rlpto.io.arrays import IntArray
from rlpto.io.settings import Settings
from rlpto.policies.filling import first_to_reach, fit_in_order


class TiresiasOptions(Settings):
    """Options of `tiresias`."""

    threshold: float = Field(57600.0, gt=0)
    """Attained service in GPU-seconds at which a job moves to the second queue for good."""


class Tiresias(BasePolicy[TiresiasOptions]):
    """Two queues: the first in order of arrival, the second in order of demotion.

    Every decision serves the first queue, then the second; each job that still fits runs on its
    requested GPUs, the others wait.
    """

    name = "tiresias"
    summary = "two queues by attained service, requested GPUs, preemptive; knows no durations"
    source = "Gu et al., NSDI 2019; as in Qiao et al., OSDI 2021 (Pollux simulator)"
    Options = TiresiasOptions

    def reset(self, seed: int) -> None:  # noqa: ARG002
        """Forget who was demoted."""
        self._turn: IntArray = np.zeros(64, dtype=np.int64)  # by job: 0, or its place among the demoted
        self._demoted = 0
        self._until = float("inf")

    def __call__(self, state: ClusterState) -> Allocation:
        """Demote who has had enough, then serve both queues."""
        jobs = state.jobs
        turns = self._demote(state)
        order = jobs.ranked(turns)
        gpus = fit_in_order(order, jobs.requested_gpus, state.capacity)
        limits = np.where(turns == 0, self.options.threshold * jobs.class_weight, np.inf)
        self._until = state.time + first_to_reach(limits, jobs.attained_service, gpus)
        return Allocation(gpus, order)

    def stands_until(self, state: ClusterState) -> float:  # noqa: ARG002
        """Until the first job of the first queue that got GPUs reaches the threshold."""
        return self._until

    def _demote(self, state: ClusterState) -> IntArray:
        """[n] place of each job among the demoted, counted from 1; 0 in the first queue."""
        jobs = state.jobs
        index, turns = jobs.index, self._turns(jobs.index)
        rows = np.flatnonzero((turns == 0) & (jobs.attained_service >= self.options.threshold * jobs.class_weight))
        if len(rows):
            rows = rows[np.argsort(index[rows])]
            turns[rows] = self._demoted + 1 + np.arange(len(rows))
            self._turn[index[rows]] = turns[rows]
            self._demoted += len(rows)
        return turns

    def _turns(self, index: IntArray) -> IntArray:
        """[n] entries of the memory for jobs `index`, which grows as needed."""
        last = int(index.max(initial=0))
        if last >= len(self._turn):
            grown = np.zeros(2 * last + 1, dtype=np.int64)
            grown[: len(self._turn)] = self._turn
            self._turn = grown
        return self._turn[index]
