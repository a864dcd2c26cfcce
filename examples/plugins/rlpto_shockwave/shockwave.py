"""Shockwave: an integer programme plans the coming rounds as a market would, and predicts changes of batch sizes.

Source: Zheng et al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning",
NSDI 2023; constants, estimates and the order within a plan are as in its simulator.
Adapted: all rounds of a plan are alike, so the programme has the number of rounds of each job as a variable, instead of
a binary variable for each round; measured throughput does not correct the profile. README.md lists other differences.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pydantic import Field

from rlpto.core.cluster import ClusterState
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.policies.rounds import Ranks, RoundOptions, RoundPolicy

BASES = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])  # progress at which the logarithm is exact; linear between
LOGS = np.log(np.maximum(BASES, 1e-6))
MOMENTUM = 0.9  # weight of a job's mean estimate of its fair finish time over time; the last estimate has the rest
NEARLY_DONE = 100.0  # power of the weight of a late job that ends within a round
LARGEST_LOG = 14.0  # logarithm of the largest weight
GAP, TIME_LIMIT_S = 1e-3, 15.0  # relative gap and time limit of the solver, which then returns its best plan


class ShockwaveOptions(RoundOptions):
    """Options of `shockwave`."""

    round: float = Field(120.0, gt=0)
    """Length of a round [s]: jobs keep their GPUs for that long."""
    ahead: int = Field(20, ge=1, le=1000)
    """Rounds that a plan covers."""
    replan: int = Field(8, ge=1)
    """Rounds after which a plan is made again; after a job has come or gone, at the next round."""
    makespan: float = Field(1e-3, ge=0)
    """Weight of the largest number of seconds of work that a job has left after the plan."""
    power: float = Field(12.0, ge=0)
    """Exponent of a late job's weight, which is its predicted JCT divided by its fair JCT."""


class Outlook(NamedTuple):
    """Predictions for n jobs on their requested GPUs.

    left, had: [n] seconds of remaining and of completed work. done: [n] share of the epochs that is done. pace: [n]
    share that a second of training adds.
    """

    left: FloatArray
    had: FloatArray
    done: FloatArray
    pace: FloatArray


class Shockwave(RoundPolicy[ShockwaveOptions]):
    """Plans the rounds ahead for the largest product of progress, weighted by lateness, and a short makespan."""

    name = "shockwave"
    summary = "rounds ahead by an integer programme: fair progress and makespan, batch changes predicted (Shockwave)"
    source = "Zheng et al., NSDI 2023 (Shockwave)"
    Options = ShockwaveOptions

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self._plan: dict[int, int] = {}  # by job: remaining rounds of the plan
        self._weight: dict[int, float] = {}
        self._fair: dict[int, list[tuple[float, float]]] = {}  # by job: time of each estimate, fair finish time [s]
        self._rounds_left = 0

    def ranks(self, state: ClusterState, speed: FloatArray, begins: bool) -> Ranks:
        """Rank planned jobs that need every remaining round first, then planned jobs by weight, others by work left."""
        jobs = state.jobs
        index = jobs.index.tolist()
        if begins:
            has_changed = self._plan.keys() != set(index)  # before a job that has begun since is added
            self._rounds_left -= 1
            for job in jobs.index[jobs.gpus > 0].tolist():
                self._plan[job] = self._plan.get(job, 0) - 1
            if has_changed or self._rounds_left <= self.options.ahead - self.options.replan:
                self._make_plan(state)
        rounds = np.array([self._plan.get(job, 0) for job in index])
        weight = np.array([self._weight.get(job, 0.0) for job in index]) / np.maximum(rounds, 1)
        rank = np.where(rounds >= self._rounds_left, 2.0, weight / (1 + weight)) * (rounds > 0)
        share = rank[:, None] * speed / np.maximum(speed.max(axis=1, keepdims=True), 1e-300)
        left = np.where(speed > 0, jobs.remaining_time(jobs.requested_gpus)[:, None], 0.0)
        return Ranks(share, np.ones_like(share), left, np.full(len(index), False))

    def _make_plan(self, state: ClusterState) -> None:
        """Plan each job's rounds. Fair finish times are bounds if all jobs can meet them, else late jobs weigh more."""
        rule, jobs, now = self.options, state.jobs, outlook(state)
        index, gpus, capacity = jobs.index.tolist(), jobs.requested_gpus, state.capacity
        share, seconds = min(1.0, max(capacity, 1) / len(jobs)), rule.ahead * rule.round
        if self._fair.keys() != set(index):
            ends = jobs.submit_time + (now.had + now.left) / share
            self._fair = {
                job: [*self._fair.get(job, []), (state.time, float(end))] for job, end in zip(index, ends, strict=True)
            }
        fair = np.array([mean_estimate(self._fair[job], state.time) for job in index])
        need = np.maximum(now.left - (fair - state.time - seconds) * share, 0.0)
        least, age = np.ceil(need / rule.round), state.time - jobs.submit_time
        late, weight = (age + now.left / share) / (fair - jobs.submit_time), np.ones(len(jobs))
        if (fair < state.time + seconds).any() or least.max() > rule.ahead or gpus @ least > capacity * rule.ahead:
            power = np.where(now.left < rule.round, NEARLY_DONE, rule.power)
            weight = np.exp(np.minimum(power * np.log(np.maximum(late, 1.0)), LARGEST_LOG))
            least = np.zeros(len(jobs))
        rounds = plan_rounds(now, weight, least, gpus, capacity, rule)
        self._plan, self._weight = (dict(zip(index, of.tolist(), strict=True)) for of in (rounds, weight))
        self._rounds_left = rule.ahead


