"""The tables of features: what observations show of a job and of a cluster, each entry a function with a name.

Another one is one more function here. Its docstring says what it is, with its unit and its fixed normalisation; what it
is computed from is the view of a job (`rlpto.core.jobs.VIEW`). Whatever a function returns is cut to [-LIMIT, LIMIT].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.compiled import chained, njit

HOUR = 3600.0
SHORTEST = 1.0
"""Remaining times below this many seconds count as this."""


class JobFacts(NamedTuple):
    """What several features of a job are computed from.

    now [s]. unit: speed for each GPU with min_gpus of them. hours: left on one GPU at that speed. work_left: share of
    its epochs still to do. accuracy_left: share of its accuracy still to gain.
    """

    now: float
    unit: float
    hours: float
    work_left: float
    accuracy_left: float


class FeatureTotals(NamedTuple):
    """What features of a cluster are computed from.

    capacity: GPUs on nodes that are up; gpus: the same, at least 1. gpus_per_node: of the largest node. held: GPUs that
    jobs hold. interval: seconds between decisions. jobs, waiting, high, normal, low: active jobs, those without GPUs,
    and those of each class after aging; hidden: those beyond what can be seen. work, hidden_work: hours left on one
    GPU, of all jobs and of hidden ones. wish, hidden_wish, asked: GPUs they could use and ask for.
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


@dataclass(frozen=True)
class Feature:
    """An entry of an observation. name; description: with unit and normalisation; function: compiled."""

    name: str
    description: str
    function: Callable[..., float]


JOB_TABLE: list[Feature] = []
"""Columns of `jobs` in an observation: functions of (job: a record of VIEW, speed: [K + 1], facts: JobFacts)."""
CLUSTER_TABLE: list[Feature] = []
"""Entries of `cluster` in an observation: functions of `FeatureTotals`."""


def feature(table: list[Feature]) -> Callable[[Callable[..., float]], None]:
    """Decorator: add a function to a table of features, under its own name without what precedes two underscores."""

    def add(function: Callable[..., float]) -> None:
        name = function.__name__.split("__")[-1]
        description = " ".join((function.__doc__ or "").split())
        table.append(Feature(name, description, njit(error_model="numpy")(function)))

    return add


