"""Measure whether jobs hold fewer GPUs as they converge, and how this affects their and other jobs' JCT.

A stage is a range of the share that a job has reached of the accuracy it can gain. GPUs are weighted by the time that a
job holds them. Accuracy is known at every change of GPUs and on reaching 90, 95 and 99 %, and linear in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rlpto.core.records import RunRecord
from rlpto.evaluation.metrics import NOTHING
from rlpto.evaluation.statistics import Interval, bootstrap_interval
from rlpto.io.arrays import BoolArray, FloatArray, IntArray

STAGES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0)
"""Bounds of the stages; all are compared with the second."""
FEWEST_DELAYS = 10
"""Least running time of a counted job, in rescale delays. Shorter jobs gain nothing by other numbers of GPUs."""
TINY = 1e-9
"""Assumed rise of the accuracy's share in a stretch without a rise."""


@dataclass(frozen=True)
class Convergence:
    """GPUs that jobs hold as they converge: means over jobs of all runs, with intervals over windows.

    Counted are finished jobs that have held several GPUs and ran for FEWEST_DELAYS rescale delays.
    held: geometric mean of GPUs in each stage relative to GPUs in the second stage. jobs: number of counted jobs with
    several GPUs at 70 %. shrink, grow: shares of these jobs with fewer, and more, GPUs at 99 %. shrinking_jct,
    other_jct, other_to_95: geometric means, relative to the same jobs under the reference, of the JCT of shrinking
    jobs, the JCT of all others, and the time to 95 % of the accuracy of all others.
    """

    jobs: int
    held: tuple[Interval, ...]
    shrink: Interval
    grow: Interval
    shrinking_jct: Interval
    other_jct: Interval
    other_to_95: Interval

    def sentence(self, policy: str, reference: str) -> str:
        """Return one sentence on shrinking jobs and the JCT under the policy."""
        if not self.jobs:
            return f"Under {policy} no job that ran for {FEWEST_DELAYS} rescale delays had several GPUs at 70 %."
        text = f"Under {policy} {_text(self.shrink, 100, 0)} % of the {self.jobs} jobs with several GPUs at 70 % of "
        text += f"their accuracy hold fewer at 99 %, and {_text(self.grow, 100, 0)} % more"
        if policy != reference:
            text += f"; relative to {reference}, JCT is {_text(self.shrinking_jct)} for jobs with fewer GPUs and "
            text += f"{_text(self.other_jct)} for all others, whose time to 95 % is {_text(self.other_to_95)}"
        return text + "."


def convergence(
    records: Sequence[RunRecord], reference: Sequence[RunRecord], delays: Mapping[str, float]
) -> Convergence:
    """Return the GPUs of converging jobs in `records`, and the JCT relative to `reference`.

    reference: the same windows and seeds in the same order under another policy. delays: rescale delay by model [s].
    """
    windows = np.array([record.window for record in records for _ in record.jobs.names])
    delay = np.array([delays.get(model, 0.0) for record in records for model in record.jobs.models])
    mine, its = _pooled(records), _pooled(reference)
    _, start, finish, _, peak = mine
    counted = (peak > 1) & (finish - start >= FEWEST_DELAYS * delay)
    held = np.concatenate([gpus_by_stage(record) for record in records])
    early, late = (np.concatenate([gpus_at(record, share) for record in records]) for share in (0.7, 0.99))
    known = counted & (early > 1) & np.isfinite(late)
    shrinks = known & (late < early)
    with np.errstate(divide="ignore", invalid="ignore"):
        jct, to_95 = np.log((mine[2:4] - mine[0]) / (its[2:4] - its[0]))
        ratios = np.log(held / held[:, [1]])

    def mean(values: FloatArray | BoolArray, of: BoolArray) -> Interval:
        of = of & np.isfinite(values)
        _, window = np.unique(windows[of], return_inverse=True)
        sums, jobs = np.bincount(window, values[of]).astype(np.float64), np.bincount(window)
        return bootstrap_interval(sums, statistic=lambda _, counts: (counts @ sums) / (counts @ jobs))

    def ratio(logs: FloatArray, of: BoolArray) -> Interval:
        found = mean(logs, of)
        estimate, low, high = np.exp([found.estimate, found.low, found.high]).tolist()
        return Interval(estimate, low, high, found.samples)

    return Convergence(
        jobs=int(known.sum()),
        held=tuple(ratio(stage, counted) for stage in ratios.T),
        shrink=mean(shrinks, known).within(0, 1),
        grow=mean(late > early, known).within(0, 1),
        shrinking_jct=ratio(jct, shrinks),
        other_jct=ratio(jct, ~shrinks),
        other_to_95=ratio(to_95, ~shrinks),
    )


