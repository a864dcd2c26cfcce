"""Elastic FIFO: requested GPUs in queue order; running jobs borrow left-over GPUs until others need them.

Source: Schedulearn (Raya, NTHU thesis; public code bsraya/schedulearn), as its author intended: GPUs that
jobs hold beyond their request are reclaimed when another job arrives, and the oldest job grows when a job finishes.
Adapted: GPUs of a job may be on several nodes, unless `one_node` keeps them on one, as in the original; a job grows
only to sizes at which it is faster, and only if the time it saves is longer than the delay of the change and the job is
not about to finish, as our notes on that system specify (5.5).
"""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.job_table import JobTable, seconds_for
from rlpto.core.placement import NOWHERE, first_fit, fullest, take_in_turn
from rlpto.core.policy import BasePolicy, OneNodeOptions
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.policies.filling import largest_node, where_kept

MIN_REMAINING_DELAYS = 3.0
"""A running job does not grow if it will finish within this many times the delay of the change."""


class ElasticFifo(BasePolicy[OneNodeOptions]):
    """No job is preempted, but GPUs held beyond a request are surplus, which other jobs may take back."""

    name = "elastic_fifo"
    summary = "requested GPUs in queue order, left-over GPUs lent to jobs that gain by them, oldest first, elastic"
    source = "Raya, NTHU thesis (Schedulearn, Elastic FIFO)"
    Options = OneNodeOptions

    def __call__(self, state: ClusterState) -> Allocation:
        """Serve requests first, then let jobs keep their surplus, then let jobs grow.

        With `one_node` a job that an earlier policy spread over nodes keeps its GPUs there.
        """
        jobs, kept, backfill, delay = state.jobs, state.jobs.keepable, self.options.backfill, state.jobs.rescale_delay
        seconds = seconds_for(jobs.remaining[:, None], jobs.speed)  # [n, K + 1] to finish; infinity without GPUs
        most = fastest(seconds, jobs)
        if self.options.one_node:
            placement = where_kept(state)
            held, free = placement.copy(), state.shape.offered - placement.sum(axis=0)
            limits = jobs.requested_gpus, jobs.min_gpus
            serve_on_nodes(placement, *limits, seconds, delay, free, largest_node(state), backfill)
            grow_on_nodes(placement, held, most, seconds, delay, free)
            return Allocation(placement.sum(axis=1), placement=placement)
        guaranteed = serve_requests(kept, jobs.requested_gpus, jobs.min_gpus, state.capacity, backfill)
        return Allocation(grant_surplus(guaranteed, kept, most, seconds, delay, state.capacity))


def fastest(seconds: FloatArray, jobs: JobTable) -> IntArray:
    """Return the fewest GPUs [n], within each job's limits, at which the job is fastest."""
    gpus = np.arange(seconds.shape[1])
    possible: BoolArray = (gpus >= jobs.min_gpus[:, None]) & (gpus <= jobs.max_gpus[:, None])
    best: IntArray = np.argmin(np.where(possible, seconds, np.inf), axis=1)
    return np.maximum(best, jobs.min_gpus)


@njit()
def serve_requests(held: IntArray, requested: IntArray, lowest: IntArray, capacity: int, backfill: bool) -> IntArray:
    """Return the guaranteed GPUs [n]: running rows keep up to their request, then each row in turn gets its request.

    If fewer GPUs are left, a row takes them, unless they are fewer than its lowest number; without `backfill`, such a
    waiting row blocks all rows behind it. If the held GPUs exceed capacity, the last running rows lose theirs.
    """
    gpus = np.zeros(len(held), dtype=np.int64)
    free = capacity
    for row in range(len(held)):
        kept = min(held[row], requested[row])
        if kept > free:
            kept = free if free >= lowest[row] else 0
        gpus[row] = kept
        free -= kept
    for row in range(len(held)):
        reached = min(requested[row], gpus[row] + free)
        if reached >= lowest[row]:
            free -= reached - gpus[row]
            gpus[row] = reached
        elif not backfill:
            break
    return gpus


