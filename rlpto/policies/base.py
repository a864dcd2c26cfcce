"""What a policy is, and how it is found by name."""

from __future__ import annotations

from typing import Protocol

from rlpto.cluster import Allocation, ClusterState


class Policy(Protocol):
    """A function from the table of jobs to the number of GPUs each job gets.

    A policy may wish for more GPUs than there are: wishes are trimmed in queue order, in one place
    (`rlpto.queues.admit`). It may keep a memory between calls; `reset` clears it.
    """

    name: str

    def reset(self, seed: int) -> None:
        """Forget everything; `seed` fixes all randomness until the next reset."""

    def __call__(self, state: ClusterState) -> Allocation:
        """Decide. Called at every decision point, with at least one active job."""
