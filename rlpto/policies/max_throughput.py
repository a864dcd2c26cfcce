"""Largest total throughput: GPUs go where they speed a job up most.

Source: the greedy marginal allocation for concave gains (Fox, "Discrete Optimization via Marginal
Analysis", Management Science 13(3), 1966); as a policy of GPU clusters "max total throughput" in
Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads",
OSDI 2020 (Gavel).
Adapted: throughput is each job's speed relative to one GPU, as in Gavel; steps follow the concave
hull of the speed, so that a dip at a node's edge is stepped over.
"""

from __future__ import annotations

import numpy as np

from rlpto.cluster import Allocation, ClusterState
from rlpto.policies.base import NoOptions
from rlpto.policies.greedy import grow, hull_steps
from rlpto.policies.speeds import unit_speed


class MaxThroughput:
    """Greedy by marginal speed-up, whoever the job is and however long it will take."""

    summary = "greedy by marginal speed-up (largest normalised total throughput), elastic"
    source = "Narayanan et al., OSDI 2020 (Gavel); Fox, Management Science 13(3), 1966"
    Options = NoOptions

    def __init__(self, options: NoOptions | None = None) -> None:
        self.name = "max_throughput"
        self.options = options or NoOptions()

    def reset(self, seed: int) -> None:
        """Nothing is remembered."""

    def __call__(self, state: ClusterState) -> Allocation:
        """Take the step with the largest gain in speed-up per GPU; ties in queue order."""
        jobs = state.jobs
        lowest = jobs.min_gpus
        steps = hull_steps(jobs.speed, lowest, jobs.max_gpus)
        score = steps.gain / unit_speed(jobs)[:, None]
        return Allocation(grow(np.zeros_like(lowest), steps.target, score, lowest, state.capacity, 0.0))
