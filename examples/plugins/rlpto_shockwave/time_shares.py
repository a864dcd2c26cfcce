"""Shares of time by several aims: finish-time fairness, throughput, duration, AlloX, equal time.

Source: Narayanan et al., OSDI 2020 (Gavel), whose appendix A states the programmes.
Where many shares are equally good, those with most throughput are taken; with one GPU type, where all have the same,
the analytic centre, to which interior-point solvers come. README.md compares them with published runs.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from rlpto.core.cluster import ClusterState
from rlpto.core.job_table import JobTable
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.policies.gavel import TINY, best_shares
from rlpto.policies.rounds import ShareOptions, SharePolicy
from rlpto_shockwave.scheduled import present_batch

LEAST_WORK = 1e-9  # remaining work of a job, as a divisor
LEAST_LACK = 1e-3  # reduced cost of a share, relative to the largest worth
NEARLY = 1 - 1e-4  # factor on the worst finish-time fairness for which another programme is solved
HALVINGS = 40  # bisections of the interval in which a share lies
DIGITS = 9  # decimal places of shares: rounding errors must not rank equal jobs


class Themis(SharePolicy[ShareOptions]):
    """The worst finish-time fairness is as small as can be: predicted time from submit to finish, by the same on an
    equal share of the cluster.

    Adapted: shares from a programme, as in Gavel, in place of an auction of single GPUs.
    """

    name = "themis"
    summary = "shares of time for the smallest worst finish-time fairness (Themis), requested GPUs, in rounds"
    source = "Mahajan et al., NSDI 2020 (Themis); as in Narayanan et al., OSDI 2020 (Gavel)"

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self._alone: dict[int, tuple[float, float, float]] = {}  # seconds of equal share, work left, speed on it

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:
        """Raise the worst job from equal shares on, by linear programmes."""
        jobs, gpus = state.jobs, state.jobs.requested_gpus
        left = np.maximum(jobs.remaining, LEAST_WORK)
        own = equal_shares(room / len(jobs) / gpus[:, None])
        pace = np.maximum((own * speed).sum(axis=1), 1e-300)
        alone = self._spent_alone(jobs, left, pace) + left / pace
        age = state.time - jobs.submit_time
        runs = ((speed > 0) & (gpus[:, None] <= room)).any(axis=1)
        share, value, least, worst = own, np.zeros_like(speed), 0.0, np.inf
        while True:
            with np.errstate(divide="ignore"):
                reached = (age + left / (share * speed).sum(axis=1)) / alone
            if not reached[runs].max(initial=0) < worst * NEARLY:
                return centre(share, value, least, gpus, room)
            worst = float(reached[runs].max(initial=0))
            value = speed * (worst * alone - age)[:, None] / left[:, None]
            share, least, _ = best_shares(value, gpus, room)

    def _spent_alone(self, jobs: JobTable, left: FloatArray, pace: FloatArray) -> FloatArray:
        """[n] seconds that what jobs have done since their first decision would have taken on equal shares."""
        spent, known = np.zeros(len(jobs)), self._alone
        self._alone = {}
        for row, job in enumerate(jobs.index.tolist()):
            before, work, speed = known.get(job, (0.0, left[row], 1.0))
            spent[row] = before + max(work - left[row], 0.0) / speed
            self._alone[job] = (float(spent[row]), float(left[row]), float(pace[row]))
        return spent


class MinDuration(SharePolicy[ShareOptions]):
    """All jobs are to end as early as the last of them can: the makespan of those present is as short as can be."""

    name = "min_duration"
    summary = "shares of time for the earliest end of all present jobs, requested GPUs, in rounds"
    source = "Narayanan et al., OSDI 2020 (Gavel)"

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:
        value = speed / np.maximum(state.jobs.remaining, LEAST_WORK)[:, None]
        gpus = state.jobs.requested_gpus
        share, least, _ = best_shares(value, gpus, room)
        return centre(share, value, least, gpus, room)


class MaxSumOptions(ShareOptions):
    """Options of `max_sum_throughput`."""

    unit: Literal["samples", "steps"] = "samples"
    """What is summed: samples/s, or steps/s as in the simulators of Gavel and Shockwave, which favours small batches; a
    job that chooses its batch itself then counts by its samples/s."""


class MaxSumThroughput(SharePolicy[MaxSumOptions]):
    """The sum of all jobs' throughput is as large as can be; jobs that add little to it wait."""

    name = "max_sum_throughput"
    summary = "shares of time for the largest sum of throughput, requested GPUs, in rounds; some jobs wait long"
    source = "Narayanan et al., OSDI 2020 (Gavel)"
    Options = MaxSumOptions

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:
        """A job that has no share gets one so small that it only ranks those left over: the larger, the less it lacks,
        as interior-point solvers leave it."""
        jobs = state.jobs
        worth = speed * jobs.data_size[:, None]
        if self.options.unit == "steps":
            batch = present_batch(jobs)
            worth = worth / np.where(batch > 0, batch, 1.0)[:, None]
        worth /= max(float(worth.max()), 1e-300)
        share, _, lacks = best_shares(worth, jobs.requested_gpus, room, fair=False)
        none = (share.sum(axis=1, keepdims=True) < TINY) & (worth > 0)
        return np.where(none, TINY / np.maximum(lacks, LEAST_LACK), share)


