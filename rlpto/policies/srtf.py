"""Shortest remaining time first, with preemption.

Source: Schrage, "A Proof of the Optimality of the Shortest Remaining Processing Time Discipline",
Operations Research 16(3), 1968.
Adapted: many GPUs, so every job that still fits runs; priority classes come before time or, where they weigh, divide it
(Smith, "Various optimizers for single-stage production", Naval Research Logistics Quarterly 3, 1956: weight over time).
"""

from __future__ import annotations

from typing import Literal

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy, StandsUntilEvent
from rlpto.io.settings import Settings
from rlpto.policies.filling import fill_in_order, fit_in_order


class SrtfOptions(Settings):
    """Options of `srtf`."""

    gpus: Literal["requested", "max"] = "requested"
    """requested: exactly the requested GPUs; max: as many up to max_gpus as are left, at least min_gpus."""


class Srtf(BasePolicy[SrtfOptions], StandsUntilEvent):
    """Jobs in order of remaining time, each with its requested GPUs or as many as it can use.

    It ranks again when a job arrives or finishes, as in the textbook: between those events, running jobs only come
    nearer to their end. (Estimates may also change when a job's speed changes with its epoch; that triggers no
    decision.)
    """

    name = "srtf"
    summary = "shortest remaining time first, preemptive; on requested GPUs or as many as a job can use"
    source = "Schrage, Operations Research 16(3), 1968"
    Options = SrtfOptions

    def __call__(self, state: ClusterState) -> Allocation:
        """Serve jobs by rank of their class, then by remaining time on the GPUs they would get, over its weight."""
        jobs = state.jobs
        if self.options.gpus == "max":
            order = jobs.ranked(jobs.remaining_time(jobs.max_gpus) / jobs.class_weight)
            return Allocation(fill_in_order(order, jobs.min_gpus, jobs.max_gpus, state.capacity), order)
        order = jobs.ranked(jobs.remaining_time(jobs.requested_gpus) / jobs.class_weight)
        return Allocation(fit_in_order(order, jobs.requested_gpus, state.capacity), order)
