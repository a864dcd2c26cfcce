"""Elastic FIFO: requested GPUs in queue order; what is left makes running jobs larger until somebody needs it.

Source: Schedulearn (Raya, NTHU thesis; public code bsraya/schedulearn), as it was meant: take back what jobs hold
beyond their request when another arrives, and let the oldest grow when one finishes.
Adapted: GPUs of a job may be on several nodes; a job is grown only to sizes at which it is faster, and only if the time
it saves is longer than the delay of the change and the job is not about to finish, as our notes on that system specify.
"""

from __future__ import annotations

import numpy as np

from rlpto.arrays import BoolArray, FloatArray, IntArray
from rlpto.cluster import Allocation, ClusterState
from rlpto.compiled import njit
from rlpto.job_table import JobTable
from rlpto.policies.base import BackfillOptions, BasePolicy

MIN_REMAINING_DELAYS = 3.0
"""A running job is not grown once it will finish within so many times the delay of the change."""


class ElasticFifo(BasePolicy[BackfillOptions]):
    """Nobody is preempted, but what a job holds beyond its request is surplus, which others may ask back."""

    name = "elastic_fifo"
    summary = "requested GPUs in queue order, left-over GPUs lent to jobs that gain by them, oldest first, elastic"
    source = "Raya, NTHU thesis (Schedulearn, Elastic FIFO)"
    Options = BackfillOptions

    def __call__(self, state: ClusterState) -> Allocation:
        """Requests first, then the surplus that jobs hold, then more of it."""
        jobs = state.jobs
        kept, backfill = jobs.keepable, self.options.backfill
        guaranteed = serve_requests(kept, jobs.requested_gpus, jobs.min_gpus, state.capacity, backfill)
        seconds = finishing_times(jobs)
        return Allocation(
            grant_surplus(guaranteed, kept, fastest(seconds, jobs), seconds, jobs.rescale_delay, state.capacity)
        )


def finishing_times(jobs: JobTable) -> FloatArray:
    """[n, K + 1] seconds to finish with 0..K GPUs at the present speed; infinity with none."""
    with np.errstate(divide="ignore"):
        seconds: FloatArray = jobs.remaining[:, None] / jobs.speed
    return seconds


def fastest(seconds: FloatArray, jobs: JobTable) -> IntArray:
    """[n] fewest GPUs within a job's limits with which nothing is faster."""
    gpus = np.arange(seconds.shape[1])
    possible: BoolArray = (gpus >= jobs.min_gpus[:, None]) & (gpus <= jobs.max_gpus[:, None])
    best: IntArray = np.argmin(np.where(possible, seconds, np.inf), axis=1)
    return np.maximum(best, jobs.min_gpus)


@njit()
def serve_requests(held: IntArray, requested: IntArray, lowest: IntArray, capacity: int, backfill: bool) -> IntArray:
    """What rows can count on [n]: running ones keep up to their request, then each row in turn gets its request.

    A row for which less is left takes what is left, if that is its lowest at least; without `backfill` a waiting row
    for which it is not stops all behind it. Should the held GPUs exceed capacity, the last running rows lose theirs.
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
def grant_surplus(
    guaranteed: IntArray, held: IntArray, most: IntArray, seconds: FloatArray, delay: FloatArray, capacity: int
) -> IntArray:
    """GPUs [n] with those that nobody can count on granted, in row order.

    First rows keep what they hold beyond what they are `guaranteed`, so that none is taken back for another. Then rows
    grow to `most`, running ones only if that pays. seconds: [n, K + 1] to finish by GPUs. delay: [n] s of a change.
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
        left = seconds[row, gpus[row]]
        # A job that is changed in any case pays the delay whatever it grows to.
        pays = left - seconds[row, grown] > delay[row] and left > MIN_REMAINING_DELAYS * delay[row]
        if gpus[row] != held[row] or pays:
            free -= grown - gpus[row]
            gpus[row] = grown
    return gpus
