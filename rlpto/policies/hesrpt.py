"""heSRPT: the optimal shares for mean flow time where speed-ups are a power of the GPUs.

Source: Berg, Vesilo and Harchol-Balter, "heSRPT: Parallel scheduling to minimize mean slowdown",
Performance Evaluation 144, 2020; the form for mean flow time. With speed-up k**p and m jobs in
descending order of remaining size, the i-th gets the share
    theta_i = (i / m)**(1 / (1 - p)) - ((i - 1) / m)**(1 / (1 - p)),
so that the smallest job (i = m) gets the largest share.
Adapted: jobs of a lower priority class count as larger than all of a higher one, or their size is divided by the weight
of their class, as the queue says; p is fitted to the speed tables of the jobs at hand; shares become whole GPUs within
each job's limits by Webster's method, after min_gpus for each job (it is the point of heSRPT that every job is served;
smallest first where that does not fit), and what capped jobs leave goes to the others in proportion.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.job_table import JobTable
from rlpto.core.policy import BasePolicy, unit_speed
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.settings import Settings
from rlpto.policies.filling import fit_in_order
from rlpto.policies.greedy import grow, single_steps


class HesrptOptions(Settings):
    """Options of `hesrpt`."""

    p: float | None = Field(None, gt=0, lt=1)
    """Exponent of the speed-up k**p; null: fitted at every decision to the jobs' speed tables."""


class Hesrpt(BasePolicy[HesrptOptions]):
    """Shares by rank in remaining size, rounded to whole GPUs."""

    name = "hesrpt"
    summary = "optimal shares by rank in remaining size for speed-ups k**p, elastic"
    source = "Berg, Vesilo, Harchol-Balter, Performance Evaluation 144, 2020"
    Options = HesrptOptions

    def __call__(self, state: ClusterState) -> Allocation:
        """Rank by class and remaining time on one GPU over its weight, then give each rank its share."""
        jobs = state.jobs
        exponent = self.options.p or fit_exponent(jobs)
        order = jobs.ranked(jobs.remaining / unit_speed(jobs) / jobs.class_weight)
        share = np.empty(len(jobs))
        share[order] = optimal_shares(len(jobs), exponent)[::-1]
        return Allocation(apportion(share, order, jobs.min_gpus, jobs.max_gpus, state.capacity))


def apportion(share: FloatArray, order: IntArray, lowest: IntArray, highest: IntArray, capacity: int) -> IntArray:
    """[n] whole GPUs in proportion to `share` [n], by Webster's method (divisors 1/2, 3/2, ...).

    Each row of `order` in turn first gets its lowest number, if that fits. Then GPUs go one by one to the row with the
    largest share / (GPUs it has + 1/2), the first of equals, until rows reach their highest number.
    """
    first, width = fit_in_order(order, lowest, capacity), int(highest.max(initial=0)) + 1
    score = share[:, None] / (np.arange(width) + 0.5)
    return grow(first, single_steps(highest, width), score, lowest, capacity, -np.inf)


def optimal_shares(count: int, exponent: float) -> FloatArray:
    """theta [count] for jobs in descending order of remaining size; they sum to 1."""
    cumulated = (np.arange(count + 1) / max(count, 1)) ** (1.0 / (1.0 - exponent))
    return np.diff(cumulated)


def fit_exponent(jobs: JobTable) -> float:
    """p of the speed-up k**p by least squares at k = 2, 4, 8, ... GPUs.

    The fit compares the logs of speed and GPUs, both relative to min_gpus; only numbers of GPUs within
    a job's limits count. Clipped to [0.05, 0.95]; 0.5 if no job can grow to such a number.
    """
    speed = jobs.speed
    lowest = jobs.min_gpus[:, None]
    gpus = 2 ** np.arange(1, int(speed.shape[1] - 1).bit_length())
    used = (gpus > lowest) & (gpus <= jobs.max_gpus[:, None])
    if not used.any():
        return 0.5
    log_gpus = np.log(np.where(used, gpus / lowest, 1.0))
    log_speed = np.log(np.where(used, speed[:, gpus] / np.take_along_axis(speed, lowest, axis=1), 1.0))
    slope = np.sum(log_speed * log_gpus) / np.sum(log_gpus * log_gpus)  # no BLAS: its threads would cost more
    return float(np.clip(slope, 0.05, 0.95))
