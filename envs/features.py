"""The tables of features: the entries of an observation of a job and of a cluster, one row each.

A new row is a new feature. Its description has the unit and the fixed normalisation; its function gets the view of a
job (`rlpto.core.jobs.VIEW`), or sums over all jobs. Results are cut to [-LIMIT, LIMIT].
`python -m tests.envs.test_page` writes the tables into docs/environment.md, with the range that a description implies:
0 to 1 if it begins with "share" or "1", -LIMIT to LIMIT for a log or log2 of anything but 1 + x, else 0 to LIMIT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.compiled import chained, helper, kernel, njit

HOUR = 3600.0
SHORTEST = 1.0
"""Shorter remaining times count as this number of seconds."""


class FeatureInputs(NamedTuple):
    """Inputs of the features of a job, in addition to its record.

    speed: [K + 1] work per second by GPUs. now [s]. unit: speed for each GPU with min_gpus of them. hours: left on one
    GPU at that speed. work_left: share of its epochs still to do. accuracy_left: share of its accuracy still to gain.
    shorter: share of the active jobs that have less work left; ahead: hours of the cluster that their work takes.
    finish: hours until it finishes with the GPUs it holds. fair: log2 of GPUs of the cluster for each active job.
    """

    speed: FloatArray
    now: float
    unit: float
    hours: float
    work_left: float
    accuracy_left: float
    shorter: float
    ahead: float
    finish: float
    fair: float


class FeatureTotals(NamedTuple):
    """Inputs of the features of a cluster.

    capacity: GPUs on nodes that are up; gpus: the same, at least 1. gpus_per_node: GPUs of the largest node. held: GPUs
    that jobs hold. interval: seconds between decisions. jobs: active jobs. waiting: active jobs without GPUs. high,
    normal, low: active jobs of each class after aging. hidden: active jobs beyond the visible ones. work, hidden_work:
    hours left on one GPU, of all jobs and of hidden ones. wish, hidden_wish: sums of max_gpus of all jobs and of hidden
    ones. asked: sum of requested GPUs. soonest: hours until the first running job finishes.
    """

    capacity: int
    gpus: int
    gpus_per_node: int
    held: int
    interval: float
    jobs: int
    waiting: int
    high: int
    normal: int
    low: int
    hidden: int
    work: float
    hidden_work: float
    wish: int
    hidden_wish: int
    asked: int
    soonest: float


LOG2 = np.log2(np.arange(1.0, 1026.0))
"""log2(1 + k) of 0 to 1024: a look-up is faster than the logarithm."""


@dataclass(frozen=True)
class Feature:
    """An entry of an observation. description: includes unit and normalisation. function: is compiled."""

    name: str
    description: str
    function: Callable[..., float]


@njit(error_model="numpy")
def _log2_after(gpus: int) -> float:
    """log2(1 + GPUs)."""
    return float(LOG2[gpus] if gpus < len(LOG2) else np.log2(1.0 + gpus))


@njit(error_model="numpy")
def _next_gpu_gain(job: Any, speed: FloatArray) -> float:
    """Speed added by the next GPU; for a waiting job, by each of its first `min_gpus`."""
    further = job.min_gpus if job.gpus == 0 else min(job.gpus + 1, job.max_gpus)
    return float((speed[further] - speed[job.gpus]) / max(further - job.gpus, 1))


JOB_TABLE: list[Feature] = [
    Feature("remaining", "log(hours left on one GPU) / 4", lambda job, inputs: np.log(inputs.hours) / 4.0),
    Feature(
        "remaining_at_most",
        "log(hours left with as many GPUs as the job may hold) / 4",
        lambda job, inputs: np.log(max(job.remaining / inputs.speed[job.max_gpus], SHORTEST) / HOUR) / 4.0,
    ),
    Feature(
        "gain",
        "log(speed the next GPU adds, relative to one GPU) / 2",
        lambda job, inputs: np.log(max(_next_gpu_gain(job, inputs.speed) / inputs.unit, 1e-6)) / 2.0,
    ),
    Feature(
        "efficiency",
        "log(speed per GPU held, relative to one GPU) / 2; 0 with none",
        lambda job, inputs: np.log(inputs.speed[job.gpus] / job.gpus / inputs.unit) / 2.0 if job.gpus > 0 else 0.0,
    ),
    Feature("held", "log2(1 + GPUs held) / 6", lambda job, inputs: _log2_after(job.gpus) / 6.0),
    Feature("held_of_most", "GPUs held / GPUs allowed at most", lambda job, inputs: job.gpus / job.max_gpus),
    Feature("most", "log2(1 + GPUs allowed at most) / 6", lambda job, inputs: _log2_after(job.max_gpus) / 6.0),
    Feature("requested", "log2(1 + GPUs asked for) / 6", lambda job, inputs: _log2_after(job.requested_gpus) / 6.0),
    Feature("fewest", "log2(1 + GPUs allowed at least) / 6", lambda job, inputs: _log2_after(job.min_gpus) / 6.0),
    Feature(
        "age",
        "log(1 + hours since submission) / 2",
        lambda job, inputs: np.log1p(max(inputs.now - job.submit_time, 0.0) / HOUR) / 2.0,
    ),
    Feature(
        "waiting",
        "log(1 + hours without GPUs, now) / 2",
        lambda job, inputs: np.log1p(max(inputs.now - job.wait_start, 0.0) / HOUR) / 2.0 if job.gpus == 0 else 0.0,
    ),
    Feature("attained", "log(1 + GPU-hours had) / 4", lambda job, inputs: np.log1p(job.attained_service / HOUR) / 4.0),
    Feature("rescale_delay", "seconds a change of its GPUs costs / 60", lambda job, inputs: job.rescale_delay / 60.0),
    Feature("rescaling", "1 while such a delay lasts", lambda job, inputs: 1.0 if job.rescale_left > 0.0 else 0.0),
    Feature("work_left", "share of its epochs still to do", lambda job, inputs: inputs.work_left),
    Feature("accuracy_left", "share of its accuracy still to gain", lambda job, inputs: inputs.accuracy_left),
    Feature(
        "slope",
        "log(1 + accuracy_left / work_left) / 2: gain per work to come, falls as a model converges",
        lambda job, inputs: np.log1p(inputs.accuracy_left / max(inputs.work_left, 1e-3)) / 2.0,
    ),
    Feature(
        "data_size", "log10(samples in one epoch) / 8", lambda job, inputs: np.log10(max(job.data_size, 1.0)) / 8.0
    ),
    Feature(
        "high", "1 if its class after aging is high", lambda job, inputs: 1.0 if job.effective_priority == 0 else 0.0
    ),
    Feature("normal", "1 if that class is normal", lambda job, inputs: 1.0 if job.effective_priority == 1 else 0.0),
    Feature("low", "1 if that class is low", lambda job, inputs: 1.0 if job.effective_priority == 2 else 0.0),
    Feature("shorter", "share of the active jobs that have less work left", lambda job, inputs: inputs.shorter),
    Feature(
        "work_ahead", "log(1 + hours of the cluster that their work takes)", lambda job, inputs: np.log1p(inputs.ahead)
    ),
    Feature(
        "to_finish",
        "log(hours until it finishes with the GPUs held) / 4; 0 with none",
        lambda job, inputs: np.log(inputs.finish) / 4.0 if job.gpus > 0 else 0.0,
    ),
    Feature(
        "fair_share",
        "log2(GPUs of the cluster for each active job / GPUs allowed at most) / 3",
        lambda job, inputs: (inputs.fair - _log2_after(job.max_gpus - 1)) / 3.0,
    ),
]
"""Columns of `jobs` in an observation: functions of (job: a record of VIEW, inputs: FeatureInputs)."""

CLUSTER_TABLE: list[Feature] = [
    Feature("capacity", "log2(GPUs on nodes that are up) / 10", lambda total: np.log2(total.gpus) / 10.0),
    Feature("node", "log2(1 + GPUs of the largest node) / 6", lambda total: _log2_after(total.gpus_per_node) / 6.0),
    Feature("free", "share of GPUs that no job holds", lambda total: (total.capacity - total.held) / total.gpus),
    Feature(
        "jobs",
        "log(1 + active jobs for each 10 GPUs) / 2",
        lambda total: np.log1p(10.0 * total.jobs / total.gpus) / 2.0,
    ),
    Feature(
        "waiting",
        "log(1 + jobs without GPUs for each 10 GPUs) / 2",
        lambda total: np.log1p(10.0 * total.waiting / total.gpus) / 2.0,
    ),
    Feature("high", "share of active jobs in class high, after aging", lambda total: total.high / max(total.jobs, 1)),
    Feature("normal", "share of them in class normal", lambda total: total.normal / max(total.jobs, 1)),
    Feature("low", "share of them in class low", lambda total: total.low / max(total.jobs, 1)),
    Feature("hidden", "share of them beyond those that can be seen", lambda total: total.hidden / max(total.jobs, 1)),
    Feature(
        "hidden_work",
        "log(1 + work of those in hours of the whole cluster)",
        lambda total: np.log1p(total.hidden_work / total.gpus),
    ),
    Feature(
        "hidden_wish",
        "log(1 + GPUs those could use / capacity)",
        lambda total: np.log1p(total.hidden_wish / total.gpus),
    ),
    Feature("wish", "log(1 + GPUs all jobs could use / capacity)", lambda total: np.log1p(total.wish / total.gpus)),
    Feature("requested", "log(1 + GPUs all jobs ask for / capacity)", lambda total: np.log1p(total.asked / total.gpus)),
    Feature(
        "work", "log(1 + work of all jobs, in hours of the cluster)", lambda total: np.log1p(total.work / total.gpus)
    ),
    Feature(
        "per_gpu",
        "log(mean hours left on one GPU) / 4",
        lambda total: np.log(max(total.work / max(total.jobs, 1), SHORTEST / HOUR)) / 4.0,
    ),
    Feature(
        "idle_interval",
        "log2(decision interval / 60 s) / 6",
        lambda total: np.log2(max(total.interval, 1.0) / 60.0) / 6.0,
    ),
    Feature(
        "next_finish", "log(hours until the first running job finishes) / 4", lambda total: np.log(total.soonest) / 4.0
    ),
]
"""Entries of `cluster` in an observation: functions of `FeatureTotals`."""

JOB_FEATURES: tuple[str, ...] = tuple(entry.name for entry in JOB_TABLE)
"""Names of the columns of `jobs`."""
CLUSTER_FEATURES: tuple[str, ...] = tuple(entry.name for entry in CLUSTER_TABLE)
"""Names of the entries of `cluster`."""


def _filling(table: list[Feature]) -> Callable[..., None]:
    """A compiled function fill(out, arguments) that fills out [features]."""
    return chained([helper(error_model="numpy")(entry.function) for entry in table])


fill_job_features = _filling(JOB_TABLE)
"""fill(out, (job, inputs)): fill out [JOB_FEATURES]."""
fill_cluster_features = _filling(CLUSTER_TABLE)
"""fill(out, (totals,)): fill out [CLUSTER_FEATURES]."""


@kernel(error_model="numpy")
def feature_inputs(job: AnyArray, speed: FloatArray, now: float, among: FloatArray, fair: float) -> FeatureInputs:
    """Compute the `FeatureInputs` of a job. job: a record of VIEW. speed: [K + 1] work per second by GPUs.

    among: [4] hours, shorter, ahead and finish.
    """
    record: Any = job
    unit = speed[record.min_gpus] / record.min_gpus
    work_left = max(1.0 - record.progress / record.epochs, 0.0)
    gainable = record.final_accuracy - record.first_accuracy
    accuracy_left = (record.final_accuracy - record.accuracy) / gainable if gainable > 0.0 else work_left
    return FeatureInputs(speed, now, unit, among[0], work_left, accuracy_left, among[1], among[2], among[3], fair)


@njit(error_model="numpy")
def hours_left(job: AnyArray, speed: FloatArray) -> float:
    """Hours left for a record of VIEW on one GPU, at the job's speed per GPU with min_gpus."""
    record: Any = job
    return float(max(record.remaining / (speed[record.min_gpus] / record.min_gpus), SHORTEST) / HOUR)
