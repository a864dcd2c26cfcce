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
from rlpto.policies.one_node import start_on_nodes


class RoundRobin(BasePolicy[BackfillOptions], StandsUntilEvent):
    """Running jobs keep their GPUs where they are; waiting jobs start in queue order, each on the next node."""

    name = "round_robin"
    summary = "requested GPUs in queue order, each job on the next node in rotation that has room, never preempted"
    source = "Raya, NTHU thesis (Schedulearn, Round Robin)"
    Options = BackfillOptions

    def reset(self, seed: int) -> None:  # noqa: ARG002
        """The first node of the shape is next."""
        self._turn = 0

    def __call__(self, state: ClusterState) -> Allocation:
        """Start waiting jobs in row order, from the node on whose turn it is."""
        turn = self._turn if self._turn < len(state.shape) else 0
        placement, self._turn = start_on_nodes(state, turn, rotates=True, backfill=self.options.backfill)
        return Allocation(placement.sum(axis=1), placement=placement)