@njit()
def serve_on_nodes(
    placement: IntArray,
    requested: IntArray,
    lowest: IntArray,
    seconds: FloatArray,
    delay: FloatArray,
    free: IntArray,
    largest: int,
    backfill: bool,
) -> None:
    """Start waiting rows of placement [n, N] in row order, each on one node. free: [N] GPUs. Both arrays are changed.

    A row takes its request on the first node with enough free GPUs; else on the node where the fewest GPUs have to be
    reclaimed from the surplus of other jobs; else it takes the largest free block, or all free and surplus GPUs of one
    node, if these reach its lowest number. A row that requests more than the `largest` node has gets GPUs on several
    nodes, used up one after the other, or waits. A row that started with less than its request takes the missing GPUs
    on its node before later rows start, if that pays. Without `backfill` the first waiting row that cannot start blocks
    all rows behind it. Unlike `rlpto.core.placement.pack`, this is a first fit, and it reclaims GPUs on the way.
    """
    held = placement.sum(axis=1)
    home = np.full(len(held), NOWHERE)
    spare = np.zeros(len(free), dtype=np.int64)
    for row in range(len(held)):
        node = fullest(placement[row])
        if held[row] > 0 and placement[row, node] == held[row]:
            home[row] = node
            spare[node] += max(held[row] - requested[row], 0)
    for row in range(len(held)):
        wish = requested[row]
        if held[row] > 0:
            node = home[row]
            if node == NOWHERE or held[row] >= wish:
                continue
            reached = min(wish, held[row] + free[node] + spare[node])
            if not pays(seconds[row], held[row], reached, delay[row]):
                continue
        elif wish > largest:
            if free.sum() >= wish:
                take_in_turn(placement[row], wish, free, 0)
            elif not backfill:
                break
            continue
        else:
            node = node_for(wish, lowest[row], free, spare)
            if node == NOWHERE:
                if backfill:
                    continue
                break
            reached = min(wish, free[node] + spare[node])
            if free[node] < wish and free[node] + spare[node] < wish and free[node] >= lowest[row]:
                reached = free[node]
        missing = reached - placement[row, node] - free[node]
        donor = len(held) - 1
        while missing > 0:
            surplus = placement[donor, node] - requested[donor] if home[donor] == node else 0
            taken = max(min(surplus, missing), 0)
            placement[donor, node] -= taken
            free[node] += taken
            spare[node] -= taken
            missing -= taken
            donor -= 1
        free[node] -= reached - placement[row, node]
        placement[row, node] = reached


@njit()
def node_for(wish: int, lowest: int, free: IntArray, spare: IntArray) -> int:
    """Return the node on which a waiting job starts by the rule of `serve_on_nodes`; NOWHERE if no node has room.

    spare: [N] surplus GPUs of other jobs.
    """
    best, room = first_fit(free, wish, 0), free + spare
    if best != NOWHERE:
        return best
    for node in range(len(free)):
        if room[node] >= wish and (best == NOWHERE or free[node] > free[best]):
            best = node
    if best != NOWHERE:
        return best
    for counts in (free, room):
        if counts[fullest(counts)] >= lowest:
            return fullest(counts)
    return NOWHERE


@njit()
def pays(seconds: FloatArray, held: int, grown: int, delay: float) -> bool:
    """Return whether a running job should grow: the saved time exceeds the delay, and the job is not about to finish.

    seconds: [K + 1] to finish by GPUs. delay: seconds of a change.
    """
    left = seconds[held]
    return bool(left - seconds[grown] > delay and left > MIN_REMAINING_DELAYS * delay)


@njit()
def grow_on_nodes(
    placement: IntArray, held: IntArray, most: IntArray, seconds: FloatArray, delay: FloatArray, free: IntArray
) -> None:
    """Grow rows of placement [n, N] that are on one node to `most` [n] there, in row order, like `grant_surplus`.

    held: [n, N] GPUs now. free: [N]. placement and free are changed.
    """
    for row in range(len(most)):
        node = fullest(placement[row])
        gpus = placement[row, node]
        grown = min(most[row], gpus + free[node])
        if gpus == 0 or grown <= gpus or placement[row].sum() > gpus:
            continue
        if gpus != held[row, node] or pays(seconds[row], gpus, grown, delay[row]):
            free[node] -= grown - gpus
            placement[row, node] = grown


@njit()
def grant_surplus(
    guaranteed: IntArray, held: IntArray, most: IntArray, seconds: FloatArray, delay: FloatArray, capacity: int
) -> IntArray:
    """Return the GPUs [n] of rows: the guaranteed GPUs, and surplus granted in row order.

    First rows keep held GPUs beyond their `guaranteed` ones, so surplus does not move between rows. Then rows grow to
    `most`, running rows only if that pays. seconds: [n, K + 1] to finish by GPUs. delay: [n] s of a change.
    """
    gpus = guaranteed.copy()
    free = capacity - guaranteed.sum()
    for row in range(len(guaranteed)):
        if 0 < guaranteed[row] < held[row]:
            kept = min(held[row] - guaranteed[row], free)
            gpus[row] += kept
            free -= kept
    for row in range(len(guaranteed)):
        grown = min(most[row], gpus[row] + free)
        if gpus[row] == 0 or grown <= gpus[row]:
            continue
        # A job whose GPUs change in any case pays the same delay for any growth.
        if gpus[row] != held[row] or pays(seconds[row], gpus[row], grown, delay[row]):
            free -= grown - gpus[row]
            gpus[row] = grown
    return gpus