class GandivaFair(SharePolicy[ShareOptions]):
    """Every job has the same share of time, however many GPUs it runs on. Adapted: no trading of GPU types."""

    name = "gandiva_fair"
    summary = "equal shares of time for all jobs (Gandiva-fair without trading), requested GPUs, in rounds"
    source = "Chaudhary et al., EuroSys 2020 (Gandiva-fair); as in Zheng et al., NSDI 2023 (Shockwave)"

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:  # noqa: ARG002
        return equal_shares(np.where(speed > 0, room / len(speed), 0.0))


class AlloxOptions(ShareOptions):
    """Options of `allox`."""

    alpha: float = Field(0.2, gt=0, le=1)
    """Share of the jobs without a worker, the oldest first, among which workers are assigned; 1: the mean JCT counts
    alone; the less, the fairer."""


class Allox(SharePolicy[AlloxOptions]):
    """Every GPU is a worker with a sequence of jobs: the assignment with the least sum of completion times.

    The first of each sequence gets the worker, for all of its time, until it ends. Adapted: AlloX knows jobs on one
    worker only; one on k GPUs gets a share of 1/k, and is assigned again each time (as in Shockwave's simulator).
    """

    name = "allox"
    summary = "jobs assigned to GPUs for the least mean JCT among the oldest (AlloX), requested GPUs, in rounds"
    source = "Le et al., EuroSys 2020 (AlloX); as in Narayanan et al., OSDI 2020 (Gavel)"
    Options = AlloxOptions

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self._assigned: dict[int, FloatArray] = {}

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:
        """Jobs that have a worker keep it; the others are assigned to what is left."""
        jobs, gpus = state.jobs, state.jobs.requested_gpus
        index = jobs.index.tolist()
        share = np.stack([self._assigned.get(job, np.zeros(len(room))) for job in index])
        share[(share > 0) & (room == 0)] = 0.0
        kept = (share.sum(axis=1) == 1).astype(np.int64)
        workers = np.maximum(room - (share == 1).sum(axis=0), 0)
        seconds = np.where(speed > 0, jobs.remaining[:, None] / np.where(speed > 0, speed, 1.0), np.inf)
        waiting = np.flatnonzero((kept == 0) & np.isfinite(seconds).any(axis=1))
        oldest = waiting[np.argsort(jobs.submit_time[waiting], kind="stable")]
        oldest = oldest[: max(int(self.options.alpha * len(oldest)), int(workers.sum()))]
        for row, gpu_type in zip(oldest, first_on_workers(seconds[oldest], workers), strict=True):
            if gpu_type >= 0:
                share[row] = 0.0
                share[row, gpu_type] = 1.0 / gpus[row]
        self._assigned = dict(zip(index, share.copy(), strict=True))
        return share


def equal_shares(share: FloatArray) -> FloatArray:
    """Shares [n, G] made less in proportion where they are more than all of a job's time."""
    return np.asarray(share / np.maximum(share.sum(axis=1, keepdims=True), 1.0))


def first_on_workers(seconds: FloatArray, workers: IntArray) -> IntArray:
    """[m] GPU type of the worker that each job is first on; -1: on none. seconds: [m, G] each takes there.

    A job with p - 1 behind it on its worker adds p times its seconds to the sum of completion times, so that this is a
    matching of jobs and places. workers: [G].
    """
    from scipy.optimize import linear_sum_assignment

    count, first = len(seconds), np.full(len(seconds), -1)
    if count == 0 or not workers.any():
        return first
    gpu_type = np.repeat(np.arange(len(workers)), workers)
    places = -(-count // max(int(workers[workers > 0].min()), 1))  # no sequence need be longer
    cost = np.minimum(np.concatenate([seconds[:, gpu_type] * place for place in range(1, places + 1)], axis=1), 1e30)
    rows, columns = linear_sum_assignment(cost)
    place, worker = np.divmod(columns, len(gpu_type))
    furthest = np.full(len(gpu_type), -1)
    np.maximum.at(furthest, worker, place)
    chosen = (place == furthest[worker]) & (cost[rows, columns] < 1e30)
    first[rows[chosen]] = gpu_type[worker[chosen]]
    return first


def centre(share: FloatArray, value: FloatArray, least: float, gpus: IntArray, room: IntArray) -> FloatArray:
    """[n, G] share, or, with one GPU type, the analytic centre of all shares whose value is at least `least`.

    That is the largest product of all slacks. Each share solves 1 / (x - lowest) + 1 / x - 1 / (1 - x) = price x gpus,
    with the price at 1 / free GPUs (Boyd and Vandenberghe, "Convex Optimization", 8.5.3).
    """
    from scipy.optimize import brentq

    row = np.flatnonzero((value[:, 0] > 0) & (gpus <= room[0]))
    if value.shape[1] > 1 or len(row) == 0:
        return share
    lowest, wish = np.minimum(least / value[row, 0], 1.0), gpus[row]

    def at(power: float) -> FloatArray:
        low, high = lowest, np.ones(len(row))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            with np.errstate(divide="ignore", invalid="ignore"):  # where there is no choice, lowest is 1
                rises = 1 / (middle - lowest) + 1 / middle - 1 / (1 - middle) > np.exp(power) * wish
            low, high = np.where(rises, middle, low), np.where(rises, high, middle)
        return np.asarray((low + high) / 2)

    found = np.zeros_like(share)
    found[row, 0] = lowest
    if wish @ lowest < room[0] - TINY:
        price = brentq(lambda power: np.exp(power) * (room[0] - wish @ at(power)) - 1, -20, 40, rtol=1e-6)
        found[row, 0] = np.round(at(price), DIGITS)
    return found
