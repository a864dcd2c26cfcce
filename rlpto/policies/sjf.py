"""Shortest job first, without preemption.

Source: classical; for GPU clusters with known durations see Hu et al., "Characterization and
Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021 (Helios, its QSSF).
Adapted: priority classes come before length or, where they weigh, divide it; length is the time on the requested GPUs.
"""

from __future__ import annotations

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BackfillOptions, BasePolicy, StandsUntilEvent
from rlpto.policies.filling import fit_waiting


class Sjf(BasePolicy[BackfillOptions], StandsUntilEvent):
    """Running jobs keep their GPUs; waiting jobs start by time on their requested GPUs."""

    name = "sjf"
    summary = "requested GPUs, shortest job first, never preempted; the shortest waiting job blocks"
    source = "classical; Hu et al., SC 2021 (Helios)"
    Options = BackfillOptions

    def __call__(self, state: ClusterState) -> Allocation:
        """Start waiting jobs by rank of their class, then by length over its weight."""
        jobs = state.jobs
        order = jobs.ranked(jobs.remaining_time(jobs.requested_gpus) / jobs.class_weight)
        gpus = fit_waiting(order, jobs.keepable, jobs.requested_gpus, state.capacity, self.options.backfill)
        return Allocation(gpus, order)
