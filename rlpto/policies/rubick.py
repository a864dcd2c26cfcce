"""Rubick: GPUs and plans of parallelism together, by how much speed a job gains from each GPU with its best plan.

Source: Zhang et al., "Rubick: Exploiting Job Reconfigurability for Deep Learning Cluster Scheduling", MLSys 2025, and
its public code (AlibabaPAI/reconfigurable-dl-scheduler).
Adapted: speeds are those of the tables, not of its performance model; GPUs are the one resource; jobs of class high are
the guaranteed ones; placement is the cluster's. docs/systems/rubick.md says what else differs.
"""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.job_table import JobTable
from rlpto.core.policy import BasePolicy, NoOptions
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.policies.filling import fit_in_order
from rlpto.policies.greedy import grow, hull_steps

EQUAL = 1e-9
"""Relative difference of speeds that are the same."""


class Rubick(BasePolicy[NoOptions]):
    """Every job its fewest GPUs, from those who lose least speed by it; what is free to those who gain most.

    Speeds are those of a job's best plan at each size, relative to the one that it was submitted for: with the GPUs
    that it asks for and its own plan. A job submitted with class high never gets fewer GPUs than reach that speed.
    """

    name = "rubick"
    summary = "GPUs and plans of parallelism by gain in normalised speed (Rubick), elastic; knows no remaining work"
    source = "Zhang et al., MLSys 2025 (Rubick)"
    chooses_plans = True

    def __call__(self, state: ClusterState) -> Allocation:
        """Running jobs shrink until the waiting ones have started or nothing is left to give; then jobs grow.

        A job's plan changes with its GPUs only.
        """
        jobs = state.jobs
        rows, speeds = np.arange(len(jobs)), jobs.speed_at_plans
        best, asked = speeds.max(axis=0), speeds[0, rows, jobs.requested_gpus]
        asked = np.where(asked > 0, asked, best[rows, jobs.requested_gpus])  # its plan may not run on that number
        value = best / asked[:, None]
        lowest = fewest_gpus(jobs, value)
        order = np.lexsort((-value[rows, lowest] / lowest, jobs.waiting, jobs.class_rank))
        gpus = fit_in_order(order, lowest, state.capacity)
        for most in (np.maximum(jobs.keepable, lowest), jobs.max_gpus):
            steps = hull_steps(value, lowest, most)
            gpus = grow(gpus, steps.target, steps.gain, lowest, state.capacity, 0.0)
        plan = jobs.plans[rows, speeds[:, rows, gpus].argmax(axis=0)]
        return Allocation(gpus, plan=np.where(gpus == jobs.gpus, jobs.plan, plan))


def fewest_gpus(jobs: JobTable, value: FloatArray) -> IntArray:
    """[n] min_gpus; of jobs submitted with class high, the fewest GPUs at which `value` [n, K + 1] is 1 or more."""
    gpus = np.arange(value.shape[1])
    enough = (value >= 1 - EQUAL) & (gpus >= jobs.min_gpus[:, None]) & (gpus <= jobs.max_gpus[:, None])
    return np.where((jobs.priority == 0) & enough.any(axis=1), enough.argmax(axis=1), jobs.min_gpus)
