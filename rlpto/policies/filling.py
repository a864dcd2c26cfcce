"""Compiled kernels that allocate GPUs in a given order, evenly, or to each job on one node.

Most take integer arrays over the n rows of a table and return GPUs [n] whose sum stays within `capacity`.
"""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.core.placement import NOWHERE, first_fit, fit_rows, take_in_turn
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.compiled import njit

EARLY_BY_S = 1e-6
"""Seconds by which a limit is announced early, because rounding must not announce it too late."""


@njit()
def fit_in_order(order: IntArray, wish: IntArray, capacity: int) -> IntArray:
    """All or nothing: give each row of `order` in turn its requested GPUs if they still fit, else 0."""
    gpus = np.zeros(len(wish), dtype=np.int64)
    free = capacity
    for row in order:
        if wish[row] <= free:
            gpus[row] = wish[row]
            free -= wish[row]
    return gpus


@njit()
def fit_waiting(order: IntArray, held: IntArray, wish: IntArray, capacity: int, backfill: bool) -> IntArray:
    """Let running rows keep their GPUs; give waiting rows of `order` in turn their requested GPUs if they fit.

    Without `backfill` the first waiting row that does not fit blocks all rows behind it. If the held
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

    Rows are first given their lowest number, in row order, if that fits. The GPUs left over after
    levelling go one by one to rows that can rise above the level: first to rows that already hold
    more than the level, because equal jobs should not swap GPUs, then in row order.
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
    level, over = 0, ceiling + 1  # `level` fits; `over` does not fit or exceeds all limits
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


@njit()
def first_to_reach(limit: FloatArray, attained: FloatArray, gpus: IntArray) -> float:
    """Return the seconds until the first row reaches `limit` [n] GPU-seconds of service; infinity if no row will."""
    seconds = np.inf
    for row in range(len(gpus)):
        if gpus[row] > 0:
            seconds = min(seconds, (limit[row] - attained[row]) / gpus[row])
    return seconds - EARLY_BY_S


def largest_node(state: ClusterState) -> int:
    """Return the GPUs of the largest node that is up, free or not: the limit of a job on one node; 0 without nodes."""
    return max((node.gpus for node in state.shape if node.up), default=0)


def where_kept(state: ClusterState) -> IntArray:
    """Return the GPUs [n, N] that running jobs keep on their nodes; 0 for waiting jobs.

    If they hold more than the capacity (a node went down), the last rows lose theirs.
    """
    offered = state.shape.offered
    kept = fit_in_order(np.arange(len(state.jobs)), state.jobs.keepable, state.capacity)
    placement = state.held_nodes.copy()
    placement[kept == 0] = 0
    placement[:, offered <= 0] = 0
    fit_rows(placement, kept, offered - placement.sum(axis=0))
    return placement


def start_on_nodes(state: ClusterState, turn: int, *, rotates: bool, backfill: bool) -> tuple[IntArray, int]:
    """Let running jobs stay, start waiting jobs by `place_waiting`, and return placement [n, N] and next turn."""
    jobs, placement = state.jobs, where_kept(state)
    free = state.shape.offered - placement.sum(axis=0)
    largest = largest_node(state)
    turn = place_waiting(jobs.requested_gpus, jobs.waiting, free, largest, turn, rotates, backfill, placement)
    return placement, turn


@njit()
def place_waiting(
    requested: IntArray,
    waiting: BoolArray,
    free: IntArray,
    largest: int,
    turn: int,
    rotates: bool,
    backfill: bool,
    placement: IntArray,
) -> int:
    """Place waiting rows in row order, each on the first node with room, searching from node number `turn`.

    rotates: if True, the next row searches from the following node; the final position is returned.
    requested, waiting: [n]. free: [N] free GPUs, changed. largest: from `largest_node`. placement:
    [n, N], filled in for jobs that start, unchanged for the others.
    A row goes to one node if any is large enough for it, else to as many as needed, each used up in turn. Without
    `backfill` the first row without room blocks all rows behind it. Unlike `rlpto.core.placement.pack`, this is the
    first fit of the systems it comes from, not the best.
    """
    for row in range(len(requested)):
        if not waiting[row]:
            continue
        wish = requested[row]
        first = turn if wish <= free.sum() else NOWHERE
        if wish <= largest:
            first = first_fit(free, wish, turn)
        if first != NOWHERE:
            last = take_in_turn(placement[row], wish, free, first)
            turn = (last + 1) % len(free) if rotates else turn
        elif not backfill:
            break
    return turn
