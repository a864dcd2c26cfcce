"""Trim requested allocations to capacity in queue order, and reserve GPUs for jobs that have waited too long; compiled.

Used by the queue of one cluster (`rlpto.core.queues.Queue`) and for many simulated clusters at once.
"""

from __future__ import annotations

import numpy as np

from rlpto.io.arrays import AnyArray, IntArray
from rlpto.io.compiled import copy_rows, helper, njit


@njit()
def admit(
    view: AnyArray,
    wishes: IntArray,
    capacity: int,
    given: IntArray,
    jobs: AnyArray,
    floor_size: IntArray | None,
    now: float,
    reserve_after: float,
) -> int:
    """Fill given [n] with the requested GPUs [n] of the jobs in view [n] VIEW, trimmed to capacity in queue order.

    jobs: [M] JOB, including those in view. floor_size: `SpeedTables.floor_size_anywhere` of their types; all sizes are
    allowed if it is None or empty. reserve_after [s]: `reserve` is applied if this is finite. Returns the first row
    whose request breaks its limits, or -1.
    """
    total = 0
    for i in range(len(wishes)):
        if wishes[i] != 0 and (wishes[i] < view[i].min_gpus or wishes[i] > view[i].max_gpus):
            return i
        given[i] = allowed(floor_size, jobs, view, i, wishes[i])
        total += given[i]
    if reserve_after < np.inf and reserve(view, given, capacity, jobs, floor_size, now, reserve_after):
        return -1
    if total > capacity:
        left = capacity
        for i in range(len(wishes)):
            given[i] = allowed(floor_size, jobs, view, i, min(given[i], left))
            if given[i] < view[i].min_gpus:
                given[i] = 0
            left -= given[i]
    return -1


@helper()
def allowed(floor_size: IntArray | None, jobs: AnyArray, view: AnyArray, i: int, gpus: int) -> int:
    """Largest allowed size up to `gpus` of the job in row i of a view. The other arguments are those of `admit`."""
    if floor_size is None:
        return gpus
    return int(floor_size[jobs[view[i].index].estimated_type, gpus]) if floor_size.size else gpus


@njit()
def reserve(
    view: AnyArray, given: IntArray, capacity: int, jobs: AnyArray, floor_size: IntArray | None, now: float, wait: float
) -> bool:
    """Change given [n] to give free GPUs first to jobs that have waited for `wait` seconds.

    The other arguments are those of `admit`. Overdue jobs get their smallest size, the longest wait first; no other job
    grows while an overdue job waits for GPUs. A job that got GPUs in this way keeps its smallest size until it ends.
    Returns False, with `given` unchanged, if the jobs keep more GPUs than there are.
    """
    least, kept, left = np.zeros_like(given), np.zeros_like(given), capacity
    for i in range(len(given)):
        job = jobs[view[i].index]
        size = job.min_gpus
        while size < job.max_gpus and allowed(floor_size, jobs, view, i, size) < job.min_gpus:
            size += 1
        if job.gpus > 0:
            kept[i] = allowed(floor_size, jobs, view, i, min(given[i], job.gpus))
            if kept[i] < job.min_gpus:
                kept[i] = 0
            if job.reserved:
                kept[i] = max(kept[i], min(size, job.gpus))
        elif now - job.wait_start >= wait and size <= capacity:
            least[i] = size
        left -= kept[i]
    if left < 0:
        return False
    while least.any():
        first = -1
        for i in range(len(given)):
            earliest = np.inf if first < 0 else jobs[view[first].index].wait_start
            if least[i] > 0 and jobs[view[i].index].wait_start < earliest:
                first = i
        if least[first] > left:
            break
        kept[first] = least[first]
        jobs[view[first].index].reserved = 1
        left -= least[first]
        least[first] = 0
    for i in range(len(given)):
        if not least.any():
            size = allowed(floor_size, jobs, view, i, min(given[i], kept[i] + left))
            if size > kept[i] and size >= view[i].min_gpus:
                left -= size - kept[i]
                kept[i] = size
    copy_rows(given, kept)
    return True
