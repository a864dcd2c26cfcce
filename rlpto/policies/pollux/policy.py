"""Pollux: power mean of the jobs' speed-ups over a fair share, with a factor for restarts.

Source: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021,
section 4.2, with the constants of its simulator; thresholds of utility from AdaptDL, which contains Pollux.
Adapted: dynamic programming and neighbourhood search (`search.py`) replace the genetic search, and find better
allocations in a thousandth of the time. A job's rescale delay replaces the original's 30 s for all jobs. A job starts
with its min_gpus or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.job_table import JobTable
from rlpto.core.policy import BasePolicy
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ConfigError
from rlpto.io.settings import Settings
from rlpto.knowledge.known import AS_POLLUX
from rlpto.performance.metrics import METRIC_NAMES, METRICS, UtilityBand
from rlpto.policies.pollux.search import search

STEPS = 400
"""Steps of the neighbourhood search after the first solution: 1 ms for 30 jobs on 64 GPUs."""


class PolluxOptions(Settings):
    """Options of `pollux`."""

    favour: Literal["none", "attained", "remaining"] = "none"
    """Not part of Pollux: weight jobs by 1 / root of the GPU-seconds attained, or remaining on one GPU, so jobs with
    few of them count more."""
    min_util: float | None = Field(None, gt=0, le=1)
    """Least utility (pace per GPU relative to one GPU alone), below which fewer nodes are used. Without it only jobs
    with the efficiency metric have thresholds, 0.60 and 0.90, applied to each job."""
    max_util: float | None = Field(None, gt=0, le=1)
    """Most utility. If fewer nodes are used, utility is brought near the middle of the two."""

    @model_validator(mode="after")
    def _make_a_band(self) -> Self:
        if (self.min_util is None) != (self.max_util is None):
            raise ConfigError("min_util and max_util: expected both, or neither")
        try:
            _ = self.band
        except ValueError as error:
            raise ConfigError(f"min_util and max_util: {error}") from None
        return self

    @property
    def band(self) -> UtilityBand | None:
        """Thresholds of utility, or None."""
        if self.min_util is None or self.max_util is None:
            return None
        return UtilityBand(self.min_util, self.max_util)


SHORTEST_S = 600.0
"""Added to the GPU-seconds by which jobs are weighted, to limit the weight of new jobs."""


class Pollux(BasePolicy[PolluxOptions]):
    """Places GPUs to maximise the power mean (p = -1) of speed-ups; knows no remaining work."""

    name = "pollux"
    summary = "power mean of speed-ups over a fair share, restarts counted, with placement; knows no remaining work"
    source = "Qiao et al., OSDI 2021 (Pollux, AdaptDL)"
    Options = PolluxOptions
    knowledge_rules = AS_POLLUX
    """Simulated jobs with online knowledge always form their estimates by these rules."""

    def reset(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, state: ClusterState) -> Allocation:
        """Search on all nodes that are up, or on as many as the thresholds of utility allow."""
        jobs, band = state.jobs, self.options.band
        size = state.shape.offered.copy()
        if len(jobs) == 0:
            return Allocation(jobs.gpus, placement=state.held_nodes)
        usable = np.flatnonzero(size)
        problem = (
            speedups(jobs, state.capacity),
            state.held_nodes,
            restart_factor(state.time - jobs.submit_time, jobs.rescales, jobs.rescale_delay),
            weights(jobs, self.options.favour),
            jobs.min_gpus,
            np.minimum(np.maximum(2 * jobs.peak_gpus, jobs.min_gpus), jobs.max_gpus if band else most_gpus(jobs)),
            np.argsort(jobs.attained_service, kind="stable"),
        )
        seed = (self._seed * 2**32 + int(state.time * 1000)) % 2**63
        found: dict[int, IntArray] = {}

        def utility_on(nodes: int) -> float:
            """Return the speed-up per GPU of the best placement on the first `nodes` nodes that are up. Stores it."""
            first = np.zeros_like(size)
            first[usable[:nodes]] = size[usable[:nodes]]
            found[nodes] = search(*problem, first, STEPS, seed)
            # GPUs of idle nodes count too.
            return float(speedups_over_one(jobs, found[nodes]).sum()) / max(int(first.sum()), 1)

        if band is None:
            placement = search(*problem, size, STEPS, seed)
        else:
            least = 1 + int(np.searchsorted(size[usable].cumsum(), jobs.min_gpus.max()))  # no job waits for ever
            placement = found[desired_nodes(utility_on, len(usable), band, least)]
        return Allocation(placement.sum(axis=1), placement=placement)


def most_gpus(jobs: JobTable) -> IntArray:
    """Return max_gpus [n] of each job; for the efficiency metric at most the GPUs that its thresholds allow.

    Utility is pace per GPU relative to pace per GPU on min_gpus (at least 1) GPUs, in the present epoch, when packed.
    """
    most = jobs.max_gpus.copy()
    rows = np.flatnonzero(jobs.metric == METRIC_NAMES.index("efficiency"))
    if len(rows):
        speed, least, gpus = jobs.speed[rows], np.maximum(jobs.min_gpus[rows], 1), np.arange(1, jobs.speed.shape[1])
        alone = speed[np.arange(len(rows)), least] / least
        utility = speed[:, 1:] / np.where(alone > 0, alone, np.inf)[:, None] / gpus
        usable = (gpus >= least[:, None]) & (gpus <= most[rows, None])
        most[rows] = METRICS["efficiency"].band.gpus(np.where(usable, utility, -np.inf))
    return most


def speedups(jobs: JobTable, capacity: int) -> FloatArray:
    """Return the pace [n, 2, K + 1] on one node and on several, relative to a fair share of `capacity` on one node.

    The fair share is rounded up. If a job's batch is too small for it, the base is its best pace on fewer GPUs.
    """
    one, several = jobs.speed_on(1), jobs.speed_on(2)
    fair = min(-(-capacity // len(jobs)), one.shape[1] - 1)
    base = one[:, fair].copy()
    base[base <= 0] = one[base <= 0, : fair + 1].max(axis=1, initial=0.0)
    base[base <= 0] = np.inf
    return np.stack([one, several], axis=1) / base[:, None, None]


def weights(jobs: JobTable, favour: Literal["none", "attained", "remaining"]) -> FloatArray:
    """Return the weights [n] of jobs' costs: 1 / root of GPU-seconds attained or remaining, over the geometric mean."""
    if favour == "none":
        return np.ones(len(jobs))
    seconds = jobs.attained_service if favour == "attained" else jobs.remaining_time(jobs.min_gpus) * jobs.min_gpus
    root = 0.5 * np.log(seconds + SHORTEST_S)
    return np.asarray(np.exp(root.mean() - root))


