"""Round robin: the next job goes to the next node in rotation that has room.

Source: Schedulearn (Raya, NTHU thesis; public code bsraya/schedulearn): a rule of placement that spreads jobs evenly
over servers; no time slicing.
Adapted: nodes without room are skipped (the original took the first GPUs of the node whose turn it was, whether
they were free or not); a job larger than any node spans nodes in rotation (the original gave up on it); waiting jobs
form a queue (in the original they raced).
"""

from __future__ import annotations

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BackfillOptions, BasePolicy, StandsUntilEvent
from rlpto.policies.one_node import largest_node, node_sizes, place_waiting, where_kept


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
        jobs, sizes = state.jobs, node_sizes(state)
        placement = where_kept(state, sizes)
        free = sizes - placement.sum(axis=0)
        turn = self._turn if self._turn < len(sizes) else 0
        largest, backfill = largest_node(state), self.options.backfill
        self._turn = place_waiting(jobs.requested_gpus, jobs.waiting, free, largest, turn, True, backfill, placement)
        return Allocation(placement.sum(axis=1), placement=placement)
