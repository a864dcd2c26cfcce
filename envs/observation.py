"""Observations: a cluster in numbers that are normalised by fixed constants.

One compiled encoder serves the single environment, the batch of simulators and the trained agent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlpto.core.cluster import ClusterState, Forecast
from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.envs.features import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
    FeatureTotals,
    feature_inputs,
    fill_cluster_features,
    fill_job_features,
    hours_left,
)
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.compiled import kernel, njit
from rlpto.policies.bonus_network import LONGEST_H, hours_to_finish, sum_shorter

VERSION = 2
"""Version of the meaning of observations. Checkpoints of another version cannot be used."""
LIMIT = 10.0
"""Entries are cut to [-LIMIT, LIMIT], which protects a network from the values of unusual workloads."""

FORECAST_FEATURES = 3 * len(PRIORITY_CLASSES)
"""Entries of `forecast` for each interval ahead: mean, low and high, by class."""


class Observation(NamedTuple):
    """One observation. J: largest number of visible jobs. All arrays are float32.

    jobs: [J, JOB_FEATURES], one row for each job in queue order, then zeros. `rlpto.envs.features.JOB_TABLE` explains
        the columns.
    mask: [J], 1 for the rows with a job.
    cluster: [CLUSTER_FEATURES], explained in `rlpto.envs.features.CLUSTER_TABLE`.
    forecast: [H x FORECAST_FEATURES], log(1 + jobs) / 3, flattened from [H, 3, classes] with mean, low and
        high on the second axis; zeros without a forecast.
    """

    jobs: NDArray[np.float32]
    mask: NDArray[np.float32]
    cluster: NDArray[np.float32]
    forecast: NDArray[np.float32]


Observed = dict[str, NDArray[np.float32]]
"""The parts of an `Observation` by name."""


def empty_observation(count: int, max_jobs: int, horizon: int) -> Observation:
    """Zeros for `count` clusters: every array has a leading axis [count]."""
    return Observation(
        jobs=np.zeros((count, max_jobs, len(JOB_FEATURES)), dtype=np.float32),
        mask=np.zeros((count, max_jobs), dtype=np.float32),
        cluster=np.zeros((count, len(CLUSTER_FEATURES)), dtype=np.float32),
        forecast=np.zeros((count, horizon * FORECAST_FEATURES), dtype=np.float32),
    )


def observe(state: ClusterState, held: int, max_jobs: int, horizon: int) -> Observation:
    """The observation of one state in queue order (no leading axis). held: GPUs held by jobs."""
    batch = empty_observation(1, max_jobs, horizon)
    seen = Observation(*(part[0] for part in batch))
    jobs, shape = state.jobs, state.shape
    encode(state.time, shape.up_gpus, shape.gpus_per_node, held, state.interval, jobs.records, jobs.speed, seen)
    if horizon and state.forecast is not None:
        seen.forecast[:] = forecast_features(state.forecast, horizon)
    return seen


def forecast_features(forecast: Forecast, horizon: int) -> NDArray[np.float32]:
    """[horizon x FORECAST_FEATURES] of a forecast, with zeros for intervals that it does not cover."""
    parts = np.stack([forecast.mean, forecast.low, forecast.high], axis=1)[:horizon]
    features = np.zeros((horizon, parts.shape[1] * parts.shape[2]), dtype=np.float32)
    features[: len(parts)] = np.minimum(np.log1p(parts) / 3.0, LIMIT).reshape(len(parts), -1)
    return features.reshape(-1)


@kernel()
def _cut(row: NDArray[np.float32]) -> None:
    """Cut values to the limits, and replace NaN by 0."""
    for i in range(len(row)):
        value = row[i]
        row[i] = min(max(value, -LIMIT), LIMIT) if value == value else 0.0


@njit(error_model="numpy")
def encode(
    now: float,
    capacity: int,
    gpus_per_node: int,
    held: int,
    interval: float,
    view: AnyArray,
    speed: FloatArray,
    out: Observation,
) -> None:
    """Fill `jobs`, `mask` and `cluster` of an observation without leading axis.

    now: time [s]. capacity, held: GPUs that jobs may hold, and hold. gpus_per_node: GPUs of the largest node.
    interval: seconds between regular decisions. view: [n] `rlpto.core.jobs.VIEW` in queue order. speed: [n, K + 1] work
    per second by GPUs.
    """
    among = np.zeros((4, len(view)))
    soonest = _fill_hours(view, speed, among)
    sum_shorter(among[0], np.empty(len(view), dtype=np.int64), among[1], among[2])
    _fill(now, capacity, gpus_per_node, held, interval, view, speed, among, soonest, out)


@kernel(error_model="numpy")
def _fill_hours(view: AnyArray, speed: FloatArray, among: FloatArray) -> float:
    """Fill rows 0 and 3 of among [4, n]: hours left on one GPU, and to finish. Returns the fewest hours to finish."""
    soonest = LONGEST_H
    for i in range(len(view)):
        among[0, i], among[3, i] = hours_left(view[i], speed[i]), hours_to_finish(view[i], speed[i])
        soonest = min(soonest, among[3, i])
    return soonest


@kernel(error_model="numpy")
def _fill(
    now: float,
    capacity: int,
    gpus_per_node: int,
    held: int,
    interval: float,
    view: AnyArray,
    speed: FloatArray,
    among: FloatArray,
    soonest: float,
    out: Observation,
) -> None:
    """Fill the observation for `encode`.

    among: [4, n] hours left on one GPU, number of jobs with fewer hours left, sum of their hours, and hours to finish.
    Rows 1 and 2 of visible jobs are divided in place, by the number of jobs and by the GPUs.
    """
    count, visible = len(view), len(out.mask)
    out.jobs[min(count, visible) :] = 0.0
    out.mask[:] = 0.0
    gpus, high, normal, low = max(capacity, 1), 0, 0, 0
    fair = np.log2(gpus / max(count, 1))
    work, hidden_work, waiting = 0.0, 0.0, 0
    wish, hidden_wish, asked = 0, 0, 0
    for i in range(count):
        job = view[i]
        high += job.effective_priority == 0
        normal += job.effective_priority == 1
        low += job.effective_priority == 2
        work += among[0, i]
        wish += job.max_gpus
        asked += job.requested_gpus
        waiting += job.gpus == 0
        if i >= visible:
            hidden_work += among[0, i]
            hidden_wish += job.max_gpus
            continue
        out.mask[i] = 1.0
        among[1, i], among[2, i] = among[1, i] / count, among[2, i] / gpus
        inputs = feature_inputs(job, speed[i], now, among[:, i], fair)
        fill_job_features(out.jobs[i], (job, inputs))
        _cut(out.jobs[i])
    totals = FeatureTotals(
        capacity, gpus, gpus_per_node, held, interval, count, waiting, high, normal, low,
        max(count - visible, 0), work, hidden_work, wish, hidden_wish, asked, soonest,
    )  # fmt: skip
    fill_cluster_features(out.cluster, (totals,))
    _cut(out.cluster)
