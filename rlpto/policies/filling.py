"""Compiled kernels that hand out GPUs in a given order, or evenly.

All take integer arrays over the n rows of a table and return GPUs [n] whose sum stays within
`capacity`. They are compiled on first use and cached on disk.
"""

from __future__ import annotations

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.compiled import njit


@njit()
def fit_in_order(order: IntArray, wish: IntArray, capacity: int) -> IntArray:
    """All or nothing: each row of `order` in turn gets its wish if that still fits, else 0."""
    gpus = np.zeros(len(wish), dtype=np.int64)
    free = capacity
    for row in order:
        if wish[row] <= free:
            gpus[row] = wish[row]
            free -= wish[row]
    return gpus


@njit()
def fit_waiting(order: IntArray, held: IntArray, wish: IntArray, capacity: int, backfill: bool) -> IntArray:
    """Running rows keep what they hold; waiting rows of `order` in turn get their wish if it fits.

    Without `backfill` the first waiting row that does not fit stops all behind it. Should the held
    GPUs exceed capacity (a node went down), the last running rows in `order` lose theirs.
    """
    gpus = np.zeros(len(wish), dtype=np.int64)
    free = capacity
    for row in order:
        if 0 < held[row] <= free:
            gpus[row] = held[row]
            free -= held[row]
    for row in order:
        if held[row] > 0:
            continue
        if wish[row] <= free:
            gpus[row] = wish[row]
            free -= wish[row]
        elif not backfill:
            break
    return gpus


@njit()
def fill_evenly(lowest: IntArray, highest: IntArray, held: IntArray, capacity: int) -> IntArray:
    """Water-filling: raise one common level, each row within its own limits.

    Rows are first given their lowest number, in row order as long as that fits. Of the rows that
    can rise above the common level, as many as GPUs are left get one more: first those that already
    hold more than the level, so that equal jobs do not swap GPUs, then in row order.
    """
    count = len(lowest)
    gpus = np.zeros(count, dtype=np.int64)
    free = capacity
    ceiling = 0
    for row in range(count):
        if lowest[row] <= free:
            gpus[row] = lowest[row]
            free -= lowest[row]
            ceiling = max(ceiling, highest[row])
    level, over = 0, ceiling + 1  # the level fits, the level `over` does not or is pointless
    while over - level > 1:
        middle = (level + over) // 2
        extra = 0
        for row in range(count):
            if gpus[row] > 0:
                extra += max(min(middle, highest[row]) - lowest[row], 0)
        if extra <= free:
            level = middle
        else:
            over = middle
    for row in range(count):
        if gpus[row] > 0:
            raised = max(min(level, highest[row]), lowest[row])
            free -= raised - gpus[row]
            gpus[row] = raised
    for holders in (True, False):
        for row in range(count):
            rises = 0 < gpus[row] == level < highest[row]
            if free > 0 and rises and (held[row] > level) == holders:
                gpus[row] += 1
                free -= 1
    return gpus


EARLY_BY_S = 1e-6
"""Seconds by which a limit may be announced early, so that rounding never announces it too late."""


@njit()
def first_to_reach(limit: FloatArray, attained: FloatArray, gpus: IntArray) -> float:
    """Seconds until the first row reaches `limit` [n] GPU-seconds of service; infinity if none will."""
    seconds = np.inf
    for row in range(len(gpus)):
        if gpus[row] > 0:
            seconds = min(seconds, (limit[row] - attained[row]) / gpus[row])
    return seconds - EARLY_BY_S
