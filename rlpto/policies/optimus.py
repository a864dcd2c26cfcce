"""Optimus: GPUs go where they shorten a job's remaining time most.

Source: Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters",
EuroSys 2018, in the form of the Pollux simulator (Qiao et al., OSDI 2021).
Adapted: workers only (no parameter servers); jobs get their min_gpus in queue order first.
"""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy, NoOptions
from rlpto.policies.filling import fit_in_order
from rlpto.policies.greedy import grow, single_steps


class Optimus(BasePolicy[NoOptions]):
    """min_gpus for each job in turn, then single GPUs by the gain in remaining time."""

    name = "optimus"
    summary = "min_gpus for all, then single GPUs by largest reduction of remaining time, elastic"
    source = "Peng et al., EuroSys 2018; as in Qiao et al., OSDI 2021 (Pollux simulator)"

    def __call__(self, state: ClusterState) -> Allocation:
        """Grow jobs until nothing is gained or no GPU is free; small jobs are placed first.

        gain of GPU k + 1 = (1 / speed(k) - 1 / speed(k + 1)) x remaining work, in seconds.
        """
        jobs = state.jobs
        lowest = jobs.min_gpus
        first = fit_in_order(np.arange(len(jobs)), lowest, state.capacity)
        gain = np.zeros_like(jobs.speed)
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = 1.0 / jobs.speed
            np.subtract(seconds[:, 1:-1], seconds[:, 2:], out=gain[:, 1:-1])
            gain *= jobs.remaining[:, None]
        target = single_steps(jobs.max_gpus, gain.shape[1])  # a job that got no GPUs above has no room to start
        grown = grow(first, target, gain, lowest, state.capacity, 0.0)
        return Allocation(grown, np.argsort(grown, kind="stable"))
