"""Placement of jobs on one node each: nodes of running jobs and of waiting jobs."""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.core.placement import fit_rows
from rlpto.io.arrays import BoolArray, IntArray
from rlpto.io.compiled import njit
from rlpto.policies.filling import fit_in_order


def largest_node(state: ClusterState) -> int:
    """GPUs of the largest node that is up, free or not: the limit of a job on one node; 0 without nodes."""
    return max((node.gpus for node in state.shape if node.up), default=0)


def where_kept(state: ClusterState) -> IntArray:
    """[n, N] GPUs that running jobs keep on their nodes; 0 for waiting jobs.

    If they hold more than the capacity (a node went down), the last rows lose theirs.
    """
    offered = state.shape.offered
    kept = fit_in_order(np.arange(len(state.jobs)), state.jobs.keepable, state.capacity)
    placement = np.where((kept[:, None] > 0) & (offered > 0), state.held_nodes, 0)
    fit_rows(placement, kept, offered - placement.sum(axis=0))
    return placement


def start_on_nodes(state: ClusterState, turn: int, *, rotates: bool, backfill: bool) -> tuple[IntArray, int]:
    """Placement [n, N] in which running jobs stay and waiting ones start, and the next turn; see `place_waiting`."""
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

    rotates: the next row searches from the following node; the last such position is returned.
    requested, waiting: [n]. free: [N] free GPUs, changed. largest: see `largest_node`. placement:
    [n, N], rows of jobs that start are filled; the others stay as they are.
    A row goes to one node if any is large enough for it, else to as many as needed, each used up in turn. Without
    `backfill` the first row without room stops all behind it.
    """
    count = len(free)
    for row in range(len(requested)):
        if not waiting[row]:
            continue
        wish, one_node = requested[row], requested[row] <= largest
        if not one_node and wish > free.sum():
            if backfill:
                continue
            break
        left, first = wish, turn
        for step in range(count):
            node = (first + step) % count
            if free[node] == 0 or (one_node and free[node] < wish):
                continue
            taken = min(free[node], left)
            placement[row, node] = taken
            free[node] -= taken
            left -= taken
            if rotates:
                turn = (node + 1) % count
            if left == 0:
                break
        if left > 0 and not backfill:
            break
    return turn
