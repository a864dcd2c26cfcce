"""A policy in one file: `rlpto bench run examples/my_policy.py:MyPolicy --case microsoft04-0.9`."""

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy


class MyPolicy(BasePolicy):
    """As many jobs as possible run, and the job with the fewest GPUs gets the next one."""

    summary = "starts all jobs that fit, then grows the smallest"
    source = "README"

    def __call__(self, state: ClusterState) -> Allocation:
        """Return the GPUs of each job."""
        jobs, free = state.jobs, state.capacity
        gpus = np.zeros(len(jobs), dtype=int)
        for job in np.argsort(jobs.attained_service, kind="stable"):  # GPU-seconds so far: new jobs come first
            if jobs.min_gpus[job] <= free:
                gpus[job] = jobs.min_gpus[job]
                free -= gpus[job]
        while free and np.any(grows := (gpus > 0) & (gpus < jobs.max_gpus)):
            gpus[np.argmin(np.where(grows, gpus, state.capacity))] += 1
            free -= 1
        return Allocation(gpus)
