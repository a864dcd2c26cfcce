"""A fit of a job's throughput to its observed steps, with a prior from other models, and its uncertainty.

The law is Pollux's. The most probable coordinates are found by Levenberg-Marquardt; their covariance is taken from the
normal distribution with the same curvature there (Laplace). Sizes far from the observed ones get large errors. A step
far off the law that the others suggest, such as a step in which a job paused, counts little.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import ddot, dgemv
from scipy.linalg.lapack import dgesv

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.knowledge.prior import COORDINATES, LEAST_GAMMA, ThroughputPrior, prior_of, prior_without, reference_batch
from rlpto.performance.profiles import large_profiles
from rlpto.performance.size_table import SizeTable
from rlpto.performance.throughput import MAX_GAMMA, StepMeasurements

STEP_ERROR = 0.05
"""Standard deviation of the logarithm of a step time about the law: laws are not exact."""
MOST_ROWS = 30
"""Number of observations above which similar ones are averaged, to keep a fit fast."""
ODD = 4.0
"""Standard deviations off the law beyond which a step counts less, the farther it is off."""
FEWEST_SIZES = 3
"""Fewest measured sizes that show how a large model scales."""
_ITERATIONS, _CONVERGED = 30, 1e-6
_REWEIGHTINGS, _SETTLED = 20, 1e-3


class PooledSteps(NamedTuple):
    """Observed steps [n]: several nodes (1) or one (0), GPUs, local batch, log seconds of computing (NaN if not known),
    log seconds of the step, and its weight (0 to 1)."""

    several: FloatArray
    gpus: FloatArray
    local: FloatArray
    log_compute: FloatArray
    log_step: FloatArray
    weight: FloatArray


class BayesFit(NamedTuple):
    """Most probable coordinates [7] of a law (`rlpto.knowledge.prior`), and their covariance [7, 7]."""

    point: FloatArray
    covariance: FloatArray


def fit_with_prior(
    rows: StepMeasurements, prior: ThroughputPrior, reference: float, start: FloatArray | None = None
) -> BayesFit:
    """Fit observed steps. reference: `rlpto.knowledge.prior.reference_batch`. start: start of the search, such as the
    last fit. If the time of synchronising is not known (NaN), only the whole step counts. Deterministic."""
    steps = _pooled(rows)
    if start is None:
        known = steps.log_compute[~np.isnan(steps.log_compute)]
        start = prior.mean.copy()  # with a level that is right unless batches were far from the reference
        start[0] = float(np.mean(known if len(known) else steps.log_step))
    point, hessian = _fit(steps, prior.mean, prior.precision, reference, start)
    return BayesFit(point, np.linalg.inv(hessian).astype(np.float64))


def _pooled(rows: StepMeasurements) -> PooledSteps:
    """Return the steps, or means of similar steps if there are too many."""
    compute = np.maximum(rows.step_time - rows.sync_time, 1e-3 * rows.step_time)
    columns = np.stack(
        [rows.nodes > 1, rows.replicas, np.log(rows.local_batch), np.log(compute), np.log(rows.step_time)]
    ).astype(np.float64)
    if columns.shape[1] > MOST_ROWS:
        half_octaves = np.round(2 * columns[2] / np.log(2))
        _, group = np.unique(np.stack([columns[0], columns[1], half_octaves]), axis=1, return_inverse=True)
        sizes = np.bincount(group.ravel())
        columns = np.stack([np.bincount(group.ravel(), column) / sizes for column in columns])
    several, gpus, local, log_compute, log_step = columns
    return PooledSteps(several, gpus, np.exp(local), log_compute, log_step, np.ones(len(gpus)))


def _fit(
    steps: PooledSteps, mean: FloatArray, precision: FloatArray, reference: float, start: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Repeat `_search` as long as the weights of steps, which are updated in place, change."""
    point, hessian = _search(steps, mean, precision, reference, start)
    for _ in range(_REWEIGHTINGS):
        if not _reweigh(steps, reference, point):
            break
        before = point
        point, hessian = _search(steps, mean, precision, reference, before)
        if float(np.abs(point - before).max()) < _SETTLED:
            break
    return point, hessian


