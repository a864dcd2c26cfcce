"""The index policy: greedy by a log-linear score of each step, with a handful of tuned weights; compiled.

Source: index policies for parallel jobs follow Gittins and Whittle (Gittins, Glazebrook, Weber,
"Multi-armed Bandit Allocation Indices", 2011); the marginal gain over a power of the remaining time
sits between equal shares and SRTF (Berg, Vesilo, Harchol-Balter 2020). Constants by evolution
on whole windows (`rlpto.agents.window_training`).
Adapted: this project's own form. A step from k to k' GPUs scores
    sum over features of weight x feature,
and the best steps are taken until the GPUs are gone. Steps follow the concave hull of the speed.

One function, `steer`, decides for this policy, for a trained agent, which sets other weights in every state, and for
the batch of simulators in which the agent is trained. All three therefore decide identically, to the last bit.
`rlpto.policies.index_weights` defines the weights.

`slope` and `slope_start` consider accuracy: they multiply s, `slope_start` only if the step starts the job. Let index
be the largest (share of its accuracy gained + FINISH_VALUE if the job ends) per hour on one GPU, over any stretch of
the epochs ahead. Then s = log(index x hours left): log FINISH_VALUE for a job with nothing left to gain, about 0 for a
steadily gaining job, more for a job that gains soon. It is Sidney's index of chained jobs with values (Operations
Research 23, 1975).

`price` and `worth` are the optimum of a reward of time, shortfall of accuracy and GPU-hours: a job alone takes the step
from k to k' GPUs if worth x (hours saved by the step) is at least price x (GPU-hours added). The worth of an hour falls
as accuracy is gained, so a job with a fixed batch size shrinks as it converges; a job that may enlarge its batch gains
speed from GPUs meanwhile, and may keep them. The test needs only the present accuracy, not the curve.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy
from rlpto.core.rewards import HOUR
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import kernel, njit
from rlpto.io.settings import Settings
from rlpto.policies.bonus_network import add_bonuses, missing_share
from rlpto.policies.greedy import GrowthSteps, growing, hull_steps
from rlpto.policies.index_weights import WEIGHT_NAMES, IndexWeights, load_index_weights

CLASS_START_SCORE = 1e6
"""Added, for each rank above the lowest, to the score of a step that starts a job. No weights can offset it."""
FINISH_VALUE = 0.2
"""Value of a job's end relative to all the accuracy that it can gain. 0.2 was better than 1 at all weights tried
(validation windows, load 1.1)."""
NEVER = np.float64(-np.inf)
"""Score of a step that is not taken."""
SHORTEST_REMAINING_S = 1.0
"""Lower limit of remaining times [s] in scores."""

_AT = {name: position for position, name in enumerate(WEIGHT_NAMES)}
_GAIN, _REMAINING, _REMAINING_SQUARED = _AT["gain"], _AT["remaining"], _AT["remaining_squared"]
_LOAD_REMAINING, _PRIORITY, _AGE, _ATTAINED = _AT["load_remaining"], _AT["priority"], _AT["age"], _AT["attained"]
_START, _HELD, _HELD_REMAINING = _AT["start"], _AT["held"], _AT["held_remaining"]
_GAIN_REMAINING, _GAIN_LOAD = _AT["gain_remaining"], _AT["gain_load"]
_PACE, _PACE_REMAINING = _AT["pace"], _AT["pace_remaining"]
_START_REMAINING, _START_LOAD = _AT["start_remaining"], _AT["start_load"]
_PRICE, _PATIENCE = _AT["price"], _AT["patience"]
_SLOPE, _SLOPE_START = _AT["slope"], _AT["slope_start"]
_WORTH, _WORTH_GROWTH, _KEEP = _AT["worth"], _AT["worth_growth"], _AT["keep"]
_WEIGHTS = len(WEIGHT_NAMES)


_NAMES = (
    *("unit", "base", "growth", "pace", "start", "class_start", "sticky", "hours", "max_price", "rescale_cost"),
    *("worth", "worth_growth", "keep"),
)
SCORE_INPUTS = np.dtype([(name, np.float64) for name in _NAMES])
"""Inputs of the scores of all steps of a job. unit: speed of one GPU. hours: hours left times the speed. worth: worth
of an hour, 1 for a converged job. worth_growth: added to the score of growth. keep [h]: least saving by shrinking."""


@kernel(error_model="numpy")
def steepness(job: Any) -> float:
    """Return s, defined in the module docstring, of a VIEW record."""
    return float(np.log(max(job.accuracy_ahead, FINISH_VALUE + missing_share(job))))


@kernel(error_model="numpy")
def fill_score_inputs(
    now: float, capacity: int, view: AnyArray, weights: FloatArray, speeds: FloatArray, inputs: AnyArray
) -> None:
    """Fill inputs [n] SCORE_INPUTS of the jobs in view."""
    wanted, worst = 0, 0
    for row in range(len(view)):
        wanted += view[row].max_gpus
        worst = max(worst, view[row].class_rank)
    load = np.log1p(wanted / max(capacity, 1))
    max_price = np.exp(weights[0, _PRICE]) if len(weights) else 0.0
    for row in range(len(view)):
        w = weights[row if len(weights) > 1 else 0]
        job, its = view[row], inputs[row]
        its.unit = speeds[row, job.min_gpus] / job.min_gpus
        r = np.log(max(job.remaining / its.unit, SHORTEST_REMAINING_S) / HOUR)
        its.base = (
            w[_REMAINING] * r
            + w[_REMAINING_SQUARED] * r * r
            + w[_LOAD_REMAINING] * r * load
            + w[_PRIORITY] * (1 - job.effective_priority)
            + w[_AGE] * np.log1p((now - job.submit_time) / HOUR)
            + w[_ATTAINED] * np.log1p(job.attained_service / HOUR)
        )
        its.sticky = w[_HELD] + w[_HELD_REMAINING] * r
        its.growth = w[_GAIN] + w[_GAIN_REMAINING] * r + w[_GAIN_LOAD] * load
        its.pace = w[_PACE] + w[_PACE_REMAINING] * r
        its.start = w[_START] + w[_START_REMAINING] * r + w[_START_LOAD] * load
        if w[_SLOPE] != 0.0 or w[_SLOPE_START] != 0.0:
            steep = steepness(job)
            its.base += w[_SLOPE] * steep
            its.start += w[_SLOPE_START] * steep
        its.class_start = CLASS_START_SCORE * (worst - job.class_rank)
        its.hours, its.rescale_cost = job.remaining / HOUR, w[_PATIENCE] * job.rescale_delay / HOUR
        its.max_price = max_price if len(weights) == 1 else np.exp(w[_PRICE])
        its.worth = 1.0
        if w[_WORTH] > 0.0:
            its.worth += w[_WORTH] * (3 - job.priority) * missing_share(job)
        its.worth_growth = w[_WORTH_GROWTH] * np.log(its.worth)
        its.keep = w[_KEEP] * job.rescale_delay / HOUR


@kernel(error_model="numpy")
def step_score(
    row: int, gpus: int, view: AnyArray, speeds: FloatArray, steps: GrowthSteps, inputs: AnyArray
) -> np.float64:
    """Return the score of a job's next step from `gpus` GPUs.

    The score is -infinity if the step gains nothing, costs too much or is not worth its rescale.
    """
    after, gain = steps.target[row, gpus], steps.gain[row, gpus]
    if not gain > 0:
        return NEVER
    its, speed, held = inputs[row], speeds[row], view[row].gpus
    left = its.hours
    if gpus > 0:
        saved = left / speed[gpus] - left / speed[after]
        extra = after * left / speed[after] - gpus * left / speed[gpus]
        if saved * its.worth < its.max_price * extra:
            if after > held or not its.keep > 0.0:
                return NEVER
            now, fewer = left / speed[min(held, view[row].max_gpus)], left / speed[gpus]
            gained = its.max_price * (held * now - gpus * fewer) - its.worth * (fewer - now)
            if gained > its.keep * (its.worth + its.max_price * held):
                return NEVER
    if 0 < held < after and left / speed[held] - left / speed[after] < its.rescale_cost:
        return NEVER
    kept = max(min(held, after) - gpus, 0) / (after - gpus)
    score: np.float64 = its.base + its.growth * np.log(gain / its.unit) + its.sticky * kept
    if gpus == 0:
        score += its.start
        score += its.class_start
    else:
        score += its.pace * np.log(speed[gpus] / its.unit) + its.worth_growth
    return score


_grow = growing(step_score)


@njit()
def steer(now: float, capacity: int, view: AnyArray, speed: FloatArray, weights: FloatArray) -> IntArray:
    """Allocate GPUs [n] by the index with `weights` [1 or n, WEIGHT_NAMES].

    view: [n] `rlpto.core.jobs.VIEW` in queue order. speed: [n, K + 1] of `rlpto.core.job_table.JobTable`.
    If the queue's classes are strict, a job starts before any job of a lower class starts, for any weights, and jobs
    above the lowest class present start before any job grows. If classes weigh, only the weights decide.
    """
    steps = hull_steps(speed, view["min_gpus"].copy(), view["max_gpus"].copy())
    return steer_by(now, capacity, view, speed, steps, weights)


@njit()
def steer_by(
    now: float, capacity: int, view: AnyArray, speed: FloatArray, steps: GrowthSteps, weights: FloatArray
) -> IntArray:
    """Do the work of `steer` with given `steps`: the `hull_steps` of speed between the limits of the jobs in view."""
    lowest = view["min_gpus"].copy()
    inputs = np.empty(len(view), SCORE_INPUTS)
    fill_score_inputs(now, capacity, view, weights, speed, inputs)
    if weights.shape[1] > _WEIGHTS:
        add_bonuses(now, capacity, view, speed, weights[0, _WEIGHTS:], inputs)
    return _grow(np.zeros_like(lowest), steps.target, (view, speed, steps, inputs), lowest, capacity, -np.inf)


class IndexOptions(Settings):
    """Options of `index`."""

    weights: Path | None = None
    """YAML file of weights, such as agent.yaml written by `rlpto train`. Default: the two-parameter form."""


class Index(BasePolicy[IndexOptions]):
    """Takes the steps with the largest index first, until the GPUs are gone or no step speeds up a job."""

    name = "index"
    summary = "greedy by marginal gain over remaining time^a, sticky, with tuned constants, elastic"
    source = "this project; after Gittins indices and Berg et al. 2020"
    Options = IndexOptions

    def __init__(self, options: IndexOptions | None = None, index_weights: FloatArray | None = None) -> None:
        """index_weights: [S], used instead of the weights in `options`."""
        super().__init__(options)
        file = self.options.weights
        if index_weights is None:
            index_weights = IndexWeights().array() if file is None else load_index_weights(file)
        self.weights = index_weights

    def __call__(self, state: ClusterState) -> Allocation:
        return Allocation(steer(state.time, state.capacity, state.jobs.records, state.jobs.speed, self.weights[None]))
