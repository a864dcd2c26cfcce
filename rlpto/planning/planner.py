"""The planner: at decision time it looks ahead with the simulator, and steers the index by what turned out cheapest.

Source: rollout algorithms (Bertsekas, Tsitsiklis, Wu, "Rollout Algorithms for Combinatorial Optimization", J. of
Heuristics 1997), with a random search over the weights of an index and common random numbers.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterState, Future
from rlpto.core.futures import FUTURES, FutureSource, SourceName
from rlpto.core.policy import BasePolicy
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.cores import cores
from rlpto.io.errors import PolicyError
from rlpto.io.paths import example_config, example_names
from rlpto.io.settings import Settings
from rlpto.planning.compiled_loop import Loop
from rlpto.planning.rollout import Start, copy_of, roll_out
from rlpto.planning.scene import Scenes
from rlpto.policies.index import Index
from rlpto.policies.index_weights import SLOPE_FEATURES, IndexWeights
from rlpto.policies.steering import STEERING_FEATURES, steer, steering_weights
from rlpto.policies.steering_file import load_portfolio, load_steering_weights
from rlpto.simulator.settings import SimulatorSettings

CHANGED_SHARE = 0.4
"""Probability with which a perturbation changes a weight."""
VARIED = len(STEERING_FEATURES) - len(SLOPE_FEATURES)
"""So many weights are perturbed: those that look at the slope of accuracy, which come last, stay as in the plan."""
OTHER_AIMS = ("-accuracy", "-shortfall")
"""Ends of the names of tuned files that are no candidates by default: they put off the ends of jobs."""
LONG_ROLLOUT_S = 0.0005
"""Where a rollout takes at least this long, threads are worth what it costs to start them."""
SMALLEST_SCALE = 0.3
"""A weight smaller than this is perturbed as if it were this large."""


Proposer = Callable[[ClusterState, FloatArray, FloatArray], FloatArray]
"""From a state in queue order, the plan that stands and the base, [STEERING_FEATURES] each, to candidates [C, ...]."""


class PlannerOptions(Settings):
    """Options of `planner`."""

    base: Path | None = None
    """Weights that every plan is compared with: a file of index or steering weights; null: the two-parameter index."""
    portfolio: Path | tuple[Path, ...] | None = None
    """File of further candidates, or files of one or several each; null: all that come with
    RLPTO and were tuned for reward or JCT."""
    proposals: Path | None = None
    """File of a network that proposes further candidates in each state, see docs/notes/planning-learnt.md."""
    futures: SourceName | None = None
    """Where jobs that may arrive are sampled from: a forecaster, usual rates, or the truth; null: none arrive."""
    samples: int = Field(FUTURES, ge=1, le=1000)
    """Futures that every candidate is tried in, the same for all; it costs the mean."""
    perturbations: int = Field(12, ge=0, le=10_000)
    """Random candidates in each plan, near to the best so far."""
    spread: float = Field(0.25, gt=0)
    """Standard deviation of what they differ by, relative to each weight."""
    every: float = Field(600.0, gt=0)
    """Seconds after which a plan is made anew where no job has come or gone."""
    interval: float | None = Field(600.0, gt=0)
    """Where decisions are taken at events, rollouts take others only so many seconds apart; null: as the scheduler."""
    work: int = Field(400_000, ge=1)
    """Speeds that a rollout looks at, one for every job and number of GPUs in each decision, until it is cut short and
    what is left is estimated."""
    jobs: int = Field(1_000, ge=1)
    """With more active jobs no plan is made: the base decides."""
    budget_ms: float | None = Field(None, gt=0)
    """Milliseconds after which no further candidate is tried; null: all are, and the same seed gives the same plans."""
    threads: int = Field(0, ge=0)
    """Threads that candidates are tried in; 0: one for every core where rollouts take long, and one where several
    processes evaluate in parallel. Plans do not depend on it."""
    weights: RewardWeights | None = None
    """Weights of the reward that plans are to earn; null: those of the experiment."""


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
        proposer: Proposer | None = None,
    ) -> None:
        """queue, simulator, reward: of the experiment; None: by default. proposer: made from the file `proposals`."""
        super().__init__(options)
        base = self.options.base
        self._base = steering_weights(IndexWeights().vector()) if base is None else load_steering_weights(base)
        self._portfolio = _portfolio(self.options.portfolio)
        weights = self.options.weights or reward or RewardWeights()
        known = (queue or QueueSettings(), simulator or SimulatorSettings(), self.options.interval)
        self._scenes = Scenes(*known, follow_accuracy=weights.shortfall > 0)
        self._reward = weights.record()
        self._proposer = proposer
        self._futures: FutureSource | None = None
        self.reset(0)

    def expect(self, futures: FutureSource | None) -> None:
        """From now on, jobs that may arrive are sampled from these. They are of one run alone."""
        self._futures = futures

    def reset(self, seed: int) -> None:
        """Forget the plan that stands, and the jobs that were planned for."""
        self._scenes.forget()
        self._rng = np.random.default_rng([seed, 3])
        self._plan = self._base
        self._seen: tuple[int, ...] = ()
        self._due = -np.inf

    def __call__(self, state: ClusterState) -> Allocation:
        """Plan if it is time to, and decide by the plan."""
        if self._futures is not None:
            self._futures.notice(state)
        elif self.options.futures is not None:
            raise PolicyError(f"policy {self.name}: futures: only a run of an experiment on a window has some")
        seen = (state.capacity, *sorted(state.jobs.index.tolist()))
        if seen != self._seen or state.time >= self._due:
            self._seen, self._due = seen, state.time + self.options.every
            self._plan = self._base if len(state.jobs) > self.options.jobs or not state.capacity else self._best(state)
        jobs = state.jobs
        return Allocation(steer(state.time, state.capacity, jobs.records, jobs.speed, self._plan[None]))

    def as_it_stands(self) -> Index:
        """The index with the weights of the present plan."""
        return Index(steering=self._plan)

    def _best(self, state: ClusterState) -> FloatArray:
        """[STEERING_FEATURES] weights that come out cheapest from a state on."""
        if len(state.jobs) == 1:
            return self._base
        candidates = self._candidates(state)
        futures: Sequence[Future | None] = (None,) if self._futures is None else self._futures(state)
        scenes = [self._scenes.build(state, one) for one in futures]
        cost = np.mean([self._costs(*scene, candidates, 1.0 / len(scenes)) for scene in scenes], axis=0)
        best: FloatArray = candidates[int(np.where(np.isnan(cost), np.inf, cost).argmin())]
        return best

    def _candidates(self, state: ClusterState) -> FloatArray:
        """[C, STEERING_FEATURES] what is tried: the plan that stands comes first, it stays where nothing is better."""
        near = np.repeat(self._plan[None], self.options.perturbations, axis=0)
        near = perturbed(near, self.options.spread, self._rng)
        known = [self._plan[None], self._base[None], self._portfolio]
        if self._proposer is not None:
            known.append(self._proposer(state, self._plan, self._base))
        elif self.options.proposals is not None:
            raise PolicyError(f"policy {self.name}: proposals: only an experiment can load a network")
        return np.concatenate([*known, near])

    def _costs(self, loop: Loop, start: Start, candidates: FloatArray, share: float) -> FloatArray:
        """[C] what each candidate costs; infinity for those that there was no time for, in this share of the budget."""
        cost = np.full(len(candidates), np.inf)
        budget = np.inf if self.options.budget_ms is None else share * self.options.budget_ms / 1000.0
        began = time.perf_counter()

        def try_one(i: int, own: Loop) -> None:
            roll_out(own, start, candidates[i : i + 1], self.options.work, self._reward, cost[i : i + 1])

        try_one(0, loop)
        threads, left = self._threads(len(candidates) - 1, time.perf_counter() - began), iter(range(1, len(candidates)))

        def try_those_left(own: Loop) -> None:
            for i in left:
                if time.perf_counter() > began + budget:
                    break
                try_one(i, own)

        if threads == 1:
            try_those_left(loop)
        else:
            with ThreadPoolExecutor(threads, "rollouts") as pool:
                list(pool.map(try_those_left, [loop, *(copy_of(loop) for _ in range(threads - 1))]))
        return cost

    def _threads(self, rollouts: int, seconds: float) -> int:
        """Threads for so many rollouts, each of which takes about so many seconds."""
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


def _portfolio(files: Path | Sequence[Path] | None) -> AnyArray:
    """[C, STEERING_FEATURES] weights in files, of one vector or of several; None: in those that come with RLPTO,
    but for `OTHER_AIMS`."""
    if files is None:
        names = [name for name in example_names("tuned", ".yaml") if not name.endswith(OTHER_AIMS)]
        files = [path for name in names if (path := example_config(name)) is not None]
    files = [files] if isinstance(files, Path) else files
    return np.concatenate([np.zeros((0, len(STEERING_FEATURES))), *(load_portfolio(path) for path in files)])
