"""Largest total throughput: GPUs go where they speed a job up most.

Source: the greedy marginal allocation for concave gains (Fox, "Discrete Optimization via Marginal
Analysis", Management Science 13(3), 1966); as a policy of GPU clusters "max total throughput" in
Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads",
OSDI 2020 (Gavel).
Adapted: throughput is each job's speed relative to one GPU, as in Gavel; steps follow the concave
hull of the speed, so that a dip at a node's edge is stepped over. With `choose_batch_size` a job's batch grows with its
GPUs, as AdaptDL's goodput asks for (Qiao et al., OSDI 2021); `change_above` is the threshold of AdaptDL's data loader.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy, unit_speed
from rlpto.io.settings import Settings
from rlpto.policies.greedy import grow, hull_steps


class MaxThroughputOptions(Settings):
    """Options of `max_throughput`."""

    choose_batch_size: bool = False
    """Choose the batch size of every job too: the one at which it trains fastest with the GPUs it is given."""
    change_above: float = Field(1.0, ge=1, le=1000)
    """A running job whose GPUs stay leaves its batch size only for one that is faster by more than this factor; 1: for
    any that is faster. AdaptDL: 1.05. Above 1 only with choose_batch_size."""

    @model_validator(mode="after")
    def _batch_sizes_are_chosen(self) -> Self:
        if self.change_above > 1 and not self.choose_batch_size:
            raise ValueError(f"change_above {self.change_above:g} needs choose_batch_size=true")
        return self


class MaxThroughput(BasePolicy[MaxThroughputOptions]):
    """Greedy by marginal speed-up, regardless of a job's class and remaining time."""

    name = "max_throughput"
    summary = "greedy by marginal speed-up (largest normalised total throughput), elastic"
    source = "Narayanan et al., OSDI 2020 (Gavel); Fox, Management Science 13(3), 1966"
    Options = MaxThroughputOptions

    @property
    def chooses_batch_sizes(self) -> bool:
        """As the option says."""
        return self.options.choose_batch_size

    def __call__(self, state: ClusterState) -> Allocation:
        """Take the step with the largest gain in speed-up per GPU; ties in queue order."""
        jobs = state.jobs
        lowest = jobs.min_gpus
        speeds = jobs.speed_at_batch_sizes if self.chooses_batch_sizes else jobs.speed[None]
        steps = hull_steps(speeds.max(axis=0), lowest, jobs.max_gpus)
        score = steps.gain / unit_speed(jobs)[:, None]
        gpus = grow(np.zeros_like(lowest), steps.target, score, lowest, state.capacity, 0.0)
        if not self.chooses_batch_sizes:
            return Allocation(gpus)
        rows = np.arange(len(jobs))
        reached = speeds[:, rows, gpus]
        fastest = reached.argmax(axis=0)
        held = (jobs.batch_sizes == jobs.chosen_batch_size[:, None]).argmax(axis=1)
        stays = (gpus == jobs.gpus) & (reached[fastest, rows] <= self.options.change_above * reached[held, rows])
        fastest = np.where(stays, held, fastest)
        return Allocation(gpus, batch_size=jobs.batch_sizes[rows, fastest])
