"""Compiled decision of the index policy, and the weights that steer it.

One function decides for the index policy, for a trained agent and for the batch of simulators the
agent is trained on, so that all three decide alike to the last bit. It takes the weights of
`IndexWeights` and some more, which let a learned policy say in which state they apply:
    gain_remaining, gain_load    times log gain x r, and x load,
    pace, pace_remaining         times log(speed before the step, relative to one GPU), and that x r,
    start_remaining, start_load  times 1 x r, and x load, if the step starts the job,
    price                        log of the hours a further GPU-hour must save, or the step is left out,
    patience                     rescale delays that growing a running job must save, or it is left out,
with r = log(hours the job has left on one GPU) and load = log(1 + GPUs all jobs could use / capacity).
"""

from __future__ import annotations

import numpy as np

from rlpto.arrays import AnyArray, FloatArray, IntArray
from rlpto.compiled import njit
from rlpto.policies.greedy import Steps, grow, hull_steps
from rlpto.policies.index_weights import INDEX_FEATURES
from rlpto.rewards import HOUR

STEERING_FEATURES: tuple[str, ...] = (
    *INDEX_FEATURES,
    "gain_remaining",
    "gain_load",
    "pace",
    "pace_remaining",
    "start_remaining",
    "start_load",
    "price",
    "patience",
)
"""Names of the weights that steer the index, in the order of every vector of them."""

NO_PRICE = -20.0
"""`price` at which no step costs too much."""
CLASS_START_SCORE = 1e6
"""Added, for each class above the lowest, to the score of a step that starts a job: more than weights can undo."""
SHORTEST_REMAINING_S = 1.0
"""Remaining times below this many seconds count as this."""

_AT = {name: position for position, name in enumerate(STEERING_FEATURES)}
_GAIN, _REMAINING, _REMAINING_SQUARED = _AT["gain"], _AT["remaining"], _AT["remaining_squared"]
_LOAD_REMAINING, _PRIORITY, _AGE, _ATTAINED = _AT["load_remaining"], _AT["priority"], _AT["age"], _AT["attained"]
_START, _HELD, _HELD_REMAINING = _AT["start"], _AT["held"], _AT["held_remaining"]
_GAIN_REMAINING, _GAIN_LOAD = _AT["gain_remaining"], _AT["gain_load"]
_PACE, _PACE_REMAINING = _AT["pace"], _AT["pace_remaining"]
_START_REMAINING, _START_LOAD = _AT["start_remaining"], _AT["start_load"]
_PRICE, _PATIENCE = _AT["price"], _AT["patience"]


def steering_weights(index_weights: FloatArray) -> FloatArray:
    """[..., STEERING_FEATURES] with which steering does exactly what the index of these weights does."""
    extra = len(STEERING_FEATURES) - len(INDEX_FEATURES)
    weights = np.concatenate([index_weights, np.zeros((*index_weights.shape[:-1], extra))], axis=-1)
    weights[..., _PRICE] = NO_PRICE
    return weights


@njit()
def steer(now: float, capacity: int, view: AnyArray, speed: FloatArray, weights: FloatArray) -> IntArray:
    """GPUs [n] by the index with `weights` [1 or n, STEERING_FEATURES].

    view: [n] `rlpto.jobs.VIEW` in queue order. speed: [n, K + 1] as in `rlpto.jobs.JobTable`.
    Whatever the weights, jobs of a higher class start before any job of the lowest class present
    starts, and before any job grows.
    """
    lowest = view["min_gpus"].copy()
    steps = hull_steps(speed, lowest, view["max_gpus"].copy())
    scores = score_steps(now, capacity, view, speed, steps, weights)
    worst = 0
    for row in range(len(view)):
        worst = max(worst, view[row].effective_priority)
    for row in range(len(view)):
        scores[row, 0] += CLASS_START_SCORE * (worst - view[row].effective_priority)
    return grow(np.zeros_like(lowest), steps.target, scores, lowest, capacity, -np.inf)


@njit(error_model="numpy")
def score_steps(
    now: float, capacity: int, view: AnyArray, speeds: FloatArray, steps: Steps, weights: FloatArray
) -> FloatArray:
    """[n, K + 1] score of the step from k GPUs on, for the k that a job passes on its way up.

    -infinity elsewhere, for steps that gain nothing, and for those that cost too much or are not worth
    their rescale, with all that would follow them. weights: [1 or n, STEERING_FEATURES].
    """
    score = np.full(speeds.shape, -np.inf)
    wanted = 0
    for row in range(len(view)):
        wanted += view[row].max_gpus
    load = np.log1p(wanted / max(capacity, 1))
    for row in range(len(view)):
        w = weights[row if len(weights) > 1 else 0]
        job, speed = view[row], speeds[row]
        unit = speed[job.min_gpus] / job.min_gpus
        r = np.log(max(job.remaining / unit, SHORTEST_REMAINING_S) / HOUR)
        base = (
            w[_REMAINING] * r
            + w[_REMAINING_SQUARED] * r * r
            + w[_LOAD_REMAINING] * r * load
            + w[_PRIORITY] * (1 - job.effective_priority)
            + w[_AGE] * np.log1p((now - job.submit_time) / HOUR)
            + w[_ATTAINED] * np.log1p(job.attained_service / HOUR)
        )
        sticky = w[_HELD] + w[_HELD_REMAINING] * r
        growth = w[_GAIN] + w[_GAIN_REMAINING] * r + w[_GAIN_LOAD] * load
        pace = w[_PACE] + w[_PACE_REMAINING] * r
        start = w[_START] + w[_START_REMAINING] * r + w[_START_LOAD] * load
        left, max_price = job.remaining / HOUR, np.exp(w[_PRICE])
        held, rescale_cost = job.gpus, w[_PATIENCE] * job.rescale_delay / HOUR
        gpus = 0
        while steps.target[row, gpus] > gpus and steps.gain[row, gpus] > 0:
            after = steps.target[row, gpus]
            if gpus > 0:
                saved = left / speed[gpus] - left / speed[after]
                extra = after * left / speed[after] - gpus * left / speed[gpus]
                if saved < max_price * extra:
                    break
            if 0 < held < after and left / speed[held] - left / speed[after] < rescale_cost:
                break
            kept = max(min(held, after) - gpus, 0) / (after - gpus)
            score[row, gpus] = base + growth * np.log(steps.gain[row, gpus] / unit) + sticky * kept
            score[row, gpus] += start if gpus == 0 else pace * np.log(speed[gpus] / unit)
            gpus = after
    return score
