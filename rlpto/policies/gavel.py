"""Gavel: max-min fairness over kinds of GPU.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020:
the policy "least attained service, heterogeneity-aware" as a linear programme, and its mechanism of rounds.
Adapted: a job that arrives during a round starts at once on free GPUs; every job gets the number of GPUs that it
requested; GPUs that the programme does not assign go to the remaining jobs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.gpu_kinds import NO_KIND, kinds_of, place_on_kinds, room_of
from rlpto.core.policy import BasePolicy
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.settings import Settings

TOTAL_WEIGHT = 1e-3
"""Weight of the mean normalised throughput relative to the least one: it decides what fairness leaves undetermined."""
NO_SHARE = 1e-6
"""Shares below this count as 0."""


class GavelOptions(Settings):
    """Options of `gavel`."""

    round: float = Field(360.0, gt=0)
    """Seconds for which jobs keep the GPUs they were given."""


class Gavel(BasePolicy[GavelOptions]):
    """Shares of time on every kind by a linear programme; whole GPUs go to the jobs furthest behind their shares."""

    name = "gavel"
    summary = "max-min fair shares of time over kinds of GPU (Gavel), requested GPUs, in rounds"
    source = "Narayanan et al., OSDI 2020 (Gavel)"
    Options = GavelOptions

    def reset(self, seed: int) -> None:  # noqa: ARG002
        """Forget the service of all jobs."""
        self._received: dict[int, FloatArray] = {}  # by job: seconds on every kind
        self._decided, self._round_ends = 0.0, -np.inf

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
        share = fair_shares(speed, wish, room_of(shape))
        waited = np.maximum(state.time - jobs.submit_time, 1.0)
        chosen = give_by_priority(share, received / waited[:, None], speed, wish, room, stays)
        gpus = np.where(stays, jobs.keepable, np.where(chosen == NO_KIND, 0, wish))
        chosen = np.where(stays, kind, chosen)
        placement = place_on_kinds(shape, held, gpus, chosen)
        self._decided = state.time
        return Allocation(gpus, placement=placement)

    def _count(self, state: ClusterState, kind: IntArray) -> FloatArray:
        """[n, G] seconds that each job has had on every kind, the time since the last decision included."""
        passed, count = state.time - self._decided, len(state.shape.kinds)
        index = state.jobs.index.tolist()
        self._received = {job: self._received.get(job, np.zeros(count)) for job in index}
        for job, number in zip(index, kind.tolist(), strict=True):
            if number != NO_KIND:
                self._received[job][number] += passed
        return np.stack([self._received[job] for job in index])


def fair_shares(speed: FloatArray, gpus: IntArray, room: IntArray) -> FloatArray:
    """[n, G] share of its time that each job should spend on every kind.

    The least normalised throughput over jobs is as large as can be: sum_k share x speed, by that of a job whose time is
    spread over kinds in proportion to their GPUs, times its GPUs. speed: [n, G] on `gpus` [n] GPUs. room: [G] GPUs.
    """
    from scipy.optimize import linprog  # a third of a second, for this policy alone
    from scipy.sparse import block_array, csr_array

    count, kinds = speed.shape
    fits = (gpus[:, None] <= room) & (speed > 0)
    equal = np.maximum(speed @ (room / max(room.sum(), 1)), 1e-300)
    value = np.where(fits, speed / equal[:, None] * gpus[:, None], 0.0)
    runs = fits.any(axis=1)
    of_job, variable = np.repeat(np.arange(count), kinds), np.arange(count * kinds)
    least = csr_array((-value.ravel(), (of_job, variable)), shape=(count, count * kinds))
    once = csr_array((np.ones(count * kinds), (of_job, variable)), shape=(count, count * kinds))
    within = csr_array((np.repeat(gpus, kinds).astype(np.float64), (variable % kinds, variable)))
    lowest = csr_array(np.asarray(runs, dtype=np.float64).reshape(-1, 1))
    limited: Any = block_array([[least, lowest], [once, None], [within, None]], format="csr")
    found = linprog(  # the last variable is the least normalised throughput
        np.append(-TOTAL_WEIGHT / count * value.ravel(), -1.0),
        A_ub=limited,
        b_ub=np.concatenate([np.zeros(count), np.ones(count), room]),
        bounds=[*((0.0, float(fit)) for fit in fits.ravel()), (0.0, np.inf if runs.any() else 0.0)],
    )
    assert found.x is not None, "shares of 0 are always possible"
    share: FloatArray = found.x[:-1].reshape(count, kinds)
    return np.where(share > NO_SHARE, share, 0.0)


def give_by_priority(
    share: FloatArray,
    received: FloatArray,
    speed: FloatArray,
    gpus: IntArray,
    room: IntArray,
    served: BoolArray,
) -> IntArray:
    """[n] kind on which each job gets its gpus [n]; NO_KIND where none has room.

    First the jobs furthest behind, by share wanted over share received, [n, G] each. Then the remaining jobs, in queue
    order, on the fastest kind with room. served: [n] jobs to skip. room: [G] free GPUs; changed in place.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        priority = np.where(share > 0, share / received, 0.0)
    # A job without service on a kind where it has a share comes first, by that share.
    order = np.lexsort((-share.ravel(), -priority.ravel()))
    chosen = np.full(len(share), NO_KIND)
    for row, kind in zip(*np.unravel_index(order, share.shape), strict=True):
        if share[row, kind] > 0 and chosen[row] == NO_KIND and not served[row] and gpus[row] <= room[kind]:
            chosen[row] = kind
            room[kind] -= gpus[row]
    for row in np.flatnonzero((chosen == NO_KIND) & ~served).tolist():
        fits = np.flatnonzero((room >= gpus[row]) & (speed[row] > 0))
        if len(fits):
            chosen[row] = fits[np.argmax(speed[row, fits])]
            room[chosen[row]] -= gpus[row]
    return chosen
