"""Observations: what the agent sees of a cluster, normalised by fixed constants.

One compiled encoder serves the single environment, the batch of simulators and the trained agent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlpto.arrays import FloatArray
from rlpto.cluster import ClusterState, Forecast
from rlpto.compiled import njit
from rlpto.envs.view import JobView
from rlpto.jobs import PRIORITY_CLASSES

VERSION = 1
"""Version of what observations mean; a checkpoint of another one cannot be used."""
HOUR = 3600.0
LIMIT = 10.0
"""Entries are cut to [-LIMIT, LIMIT]: no value of a strange workload can upset a network."""
SHORTEST = 1.0
"""Remaining times below this many seconds count as this."""

JOB_FEATURES: tuple[str, ...] = (
    "remaining",
    "remaining_at_most",
    "gain",
    "efficiency",
    "held",
    "held_of_most",
    "most",
    "requested",
    "fewest",
    "age",
    "waiting",
    "attained",
    "rescale_delay",
    "rescaling",
    "work_left",
    "accuracy_left",
    "slope",
    "data_size",
    "high",
    "normal",
    "low",
)
"""Columns of `jobs`, see `Observation`."""

CLUSTER_FEATURES: tuple[str, ...] = (
    "capacity",
    "node",
    "free",
    "jobs",
    "waiting",
    "high",
    "normal",
    "low",
    "hidden",
    "hidden_work",
    "hidden_wish",
    "wish",
    "requested",
    "work",
    "per_gpu",
    "idle_interval",
)
"""Entries of `cluster`, see `Observation`."""

FORECAST_FEATURES = 3 * len(PRIORITY_CLASSES)
"""Entries of `forecast` for each interval ahead: mean, low and high, by class."""


class Observation(NamedTuple):
    """What the agent sees. J: jobs at most that can be seen; float32 throughout.

    jobs: [J, JOB_FEATURES], one row a job in queue order, zeros where there is none:
        remaining          log(hours left on one GPU) / 4
        remaining_at_most  log(hours left with as many GPUs as the job may hold) / 4
        gain               log(speed the next GPU adds, relative to one GPU) / 2
        efficiency         log(speed per GPU held, relative to one GPU) / 2; 0 with none
        held, most, requested, fewest
                           log2(1 + GPUs held, allowed at most, asked for, allowed at least) / 6
        held_of_most       GPUs held / GPUs allowed at most
        age                log(1 + hours since submission) / 2
        waiting            log(1 + hours without GPUs, now) / 2
        attained           log(1 + GPU-hours had) / 4
        rescale_delay      seconds a change of its GPUs costs / 60
        rescaling          1 while such a delay lasts
        work_left          share of its epochs still to do
        accuracy_left      share of its accuracy still to gain
        slope              log(1 + accuracy_left / work_left) / 2: gain per work to come, falls as a model converges
        data_size          log10(samples in one epoch) / 8
        high, normal, low  1 for the job's class after aging
    mask: [J], 1 where there is a job.
    cluster: [CLUSTER_FEATURES]:
        capacity           log2(GPUs on nodes that are up) / 10
        node               log2(1 + GPUs of the largest node) / 6
        free               share of GPUs that nobody holds
        jobs, waiting      log(1 + active jobs, and those without GPUs, for each 10 GPUs) / 2
        high, normal, low  share of the active jobs in each class after aging
        hidden             share of the active jobs beyond the J that can be seen
        hidden_work        log(1 + their work in hours of the whole cluster)
        hidden_wish        log(1 + GPUs they could use / capacity)
        wish, requested    log(1 + GPUs all jobs could use, and ask for / capacity)
        work               log(1 + work of all jobs, in hours of the whole cluster)
        per_gpu            log(mean hours left on one GPU) / 4
        idle_interval      log2(decision interval / 60 s) / 6
    forecast: [H x FORECAST_FEATURES], log(1 + jobs) / 3 for mean, low and high, by class, of each
        interval ahead; zeros without a forecast.
    """

    jobs: NDArray[np.float32]
    mask: NDArray[np.float32]
    cluster: NDArray[np.float32]
    forecast: NDArray[np.float32]


def empty_observation(count: int, max_jobs: int, horizon: int) -> Observation:
    """Zeros for `count` clusters: every array has a leading axis [count]."""
    return Observation(
        jobs=np.zeros((count, max_jobs, len(JOB_FEATURES)), dtype=np.float32),
        mask=np.zeros((count, max_jobs), dtype=np.float32),
        cluster=np.zeros((count, len(CLUSTER_FEATURES)), dtype=np.float32),
        forecast=np.zeros((count, horizon * FORECAST_FEATURES), dtype=np.float32),
    )


def observe(state: ClusterState, view: JobView, held: int, max_jobs: int, horizon: int) -> Observation:
    """The observation of one state (no leading axis). view: of the same state; held: GPUs held by jobs."""
    batch = empty_observation(1, max_jobs, horizon)
    seen = Observation(*(part[0] for part in batch))
    encode(state.time, state.capacity, state.gpus_per_node, held, state.interval, view, seen)
    if horizon and state.forecast is not None:
        seen.forecast[:] = forecast_features(state.forecast, horizon)
    return seen


def forecast_features(forecast: Forecast, horizon: int) -> NDArray[np.float32]:
    """[horizon x FORECAST_FEATURES] of a forecast; intervals it does not reach are zeros."""
    parts = np.stack([forecast.mean, forecast.low, forecast.high], axis=1)[:horizon]
    features = np.zeros((horizon, parts.shape[1] * parts.shape[2]), dtype=np.float32)
    features[: len(parts)] = np.minimum(np.log1p(parts) / 3.0, LIMIT).reshape(len(parts), -1)
    return features.reshape(-1)


@njit()
def _cut(value: float) -> float:
    """`value` within the limits, and 0 instead of NaN."""
    if value != value:
        return 0.0
    return min(max(value, -LIMIT), LIMIT)


@njit(error_model="numpy")
def encode(
    now: float, capacity: int, gpus_per_node: int, held: int, interval: float, view: JobView, out: Observation
) -> None:
    """Fill `jobs`, `mask` and `cluster` of an observation without leading axis."""
    columns = view.columns
    count, visible = len(view.position), len(out.mask)
    gpus = max(capacity, 1)
    out.jobs[:] = 0.0
    out.mask[:] = 0.0
    classes = np.zeros(3)
    work, hidden_work, waiting = 0.0, 0.0, 0
    wish, hidden_wish, asked = 0, 0, 0
    for i in range(count):
        fewest, most, have = columns.lowest[i], columns.highest[i], columns.held[i]
        speed = columns.speed[i]
        unit = speed[fewest] / fewest
        hours = max(columns.remaining[i] / unit, SHORTEST) / HOUR
        classes[columns.priority[i]] += 1
        work += hours
        wish += most
        asked += view.requested[i]
        waiting += have == 0
        if i >= visible:
            hidden_work += hours
            hidden_wish += most
            continue
        row = out.jobs[i]
        out.mask[i] = 1.0
        further = fewest if have == 0 else min(have + 1, most)
        added = (speed[further] - speed[have]) / max(further - have, 1) / unit
        work_left = max(1.0 - view.progress[i] / view.epochs[i], 0.0)
        gainable = view.final_accuracy[i] - view.first_accuracy[i]
        accuracy_left = (view.final_accuracy[i] - view.accuracy[i]) / gainable if gainable > 0.0 else work_left
        waited = now - view.waiting_since[i] if have == 0 else 0.0
        row[0] = _cut(np.log(hours) / 4.0)
        row[1] = _cut(np.log(max(columns.remaining[i] / speed[most], SHORTEST) / HOUR) / 4.0)
        row[2] = _cut(np.log(max(added, 1e-6)) / 2.0)
        row[3] = _cut(np.log(speed[have] / have / unit) / 2.0) if have > 0 else 0.0
        row[4] = _cut(np.log2(1.0 + have) / 6.0)
        row[5] = have / most
        row[6] = _cut(np.log2(1.0 + most) / 6.0)
        row[7] = _cut(np.log2(1.0 + view.requested[i]) / 6.0)
        row[8] = _cut(np.log2(1.0 + fewest) / 6.0)
        row[9] = _cut(np.log1p(max(now - columns.submit_time[i], 0.0) / HOUR) / 2.0)
        row[10] = _cut(np.log1p(max(waited, 0.0) / HOUR) / 2.0)
        row[11] = _cut(np.log1p(columns.attained[i] / HOUR) / 4.0)
        row[12] = _cut(columns.delay[i] / 60.0)
        row[13] = 1.0 if view.rescale_left[i] > 0.0 else 0.0
        row[14] = _cut(work_left)
        row[15] = _cut(accuracy_left)
        row[16] = _cut(np.log1p(accuracy_left / max(work_left, 1e-3)) / 2.0)
        row[17] = _cut(np.log10(max(view.data_size[i], 1.0)) / 8.0)
        row[18 + columns.priority[i]] = 1.0
    total = max(count, 1)
    cluster = out.cluster
    cluster[0] = _cut(np.log2(gpus) / 10.0)
    cluster[1] = _cut(np.log2(1.0 + gpus_per_node) / 6.0)
    cluster[2] = (capacity - held) / gpus
    cluster[3] = _cut(np.log1p(10.0 * count / gpus) / 2.0)
    cluster[4] = _cut(np.log1p(10.0 * waiting / gpus) / 2.0)
    cluster[5] = classes[0] / total
    cluster[6] = classes[1] / total
    cluster[7] = classes[2] / total
    cluster[8] = max(count - visible, 0) / total
    cluster[9] = _cut(np.log1p(hidden_work / gpus))
    cluster[10] = _cut(np.log1p(hidden_wish / gpus))
    cluster[11] = _cut(np.log1p(wish / gpus))
    cluster[12] = _cut(np.log1p(asked / gpus))
    cluster[13] = _cut(np.log1p(work / gpus))
    cluster[14] = _cut(np.log(max(work / total, SHORTEST / HOUR)) / 4.0)
    cluster[15] = _cut(np.log2(max(interval, 1.0) / 60.0) / 6.0)


def check_finite(values: FloatArray | NDArray[np.float32], what: str) -> None:
    """Raise ValueError if a number is NaN or infinite. what: named in the message."""
    if not np.isfinite(values).all():
        raise ValueError(f"{what}: not all numbers are finite")
