"""Elastic policies that divide GPUs by one rule: evenly, by speed-up, time saved or rank in size, or at random."""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.job_table import JobTable
from rlpto.core.policy import BasePolicy, NoOptions, StandsUntilEvent, unit_speed
from rlpto.io.settings import Settings
from rlpto.policies.filling import fill_evenly, fit_in_order
from rlpto.policies.greedy import grow, grow_from_lowest, hull_steps, single_steps, size_steps

KEEP = 0.9
"""Probability that `random` leaves a running job its GPUs at a decision; otherwise it draws another number."""


class EqualShare(BasePolicy[NoOptions], StandsUntilEvent):
    """Equal numbers of GPUs for all jobs, within their limits; min_gpus in queue order if GPUs are scarce.

    With GPUs as the one resource, DRF is max-min fairness (EQUI), solved by water-filling (Bertsekas and Gallager,
    "Data Networks", section 6.5). Adapted: whole GPUs; a job that already holds the odd GPU keeps it.
    """

    name = "equal_share"
    reads_speeds = False
    summary = "max-min fair GPUs (DRF with one resource, EQUI), elastic; knows no durations"
    source = "Ghodsi et al., NSDI 2011 (DRF)"

    def __call__(self, state: ClusterState) -> Allocation:
        jobs = state.jobs
        return Allocation(fill_evenly(jobs.min_gpus, jobs.max_gpus, jobs.gpus, state.capacity))


class MaxThroughputOptions(Settings):
    """Options of `max_throughput`."""

    choose_batch_size: bool = False
    """Also choose every job's batch size: the fastest one for the allocated GPUs."""
    change_above: float = Field(1.0, ge=1, le=1000)
    """A running job whose GPUs stay changes its batch size only for a speed-up above this factor (1 allows any
    speed-up). AdaptDL: 1.05. Above 1 only with choose_batch_size."""

    @model_validator(mode="after")
    def _batch_sizes_are_chosen(self) -> Self:
        if self.change_above > 1 and not self.choose_batch_size:
            raise ValueError(f"change_above {self.change_above:g} needs choose_batch_size=true")
        return self


class MaxThroughput(BasePolicy[MaxThroughputOptions]):
    """Greedy by marginal speed-up relative to one GPU, regardless of a job's class and remaining time.

    Adapted: steps follow the concave hull of the speed, which skips a dip at a node's edge. With
    `choose_batch_size` a job's batch grows with its GPUs to maximise AdaptDL's goodput (Qiao et al., OSDI 2021);
    `change_above` is the threshold of AdaptDL's data loader.
    """

    name = "max_throughput"
    summary = "greedy by marginal speed-up (largest normalised total throughput), elastic"
    source = "Narayanan et al., OSDI 2020 (Gavel); Fox, Management Science 13(3), 1966"
    Options = MaxThroughputOptions

    @property
    def chooses_batch_sizes(self) -> bool:
        """The option `choose_batch_size`."""
        return self.options.choose_batch_size

    def __call__(self, state: ClusterState) -> Allocation:
        jobs, lowest = state.jobs, state.jobs.min_gpus
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


class Optimus(BasePolicy[NoOptions]):
    """Gives each job in turn its min_gpus, then single GPUs by the gain in remaining time.

    Adapted: workers only (no parameter servers); jobs get their min_gpus in queue order first.
    """

    name = "optimus"
    summary = "min_gpus for all, then single GPUs by largest reduction of remaining time, elastic"
    source = "Peng et al., EuroSys 2018; as in Qiao et al., OSDI 2021 (Pollux simulator)"

    def __call__(self, state: ClusterState) -> Allocation:
        """Allocate by gain: GPU k + 1 gains (1 / speed(k) - 1 / speed(k + 1)) x remaining work, in seconds. Small jobs
        are placed first."""
        jobs = state.jobs
        gain = np.zeros_like(jobs.speed)
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = 1.0 / jobs.speed
            np.subtract(seconds[:, 1:-1], seconds[:, 2:], out=gain[:, 1:-1])
            gain *= jobs.remaining[:, None]
        if jobs.floor_size is None:
            steps = single_steps(gain, jobs.max_gpus)
        else:
            steps = size_steps(-seconds * jobs.remaining[:, None], jobs.floor_size, jobs.max_gpus)
        grown = grow_from_lowest(np.arange(len(jobs)), jobs.min_gpus, steps, state.capacity)
        return Allocation(grown, np.argsort(grown, kind="stable"))


class Hesrpt(BasePolicy[NoOptions]):
    """The optimal shares for mean flow time where speed-ups are a power of the GPUs, rounded to whole GPUs.

    With speed-up k**p and m jobs in descending order of remaining size, the i-th gets the share
        theta_i = (i / m)**(1 / (1 - p)) - ((i - 1) / m)**(1 / (1 - p)),
    and the smallest job (i = m) gets the largest share. Adapted: jobs of a lower priority class count as larger than
    all jobs of a higher class, or their size is divided by the weight of their class, depending on the queue; p is
    fitted to the speed tables of the present jobs; every job is given min_gpus first, smallest first if not all fit,
    and GPUs left over by capped jobs go to the others in proportion.
    """

    name = "hesrpt"
    summary = "optimal shares by rank in remaining size for speed-ups k**p, elastic"
    source = "Berg, Vesilo, Harchol-Balter, Performance Evaluation 144, 2020"

    def __call__(self, state: ClusterState) -> Allocation:
        jobs, count = state.jobs, len(state.jobs)
        exponent = fit_exponent(jobs)
        order, share = jobs.ranked(jobs.remaining / unit_speed(jobs) / jobs.class_weight), np.empty(count)
        share[order] = np.diff((np.arange(count + 1) / max(count, 1)) ** (1.0 / (1.0 - exponent)))[::-1]
        # Round to whole GPUs in proportion to the shares by Webster's method (divisors 1/2, 3/2, ...).
        score = share[:, None] / (np.arange(int(jobs.max_gpus.max(initial=0)) + 1) + 0.5)
        steps = single_steps(score, jobs.max_gpus)
        return Allocation(grow_from_lowest(order, jobs.min_gpus, steps, state.capacity, -np.inf))


def fit_exponent(jobs: JobTable) -> float:
    """Fit p of the speed-up k**p by least squares at k = 2, 4, 8, ... GPUs.

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


class RandomPolicy(BasePolicy[NoOptions]):
    """Jobs in random order draw GPUs uniformly within their limits and get them if they fit. A lower bound."""

    name = "random"
    reads_speeds = False
    summary = "GPUs drawn uniformly within each job's limits, jobs in random order; a control"
    source = "control, no source"

    def reset(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, state: ClusterState) -> Allocation:
        jobs = state.jobs
        held = jobs.keepable
        keeps = (held > 0) & (self._random.random(len(jobs)) < KEEP)
        wish = np.where(keeps, held, self._random.integers(jobs.min_gpus, jobs.max_gpus, endpoint=True))
        order = np.lexsort((self._random.random(len(jobs)), ~keeps))
        return Allocation(fit_in_order(order, wish, state.capacity))
