"""First in, first out: every job gets the GPUs it asked for, in queue order.

Source: the default of Philly and Slurm-like clusters (Jeon et al., "Analysis of Large-Scale
Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019).
Adapted: the queue order, with its priority classes and aging, stands for the order of arrival.
"""

from __future__ import annotations

import numpy as np

from rlpto.cluster import Allocation, ClusterState
from rlpto.policies.filling import fit_waiting
from rlpto.settings import Settings


class FifoOptions(Settings):
    """Options of `fifo`."""

    backfill: bool = False
    """Let later jobs that fit pass a job that does not; without it the head of the queue blocks."""


class Fifo:
    """Running jobs keep their GPUs; waiting jobs start in queue order, all or nothing."""

    summary = "requested GPUs in queue order, never preempted; the head of the queue blocks"
    source = "Jeon et al., USENIX ATC 2019 (Philly)"
    Options = FifoOptions

    def __init__(self, options: FifoOptions | None = None) -> None:
        self.name = "fifo"
        self.options = options or FifoOptions()

    def reset(self, seed: int) -> None:
        """Nothing is remembered."""

    def __call__(self, state: ClusterState) -> Allocation:
        """Start waiting jobs in row order."""
        jobs = state.jobs
        order = np.arange(len(jobs))
        return Allocation(fit_waiting(order, jobs.keepable, jobs.requested_gpus, state.capacity, self.options.backfill))

    def stands_until(self, state: ClusterState) -> float:  # noqa: ARG002
        """Forever: only an arrival, a finish or a node makes room."""
        return float("inf")