def gpus_by_stage(record: RunRecord) -> FloatArray:
    """Return the mean GPUs [M, STAGES - 1] of every job in each stage; NaN if it did not pass the stage or finish."""
    job, low, high, gpus, seconds = _stretches(record)
    found, low = np.full((len(record.jobs.names), len(STAGES) - 1), np.nan), np.minimum(low, 1 - TINY)
    rise = np.maximum(high - low, TINY)
    for stage, (begin, end) in enumerate(pairwise(STAGES)):
        time = seconds * np.clip(np.minimum(low + rise, end) - np.maximum(low, begin), 0.0, None) / rise
        whole, weighted = (np.bincount(job, weight, len(found)) for weight in (time, time * gpus))
        np.divide(weighted, whole, out=found[:, stage], where=whole > 0)
    return found


def gpus_at(record: RunRecord, share: float) -> FloatArray:
    """Return the GPUs [M] of every job when it first reached a share of its accuracy; NaN if it did not, or is
    unfinished."""
    job, _, high, gpus, _ = _stretches(record)
    found = np.full(len(record.jobs.names), np.nan)
    reached, first = np.unique(job[high >= share], return_index=True)
    found[reached] = gpus[high >= share][first]
    return found


def _stretches(record: RunRecord) -> tuple[IntArray, FloatArray, FloatArray, IntArray, FloatArray]:
    """Return the stretches of finished jobs with unchanged GPUs, cut at 90, 95 and 99 %: job, shares of its accuracy at
    begin and end, GPUs, and seconds."""
    changes, jobs = record.changes, record.jobs
    begin, (numbers, first) = np.full(len(jobs.names), np.nan), np.unique(changes.job, return_index=True)
    begin[numbers] = changes.accuracy[first]
    gain = np.where(np.isfinite(jobs.full_accuracy), jobs.full_accuracy, jobs.final_accuracy) - begin
    gain[~np.isfinite(jobs.finish_time) | ~(gain > 0)] = np.nan
    share = (changes.accuracy - begin[changes.job]) / gain[changes.job]
    time = np.concatenate([changes.time, jobs.reached_90, jobs.reached_95, jobs.reached_99])
    share = np.concatenate([share, np.repeat([0.9, 0.95, 0.99], len(gain))])
    job = np.concatenate([changes.job, *[np.arange(len(gain))] * 3])
    gpus = np.concatenate([changes.gpus, np.full(3 * len(gain), -1)])
    order = np.lexsort((time, job))
    order = order[np.isfinite(time[order]) & np.isfinite(gain[job[order]])]
    time, share, job, gpus = time[order], share[order], job[order], gpus[order]
    gpus = gpus[np.maximum.accumulate(np.where(gpus >= 0, np.arange(len(gpus)), 0))]
    kept = (job[1:] == job[:-1]) & (gpus[:-1] > 0)
    return job[:-1][kept], share[:-1][kept], share[1:][kept], gpus[:-1][kept], np.diff(time)[kept]


def _pooled(runs: Sequence[RunRecord]) -> FloatArray:
    """Return submit, start and finish time, time of 95 % of the accuracy, and peak GPUs [5, M] of all runs' jobs."""
    names = ("submit_time", "start_time", "finish_time", "reached_95", "peak_gpus")
    return np.concatenate([np.array([getattr(run.jobs, name) for name in names]) for run in runs], axis=1)


def _text(interval: Interval, factor: int = 1, digits: int = 2) -> str:
    """Format the estimate, with its interval if it has one."""
    if not interval.samples:
        return NOTHING
    estimate, low, high = (f"{factor * one:.{digits}f}" for one in (interval.estimate, interval.low, interval.high))
    return f"{estimate} [{low}, {high}]" if interval.bounded else estimate
