"""Shortest job first, without preemption.

Source: classical; for GPU clusters with known durations see Hu et al., "Characterization and
Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021 (Helios, its QSSF).
Adapted: priority classes come before length; length is the time on the requested GPUs.
"""

from __future__ import annotations

from rlpto.cluster import Allocation, ClusterState
from rlpto.policies.filling import fit_waiting
from rlpto.settings import Settings


class SjfOptions(Settings):
    """Options of `sjf`."""

    backfill: bool = False
    """Let longer jobs that fit pass a shorter one that does not; without it the shortest blocks."""


class Sjf:
    """Running jobs keep their GPUs; waiting jobs start by time on their requested GPUs."""

    summary = "requested GPUs, shortest job first, never preempted; the shortest waiting job blocks"
    source = "classical; Hu et al., SC 2021 (Helios)"
    Options = SjfOptions

    def __init__(self, options: SjfOptions | None = None) -> None:
        self.name = "sjf"
        self.options = options or SjfOptions()

    def reset(self, seed: int) -> None:
        """Nothing is remembered."""

    def __call__(self, state: ClusterState) -> Allocation:
        """Start waiting jobs by class, then by length."""
        jobs = state.jobs
        order = jobs.ranked(jobs.remaining_time(jobs.requested_gpus))
        gpus = fit_waiting(order, jobs.keepable, jobs.requested_gpus, state.capacity, self.options.backfill)
        return Allocation(gpus, order)

    def stands_until(self, state: ClusterState) -> float:  # noqa: ARG002
        """Forever: only an arrival, a finish or a node makes room, and waiting jobs do not get shorter."""
        return float("inf")
