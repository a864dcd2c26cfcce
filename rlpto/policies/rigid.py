"""Policies that give a job exactly its requested GPUs. They differ in the order of jobs and in their placement."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from pydantic import Field, field_validator

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BackfillOptions, BasePolicy, NoOptions, OneNodeOptions, StandsUntilEvent
from rlpto.io.arrays import IntArray
from rlpto.io.settings import Settings
from rlpto.policies.filling import first_to_reach, fit_in_order, fit_waiting, start_on_nodes


class Fifo(BasePolicy[OneNodeOptions], StandsUntilEvent):
    """Running jobs keep their GPUs; waiting jobs start in queue order, all or nothing.

    The default of Philly and Slurm-like clusters. Adapted: the queue order, with its priority classes and aging,
    replaces the order of arrival.
    """

    name = "fifo"
    reads_speeds = False
    summary = "requested GPUs in queue order, never preempted; the head of the queue blocks"
    source = "Jeon et al., USENIX ATC 2019 (Philly)"
    Options = OneNodeOptions

    def __call__(self, state: ClusterState) -> Allocation:
        jobs = state.jobs
        if self.options.one_node:
            placement, _ = start_on_nodes(state, 0, rotates=False, backfill=self.options.backfill)
            return Allocation(placement.sum(axis=1), placement=placement)
        order, backfill = np.arange(len(jobs)), self.options.backfill
        return Allocation(fit_waiting(order, jobs.keepable, jobs.requested_gpus, state.capacity, backfill))


class RoundRobin(BasePolicy[BackfillOptions], StandsUntilEvent):
    """Running jobs keep their GPUs where they are; waiting jobs start in queue order, each on the next node.

    Public code: bsraya/schedulearn. Adapted: nodes without room are skipped (the original took the first GPUs of the
    node whose turn it was, free or not); a job larger than any node spans nodes in rotation (the original gave up on
    it); waiting jobs form a queue (in the original they raced).
    """

    name = "round_robin"
    reads_speeds = False
    summary = "requested GPUs in queue order, each job on the next node in rotation that has room, never preempted"
    source = "Raya, NTHU thesis (Schedulearn, Round Robin)"
    Options = BackfillOptions

    def reset(self, seed: int) -> None:  # noqa: ARG002
        self._turn = 0  # index of the next node

    def __call__(self, state: ClusterState) -> Allocation:
        turn = self._turn if self._turn < len(state.shape) else 0
        placement, self._turn = start_on_nodes(state, turn, rotates=True, backfill=self.options.backfill)
        return Allocation(placement.sum(axis=1), placement=placement)


class Sjf(BasePolicy[BackfillOptions], StandsUntilEvent):
    """Running jobs keep their GPUs; waiting jobs start by time on their requested GPUs.

    Adapted: priority classes come before length or, if they are weights, divide it.
    """

    name = "sjf"
    summary = "requested GPUs, shortest job first, never preempted; the shortest waiting job blocks"
    source = "classical; Hu et al., SC 2021 (Helios)"
    Options = BackfillOptions

    def __call__(self, state: ClusterState) -> Allocation:
        jobs = state.jobs
        order = jobs.ranked(jobs.remaining_time(jobs.requested_gpus) / jobs.class_weight)
        gpus = fit_waiting(order, jobs.keepable, jobs.requested_gpus, state.capacity, self.options.backfill)
        return Allocation(gpus, order)


class Srtf(BasePolicy[NoOptions], StandsUntilEvent):
    """Jobs in order of remaining time, each with its requested GPUs.

    Adapted: there are many GPUs, so every job that still fits runs; priority classes come before time or, if they are
    weights, divide it (Smith, Naval Research Logistics Quarterly 3, 1956: weight over time). As in the textbook, jobs
    are ranked when a job arrives or finishes; between these events, running jobs only come nearer to their end.
    """

    name = "srtf"
    summary = "shortest remaining time first, preemptive, requested GPUs"
    source = "Schrage, Operations Research 16(3), 1968"

    def __call__(self, state: ClusterState) -> Allocation:
        jobs = state.jobs
        order = jobs.ranked(jobs.remaining_time(jobs.requested_gpus) / jobs.class_weight)
        return Allocation(fit_in_order(order, jobs.requested_gpus, state.capacity), order)


class StandsUntilLimit:
    """Mixin: a decision is valid until an event, or until the first running job reaches a limit of attained service."""

    _until = np.inf

    def stands_until(self, state: ClusterState) -> float:  # noqa: ARG002
        return self._until


class LasOptions(Settings):
    """Options of `las`."""

    levels: tuple[float, ...] = Field((900.0, 3600.0, 14400.0, 57600.0, 230400.0), min_length=1)
    """Ascending limits between levels of attained service, in GPU-seconds."""

    @field_validator("levels")
    @classmethod
    def _ascending(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        if levels[0] <= 0 or any(b <= a for a, b in pairwise(levels)):
            raise ValueError("levels must be positive and ascending")
        return levels


class Las(BasePolicy[LasOptions], StandsUntilLimit):
    """Jobs by level of attained service, then in queue order; all that still fit run.

    Adapted: attained service is divided into levels; otherwise jobs with similar service would alternate at every
    decision. Priority classes come before levels or, if they are weights, divide the service.
    """

    name = "las"
    reads_speeds = False
    summary = "least attained service first in a few levels, preemptive, requested GPUs; knows no durations"
    source = "Nuyens and Wierman, Performance Evaluation 65(3-4), 2008; Gu et al., NSDI 2019"
    Options = LasOptions

    def reset(self, seed: int) -> None:  # noqa: ARG002
        self._limits = np.array([*self.options.levels, np.inf])
        self._until = np.inf

    def __call__(self, state: ClusterState) -> Allocation:
        jobs = state.jobs
        attained, weight = jobs.attained_service, jobs.class_weight
        level = self._limits[:-1].searchsorted(attained / weight, side="right")
        order = jobs.ranked(level)
        gpus = fit_in_order(order, jobs.requested_gpus, state.capacity)
        self._until = state.time + first_to_reach(self._limits[level] * weight, attained, gpus)
        return Allocation(gpus, order)


class TiresiasOptions(Settings):
    """Options of `tiresias`."""

    threshold: float = Field(57600.0, gt=0)
    """Attained service in GPU-seconds at which a job moves to the second queue for good."""


class Tiresias(BasePolicy[TiresiasOptions], StandsUntilLimit):
    """Discretised 2D-LAS with two queues: the first in order of arrival, the second in order of demotion.

    Every decision serves the first queue, then the second; each job that still fits runs on its
    requested GPUs, the others wait. Adapted: priority classes come before the two queues or, if they are weights,
    multiply the threshold; without classes it is the policy of the Pollux simulator.
    """

    name = "tiresias"
    reads_speeds = False
    summary = "two queues by attained service, requested GPUs, preemptive; knows no durations"
    source = "Gu et al., NSDI 2019; as in Qiao et al., OSDI 2021 (Pollux simulator)"
    Options = TiresiasOptions

    def reset(self, seed: int) -> None:  # noqa: ARG002
        self._turn: IntArray = np.zeros(64, dtype=np.int64)  # by job: place among the demoted jobs, or 0
        self._demoted = 0
        self._until = np.inf

    def __call__(self, state: ClusterState) -> Allocation:
        jobs, index = state.jobs, state.jobs.index
        if (last := int(index.max(initial=0))) >= len(self._turn):
            self._turn = np.concatenate([self._turn, np.zeros(last + 1, dtype=np.int64)])
        turns, threshold = self._turn[index], self.options.threshold * jobs.class_weight
        rows = np.flatnonzero((turns == 0) & (jobs.attained_service >= threshold))
        if len(rows):
            rows = rows[np.argsort(index[rows])]
            turns[rows] = self._demoted + 1 + np.arange(len(rows))
            self._turn[index[rows]] = turns[rows]
            self._demoted += len(rows)
        order = jobs.ranked(turns)
        gpus = fit_in_order(order, jobs.requested_gpus, state.capacity)
        limits = np.where(turns == 0, threshold, np.inf)
        self._until = state.time + first_to_reach(limits, jobs.attained_service, gpus)
        return Allocation(gpus, order)
