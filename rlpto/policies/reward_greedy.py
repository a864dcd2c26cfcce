"""Greedy on our own reward, looking a fixed time ahead.

Source: this project's reward (`rlpto.core.rewards`), maximised one step ahead by marginal analysis (Fox,
Management Science 13(3), 1966).

The value of giving a job k GPUs for the next H seconds (the horizon and one rescale delay of that
job, so that a long delay does not make every start look worthless) is the sum of
    accuracy:   + accuracy weight x class weight x share of the accuracy the job can gain in all,
    time:       + time weight x (hours by which it finishes before H + work done, in hours on one GPU),
    resources:  - resources weight x k x hours held, at most until it finishes,
    rescale:    - rescale weight x hours of delay, if k differs from what it holds and it ran before.
Work is done at the job's speed after any rescale delay, until the job finishes. About the time part:
in the next H seconds every job that does not finish costs the same with any allocation; an allocation
changes only how long the job will stay afterwards. That is approximated by the work
left, counted at the pace of one GPU. Accuracy is taken as linear in progress within H. All values
are relative to giving the job nothing.
GPUs go to the largest value per GPU, along the concave hull, until nothing more pays.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.job_table import JobTable
from rlpto.core.policy import BasePolicy, unit_speed
from rlpto.core.rewards import HOUR, RewardWeights
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.io.settings import Settings
from rlpto.policies.greedy import grow, hull_steps

LEAST_WORK = 1e-9
"""Remaining work below this counts as this."""


class RewardGreedyOptions(Settings):
    """Options of `reward_greedy`."""

    weights: RewardWeights = RewardWeights()
    """Weights of the reward it maximises."""
    horizon: float = Field(600.0, gt=0)
    """Seconds ahead that are counted after a rescale, at least the interval between decisions."""


class RewardGreedy(BasePolicy[RewardGreedyOptions]):
    """Steps with the largest expected reward per GPU, as long as that is positive."""

    name = "reward_greedy"
    summary = "one-step greedy on this project's reward, elastic"
    source = "this project's reward; Fox, Management Science 13(3), 1966"
    Options = RewardGreedyOptions

    def __call__(self, state: ClusterState) -> Allocation:
        """Value every number of GPUs, then climb."""
        jobs = state.jobs
        lowest = jobs.min_gpus
        value = expected_reward(jobs, max(self.options.horizon, state.interval), self.options.weights)
        steps = hull_steps(value, lowest, jobs.max_gpus)
        return Allocation(grow(np.zeros_like(lowest), steps.target, steps.gain, lowest, state.capacity, 0.0))


def expected_reward(jobs: JobTable, horizon: float, weights: RewardWeights) -> FloatArray:
    """[n, K + 1] value of 0..K GPUs until `horizon` seconds after a rescale, as defined above.

    Relative to no GPUs, which are worth 0; entries beyond max_gpus are 0 and mean nothing.
    """
    unit = unit_speed(jobs)
    remaining = np.maximum(jobs.remaining, LEAST_WORK)
    left = jobs.epochs - jobs.progress
    ahead = np.minimum(left, left * unit * jobs.requested_gpus * horizon / remaining)  # epochs
    gainable = jobs.final_accuracy - jobs.accuracy_at(np.zeros(len(jobs)))
    gain = jobs.accuracy_at(jobs.progress + ahead) - jobs.accuracy
    worth = np.divide(gain, ahead * gainable, out=np.zeros(len(jobs)), where=(gainable > 0) & (ahead > 0))
    by_class = weights.accuracy * np.array(weights.classes)[jobs.priority]
    per_work = worth * by_class * left / remaining + weights.time / HOUR / unit
    return _value(
        jobs.speed,
        remaining,
        per_work,
        jobs.gpus,
        jobs.max_gpus,
        jobs.rescale_left,
        jobs.rescale_delay,
        np.isfinite(jobs.start_time),
        horizon,
        weights.time / HOUR,
        weights.resources / HOUR,
        weights.rescale / HOUR,
    )


@njit(error_model="numpy")
def _value(
    speed: FloatArray,
    remaining: FloatArray,
    per_work: FloatArray,
    held: IntArray,
    highest: IntArray,
    delay_left: FloatArray,
    delay: FloatArray,
    ran: BoolArray,
    horizon: float,
    time_cost: float,
    gpu_cost: float,
    delay_cost: float,
) -> FloatArray:
    """Value of every number of GPUs up to `highest`; per_work: reward per unit of work done."""
    value = np.zeros(speed.shape)
    for row in range(len(speed)):
        for gpus in range(1, highest[row] + 1):
            wait = delay_left[row] if gpus == held[row] else delay[row]
            ahead = horizon + delay[row]
            rate = speed[row, gpus]
            work = min(max(ahead - wait, 0.0) * rate, remaining[row])
            hold = wait + work / rate if work >= remaining[row] else ahead
            value[row, gpus] = per_work[row] * work + time_cost * (ahead - hold) - gpu_cost * gpus * hold
            if gpus != held[row] and ran[row]:
                value[row, gpus] -= delay_cost * wait
    return value
