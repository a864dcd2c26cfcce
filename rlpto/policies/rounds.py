"""Rounds: jobs ranked on every kind of GPU get whole GPUs for a while, as in the simulator of Gavel.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020:
the mechanism of rounds. What jobs are ranked by is up to each policy; most share time.
Adapted: a job that arrives during a round starts at once on free GPUs; every job gets the number of GPUs that it
requested; GPUs to which no share is due go to the remaining jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.gpu_kinds import NO_KIND, kinds_of, place_on_kinds, room_of
from rlpto.core.policy import BasePolicy
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.settings import Settings


class RoundOptions(Settings):
    """Options of policies in rounds."""

    round: float = Field(360.0, gt=0)
    """Seconds for which jobs keep the GPUs they were given."""


class ShareOptions(RoundOptions):
    """Options of policies that share time."""

    renew: float = Field(0.0, ge=0)
    """Least seconds from one computation of the shares to the next, which also needs a job to have come or gone; jobs
    that came since then wait. Priority goes by the time trained since then. The simulators of Gavel and Shockwave have
    1000. 0: shares are computed at every decision, and priority goes by the time received in a job's whole life."""


class Ranks(NamedTuple):
    """Who comes first on which kind: the largest share [n, G] by what was received [n, G], then who is owed more
    [n, G]; a job that waits [n] gets nothing."""

    share: FloatArray
    received: FloatArray
    owed: FloatArray
    waits: BoolArray


OptionsT = TypeVar("OptionsT", bound=RoundOptions)
ShareT = TypeVar("ShareT", bound=ShareOptions)


class RoundPolicy(BasePolicy[OptionsT]):
    """Whole GPUs for a round, by the `ranks` of a policy."""

    def reset(self, seed: int) -> None:  # noqa: ARG002
        self._round_ends = -np.inf

    def observe(self, state: ClusterState) -> None:
        """Note what has passed since the last decision. Called at each, before `ranks`, which is left out at some."""

    def ranks(self, state: ClusterState, speed: FloatArray, begins: bool) -> Ranks:
        """speed: [n, G] of each job on its requested GPUs, 0 where it does not fit. begins: whether a round does."""
        raise NotImplementedError

    def __call__(self, state: ClusterState) -> Allocation:
        jobs, shape = state.jobs, state.shape
        if len(jobs) == 0:
            return Allocation(jobs.gpus, placement=state.held_nodes)
        held = np.where(shape.offered > 0, state.held_nodes, 0)
        kind = kinds_of(held, shape)
        begins = state.time >= self._round_ends
        if begins:
            self._round_ends = state.time + self.options.round
        stays = np.full(len(jobs), False) if begins else kind != NO_KIND
        wish, room = jobs.requested_gpus, room_of(shape)
        self.observe(state)
        np.subtract.at(room, kind[stays], jobs.keepable[stays])
        chosen = np.full(len(jobs), NO_KIND)
        if (wish[~stays, None] <= room).any():
            speed = np.stack([jobs.speed_on_gpu(gpu)[np.arange(len(jobs)), wish] for gpu in shape.kinds], axis=1)
            ranks = self.ranks(state, speed, begins)
            chosen = give_by_priority(ranks, speed, wish, room, stays | ranks.waits)
        gpus = np.where(stays, jobs.keepable, np.where(chosen == NO_KIND, 0, wish))
        return Allocation(gpus, placement=place_on_kinds(shape, held, gpus, np.where(stays, kind, chosen)))


class SharePolicy(RoundPolicy[ShareT]):
    """GPUs go to the jobs furthest behind their shares of time, which `shares` computes."""

    Options = ShareOptions

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self._received: dict[int, FloatArray] = {}  # by job: seconds on every kind
        self._owed: dict[int, FloatArray] = {}  # seconds due by earlier shares, less those received then
        self._shares: dict[int, FloatArray] = {}
        self._ran: set[int] = set()
        self._decided, self._renewed = 0.0, -np.inf

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:
        """[n, G] share of its time that each job should spend on every kind; speed: as in `ranks`. room: [G] GPUs."""
        raise NotImplementedError

    def ranks(self, state: ClusterState, speed: FloatArray, begins: bool) -> Ranks:
        room, index = room_of(state.shape), state.jobs.index.tolist()
        if self.options.renew == 0:
            life = np.maximum(state.time - state.jobs.submit_time, 1.0)[:, None]
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
        """Add the seconds that each job has had since the last decision, on the kind where it is."""
        jobs, kind = state.jobs, kinds_of(np.where(state.shape.offered > 0, state.held_nodes, 0), state.shape)
        runs, passed = np.flatnonzero(kind != NO_KIND), state.time - self._decided
        received, had = self._of(self._received, state), np.full(len(runs), passed)
        if self.options.renew > 0:  # a job that has just started has trained less
            new = np.array([job not in self._ran for job in jobs.index[runs].tolist()], dtype=bool)
            had -= np.where(new, np.minimum(jobs.rescale_delay[runs], passed), 0.0)
        received[runs, kind[runs]] += had
        self._received = dict(zip(jobs.index.tolist(), received, strict=True))
        self._ran, self._decided = set(jobs.index[runs].tolist()), state.time

    def _of(self, known: Mapping[int, FloatArray], state: ClusterState) -> FloatArray:
        """[n, G] what is known of every job; 0 where nothing is."""
        nothing = np.zeros(len(state.shape.kinds))
        return np.stack([known.get(job, nothing) for job in state.jobs.index.tolist()])


def give_by_priority(ranks: Ranks, speed: FloatArray, gpus: IntArray, room: IntArray, served: BoolArray) -> IntArray:
    """[n] kind on which each job gets its gpus [n]; NO_KIND where none has room.

    First the jobs furthest behind, by share wanted over share received. Then the remaining jobs, on the fastest kind
    with room. Equals: who is owed more, then queue order. served: [n] jobs to skip. room: [G] free GPUs; changed.
    """
    share, received, owed, _ = ranks
    with np.errstate(divide="ignore", invalid="ignore"):
        priority = np.where(share > 0, share / received, 0.0)
    # A job without service on a kind where it has a share comes first, by that share.
    order = np.lexsort((-share.ravel(), -owed.ravel(), -priority.ravel()))
    chosen = np.full(len(share), NO_KIND)
    for row, kind in zip(*np.unravel_index(order, share.shape), strict=True):
        if share[row, kind] > 0 and chosen[row] == NO_KIND and not served[row] and gpus[row] <= room[kind]:
            chosen[row] = kind
            room[kind] -= gpus[row]
    left = np.flatnonzero((chosen == NO_KIND) & ~served)
    for row in left[np.argsort(-owed[left].sum(axis=1), kind="stable")].tolist():
        fits = np.flatnonzero((room >= gpus[row]) & (speed[row] > 0))
        if len(fits):
            chosen[row] = fits[np.argmax(speed[row, fits])]
            room[chosen[row]] -= gpus[row]
    return chosen
