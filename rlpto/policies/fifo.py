"""First in, first out: every job gets the GPUs it asked for, in queue order.

Source: the default of Philly and Slurm-like clusters (Jeon et al., "Analysis of Large-Scale
Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019).
Adapted: the queue order, with its priority classes, strict or weighted, and aging, stands for the order of arrival.
"""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy, OneNodeOptions, StandsUntilEvent
from rlpto.policies.filling import fit_waiting
from rlpto.policies.one_node import start_on_nodes


class Fifo(BasePolicy[OneNodeOptions], StandsUntilEvent):
    """Running jobs keep their GPUs; waiting jobs start in queue order, all or nothing."""

    name = "fifo"
    summary = "requested GPUs in queue order, never preempted; the head of the queue blocks"
    source = "Jeon et al., USENIX ATC 2019 (Philly)"
    Options = OneNodeOptions

    def __call__(self, state: ClusterState) -> Allocation:
        """Start waiting jobs in row order."""
        jobs = state.jobs
        if self.options.one_node:
            placement, _ = start_on_nodes(state, 0, rotates=False, backfill=self.options.backfill)
            return Allocation(placement.sum(axis=1), placement=placement)
        order = np.arange(len(jobs))
        return Allocation(fit_waiting(order, jobs.keepable, jobs.requested_gpus, state.capacity, self.options.backfill))
