"""A job's estimate of its own throughput: Pollux's seven parameters, fitted to its observed steps.

Objective, start, bounds and fixed parameters follow AdaptDL (Qiao et al., OSDI 2021, section 4.1, and its code).
"""

from __future__ import annotations

from dataclasses import astuple
from functools import lru_cache

import numpy as np
from threadpoolctl import ThreadpoolController

from rlpto.io.arrays import FloatArray
from rlpto.io.compiled import njit
from rlpto.knowledge.evidence import with_sync
from rlpto.performance.throughput import MAX_GAMMA, NO_COST, StepMeasurements, ThroughputParams, fit_throughput

_START = (0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001)
_ALPHA_C, _BETA_C, _ALPHA_N, _BETA_N, _ALPHA_R, _BETA_R, _GAMMA = range(7)
_NODE_PREMIUM = 1.1
"""Cost of synchronising across nodes relative to one node, if several nodes were never observed."""


def fit_observed(rows: StepMeasurements) -> ThroughputParams:
    """Fit parameters to the steps a job has observed, one row for each (nodes, GPUs, local batch).

    Minimised is RMSE of log(step - sync) + RMSE of log(step) + 1e-3 (gamma - 1)^2 + 1e-2 ((beta_n / alpha_n)^2 +
    (beta_r / alpha_r)^2). Parameters that the rows do not determine are fixed: with one local batch alpha_c is half the
    computing time; unobserved sizes cost nothing, but several nodes at least 1.1 times one. Deterministic.
    """
    from scipy.optimize import minimize

    several, one = rows.nodes > 1, (rows.nodes == 1) & (rows.replicas > 1)
    compute = np.maximum(rows.step_time - rows.sync_time, NO_COST)
    low, high = np.full(7, NO_COST), np.full(7, np.inf)
    low[_GAMMA], high[_GAMMA] = 1.0, MAX_GAMMA
    start = np.array(_START)

    def hold(at: int, value: float) -> None:
        low[at] = high[at] = start[at] = value

    if len(np.unique(rows.local_batch)) == 1:
        hold(_ALPHA_C, float(compute.mean()) / 2)
    if not several.any():
        hold(_ALPHA_N, NO_COST)
        hold(_BETA_N, NO_COST)
    if not one.any():
        hold(_ALPHA_R, NO_COST)
        hold(_BETA_R, NO_COST)
    if not (rows.replicas > 2).any():
        hold(_BETA_N, NO_COST)
        hold(_BETA_R, NO_COST)
    beyond = np.maximum(rows.replicas - 2.0, NO_COST)
    data = (several, one, beyond, rows.local_batch, np.log(compute), np.log(rows.step_time))
    bounds = list(zip(low, high, strict=True))
    with _libraries().limit(limits=1):  # for seven numbers, threads of linear algebra only wait for each other
        found = minimize(_loss, start, args=data, jac=True, method="L-BFGS-B", bounds=bounds).x
    if not several.any():
        found[_ALPHA_N] = max(found[_ALPHA_N], _NODE_PREMIUM * found[_ALPHA_R])
        found[_BETA_N] = max(found[_BETA_N], _NODE_PREMIUM * found[_BETA_R])
    return ThroughputParams(*found.tolist())


def fit_whole_steps(rows: StepMeasurements) -> ThroughputParams:
    """Fit parameters to steps whose synchronisation is not known: perfect scaling from one number of GPUs, else the
    robust fit, which is more accurate for them (docs/notes/online-fit.md)."""
    first = np.lexsort((rows.nodes, rows.replicas))[:1]
    per_sample, gpus = rows.step_time[first] / rows.local_batch[first], rows.replicas[first]
    if len(np.unique(rows.replicas)) == 1:
        return ThroughputParams(0.0, float(per_sample[0]), 0.0, 0.0, 0.0, 0.0, 1.0)
    if gpus > 1:  # the fit needs the step of a single GPU
        batch = rows.local_batch[first] * (1 if len(np.unique(rows.local_batch)) == 1 else gpus)
        one = np.ones(1), np.ones(1), batch, per_sample * batch, np.zeros(1)
        rows = StepMeasurements(*(np.concatenate(pair) for pair in zip(one, astuple(rows), strict=True)))
    return fit_throughput(with_sync("a job", rows))


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    """Loaded libraries with threads, cached because looking for them takes longer than a fit."""
    return ThreadpoolController()


@njit(error_model="numpy")
def _loss(
    x: FloatArray,
    several: FloatArray,
    one: FloatArray,
    beyond: FloatArray,
    local: FloatArray,
    log_compute: FloatArray,
    log_step: FloatArray,
) -> tuple[float, FloatArray]:
    """The objective of `fit_observed` at x [7], and its gradient [7]."""
    n, gamma = len(local), x[_GAMMA]
    grad, grad_compute, grad_step = np.zeros(7), np.zeros(7), np.zeros(7)
    square_compute, square_step = 0.0, 0.0
    for i in range(n):
        compute = x[_ALPHA_C] + x[_BETA_C] * local[i]
        error = np.log(compute) - log_compute[i]
        square_compute += error * error
        grad_compute[_ALPHA_C] += error / compute
        grad_compute[_BETA_C] += error / compute * local[i]
        alpha, beta = (_ALPHA_N, _BETA_N) if several[i] else (_ALPHA_R, _BETA_R)
        shared = several[i] or one[i]
        sync = x[alpha] + x[beta] * beyond[i] if shared else NO_COST
        part, other = compute**gamma, sync**gamma
        both = part + other
        error = np.log(both ** (1.0 / gamma)) - log_step[i]
        square_step += error * error
        weight = part / both
        grad_step[_ALPHA_C] += error * weight / compute
        grad_step[_BETA_C] += error * weight / compute * local[i]
        if shared:
            grad_step[alpha] += error * (1 - weight) / sync
            grad_step[beta] += error * (1 - weight) / sync * beyond[i]
        mean_log = weight * np.log(compute) + (1 - weight) * np.log(sync)
        grad_step[_GAMMA] += error * (mean_log - np.log(both) / gamma) / gamma
    rmse_compute, rmse_step = np.sqrt(square_compute / n), np.sqrt(square_step / n)
    loss = rmse_compute + rmse_step + 1e-3 * (gamma - 1.0) ** 2
    for at in range(7):
        if rmse_compute > 0.0:
            grad[at] += grad_compute[at] / (n * rmse_compute)
        if rmse_step > 0.0:
            grad[at] += grad_step[at] / (n * rmse_step)
    grad[_GAMMA] += 2e-3 * (gamma - 1.0)
    for alpha, beta in ((_ALPHA_N, _BETA_N), (_ALPHA_R, _BETA_R)):
        ratio = x[beta] / x[alpha]
        loss += 1e-2 * ratio * ratio
        grad[beta] += 2e-2 * ratio / x[alpha]
        grad[alpha] -= 2e-2 * ratio * ratio / x[alpha]
    return loss, grad
