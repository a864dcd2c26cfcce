"""Rounds: shares of time on every kind of GPU become whole GPUs for a while, as in the simulator of Gavel.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020:
the mechanism of rounds. What the shares are is up to each policy.
Adapted: a job that arrives during a round starts at once on free GPUs; every job gets the number of GPUs that it
requested; GPUs to which no share is due go to the remaining jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

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
    renew: float = Field(0.0, ge=0)
    """Least seconds from one computation of the shares to the next, which also needs a job to have come or gone; jobs
    that came since then wait. Priority goes by the time received since then. The simulators of Gavel and Shockwave have
    1000. 0: shares are computed at every decision, and priority goes by the time received in a job's whole life."""


OptionsT = TypeVar("OptionsT", bound=RoundOptions)


class RoundPolicy(BasePolicy[OptionsT]):
    """Whole GPUs go to the jobs furthest behind their shares of time, which `shares` computes."""

    def reset(self, seed: int) -> None:  # noqa: ARG002
        """Forget the service of all jobs, and their shares."""
        self._received: dict[int, FloatArray] = {}  # by job: seconds on every kind
        self._shares: dict[int, FloatArray] = {}
        self._owed: dict[int, FloatArray] = {}  # seconds due by earlier shares, less those received then
        self._ran: set[int] = set()
        self._decided, self._round_ends, self._renewed = 0.0, -np.inf, -np.inf

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:
        """[n, G] share of its time that each job should spend on every kind.

        speed: [n, G] of each job on its requested GPUs, 0 where it does not fit. room: [G] GPUs.
        """
        raise NotImplementedError

    def __call__(self, state: ClusterState) -> Allocation:
        """Assign all GPUs at the end of a round, and only free ones between."""
        jobs, shape = state.jobs, state.shape
        if len(jobs) == 0:
            return Allocation(jobs.gpus, placement=state.held_nodes)
        held = np.where(shape.offered > 0, state.held_nodes, 0)
        kind = kinds_of(held, shape)
        received = self._count(state, kind)
        begins = state.time >= self._round_ends
        if begins:
            self._round_ends = state.time + self.options.round
        stays = np.full(len(jobs), False) if begins else kind != NO_KIND
        wish, room = jobs.requested_gpus, room_of(shape)
        speed = np.stack([jobs.speed_on_gpu(gpu)[np.arange(len(jobs)), wish] for gpu in shape.kinds], axis=1)
        np.subtract.at(room, kind[stays], jobs.keepable[stays])
        if self.options.renew > 0:
            share, waits = self._standing(state, speed, begins)
            received = self._of(self._received, state) + self.options.round / 2
        else:
            share, waits = self.shares(state, speed, room_of(shape)), np.full(len(jobs), False)
            received = received / np.maximum(state.time - jobs.submit_time, 1.0)[:, None]
        chosen = give_by_priority(share, received, speed, wish, room, stays | waits, self._of(self._owed, state))
        gpus = np.where(stays, jobs.keepable, np.where(chosen == NO_KIND, 0, wish))
        chosen = np.where(stays, kind, chosen)
        placement = place_on_kinds(shape, held, gpus, chosen)
        return Allocation(gpus, placement=placement)

    def _standing(self, state: ClusterState, speed: FloatArray, begins: bool) -> tuple[FloatArray, BoolArray]:
        """[n, G] shares as last computed, and [n] True for jobs that have come since."""
        index = state.jobs.index.tolist()
        due = begins and state.time >= self._renewed + self.options.renew
        if due and self._shares.keys() != set(index):
            passed = state.time - self._renewed
            for job in self._shares.keys() & set(index):
                self._owed[job] = self._owed.get(job, 0.0) + self._shares[job] * passed - self._received[job]
            self._renewed = state.time
            self._shares = dict(zip(index, self.shares(state, speed, room_of(state.shape)), strict=True))
            self._received = {}
        return self._of(self._shares, state), np.array([job not in self._shares for job in index])

    def _count(self, state: ClusterState, kind: IntArray) -> FloatArray:
        """[n, G] seconds that each job has had on every kind, the time since the last decision included."""
        passed, self._decided = state.time - self._decided, state.time
        received = self._of(self._received, state)
        runs = np.flatnonzero(kind != NO_KIND)
        received[runs, kind[runs]] += passed
        if self.options.renew > 0:  # a job that has just started has trained less
            new = np.array([job not in self._ran for job in state.jobs.index[runs].tolist()], dtype=bool)
            received[runs, kind[runs]] -= np.where(new, np.minimum(state.jobs.rescale_delay[runs], passed), 0.0)
        self._ran = set(state.jobs.index[runs].tolist())
        self._received = dict(zip(state.jobs.index.tolist(), received.copy(), strict=True))
        return received

    def _of(self, known: Mapping[int, FloatArray], state: ClusterState) -> FloatArray:
        """[n, G] what is known of every job; 0 where nothing is."""
        nothing = np.zeros(len(state.shape.kinds))
        return np.stack([known.get(job, nothing) for job in state.jobs.index.tolist()])


def give_by_priority(
    share: FloatArray,
    received: FloatArray,
    speed: FloatArray,
    gpus: IntArray,
    room: IntArray,
    served: BoolArray,
    owed: FloatArray | None = None,
) -> IntArray:
    """[n] kind on which each job gets its gpus [n]; NO_KIND where none has room.

    First the jobs furthest behind, by share wanted over share received, [n, G] each. Then the remaining jobs, in queue
    order, on the fastest kind with room. served: [n] jobs to skip. room: [G] free GPUs; changed in place. owed: [n, G]
    seconds: who is owed more comes before its equals.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        priority = np.where(share > 0, share / received, 0.0)
    # A job without service on a kind where it has a share comes first, by that share.
    due = np.zeros_like(share) if owed is None else owed
    order = np.lexsort((-share.ravel(), -due.ravel(), -priority.ravel()))
    chosen = np.full(len(share), NO_KIND)
    for row, kind in zip(*np.unravel_index(order, share.shape), strict=True):
        if share[row, kind] > 0 and chosen[row] == NO_KIND and not served[row] and gpus[row] <= room[kind]:
            chosen[row] = kind
            room[kind] -= gpus[row]
    left = np.flatnonzero((chosen == NO_KIND) & ~served)
    for row in left[np.argsort(-due[left].sum(axis=1), kind="stable")].tolist():
        fits = np.flatnonzero((room >= gpus[row]) & (speed[row] > 0))
        if len(fits):
            chosen[row] = fits[np.argmax(speed[row, fits])]
            room[chosen[row]] -= gpus[row]
    return chosen