def restart_factor(age: FloatArray, restarts: IntArray, delay: FloatArray) -> FloatArray:
    """Return the factor [n] on a job's pace if it is restarted: the share of its lifetime left for training.

    age: [n] seconds since submission. restarts: [n] so far, without the first start. delay: [n] seconds per restart.
    """
    lifetime = age + delay
    return np.where(lifetime > 0, np.maximum(age - restarts * delay, 0) / np.maximum(lifetime, 1e-9), 1.0)


def speedups_over_one(jobs: JobTable, placement: IntArray) -> FloatArray:
    """Return the pace [n] of a placement [n, N], relative to pace per GPU on min_gpus (at least 1); 0 without GPUs."""
    rows, gpus = np.arange(len(jobs)), placement.sum(axis=1)
    least = np.maximum(jobs.min_gpus, 1)
    one, several = jobs.speed_on(1), jobs.speed_on(2)
    alone = one[rows, least] / least
    pace = np.where((placement > 0).sum(axis=1) > 1, several[rows, gpus], one[rows, gpus])
    return np.where(alone > 0, pace / np.where(alone > 0, alone, 1.0), 0.0)


def desired_nodes(utility_on: Callable[[int], float], nodes: int, band: UtilityBand, least: int = 1) -> int:
    """Return the number of nodes to use, of least..nodes: all if utility reaches the band there, else the number at
    which utility is nearest the band's middle.

    utility_on: returns utility with the best allocation on a number of nodes. It falls with more nodes and is called by
    a binary search. If even `least` nodes stay below the band, the answer is `least`. Higher thresholds never give more
    nodes, for any utility_on. After AdaptDL's `_desired_nodes`, which picks among the results of a genetic search.
    """
    if utility_on(nodes) >= band.min_util or nodes <= least:
        return nodes
    middle = band.middle
    enough, few = least - 1, nodes  # utility reaches the middle on `enough` nodes, not on `few`
    above = below = 0.0
    while few - enough > 1:
        tried = (enough + few) // 2
        reached = utility_on(tried)
        if reached >= middle:
            enough, above = tried, reached
        else:
            few, below = tried, reached
    nearer = below >= band.min_util and middle - below < above - middle
    return few if nearer or enough < least else enough
