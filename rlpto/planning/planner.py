"""The planner: at decision time it simulates forward with candidate index weights, and uses the cheapest ones.

Every candidate is rolled out from the same state, which contains only data that policies know, and meets the same
future (common random numbers): no job arrives, and no node fails.
Source: rollout algorithms (Bertsekas, Tsitsiklis, Wu, "Rollout Algorithms for Combinatorial Optimization", J. of
Heuristics 1997), with a random search over the weights of an index.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.gpu_types import GpuTypes
from rlpto.core.policy import BasePolicy
from rlpto.core.queues import QueueSettings
from rlpto.core.records import INTERVAL
from rlpto.core.rewards import HOUR, TERMS, RewardWeights, weigh
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.compiled import copy_rows, njit
from rlpto.io.cores import cores
from rlpto.io.settings import Settings
from rlpto.planning.snapshot import known_speeds
from rlpto.policies.index import Index, steer
from rlpto.policies.index_weights import ACCURACY_FEATURES, WEIGHT_NAMES, IndexWeights, load_index_weights
from rlpto.simulator.arrays import build_world
from rlpto.simulator.batch_loop import Loop, build_loop, copy_of, decide_and_run, look_around
from rlpto.simulator.kernels import is_over, take_up_all
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

CHANGED_SHARE = 0.4
"""Probability with which a perturbation changes a weight."""
VARIED = len(WEIGHT_NAMES) - len(ACCURACY_FEATURES)
"""Number of weights that are perturbed. Weights that depend on accuracy come last and are never perturbed."""
LONG_ROLLOUT_S = 0.0005
"""Duration of a rollout from which threads are worth their start."""
SMALLEST_SCALE = 0.3
"""A weight smaller than this is perturbed as if it were this large."""
ACCURACY = [term.name for term in TERMS].index("accuracy")
"""Index of the reward term that is the same for every plan: all jobs finish at last."""
MOST_IDLE_DECISIONS = 100
"""Decisions in a row without any job holding GPUs, after which a rollout ends."""
COUNT = len(TERMS)
NO_NOISE = np.zeros((1, 0, 0))


class Start(NamedTuple):
    """Start of rollouts: a copy of one cluster's state, arrays of `World` with B = 1."""

    jobs: AnyArray
    nodes: AnyArray
    clusters: AnyArray
    active: AnyArray
    machines: AnyArray
    free: AnyArray


class PlannerOptions(Settings):
    """Options of `planner`."""

    base: Path | None = None
    """File of index weights that every plan is compared with. Default: the two-parameter index."""
    perturbations: int = Field(26, ge=0, le=10_000)
    """Random candidates in each plan, close to the plan in force."""
    spread: float = Field(0.25, gt=0)
    """Standard deviation of the perturbations, relative to each weight."""
    every: float = Field(600.0, gt=0)
    """Seconds after which another plan is made if no job has come or gone."""
    interval: float | None = Field(600.0, gt=0)
    """Seconds between regular decisions in rollouts, if the scheduler decides at events. Null: the scheduler's."""
    work: int = Field(400_000, ge=1)
    """Speeds that a rollout reads, one for every job and number of GPUs in each decision, until it is cut short and the
    remaining cost is estimated."""
    jobs: int = Field(1_000, ge=1)
    """With more active jobs no plan is made: the base decides."""
    jobs_per_gpu: float = Field(1.0, ge=0)
    """Largest number of active jobs per GPU that is up with which plans are made if remaining work is not declared.
    With more, estimates change many times before the jobs of a rollout end, and plans stop jobs again and again."""
    known: float = Field(0.5, ge=0, le=1)
    """Least share of the active jobs whose remaining work is declared or learnt from other jobs. With less no plan is
    made, because rollouts would end when a guess says so. In rollouts the other jobs have their guessed length. With 0,
    plans are always made."""
    threads: int = Field(0, ge=0)
    """Threads in which candidates are tried. 0 chooses one per core if rollouts take long, and one if several processes
    evaluate in parallel. Plans do not depend on it."""


