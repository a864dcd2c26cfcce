"""Coach: workers go where they add most epochs per second.

Source: Sundkvist, "Coach", Umeå University 2021, and its public code DLScheduler.
Adapted: capacity is checked; jobs get min_gpus in queue order first; all jobs are planned anew at every decision.
"""

from __future__ import annotations

from rlpto.cluster import Allocation, ClusterState
from rlpto.policies.base import BasePolicy, NoOptions
from rlpto.policies.marginal_utility import Limits, allocate


class Coach(BasePolicy[NoOptions]):
    """min_gpus for each job in turn, then single workers by gain in speed."""

    name = "coach"
    summary = "min_gpus for all, then single workers by largest gain in epochs per second, elastic"
    source = "Sundkvist, Umeå University 2021 (Coach, code DLScheduler)"

    def __call__(self, state: ClusterState) -> Allocation:
        """Grow jobs until nothing is gained or no GPU is free."""
        jobs = state.jobs
        limits = Limits.of_workers(jobs.min_gpus, jobs.max_gpus)
        workers, _ = allocate(jobs.speed[:, :, None], limits, state.capacity, 0)
        return Allocation(workers)
