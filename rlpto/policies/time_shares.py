"""Shares of time by other aims than Gavel's: finish-time fairness, most throughput, least duration, AlloX, equal time.

Sources: Narayanan et al., OSDI 2020 (Gavel), appendix A, states the programmes; the aims are those of Themis (Mahajan
et al., NSDI 2020), AlloX (Le et al., EuroSys 2020) and Gandiva-fair (Chaudhary et al., EuroSys 2020).
Where many shares are equally good, the analytic centre of these is taken, as interior-point solvers come to it.
docs/systems/shockwave.md compares them with published runs.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from rlpto.core.cluster import ClusterState
from rlpto.core.job_table import JobTable
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.policies.gavel import largest_least, time_limits
from rlpto.policies.rounds import RoundOptions, RoundPolicy

LEAST_WORK = 1e-9
"""Work that a job has left at least, where it is divided by."""
SLACK = 1e-3
"""Part of the best value that is given up for the centre of what is about as good."""
NEARLY = 1 - 1e-4
"""Factor on the worst finish-time fairness that is worth another programme."""
STEPS, QUADRATIC, CENTRED = 100, 0.25, 1e-3
"""Of Newton's method: steps at most; decrement below which a whole one is safe; decrement at which the centre is
reached."""


class Themis(RoundPolicy[RoundOptions]):
    """The worst finish-time fairness is as small as can be: predicted time from submit to finish, by the same on an
    equal share of the cluster.

    Adapted: shares from a programme, as in Gavel, in place of an auction of single GPUs.
    """

    name = "themis"
    summary = "shares of time for the smallest worst finish-time fairness (Themis), requested GPUs, in rounds"
    source = "Mahajan et al., NSDI 2020 (Themis); as in Narayanan et al., OSDI 2020 (Gavel)"
    Options = RoundOptions

    def reset(self, seed: int) -> None:
        """Forget the progress of all jobs."""
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
        while (reached := finish_time_fairness(share, speed, left, age, alone)[runs].max(initial=0)) < worst * NEARLY:
            worst = float(reached)
            value = speed * (worst * alone - age)[:, None] / left[:, None]
            share, least = largest_least(value, gpus, room)
        return centre(share, value, np.full(len(jobs), least), gpus, room)

    def _spent_alone(self, jobs: JobTable, left: FloatArray, pace: FloatArray) -> FloatArray:
        """[n] seconds that what jobs have done since their first decision would have taken on equal shares."""
        spent, known = np.zeros(len(jobs)), self._alone
        self._alone = {}
        for row, job in enumerate(jobs.index.tolist()):
            before, work, speed = known.get(job, (0.0, left[row], 1.0))
            spent[row] = before + max(work - left[row], 0.0) / speed
            self._alone[job] = (float(spent[row]), float(left[row]), float(pace[row]))
        return spent


class MinDuration(RoundPolicy[RoundOptions]):
    """All jobs are to end as early as the last of them can: the makespan of those present is as short as can be."""

    name = "min_duration"
    summary = "shares of time for the earliest end of all present jobs, requested GPUs, in rounds"
    source = "Narayanan et al., OSDI 2020 (Gavel)"
    Options = RoundOptions

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:
        """The largest least share of its remaining work that a job does per second."""
        value = speed / np.maximum(state.jobs.remaining, LEAST_WORK)[:, None]
        gpus = state.jobs.requested_gpus
        share, least = largest_least(value, gpus, room)
        return centre(share, value, np.full(len(value), least), gpus, room)


class MaxSumOptions(RoundOptions):
    """Options of `max_sum_throughput`."""

    unit: Literal["samples", "steps"] = "samples"
    """What is summed: samples/s, or steps/s as in the simulators of Gavel and Shockwave, which favours small batches; a
    job that chooses its batch itself then counts by its samples/s."""


class MaxSumThroughput(RoundPolicy[MaxSumOptions]):
    """The sum of all jobs' throughput is as large as can be; jobs that add little to it wait."""

    name = "max_sum_throughput"
    summary = "shares of time for the largest sum of throughput, requested GPUs, in rounds; some jobs wait long"
    source = "Narayanan et al., OSDI 2020 (Gavel)"
    Options = MaxSumOptions

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:
        """One linear programme."""
        jobs = state.jobs
        worth = speed * jobs.data_size[:, None]
        if self.options.unit == "steps":
            worth = worth / np.where(jobs.batch_size > 0, jobs.batch_size, 1.0)[:, None]
        return most_worth(worth / max(float(worth.max()), 1e-300), jobs.requested_gpus, room)


