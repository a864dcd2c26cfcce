"""Greedy on this project's reward, looking a fixed time ahead.

Source: this project's reward (`rlpto.core.rewards`), maximised one step ahead by marginal analysis (Fox,
Management Science 13(3), 1966).

The value of giving a job k GPUs for the next H seconds (the horizon plus one rescale delay of the
job, or a long delay would make every start look worthless) is the sum of
    accuracy:   + accuracy weight x class weight x share of the accuracy the job can gain in all,
    time:       + worth of an hour x (hours by which it finishes before H + work done, in hours on one GPU), the worth
                being time weight + shortfall weight x class weight x share of its accuracy that the job misses,
    resources:  - resources weight x k x hours held, at most until it finishes,
    rescale:    - rescale weight x hours of delay, if k differs from the present GPUs and the job ran before.
Work is done at the job's speed after any rescale delay, until the job finishes. About the time part:
in the next H seconds every job that does not finish costs the same with any allocation; an allocation
changes only how long the job will stay afterwards. This time is approximated by the remaining work at
the pace of one GPU. Accuracy is taken as linear in progress within H. All values are relative to giving
the job nothing.
GPUs go to the largest value per GPU, along the concave hull, until nothing more pays. If nothing
pays at all, for example with a horizon far below the delays, one job gets its min_gpus, since otherwise
no job would ever train.
"""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.job_table import JobTable
from rlpto.core.policy import BasePolicy, unit_speed
from rlpto.core.rewards import HOUR, RewardWeights
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.compiled import njit
from rlpto.io.settings import Settings
from rlpto.policies.greedy import grow, hull_steps

LEAST_WORK = 1e-9
"""Lower limit of remaining work in computations."""
HORIZON_S = 600.0
"""Seconds that count after a rescale, at least the interval between decisions."""


class RewardGreedyOptions(Settings):
    """Options of `reward_greedy`."""

    weights: RewardWeights = RewardWeights()
    """Weights of the maximised reward."""


class RewardGreedy(BasePolicy[RewardGreedyOptions]):
    """Takes the steps with the largest expected reward per GPU, as long as the reward is positive."""

    name = "reward_greedy"
    summary = "one-step greedy on this project's reward, elastic"
    source = "this project's reward; Fox, Management Science 13(3), 1966"
    Options = RewardGreedyOptions

    def __call__(self, state: ClusterState) -> Allocation:
        """Compute the value of every number of GPUs, then take the best steps."""
        jobs = state.jobs
        lowest = jobs.min_gpus
        value = expected_reward(jobs, max(HORIZON_S, state.interval), self.options.weights)
        steps = hull_steps(value, lowest, jobs.max_gpus)
        gpus = grow(np.zeros_like(lowest), steps.target, steps.gain, lowest, state.capacity, 0.0)
        if not gpus.any() and (lowest <= state.capacity).any():
            per_gpu = value[np.arange(len(jobs)), lowest] / lowest
            best = int(np.argmax(np.where(lowest <= state.capacity, per_gpu, -np.inf)))
            gpus[best] = lowest[best]
        return Allocation(gpus)


def expected_reward(jobs: JobTable, horizon: float, weights: RewardWeights) -> FloatArray:
    """Return the value [n, K + 1] of 0..K GPUs until `horizon` seconds after a rescale, as defined above.

    Values are relative to no GPUs, which are worth 0; entries beyond max_gpus are 0 and mean nothing.
    """
    unit = unit_speed(jobs)
    remaining = np.maximum(jobs.remaining, LEAST_WORK)
    left = jobs.epochs - jobs.progress
    ahead = np.minimum(left, left * unit * jobs.requested_gpus * horizon / remaining)  # epochs
    gainable = jobs.final_accuracy - jobs.accuracy_at(np.zeros(len(jobs)))
    gain = jobs.accuracy_at(jobs.progress + ahead) - jobs.accuracy
    worth = np.divide(gain, ahead * gainable, out=np.zeros(len(jobs)), where=(gainable > 0) & (ahead > 0))
    by_class = np.array(weights.classes)[jobs.priority]
    missing = np.divide(jobs.final_accuracy - jobs.accuracy, gainable, out=np.zeros(len(jobs)), where=gainable > 0)
    per_second = (weights.time + weights.shortfall * by_class * np.clip(missing, 0.0, 1.0)) / HOUR
    per_work = worth * (weights.accuracy * by_class) * left / remaining + per_second / unit
    return _value(jobs.speed, jobs.records, per_work, per_second, horizon, weights.record())


@njit(error_model="numpy")
def _value(
    speed: FloatArray,
    view: AnyArray,
    per_work: FloatArray,
    per_second: FloatArray,
    horizon: float,
    weights: AnyArray,
) -> FloatArray:
    """Return the value of every number of GPUs, up to max_gpus, for the jobs in view [n] VIEW.

    per_work: [n] reward per unit of work done. per_second: [n] worth of time. weights: [1]
    `rlpto.core.rewards.WEIGHTS`.
    """
    value, w = np.zeros(speed.shape), weights[0]
    gpu_cost, delay_cost = w.resources / HOUR, w.rescale / HOUR
    for row in range(len(speed)):
        job = view[row]
        remaining = max(job.remaining, LEAST_WORK)
        for gpus in range(1, job.max_gpus + 1):
            wait = job.rescale_left if gpus == job.gpus else job.rescale_delay
            ahead = horizon + job.rescale_delay
            rate = speed[row, gpus]
            work = min(max(ahead - wait, 0.0) * rate, remaining)
            hold = wait + work / rate if work >= remaining else ahead
            value[row, gpus] = per_work[row] * work + per_second[row] * (ahead - hold) - gpu_cost * gpus * hold
            if gpus != job.gpus and np.isfinite(job.start_time):
                value[row, gpus] -= delay_cost * wait
    return value
