"""Rounds: a policy ranks jobs on every GPU type; the first jobs get whole GPUs for a while, as in Gavel's simulator.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020,
for the mechanism of rounds. Each policy has its own ranks; most share time.
Adapted: a job that arrives during a round starts at once on free GPUs. Every job gets the GPUs that it requested. GPUs
that no share claims go to the remaining jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.gpu_types import NO_GPU_TYPE, gpu_types_of, room_of
from rlpto.core.placement import pack
from rlpto.core.policy import BasePolicy
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.settings import Settings


class RoundOptions(Settings):
    """Options of policies in rounds."""

    round: float = Field(360.0, gt=0)
    """Length of a round [s]: jobs keep their GPUs for that long."""


class ShareOptions(RoundOptions):
    """Options of policies that share time."""

    renew: float = Field(0.0, ge=0)
    """Shortest time between two computations of the shares [s]. They are computed again only after a job has arrived or
    ended; newer jobs wait until then. Priority counts the time trained since then. Gavel's and Shockwave's simulators
    use 1000. With 0, shares are computed at every decision, and priority counts the time of a job's whole life."""


class Ranks(NamedTuple):
    """Priorities of n jobs on G GPU types. The job with the largest share / received comes first; among equals, the job
    that is owed more. A job that waits gets no GPUs. share, received, owed: [n, G]. waits: [n]."""

    share: FloatArray
    received: FloatArray
    owed: FloatArray
    waits: BoolArray


OptionsT = TypeVar("OptionsT", bound=RoundOptions)
ShareT = TypeVar("ShareT", bound=ShareOptions)


class RoundPolicy(BasePolicy[OptionsT]):
    """Gives jobs whole GPUs for a round, in the order of `ranks`."""

    def reset(self, seed: int) -> None:  # noqa: ARG002
        self._round_ends = -np.inf

    def observe(self, state: ClusterState) -> None:
        """Record what happened since the last decision. Called at every decision, also where `ranks` is not called."""

    def ranks(self, state: ClusterState, speed: FloatArray, begins: bool) -> Ranks:
        """Rank the jobs. speed: with their requested GPUs of each type [n, G]; 0: no fit. begins: a round begins."""
        raise NotImplementedError

    def __call__(self, state: ClusterState) -> Allocation:
        jobs, shape = state.jobs, state.shape
        if len(jobs) == 0:
            return Allocation(jobs.gpus, placement=state.held_nodes)
        held = np.where(shape.offered > 0, state.held_nodes, 0)
        gpu_type = gpu_types_of(held, shape)
        begins = state.time >= self._round_ends
        if begins:
            self._round_ends = state.time + self.options.round
        stays = np.full(len(jobs), False) if begins else gpu_type != NO_GPU_TYPE
        wish, room = jobs.requested_gpus, room_of(shape)
        self.observe(state)
        np.subtract.at(room, gpu_type[stays], jobs.keepable[stays])
        chosen = np.full(len(jobs), NO_GPU_TYPE)
        if (wish[~stays, None] <= room).any():
            speed = np.stack([jobs.speed_on_gpu(gpu)[np.arange(len(jobs)), wish] for gpu in shape.gpu_types], axis=1)
            ranks = self.ranks(state, speed, begins)
            chosen = give_by_priority(ranks, speed, wish, room, stays | ranks.waits)
        gpus = np.where(stays, jobs.keepable, np.where(chosen == NO_GPU_TYPE, 0, wish))
        pool = np.where(stays, gpu_type, chosen)
        return Allocation(gpus, placement=pack(held, gpus, pool, shape.node_gpu_types, shape.offered, False))


