"""The planner: at decision time it looks ahead with the simulator, and steers the index by what turned out cheapest.

Source: rollout algorithms (Bertsekas, Tsitsiklis, Wu, "Rollout Algorithms for Combinatorial Optimization", J. of
Heuristics 1997), with a random search over the weights of an index and common random numbers.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import FloatArray
from rlpto.io.cores import cores
from rlpto.io.settings import Settings
from rlpto.planning.compiled_loop import Loop
from rlpto.planning.rollout import RolloutStates, Start, copy_of, roll_out
from rlpto.policies.index import Index, steer
from rlpto.policies.index_weights import SLOPE_FEATURES, STEERING_FEATURES, IndexWeights, load_weights
from rlpto.simulator.settings import SimulatorSettings

CHANGED_SHARE = 0.4
"""Probability with which a perturbation changes a weight."""
VARIED = len(STEERING_FEATURES) - len(SLOPE_FEATURES)
"""Number of weights that are perturbed: those for the slope of accuracy, which come last, stay as in the plan."""
LONG_ROLLOUT_S = 0.0005
"""Where a rollout takes at least this long, threads are worth what it costs to start them."""
SMALLEST_SCALE = 0.3
"""A weight smaller than this is perturbed as if it were this large."""


class PlannerOptions(Settings):
    """Options of `planner`."""

    base: Path | None = None
    """Weights that every plan is compared with: a file of index or steering weights; null: the two-parameter index."""
    perturbations: int = Field(26, ge=0, le=10_000)
    """Random candidates in each plan, close to the plan in force."""
    spread: float = Field(0.25, gt=0)
    """Standard deviation of what they differ by, relative to each weight."""
    every: float = Field(600.0, gt=0)
    """Seconds after which another plan is made where no job has come or gone."""
    interval: float | None = Field(600.0, gt=0)
    """Where decisions are taken at events, seconds between the other decisions of rollouts; null: as the scheduler."""
    work: int = Field(400_000, ge=1)
    """Speeds that a rollout looks at, one for every job and number of GPUs in each decision, until it is cut short and
    what is left is estimated."""
    jobs: int = Field(1_000, ge=1)
    """With more active jobs no plan is made: the base decides."""
    known: float = Field(0.5, ge=0, le=1)
    """Least share of the active jobs whose remaining work is declared or learnt from others; with less no plan is made,
    since rollouts would end when a guess says so. In rollouts the other jobs are as long as is guessed. 0: always."""
    threads: int = Field(0, ge=0)
    """Threads that candidates are tried in; 0: one for every core where rollouts take long, and one where several
    processes evaluate in parallel. Plans do not depend on it."""


class Planner(BasePolicy[PlannerOptions]):
    """Steers the index by weights that come out cheapest when the cluster is simulated forward from what is known."""

    name = "planner"
    summary = "looks ahead: tries steering weights in its own simulator, elastic"
    source = "this project; rollouts after Bertsekas, Tsitsiklis, Wu 1997"
    Options = PlannerOptions

    def __init__(
        self,
        options: PlannerOptions | None = None,
        queue: QueueSettings | None = None,
        simulator: SimulatorSettings | None = None,
        reward: RewardWeights | None = None,
    ) -> None:
        """queue, simulator, reward: of the experiment; None: the defaults."""
        given = options or PlannerOptions()
        self._base = IndexWeights().vector() if given.base is None else load_weights(given.base)
        weights = reward or RewardWeights()
        known = (queue or QueueSettings(), simulator or SimulatorSettings(), given.interval)
        self._rollout_states = RolloutStates(*known, follow_accuracy=weights.shortfall > 0)
        self._reward = weights.record()
        super().__init__(given)

    def reset(self, seed: int) -> None:
        """Forget the plan that stands, and the jobs that were planned for."""
        self._rollout_states.forget()
        self._rng = np.random.default_rng([seed, 3])
        self._plan = self._base
        self._seen: tuple[int, ...] = ()
        self._due = -np.inf

    def __call__(self, state: ClusterState) -> Allocation:
        """Plan if it is time to, and decide by the plan."""
        seen = (state.capacity, *sorted(state.jobs.index.tolist()))
        if seen != self._seen or state.time >= self._due:
            self._seen, self._due = seen, state.time + self.options.every
            self._plan = self._best(state) if self._worth_planning(state) else self._base
        jobs = state.jobs
        return Allocation(steer(state.time, state.capacity, jobs.records, jobs.speed, self._plan[None]))

    def frozen(self) -> Index:
        """The index with the weights of the present plan."""
        return Index(steering=self._plan)

    def _worth_planning(self, state: ClusterState) -> bool:
        """Whether there is something to choose, and rollouts would not end mostly when guesses say so."""
        if not state.capacity or not 1 < len(state.jobs) <= self.options.jobs:
            return False
        return float(state.jobs.remaining_known.mean()) >= self.options.known

    def _best(self, state: ClusterState) -> FloatArray:
        """[STEERING_FEATURES] weights that come out cheapest from a state on."""
        candidates = self._candidates()
        cost = self._costs(*self._rollout_states.build(state), candidates)
        best: FloatArray = candidates[int(np.where(np.isnan(cost), np.inf, cost).argmin())]
        return best

    def _candidates(self) -> FloatArray:
        """[C, STEERING_FEATURES] what is tried: the plan that stands comes first, it stays where nothing is better."""
        near = np.repeat(self._plan[None], self.options.perturbations, axis=0)
        near = perturbed(near, self.options.spread, self._rng)
        return np.concatenate([[self._plan, self._base], near])

    def _costs(self, loop: Loop, start: Start, candidates: FloatArray) -> FloatArray:
        """[C] what each candidate costs."""
        cost = np.empty(len(candidates))
        began = time.perf_counter()

        def try_one(i: int, own: Loop) -> None:
            roll_out(own, start, candidates[i : i + 1], self.options.work, self._reward, cost[i : i + 1])

        try_one(0, loop)
        threads, left = self._threads(len(candidates) - 1, time.perf_counter() - began), iter(range(1, len(candidates)))

        def try_those_left(own: Loop) -> None:
            for i in left:
                try_one(i, own)

        if threads == 1:
            try_those_left(loop)
        else:
            with ThreadPoolExecutor(threads, "rollouts") as pool:
                list(pool.map(try_those_left, [loop, *(copy_of(loop) for _ in range(threads - 1))]))
        return cost

    def _threads(self, rollouts: int, seconds: float) -> int:
        """Threads for a number of rollouts that take about `seconds` each."""
        given = self.options.threads
        if not given:
            alone = seconds < LONG_ROLLOUT_S or multiprocessing.parent_process() is not None
            given = 1 if alone else cores()
        return max(1, min(given, rollouts))


def perturbed(weights: FloatArray, spread: float, rng: np.random.Generator) -> FloatArray:
    """Random vectors near to weights [C, STEERING_FEATURES]; see `PlannerOptions.spread`."""
    near, varied = weights.copy(), weights[:, :VARIED]
    scale = np.maximum(np.abs(varied), SMALLEST_SCALE) * spread
    changed = rng.random(varied.shape) < CHANGED_SHARE
    near[:, :VARIED] = varied + changed * scale * rng.standard_normal(varied.shape)
    return near