class GandivaFair(RoundPolicy[RoundOptions]):
    """Every job has the same share of time, however many GPUs it runs on. Adapted: no trading of kinds of GPU."""

    name = "gandiva_fair"
    summary = "equal shares of time for all jobs (Gandiva-fair without trading), requested GPUs, in rounds"
    source = "Chaudhary et al., EuroSys 2020 (Gandiva-fair); as in Zheng et al., NSDI 2023 (Shockwave)"
    Options = RoundOptions

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:  # noqa: ARG002
        """GPUs by jobs, at most all of a job's time."""
        return equal_shares(np.where(speed > 0, room / len(speed), 0.0))


class AlloxOptions(RoundOptions):
    """Options of `allox`."""

    alpha: float = Field(0.2, gt=0, le=1)
    """Share of the jobs without a worker, the oldest first, among which workers are assigned; 1: the mean JCT counts
    alone; the less, the fairer."""


class Allox(RoundPolicy[AlloxOptions]):
    """Every GPU is a worker with a sequence of jobs: the assignment with the least sum of completion times.

    The first of each sequence gets the worker, for all of its time, until it ends. Adapted: AlloX knows jobs on one
    worker only; one on k GPUs gets a share of 1/k, and is assigned again each time (as in Shockwave's simulator).
    """

    name = "allox"
    summary = "jobs assigned to GPUs for the least mean JCT among the oldest (AlloX), requested GPUs, in rounds"
    source = "Le et al., EuroSys 2020 (AlloX); as in Narayanan et al., OSDI 2020 (Gavel)"
    Options = AlloxOptions

    def reset(self, seed: int) -> None:
        """Forget the assignment."""
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
        for row, kind in zip(oldest, first_on_workers(seconds[oldest], workers), strict=True):
            if kind >= 0:
                share[row] = 0.0
                share[row, kind] = 1.0 / gpus[row]
        self._assigned = dict(zip(index, share.copy(), strict=True))
        return share


def finish_time_fairness(
    share: FloatArray, speed: FloatArray, left: FloatArray, age: FloatArray, alone: FloatArray
) -> FloatArray:
    """[n] seconds from submit to finish with shares [n, G] from now on, by those on an equal share, alone [n].

    speed: [n, G] work per second. left: [n] work. age: [n] s. Infinity for a job without a share.
    """
    with np.errstate(divide="ignore"):
        return np.asarray((age + left / (share * speed).sum(axis=1)) / alone)


def equal_shares(share: FloatArray) -> FloatArray:
    """Shares [n, G] made less in proportion where they are more than all of a job's time."""
    return np.asarray(share / np.maximum(share.sum(axis=1, keepdims=True), 1.0))