def outlook(state: ClusterState) -> Outlook:
    """Return the predictions for all jobs.

    A job may change to any speed of its profile. The prior over these speeds is a uniform Dirichlet distribution, worth
    as many epochs as the job has; the posterior adds the epochs that the job has done at each speed.
    """
    jobs = state.jobs
    estimates, gpus = jobs.estimates(), jobs.requested_gpus
    rates = estimates.tables.rates[estimates.tables.packed_rows(state.shape.gpus_per_node)[estimates.type_index, gpus]]
    factor = estimates.scale.copy()
    if estimates.noise is not None:
        factor *= estimates.noise.speed * gpus**estimates.noise.scaling
    seconds = 1 / (rates * factor[:, None])
    whole, part = jobs.epochs[:, None], jobs.progress[:, None]
    start = np.arange(rates.shape[1])
    end = np.where(start == start[-1], np.inf, start + 1.0)  # later epochs repeat the last
    epochs, done = (np.maximum(np.minimum(upto, end) - start, 0.0) for upto in (whole, part))
    had, left = (done * seconds).sum(axis=1), np.zeros(len(jobs))
    for row, (each, planned, seen) in enumerate(zip(seconds, epochs, done, strict=True)):
        speeds, which = np.unique(each[planned > 0], return_inverse=True)
        before = np.bincount(which, seen[planned > 0])
        posterior = before + planned.sum() / len(speeds)
        posterior = np.maximum(posterior * planned.sum() / posterior.sum() - before, 0.0)
        left[row] = posterior @ speeds / max(posterior.sum(), 1e-9) * (planned - seen).sum()
    done_share = np.minimum(jobs.progress / jobs.epochs, 1.0)
    mean = np.where(jobs.progress > 0, had / np.maximum(jobs.progress, 1e-9), seconds[:, 0])
    return Outlook(np.maximum(left, 1e-3), had, done_share, 1 / (mean * jobs.epochs))


def mean_estimate(estimates: list[tuple[float, float]], now: float) -> float:
    """Return the mean of estimates (time, value), weighted by the time each was the newest; the last weighs more."""
    when, what = np.array(estimates).T
    stood = np.diff(np.append(when, now))
    mean = stood @ what / stood.sum() if stood.sum() > 0 else what[-1]
    return float(MOMENTUM * mean + (1 - MOMENTUM) * what[-1])


def plan_rounds(
    now: Outlook, weight: FloatArray, least: FloatArray, gpus: IntArray, capacity: int, rule: ShockwaveOptions
) -> IntArray:
    """Return the rounds [n] of each job, at least `least` [n]; all rounds if the solver finds no plan in its time.

    The plan maximises the mean over jobs of weight x log(progress) / `ahead`, less `makespan` x the largest number of
    seconds that a job still needs after the plan. Variables: rounds of each job, seconds trained in these rounds,
    weights of BASES that interpolate the job's progress, and this largest number of seconds.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import block_array, csr_array, eye_array, kron

    count, bases = len(weight), len(BASES)
    one, per_base = eye_array(count, format="csr"), kron(eye_array(count), np.ones((1, bases)), format="csr")
    progress = kron(eye_array(count), BASES[None], format="csr")
    rows = block_array(
        [
            [csr_array(gpus[None] * 1.0), None, None, None],
            [-rule.round * one, one, None, None],
            [None, None, per_base, None],
            [None, -csr_array(np.diag(now.pace)), progress, None],
            [None, one, None, csr_array(np.ones((count, 1)))],
        ]
    )
    some = np.ones(count)
    lower = np.concatenate([[-np.inf], -np.inf * some, some, now.done, now.left])
    upper = np.concatenate([[capacity * rule.ahead], 0 * some, some, now.done, np.inf * some])
    worth = -(weight / (count * rule.ahead))[:, None] * LOGS
    size = count * (2 + bases) + 1
    most = np.full(size, np.inf)
    most[:count] = rule.ahead
    found = milp(
        np.concatenate([0 * some, 0 * some, worth.ravel(), [rule.makespan]]),
        integrality=(np.arange(size) < count).astype(np.int64),
        bounds=Bounds(np.concatenate([least, np.zeros(size - count)]), most),
        constraints=LinearConstraint(rows, lower, upper),
        options={"mip_rel_gap": GAP, "time_limit": TIME_LIMIT_S},
    )
    if found.x is None:
        return np.full(count, rule.ahead)
    return np.asarray(np.round(found.x[:count]).astype(np.int64))