class SharePolicy(RoundPolicy[ShareT]):
    """Gives GPUs to the jobs that are furthest behind their shares of time; `shares` computes these."""

    Options = ShareOptions

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self._received: dict[int, FloatArray] = {}  # by job: seconds on every GPU type
        self._owed: dict[int, FloatArray] = {}  # seconds due by earlier shares, less those received then
        self._shares: dict[int, FloatArray] = {}
        self._ran: set[int] = set()
        self._decided, self._began, self._renewed = np.inf, -np.inf, -np.inf

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:
        """Return the share of its time that each job should spend on each GPU type [n, G]. room: GPUs of a type [G]."""
        raise NotImplementedError

    def ranks(self, state: ClusterState, speed: FloatArray, begins: bool) -> Ranks:
        room, index = room_of(state.shape), state.jobs.index.tolist()
        if self.options.renew == 0:
            life = np.maximum(state.time - np.maximum(state.jobs.submit_time, self._began), 1.0)[:, None]
            share, received = self.shares(state, speed, room), self._of(self._received, state) / life
            return Ranks(share, received, np.zeros_like(share), np.full(len(index), False))
        due = begins and state.time >= self._renewed + self.options.renew
        if due and self._shares.keys() != set(index):
            for job in self._shares.keys() & set(index):
                earned = self._shares[job] * (state.time - self._renewed)
                self._owed[job] = self._owed.get(job, 0.0) + earned - self._received[job]
            self._shares = dict(zip(index, self.shares(state, speed, room), strict=True))
            self._received, self._renewed = {}, state.time
        received = self._of(self._received, state) + self.options.round / 2
        waits = np.array([job not in self._shares for job in index])
        return Ranks(self._of(self._shares, state), received, self._of(self._owed, state), waits)

    def observe(self, state: ClusterState) -> None:
        """Add to each job the seconds since the last decision, on the GPU type where it runs. If jobs run at the first
        decision, earlier time does not count: another policy decided then, or this one before a reset."""
        jobs, gpu_type = state.jobs, gpu_types_of(np.where(state.shape.offered > 0, state.held_nodes, 0), state.shape)
        runs, passed = np.flatnonzero(gpu_type != NO_GPU_TYPE), max(state.time - self._decided, 0.0)
        if np.isinf(self._decided) and len(runs):
            self._began = state.time
        received, had = self._of(self._received, state), np.full(len(runs), passed)
        if self.options.renew > 0:  # a job that has just started has trained less
            new = np.array([job not in self._ran for job in jobs.index[runs].tolist()], dtype=bool)
            had -= np.where(new, np.minimum(jobs.rescale_delay[runs], passed), 0.0)
        received[runs, gpu_type[runs]] += had
        self._received = dict(zip(jobs.index.tolist(), received, strict=True))
        self._ran, self._decided = set(jobs.index[runs].tolist()), state.time

    def _of(self, known: Mapping[int, FloatArray], state: ClusterState) -> FloatArray:
        """Return the known values of every job [n, G]; 0 for unknown jobs."""
        nothing = np.zeros(len(state.shape.gpu_types))
        return np.stack([known.get(job, nothing) for job in state.jobs.index.tolist()])


def give_by_priority(ranks: Ranks, speed: FloatArray, gpus: IntArray, room: IntArray, served: BoolArray) -> IntArray:
    """Return the GPU type on which each job gets its gpus [n]; NO_GPU_TYPE if no type has room.

    The jobs with the largest share / received come first, then the remaining jobs on the fastest type with room. Among
    equals the job that is owed more comes first, then queue order. served: jobs to skip [n]. room: free GPUs of each
    type [G]; changed.
    """
    share, received, owed, _ = ranks
    with np.errstate(divide="ignore", invalid="ignore"):
        priority = np.where(share > 0, share / received, 0.0)
    # A job without service on a GPU type where it has a share comes first, by that share.
    order = np.lexsort((-share.ravel(), -owed.ravel(), -priority.ravel()))
    chosen = np.full(len(share), NO_GPU_TYPE)
    for row, gpu_type in zip(*np.unravel_index(order, share.shape), strict=True):
        if share[row, gpu_type] > 0 and chosen[row] == NO_GPU_TYPE and not served[row] and gpus[row] <= room[gpu_type]:
            chosen[row] = gpu_type
            room[gpu_type] -= gpus[row]
    left = np.flatnonzero((chosen == NO_GPU_TYPE) & ~served)
    for row in left[np.argsort(-owed[left].sum(axis=1), kind="stable")].tolist():
        fits = np.flatnonzero((room >= gpus[row]) & (speed[row] > 0))
        if len(fits):
            chosen[row] = fits[np.argmax(speed[row, fits])]
            room[chosen[row]] -= gpus[row]
    return chosen