def first_on_workers(seconds: FloatArray, workers: IntArray) -> IntArray:
    """[m] kind of the worker that each job is first on; -1: on none. seconds: [m, G] each takes there.

    A job with p - 1 behind it on its worker adds p times its seconds to the sum of completion times, so that this is a
    matching of jobs and places. workers: [G].
    """
    from scipy.optimize import linear_sum_assignment

    count, first = len(seconds), np.full(len(seconds), -1)
    if count == 0 or not workers.any():
        return first
    kind = np.repeat(np.arange(len(workers)), workers)
    places = -(-count // max(int(workers[workers > 0].min()), 1))  # no sequence need be longer
    cost = np.minimum(np.concatenate([seconds[:, kind] * place for place in range(1, places + 1)], axis=1), 1e30)
    rows, columns = linear_sum_assignment(cost)
    place, worker = np.divmod(columns, len(kind))
    furthest = np.full(len(kind), -1)
    np.maximum.at(furthest, worker, place)
    chosen = (place == furthest[worker]) & (cost[rows, columns] < 1e30)
    first[rows[chosen]] = kind[worker[chosen]]
    return first


def most_worth(worth: FloatArray, gpus: IntArray, room: IntArray) -> FloatArray:
    """[n, G] shares with the largest sum of share x worth; worth: [n, G], 0 where a job does not fit."""
    from scipy.optimize import linprog
    from scipy.sparse import vstack

    worth = np.where(gpus[:, None] <= room, worth, 0.0)
    found = linprog(
        -worth.ravel(),
        A_ub=vstack(time_limits(gpus, len(room))),
        b_ub=np.concatenate([np.ones(len(gpus)), room]),
        bounds=[(0.0, float(fit)) for fit in (worth > 0).ravel()],
    )
    assert found.x is not None, "shares of 0 are always possible"
    share = found.x.reshape(worth.shape)
    return centre(share, worth, np.zeros(len(gpus)), gpus, room, total=float((share * worth).sum()))


def centre(
    share: FloatArray, value: FloatArray, floor: FloatArray, gpus: IntArray, room: IntArray, total: float = 0.0
) -> FloatArray:
    """[n, G] analytic centre of the shares that are about as good as share [n, G]: the largest product of all slacks.

    About as good: the sum over kinds of share x value is at least floor [n] (0: any), and the sum of these at least
    total (0: any), less SLACK of it each. A job has no share where its value is 0 or it does not fit. By Newton's
    method, damped (Boyd and Vandenberghe, "Convex Optimization", 9.6); the Hessian is a block a job and a few dense
    terms, one a kind and one for the total.
    """
    fits = (gpus[:, None] <= room) & (value > 0)
    if not fits.any():
        return np.zeros_like(share)
    kinds, one, value = value.shape[1], fits.astype(np.float64), np.where(fits, value, 0.0)
    inner = np.minimum(1 / (2 * kinds), room / (2 * gpus.sum()))
    at = np.where(fits, (1 - SLACK / 4) * share + SLACK / 4 * inner, 1.0)
    used = np.flatnonzero(fits.any(axis=0))
    dense, limit = [np.where(np.arange(kinds) == kind, gpus[:, None], 0) * one for kind in used], room[used] * 1.0
    if total > 0:
        dense, limit = [*dense, -value], np.append(limit, -(1 - SLACK) * total)
    rows, floor = np.stack(dense), np.where(fits.any(axis=1), (1 - SLACK) * floor, 0.0)
    for _ in range(STEPS):
        above = np.where(floor > 0, (value * at).sum(axis=1) - floor, np.inf)[:, None]
        under, spare = 1 - (one * at).sum(axis=1)[:, None], limit - (rows * at).sum(axis=(1, 2))
        slope = (one / under - value / above - 1 / at + np.tensordot(1 / spare, rows, axes=1)) * one
        blocks = (one / under)[:, :, None] * (one / under)[:, None, :] + np.eye(kinds) / at[:, :, None] ** 2
        blocks += (value / above)[:, :, None] * (value / above)[:, None, :]
        solved = np.linalg.solve(blocks, np.concatenate([-slope[None], rows]).transpose(1, 2, 0))
        inside = np.diag(spare**2) + np.einsum("mnk,nkl->ml", rows, solved[:, :, 1:])
        step = solved[:, :, 0] - solved[:, :, 1:] @ np.linalg.solve(inside, (rows * solved[:, :, 0]).sum(axis=(1, 2)))
        decrement = float(np.sqrt(max(-(slope * step).sum(), 0.0)))
        at = at + step / (1.0 if decrement < QUADRATIC else 1 + decrement)
        if decrement < CENTRED:
            break
    return np.where(fits, at, 0.0)
