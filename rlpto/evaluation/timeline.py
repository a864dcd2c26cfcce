"""GPUs and capacity as step functions of time, with the integrals and means that plots and metrics use."""

from __future__ import annotations

import numpy as np

from rlpto.core.records import AllocationChanges, RunRecord
from rlpto.io.arrays import FloatArray, IntArray


def step_integral(time: FloatArray, value: FloatArray, until: FloatArray) -> FloatArray:
    """Return the integral of a step function from time[0] to each of `until` [n].

    time: [S] ascending, at least one; value: [S], valid from time[i] until time[i + 1]. The last
    value is valid for ever, and the first value also before time[0], where the integral is negative.
    """
    cumulative = np.concatenate(([0.0], np.cumsum(value[:-1] * np.diff(time))))
    last = np.maximum(np.searchsorted(time, until, side="right") - 1, 0)
    integral: FloatArray = cumulative[last] + value[last] * (until - time[last])
    return integral


def step_value(time: FloatArray, value: FloatArray, at: FloatArray) -> FloatArray:
    """Return the value [n] of a step function (defined in `step_integral`) at moments `at` [n]; 0 before time[0]."""
    last = np.searchsorted(time, at, side="right") - 1
    return np.where(last >= 0, value[np.maximum(last, 0)] if len(value) else 0.0, 0.0)


def run_span(record: RunRecord) -> tuple[float, float]:
    """Return the first submit and the last finish or, if jobs are left unfinished, the end of the run [s]; NaN, NaN
    without jobs."""
    jobs = record.jobs
    if len(jobs.submit_time) == 0:
        return float("nan"), float("nan")
    last = float(jobs.finish_time.max())  # NaN if a job is unfinished
    return float(jobs.submit_time.min()), record.end if np.isnan(last) else last


def held_gpus(record: RunRecord) -> tuple[FloatArray, FloatArray]:
    """Return the GPUs held by all jobs as a step function: times [C + 1] and GPUs [C + 1], beginning with 0."""
    changes = record.changes
    start = run_span(record)[0]
    held = np.cumsum(_differences(changes)).astype(np.float64)
    return np.concatenate(([start], changes.time)), np.concatenate(([0.0], held))


def capacity(record: RunRecord) -> tuple[FloatArray, FloatArray]:
    """Return the GPUs that were up as a step function: times [D] and GPUs [D]; all GPUs if no decision is recorded."""
    if len(record.decisions.time) == 0:
        return np.array([run_span(record)[0]]), np.array([float(record.capacity)])
    return record.decisions.time, record.decisions.capacity.astype(np.float64)


def utilisation(record: RunRecord, edges: FloatArray) -> FloatArray:
    """Return held over available GPU-seconds [n] between neighbouring `edges` [n + 1] s; NaN if none were available."""
    held = np.diff(step_integral(*held_gpus(record), edges))
    up = np.diff(step_integral(*capacity(record), edges))
    used: FloatArray = np.divide(held, up, out=np.full(len(held), np.nan), where=up > 0)
    return used


def _differences(changes: AllocationChanges) -> IntArray:
    """Return the difference [C] in a job's number of GPUs at each of its changes."""
    order = np.argsort(changes.job, kind="stable")
    job, gpus = changes.job[order], changes.gpus[order]
    before = np.zeros_like(gpus)
    same = job[1:] == job[:-1]
    before[1:][same] = gpus[:-1][same]
    difference = np.empty_like(gpus)
    difference[order] = gpus - before
    return difference
