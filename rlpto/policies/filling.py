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
"""Seconds subtracted from the time of a limit: rounding could otherwise place it after the true time."""


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

    Without `backfill` the first waiting row that does not fit blocks all rows behind it. If the held GPUs exceed the
    capacity (a node went down), rows keep theirs in order, all or nothing: a smaller row behind may still keep its own.
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
    """Return the seconds until the first row reaches `limit` [n] GPU-seconds of service, minus EARLY_BY_S. Infinity if
    no running row has a limit; negative if a running row is already past it."""
    seconds = np.inf
    for row in range(len(gpus)):
        if gpus[row] > 0:
            seconds = min(seconds, (limit[row] - attained[row]) / gpus[row])
    return seconds - EARLY_BY_S


def largest_node(state: ClusterState) -> int:
    """Return the GPUs of the largest node that is up, free or not: the limit of a job on one node; 0 without nodes."""
    return max((node.gpus for node in state.shape if node.up), default=0)


def where_kept(state: ClusterState) -> IntArray:
    """Return the placement [n, N] of the running jobs that keep their GPUs; 0 for all other jobs.

    If the held GPUs exceed the capacity (a node went down), jobs keep theirs in row order, all or nothing. GPUs on
    nodes that are down are replaced on other nodes.
    """
    offered = state.shape.offered
    kept = fit_in_order(np.arange(len(state.jobs)), state.jobs.keepable, state.capacity)
    placement = state.held_nodes.copy()
    placement[kept == 0] = 0
    placement[:, offered <= 0] = 0
    fit_rows(placement, kept, offered - placement.sum(axis=0))
    return placement


def start_on_nodes(state: ClusterState, turn: int, *, rotates: bool, backfill: bool) -> tuple[IntArray, int]:
    """Keep running jobs where they are and start waiting jobs (`place_waiting`). Return the placement [n, N] and the
    node at which the next search begins."""
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
    """Start waiting rows in row order, each on the first node with enough free GPUs, searching from node `turn` on.

    requested, waiting: [n]. free: [N] free GPUs of each node, reduced by the GPUs placed. largest: GPUs of the largest
    node that is up, free or not. placement: [n, N], rows of started jobs are filled in. rotates: if true, the search
    for the next row begins at the node after the last one used; otherwise always at `turn`. Returns the node at which
    the next search begins.

    A job of at most `largest` GPUs starts only if one node has room for all of them. A larger job takes all free GPUs
    of one node after another. Without `backfill` the first row that cannot start blocks all rows behind it. First fit,
    as in the systems that these policies reproduce; `rlpto.core.placement.pack` uses best fit.
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
