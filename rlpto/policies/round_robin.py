"""Round robin: the next job goes to the next node in rotation that has room.

Source: Schedulearn (Raya, NTHU thesis; public code bsraya/schedulearn): a rule of placement that spreads jobs evenly over
servers; no time slicing.
Adapted: nodes without room are passed over (the original took the first GPUs of the node whose turn it was, whether
they were free or not); a job larger than any node spans nodes in rotation (the original gave up on it); waiting jobs are
a queue (there they raced).
"""

from __future__ import annotations

import numpy as np

from rlpto.arrays import BoolArray, IntArray
from rlpto.cluster import Allocation, ClusterState
from rlpto.compiled import njit
from rlpto.policies.base import BackfillOptions, BasePolicy, StandsUntilEvent
from rlpto.policies.filling import keep_running
from rlpto.queues import fit_rows


class RoundRobin(BasePolicy[BackfillOptions], StandsUntilEvent):
    """Running jobs keep their GPUs where they are; waiting jobs start in queue order, each on the next node."""

    name = "round_robin"
    summary = "requested GPUs in queue order, each job on the next node in rotation that has room, never preempted"
    source = "Raya, NTHU thesis (Schedulearn, Round Robin)"
    Options = BackfillOptions

    def __init__(self, options: BackfillOptions | None = None) -> None:
        super().__init__(options)
        self._turn = 0

    def reset(self, seed: int) -> None:  # noqa: ARG002
        """The first node of the shape is next."""
        self._turn = 0

    def __call__(self, state: ClusterState) -> Allocation:
        """Start waiting jobs in row order, from the node on whose turn it is."""
        jobs = state.jobs
        sizes = np.array([node.gpus if node.up else 0 for node in state.shape], dtype=np.int64)
        placement = where_kept(state.held_nodes, keep_running(jobs.keepable, state.capacity), sizes)
        free = sizes - placement.sum(axis=0)
        turn = self._turn if self._turn < len(sizes) else 0
        self._turn = rotate(
            jobs.requested_gpus, jobs.waiting, free, int(sizes.max()), turn, self.options.backfill, placement
        )
        return Allocation(placement.sum(axis=1), placement=placement)


def where_kept(held: IntArray, kept: IntArray, sizes: IntArray) -> IntArray:
    """[n, N] where running jobs stay: on the nodes they are on, as far as those are up and `kept` [n] GPUs allow.

    held: [n, N] what they hold. sizes: [N] GPUs of nodes, 0 for those that are down. All kept GPUs together must fit.
    """
    placement = np.where(sizes > 0, held, 0)
    placement[kept == 0] = 0
    fit_rows(placement, kept, sizes - placement.sum(axis=0))
    return placement


@njit()
def rotate(
    requested: IntArray,
    waiting: BoolArray,
    free: IntArray,
    largest: int,
    turn: int,
    backfill: bool,
    placement: IntArray,
) -> int:
    """Place waiting rows in row order, and return on whose turn it is then: the node after the last that was taken.

    requested, waiting: [n]. free: [N] free GPUs, changed. largest: GPUs of the largest node that is up. turn: number of
    the node that is next. placement: [n, N], rows of jobs that start are filled; the others stay as they are.
    A row goes to one node if any could hold it at all, else to as many as it takes, each emptied in turn. Without
    `backfill` the first row for which there is no room stops all behind it.
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
            turn = (node + 1) % count
            if left == 0:
                break
        if left > 0 and not backfill:
            break
    return turn