class Planner(BasePolicy[PlannerOptions]):
    """Sets index weights to the cheapest candidates when the cluster is simulated forward from its known state."""

    name = "planner"
    summary = "looks ahead: tries index weights in its own simulator, elastic"
    source = "this project; rollouts after Bertsekas, Tsitsiklis, Wu 1997"
    Options = PlannerOptions

    def __init__(
        self,
        options: PlannerOptions | None = None,
        queue: QueueSettings | None = None,
        simulator: SimulatorSettings | None = None,
        reward: RewardWeights | None = None,
    ) -> None:
        """queue, simulator, reward: settings of the experiment. Default: the default settings."""
        given, times = options or PlannerOptions(), simulator or SimulatorSettings()
        self._base = IndexWeights().array() if given.base is None else load_index_weights(given.base)
        self._queue, self._reward = queue or QueueSettings(), (reward or RewardWeights()).record()
        same: dict[str, object] = {"failures": FailureSettings(), "max_hours": None}
        if given.interval is not None and times.decide_on == "events":
            same["interval"] = max(given.interval, times.interval)
        self._simulator = times.model_copy(update=same)
        super().__init__(given)

    def reset(self, seed: int) -> None:
        """Forget the plan in force, and the jobs it was made for: jobs of another run have the same numbers."""
        self._rng = np.random.default_rng([seed, 3])
        self._plan = self._base
        self._seen: tuple[int, ...] = ()
        self._due = -np.inf

    def __call__(self, state: ClusterState) -> Allocation:
        """Plan if a plan is due, and decide by the plan."""
        jobs, rule = state.jobs, self.options
        seen = (state.capacity, *sorted(jobs.index.tolist()))
        if seen != self._seen or state.time >= self._due:
            self._seen, self._due = seen, state.time + rule.every
            self._plan = self._best(state) if self._may_plan(state) else self._base
        return Allocation(steer(state.time, state.capacity, jobs.records, jobs.speed, self._plan[None]))

    def _may_plan(self, state: ClusterState) -> bool:
        """Whether there is a choice to make, and the remaining work of enough jobs is known for a plan."""
        jobs, rule = state.jobs, self.options
        if state.capacity == 0 or not 1 < len(jobs) <= rule.jobs:
            return False
        crowded = len(jobs) > rule.jobs_per_gpu * state.capacity
        return jobs.remaining_declared or (not crowded and float(jobs.remaining_known.mean()) >= rule.known)

    def frozen(self) -> Index:
        """Return the index with the weights of the present plan, as a snapshot policy."""
        return Index(index_weights=self._plan)

    def _best(self, state: ClusterState) -> FloatArray:
        """[WEIGHT_NAMES] cheapest index weights from a state on.

        The plan in force is tried first and stays if nothing is better; then the base, and random vectors near that
        plan.
        """
        near = np.repeat(self._plan[None], self.options.perturbations, axis=0)
        varied = near[:, :VARIED]
        scale = np.maximum(np.abs(varied), SMALLEST_SCALE) * self.options.spread
        changed = self._rng.random(varied.shape) < CHANGED_SHARE
        near[:, :VARIED] = varied + changed * scale * self._rng.standard_normal(varied.shape)
        candidates = np.concatenate([[self._plan, self._base], near])
        cost = self._costs(*self.start_of_rollouts(state), candidates)
        best: FloatArray = candidates[int(np.where(np.isnan(cost), np.inf, cost).argmin())]
        return best

    def start_of_rollouts(self, state: ClusterState) -> tuple[Loop, Start]:
        """Return the loop that rollouts from `state` use, and their start. At least one GPU must be up."""
        rows = np.argsort(state.jobs.index, kind="stable")
        table = state.jobs.reordered(rows, state.jobs.effective_priority[rows])
        placement, estimates, store = state.placement(table.index), table.estimates(), table.columns()
        if estimates.noise is not None or estimates.tables.written is not None:  # rollouts train at estimated speeds
            estimates = known_speeds(estimates, state.gpus_per_node)
        store.type_index[:] = store.estimated_type[:] = estimates.type_index
        store.scale[:] = estimates.scale
        tables = estimates.tables
        store.measured_accuracy[:] = np.nan
        store.rescale_left[:] = placement.pausing
        late = bool(self._reward["shortfall"][0] > 0)  # it matters when jobs gain their accuracy
        world = build_world(
            store.records[None], state.shape, tables, self._simulator, 0, keep_log=False, follow_accuracy=late
        )
        take_up_all(world, state.time, state.shape, placement)
        by_gpu_type = tables.floor_size.size and tables.by_gpu_type.shape[1] == len(tables.gpu_types)
        gpu_types = GpuTypes.of(state.shape, tables) if by_gpu_type else None
        loop = build_loop(world, tables, self._queue, state.gpus_per_node, NO_NOISE, gpu_types=gpu_types)
        return loop, Start(*(getattr(world, name)[:1].copy() for name in Start._fields))

    def _costs(self, loop: Loop, start: Start, candidates: FloatArray) -> FloatArray:
        """[C] cost of each candidate."""
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