@njit(error_model="numpy")
def _reweigh(steps: PooledSteps, reference: float, point: FloatArray) -> bool:
    """Write the weights of steps by their distance from the law at a point; True if some are not 1."""
    slopes, odd = np.zeros((2, COORDINATES)), False
    for row in range(len(steps.local)):
        size = steps.several[row] > 0.0, steps.gpus[row], steps.local[row]
        compute, step = log_times(point, reference, *size, slopes)
        off = np.abs(step - steps.log_step[row])
        if not np.isnan(steps.log_compute[row]):
            off = max(off, np.abs(compute - steps.log_compute[row]))
        weight = min((ODD * STEP_ERROR / off) ** 2, 1.0) if off > 0.0 else 1.0
        odd |= weight != 1.0 or steps.weight[row] != 1.0
        steps.weight[row] = weight
    return odd


def _search(
    steps: PooledSteps,
    mean: FloatArray,
    precision: FloatArray,
    reference: float,
    start: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the most probable point [7], and the matrix of second derivatives there [7, 7]."""
    point, damping = start.copy(), 1e-3
    cost, gradient, hessian = _expand(steps, mean, precision, reference, point)
    for _ in range(_ITERATIONS):
        damped = hessian.copy()
        for at in range(COORDINATES):
            damped[at, at] *= 1.0 + damping
        step, singular = dgesv(damped, gradient)[2:]
        if singular or not np.isfinite(cost):
            raise np.linalg.LinAlgError("a fit to steps that are not finite")
        trial = point - step
        found = _expand(steps, mean, precision, reference, trial)
        if found[0] < cost:
            gain = cost - found[0]
            point, cost, gradient, hessian = trial, found[0], found[1], found[2]
            damping = max(damping / 10.0, 1e-9)
            if gain < _CONVERGED * (1.0 + cost):
                break
        else:
            damping *= 10.0
            if damping > 1e9:
                break
    return point, hessian


def _expand(
    steps: PooledSteps,
    mean: FloatArray,
    precision: FloatArray,
    reference: float,
    point: FloatArray,
) -> tuple[float, FloatArray, FloatArray]:
    """Twice the negative log posterior at a point [7]; gradient [7] and Gauss-Newton matrix [7, 7] of half of it."""
    away = point - mean
    gradient, hessian = dgemv(1.0, precision.T, away, trans=1), precision.copy()
    cost = _add_errors(steps, reference, point, float(ddot(away, gradient)), gradient, hessian)
    return cost, gradient, hessian


@njit(error_model="numpy")
def _add_errors(
    steps: PooledSteps, reference: float, point: FloatArray, cost: float, gradient: FloatArray, hessian: FloatArray
) -> float:
    """Add the errors of the steps to gradient [7] and hessian [7, 7]; returns the cost including them."""
    slopes = np.zeros((2, COORDINATES))
    for row in range(len(steps.local)):
        size = steps.several[row] > 0.0, steps.gpus[row], steps.local[row]
        compute, step = log_times(point, reference, *size, slopes)
        for part, error in enumerate((compute - steps.log_compute[row], step - steps.log_step[row])):
            if np.isnan(error):
                continue
            weight = steps.weight[row]
            weighed = weight * error / STEP_ERROR**2
            cost += error * weighed
            for i in range(COORDINATES):
                gradient[i] += weighed * slopes[part, i]
                for j in range(COORDINATES):
                    hessian[i, j] += weight * slopes[part, i] * slopes[part, j] / STEP_ERROR**2
    return cost


@njit(error_model="numpy")
def log_times(
    point: FloatArray, reference: float, several: bool, gpus: float, local: float, slopes: FloatArray
) -> tuple[float, float]:
    """Logarithms of the seconds to compute a local batch, and of a step; fills slopes [2, 7], their derivatives."""
    level, share = np.exp(point[0]), 1.0 / (1.0 + np.exp(-point[1]))
    compute = level * (share + (1.0 - share) * local / reference)
    for i in range(COORDINATES):  # one by one, as slices take seconds to compile
        slopes[0, i] = slopes[1, i] = 0.0
    slopes[0, 0] = 1.0
    slopes[0, 1] = level * share * (1.0 - share) * (1.0 - local / reference) / compute
    log_compute = np.log(compute)
    if gpus <= 1.0:
        slopes[1, 0], slopes[1, 1] = 1.0, slopes[0, 1]
        return log_compute, log_compute
    first, growth = (4, 5) if several else (2, 3)
    alpha = level * np.exp(point[2]) * (np.exp(point[4]) if several else 1.0)
    more = alpha * np.exp(point[growth]) * (gpus - 2.0)
    log_sync = np.log(alpha + more)
    overlap = np.exp(point[6])
    gamma = min(LEAST_GAMMA + overlap, MAX_GAMMA)
    longer = max(log_compute, log_sync)
    powers = np.exp(gamma * (log_compute - longer)), np.exp(gamma * (log_sync - longer))
    part = powers[0] / (powers[0] + powers[1])
    log_step = longer + np.log(powers[0] + powers[1]) / gamma
    slopes[1, 0] = 1.0
    slopes[1, 1] = part * slopes[0, 1]
    slopes[1, 2] = 1.0 - part
    slopes[1, first] = 1.0 - part
    slopes[1, growth] = (1.0 - part) * more / (alpha + more)
    mean_log = part * log_compute + (1.0 - part) * log_sync
    slopes[1, 6] = (mean_log - log_step) / gamma * overlap
    return log_compute, log_step


@njit(error_model="numpy")
def fill_log_speeds(
    point: FloatArray,
    covariance: FloatArray,
    reference: float,
    local: IntArray,
    accumulation: IntArray,
    log_seconds: FloatArray,
    sigma: FloatArray,
) -> None:
    """Fill log_seconds and sigma [S, K, C] for a step with candidate c on k + 1 GPUs, on one node or several.

    local, accumulation: [K, C] columns of `rlpto.performance.efficiency.BatchCandidates`. sigma: standard deviation.
    """
    slopes, slope = np.zeros((2, COORDINATES)), np.zeros(COORDINATES)
    for span in range(log_seconds.shape[0]):
        for k in range(local.shape[0]):
            for at in range(local.shape[1]):
                compute, step = log_times(point, reference, span > 0, k + 1.0, float(local[k, at]), slopes)
                extra = accumulation[k, at] * np.exp(compute)
                seconds = np.exp(step) + extra
                for i in range(COORDINATES):
                    slope[i] = (extra * slopes[0, i] + np.exp(step) * slopes[1, i]) / seconds
                variance = 0.0
                for i in range(COORDINATES):
                    for j in range(COORDINATES):
                        variance += slope[i] * covariance[i, j] * slope[j]
                log_seconds[span, k, at] = np.log(seconds)
                sigma[span, k, at] = np.sqrt(max(variance, 0.0))


def prior_for(model: str, unit: int) -> ThroughputPrior:
    """Return the prior of a model that runs on multiples of `unit` GPUs, or on any number if unit is 0."""
    return size_prior_without(model) if unit else prior_without(model)


@cache
def size_prior_without(model: str) -> ThroughputPrior:
    """Return the prior from the tables of sizes of all shipped models except the named one, on all their GPU types. A
    unit of GPUs, of which all sizes of a model are multiples, takes the place of one GPU."""
    points = [
        fit_with_prior(_rows(table, unit, limits.base), prior_without(model), reference_batch(limits, unit)).point
        for name, profile in large_profiles().items()
        if name != model
        for limits, table in (
            (profile.on(gpu_type).batch, speed.throughput) for gpu_type, speed in profile.gpu_types.items()
        )
        if isinstance(table, SizeTable) and len(table.sizes) >= FEWEST_SIZES
        for unit in (int(np.gcd.reduce(table.sizes)),)
    ]
    return prior_of(np.array(points))


def _rows(table: SizeTable, unit: int, batch: int) -> StepMeasurements:
    """Measured steps of a total batch, in units, with unknown time of synchronising."""
    nodes, gpus, seconds = np.array(table.steps, dtype=np.float64).T
    units = gpus / unit
    return StepMeasurements(
        np.where(units > 1.0, nodes, 1.0), units, batch / units, seconds, np.full(len(units), np.nan)
    )