@feature(JOB_TABLE)
def job__remaining(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log(hours left on one GPU) / 4"""
    return float(np.log(facts.hours) / 4.0)


@feature(JOB_TABLE)
def job__remaining_at_most(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log(hours left with as many GPUs as the job may hold) / 4"""
    return float(np.log(max(job.remaining / speed[job.max_gpus], SHORTEST) / HOUR) / 4.0)


@feature(JOB_TABLE)
def job__gain(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log(speed the next GPU adds, relative to one GPU) / 2"""
    further = job.min_gpus if job.gpus == 0 else min(job.gpus + 1, job.max_gpus)
    added = (speed[further] - speed[job.gpus]) / max(further - job.gpus, 1) / facts.unit
    return float(np.log(max(added, 1e-6)) / 2.0)


@feature(JOB_TABLE)
def job__efficiency(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log(speed per GPU held, relative to one GPU) / 2; 0 with none"""
    return float(np.log(speed[job.gpus] / job.gpus / facts.unit) / 2.0) if job.gpus > 0 else 0.0


@feature(JOB_TABLE)
def job__held(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log2(1 + GPUs held) / 6"""
    return float(np.log2(1.0 + job.gpus) / 6.0)


@feature(JOB_TABLE)
def job__held_of_most(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """GPUs held / GPUs allowed at most"""
    return float(job.gpus / job.max_gpus)


@feature(JOB_TABLE)
def job__most(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log2(1 + GPUs allowed at most) / 6"""
    return float(np.log2(1.0 + job.max_gpus) / 6.0)


@feature(JOB_TABLE)
def job__requested(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log2(1 + GPUs asked for) / 6"""
    return float(np.log2(1.0 + job.requested_gpus) / 6.0)


@feature(JOB_TABLE)
def job__fewest(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log2(1 + GPUs allowed at least) / 6"""
    return float(np.log2(1.0 + job.min_gpus) / 6.0)


@feature(JOB_TABLE)
def job__age(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log(1 + hours since submission) / 2"""
    return float(np.log1p(max(facts.now - job.submit_time, 0.0) / HOUR) / 2.0)


@feature(JOB_TABLE)
def job__waiting(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log(1 + hours without GPUs, now) / 2"""
    waited = facts.now - job.wait_start if job.gpus == 0 else 0.0
    return float(np.log1p(max(waited, 0.0) / HOUR) / 2.0)


@feature(JOB_TABLE)
def job__attained(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log(1 + GPU-hours had) / 4"""
    return float(np.log1p(job.attained_service / HOUR) / 4.0)


@feature(JOB_TABLE)
def job__rescale_delay(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """seconds a change of its GPUs costs / 60"""
    return float(job.rescale_delay / 60.0)


@feature(JOB_TABLE)
def job__rescaling(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """1 while such a delay lasts"""
    return 1.0 if job.rescale_left > 0.0 else 0.0


@feature(JOB_TABLE)
def job__work_left(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """share of its epochs still to do"""
    return facts.work_left


@feature(JOB_TABLE)
def job__accuracy_left(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """share of its accuracy still to gain"""
    return facts.accuracy_left


@feature(JOB_TABLE)
def job__slope(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log(1 + accuracy_left / work_left) / 2: gain per work to come, falls as a model converges"""
    return float(np.log1p(facts.accuracy_left / max(facts.work_left, 1e-3)) / 2.0)


@feature(JOB_TABLE)
def job__data_size(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log10(samples in one epoch) / 8"""
    return float(np.log10(max(job.data_size, 1.0)) / 8.0)


@feature(JOB_TABLE)
def job__high(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """1 if its class after aging is high"""
    return 1.0 if job.effective_priority == 0 else 0.0


@feature(JOB_TABLE)
def job__normal(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """1 if its class after aging is normal"""
    return 1.0 if job.effective_priority == 1 else 0.0


@feature(JOB_TABLE)
def job__low(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """1 if its class after aging is low"""
    return 1.0 if job.effective_priority == 2 else 0.0


@feature(CLUSTER_TABLE)
def cluster__capacity(total: FeatureTotals) -> float:
    """log2(GPUs on nodes that are up) / 10"""
    return float(np.log2(total.gpus) / 10.0)


@feature(CLUSTER_TABLE)
def cluster__node(total: FeatureTotals) -> float:
    """log2(1 + GPUs of the largest node) / 6"""
    return float(np.log2(1.0 + total.gpus_per_node) / 6.0)


@feature(CLUSTER_TABLE)
def cluster__free(total: FeatureTotals) -> float:
    """share of GPUs that nobody holds"""
    return (total.capacity - total.held) / total.gpus


@feature(CLUSTER_TABLE)
def cluster__jobs(total: FeatureTotals) -> float:
    """log(1 + active jobs for each 10 GPUs) / 2"""
    return float(np.log1p(10.0 * total.jobs / total.gpus) / 2.0)


@feature(CLUSTER_TABLE)
def cluster__waiting(total: FeatureTotals) -> float:
    """log(1 + jobs without GPUs for each 10 GPUs) / 2"""
    return float(np.log1p(10.0 * total.waiting / total.gpus) / 2.0)


@feature(CLUSTER_TABLE)
def cluster__high(total: FeatureTotals) -> float:
    """share of the active jobs in class high, after aging"""
    return total.high / max(total.jobs, 1)


@feature(CLUSTER_TABLE)
def cluster__normal(total: FeatureTotals) -> float:
    """share of the active jobs in class normal, after aging"""
    return total.normal / max(total.jobs, 1)


@feature(CLUSTER_TABLE)
def cluster__low(total: FeatureTotals) -> float:
    """share of the active jobs in class low, after aging"""
    return total.low / max(total.jobs, 1)


@feature(CLUSTER_TABLE)
def cluster__hidden(total: FeatureTotals) -> float:
    """share of the active jobs beyond those that can be seen"""
    return total.hidden / max(total.jobs, 1)


@feature(CLUSTER_TABLE)
def cluster__hidden_work(total: FeatureTotals) -> float:
    """log(1 + their work in hours of the whole cluster)"""
    return float(np.log1p(total.hidden_work / total.gpus))


@feature(CLUSTER_TABLE)
def cluster__hidden_wish(total: FeatureTotals) -> float:
    """log(1 + GPUs they could use / capacity)"""
    return float(np.log1p(total.hidden_wish / total.gpus))


@feature(CLUSTER_TABLE)
def cluster__wish(total: FeatureTotals) -> float:
    """log(1 + GPUs all jobs could use / capacity)"""
    return float(np.log1p(total.wish / total.gpus))


@feature(CLUSTER_TABLE)
def cluster__requested(total: FeatureTotals) -> float:
    """log(1 + GPUs all jobs ask for / capacity)"""
    return float(np.log1p(total.asked / total.gpus))


@feature(CLUSTER_TABLE)
def cluster__work(total: FeatureTotals) -> float:
    """log(1 + work of all jobs, in hours of the whole cluster)"""
    return float(np.log1p(total.work / total.gpus))


@feature(CLUSTER_TABLE)
def cluster__per_gpu(total: FeatureTotals) -> float:
    """log(mean hours left on one GPU) / 4"""
    return float(np.log(max(total.work / max(total.jobs, 1), SHORTEST / HOUR)) / 4.0)


@feature(CLUSTER_TABLE)
def cluster__idle_interval(total: FeatureTotals) -> float:
    """log2(decision interval / 60 s) / 6"""
    return float(np.log2(max(total.interval, 1.0) / 60.0) / 6.0)


JOB_FEATURES: tuple[str, ...] = tuple(entry.name for entry in JOB_TABLE)
"""Names of the columns of `jobs`."""
CLUSTER_FEATURES: tuple[str, ...] = tuple(entry.name for entry in CLUSTER_TABLE)
"""Names of the entries of `cluster`."""

fill_job_features = chained([entry.function for entry in JOB_TABLE])
"""fill(out, (job, speed, facts)), compiled: fill out [JOB_FEATURES]."""
fill_cluster_features = chained([entry.function for entry in CLUSTER_TABLE])
"""fill(out, (totals,)), compiled: fill out [CLUSTER_FEATURES]."""


@njit(error_model="numpy")
def job_facts(job: AnyArray, speed: FloatArray, now: float) -> JobFacts:
    """See JobFacts. job: a record of VIEW. speed: [K + 1] work per second by GPUs."""
    record: Any = job
    unit = speed[record.min_gpus] / record.min_gpus
    work_left = max(1.0 - record.progress / record.epochs, 0.0)
    gainable = record.final_accuracy - record.first_accuracy
    accuracy_left = (record.final_accuracy - record.accuracy) / gainable if gainable > 0.0 else work_left
    return JobFacts(now, unit, max(record.remaining / unit, SHORTEST) / HOUR, work_left, accuracy_left)