@njit(nogil=True)
def roll_out(loop: Loop, start: Start, candidates: FloatArray, work: int, reward: AnyArray, cost: FloatArray) -> None:
    """Fill cost [C] of candidates [C, WEIGHT_NAMES]: minus the reward until all jobs have finished.

    loop: loop of one cluster; its state is overwritten. reward: [1] `rlpto.core.rewards.WEIGHTS`.
    A rollout is cut short if no job gets GPUs any more, because the remaining jobs need nodes that are down, and once
    it has read `work` speeds, one for every job and number of GPUs in each decision; `cost_to_go` then estimates the
    additional cost of the remaining jobs.
    """
    w, terms, first = loop.world, np.zeros(COUNT), int(np.int64(0))  # a literal's own type would be compiled for again
    for i in range(len(candidates)):
        copy_rows(w.jobs[0], start.jobs[0])
        for job in range(len(w.jobs[0])):
            copy_rows(w.nodes[0, job], start.nodes[0, job])
        w.clusters[0] = start.clusters[0]
        copy_rows(w.active[0], start.active[0])
        copy_rows(w.machines[0], start.machines[0])
        copy_rows(w.free[0], start.free[0])
        loop.shown.ordered_until[0] = -np.inf
        total, looked, idle = np.zeros(1, INTERVAL), 0, 0
        look_around(loop, first)
        while not is_over(w, first) and looked < work and idle < MOST_IDLE_DECISIONS:
            for row in range(w.clusters[0].active):
                looked += loop.shown.jobs[0, row].max_gpus
            decide_and_run(loop, first, candidates[i : i + 1], total)
            idle = idle + 1 if w.clusters[0].held == 0 else 0
        weigh(total, reward, terms)
        cost[i] = terms[ACCURACY] - terms.sum()
        if not is_over(w, first):
            cost[i] += reward[0].time * cost_to_go(loop) / HOUR


@njit()
def cost_to_go(loop: Loop) -> float:
    """Rough estimate of the job-seconds [s] that the active jobs of cluster 0, after `look_around`, will still take.

    As if the jobs took turns, shortest work first, using all GPUs at the pace of one each; but no job ends earlier than
    with all GPUs it may have.
    """
    n, capacity = loop.world.clusters[0].active, max(loop.world.clusters[0].capacity, 1)
    work, alone = np.zeros(n), np.zeros(n)
    for i in range(n):
        job, speed = loop.shown.jobs[0, i], loop.shown.speed[0, i]
        work[i] = job.remaining / speed[job.min_gpus] * job.min_gpus
        fastest = speed[job.min_gpus]
        for k in range(job.min_gpus, min(job.max_gpus, capacity) + 1):
            fastest = max(fastest, speed[k])
        alone[i] = job.remaining / fastest
    cost, before = 0.0, 0.0
    for i in np.argsort(work):
        before += work[i] / capacity
        cost += max(before, alone[i])
    return cost
