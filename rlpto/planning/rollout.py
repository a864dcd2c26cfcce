"""Rollouts: what a cluster comes to under candidates for its steering weights, simulated forward from what is known.

Every candidate starts at the same state, which is made of what a policy knows and nothing else, and meets the same
future (common random numbers): no job comes, and no node fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.core.gpu_kinds import Kinds
from rlpto.core.job_store import JobStore
from rlpto.core.job_table import BelievedSpeeds
from rlpto.core.queues import QueueSettings
from rlpto.core.records import INTERVAL
from rlpto.core.rewards import HOUR, TERMS, weigh
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.knowledge.job_types import EstimatedJobs
from rlpto.performance.tables import SpeedTables, elapsed_from_rates
from rlpto.planning.compiled_loop import Loop, build_loop, decide_and_run, look_around
from rlpto.policies.greedy import GrowthSteps
from rlpto.simulator.arrays import World, build_world
from rlpto.simulator.kernels import is_over, take_up_all
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

ACCURACY = [term.name for term in TERMS].index("accuracy")
"""Place of a term that is the same for every plan: all jobs finish at last."""
MOST_IDLE_DECISIONS = 100
"""Decisions in a row after which no job holds GPUs, before a rollout ends."""
COUNT = len(TERMS)
"""Terms of the reward."""
NO_NOISE = np.zeros((1, 0, 0))


class Start(NamedTuple):
    """Where rollouts begin: one cluster's state, see `World`, B = 1 each."""

    jobs: AnyArray
    nodes: AnyArray
    clusters: AnyArray
    active: AnyArray
    machines: AnyArray
    free: AnyArray


def start_of(world: World) -> Start:
    """A copy of the state of cluster 0 of a world."""
    return Start(*(getattr(world, name)[:1].copy() for name in Start._fields))


def copy_of(loop: Loop) -> Loop:
    """The same, for another thread: nothing that rollouts change is shared."""
    world = loop.world._replace(
        **{name: getattr(loop.world, name).copy() for name in (*Start._fields, "sums", "scratch")}
    )
    changed = ("current", "shown", "speed", "known", "chain", "ordered_until", "numbers", "given", "left", "sums")
    steps = GrowthSteps(loop.steps.target.copy(), loop.steps.gain.copy())
    return loop._replace(world=world, steps=steps, **{name: getattr(loop, name).copy() for name in (*changed, "seen")})


class RolloutStates:
    """Builds the start of rollouts from states; keeps from one to the next what it had to compute of speeds.

    queue: as that of the scheduler. simulator: how time passes in rollouts; no node fails there. interval: where the
    scheduler decides at events, seconds after which rollouts decide without one, too. follow_accuracy:
    whether what plans cost depends on when jobs gain their accuracy.
    """

    def __init__(
        self,
        queue: QueueSettings,
        simulator: SimulatorSettings,
        interval: float | None = None,
        follow_accuracy: bool = False,
    ) -> None:
        self._queue, self._follow_accuracy = queue, follow_accuracy
        same: dict[str, object] = {"failures": FailureSettings(), "max_hours": None}
        if interval is not None and simulator.decide_on == "events":
            same["interval"] = max(interval, simulator.interval)
        self._simulator = simulator.model_copy(update=same)
        self._elapsed = np.zeros((0, 0))
        self._own: EstimatedJobs | None = None

    def forget(self) -> None:
        """Another run begins: its jobs have the numbers of others, and errors of their own."""
        self._own = None

    def build(self, state: ClusterState) -> tuple[Loop, Start]:
        """What rollouts from `state` on run by, and where they begin. At least one GPU must be up."""
        rows = np.argsort(state.jobs.index, kind="stable")
        table = state.jobs.reordered(rows, state.jobs.effective_priority[rows])
        placement, believed, store = state.placement(table.index), table.believed(), table.columns()
        tables, shown = self._tables(believed, table.index, store, state.gpus_per_node)
        store.measured_accuracy[:] = np.nan
        store.rescale_left[:] = placement.pausing
        world = build_world(
            store.records[None],
            state.shape,
            tables,
            self._simulator,
            0,
            keep_log=False,
            follow_accuracy=self._follow_accuracy,
        )
        take_up_all(world, state.time, state.shape, placement)
        by_kind = shown.fit.size and shown.by_kind.shape[1] == len(shown.kinds)  # else a type stands for all kinds
        kinds = Kinds.of(state.shape, shown) if by_kind else None
        loop = build_loop(world, shown, self._queue, state.gpus_per_node, NO_NOISE, kinds=kinds)
        return loop, start_of(world)

    def _tables(
        self, believed: BelievedSpeeds, index: IntArray, store: JobStore, gpus_per_node: int
    ) -> tuple[SpeedTables, SpeedTables]:
        """Tables of the speeds that jobs have in rollouts, and those of what is shown of them there.

        The types in the store are changed to types of these tables.
        """
        tables = believed.tables
        store.type_index[:] = store.believed_type[:] = believed.type_index
        if believed.noise is not None:
            if self._own is None or self._own.base is not tables:
                self._own = EstimatedJobs(tables, gpus_per_node)
            store.type_index[:] = store.believed_type[:] = self._own.types_of(index, believed)
            return self._own.tables, self._own.tables
        if tables.rewritten:
            if self._elapsed.shape != (len(tables.rates), tables.rates.shape[1] + 1):
                self._elapsed = np.zeros((len(tables.rates), tables.rates.shape[1] + 1))
                self._elapsed[0, 1:] = np.inf
            rows = np.unique(tables.row[np.unique(believed.type_index), :, 1:])
            self._elapsed[rows] = elapsed_from_rates(tables.rates[rows])
            return replace(tables, elapsed=self._elapsed), tables
        return tables, tables


@njit(nogil=True)
def roll_out(loop: Loop, start: Start, candidates: FloatArray, work: int, reward: AnyArray, cost: FloatArray) -> None:
    """Fill cost [C] with what candidates [C, STEERING_FEATURES] come to: minus the reward until all jobs have finished.

    loop: of one cluster; its state is lost. reward: [1] `rlpto.core.rewards.WEIGHTS`.
    A rollout is cut short where no job gets GPUs any more, since those that are left need nodes that are down, and once
    it has looked at `work` speeds, one for every job and number of GPUs in each decision; what the jobs that are left
    then cost further is estimated by `cost_to_go`.
    """
    w, terms, first = loop.world, np.zeros(COUNT), int(np.int64(0))  # a literal's own type would be compiled for again
    for i in range(len(candidates)):
        w.jobs[0] = start.jobs[0]
        w.nodes[0] = start.nodes[0]
        w.clusters[0] = start.clusters[0]
        w.active[0] = start.active[0]
        w.machines[0] = start.machines[0]
        w.free[0] = start.free[0]
        loop.ordered_until[0] = -np.inf
        total, looked, idle = np.zeros(1, INTERVAL), 0, 0
        look_around(loop, first)
        while not is_over(w, first) and looked < work and idle < MOST_IDLE_DECISIONS:
            for row in range(w.clusters[0].active):
                looked += loop.shown[0, row].max_gpus
            decide_and_run(loop, first, candidates[i : i + 1], total)
            idle = idle + 1 if w.clusters[0].held == 0 else 0
        weigh(total, reward, terms)
        cost[i] = terms[ACCURACY] - terms.sum()
        if not is_over(w, first):
            cost[i] += reward[0].time * cost_to_go(loop) / HOUR


@njit()
def cost_to_go(loop: Loop) -> float:
    """Job-seconds [s] that the active jobs of cluster 0, which has been looked at, will still take, roughly.

    As if the jobs took turns, the one with the least work first, all GPUs at once at the pace of one each; but no job
    ends earlier than with all GPUs it may have.
    """
    n, capacity = loop.world.clusters[0].active, max(loop.world.clusters[0].capacity, 1)
    work, alone = np.zeros(n), np.zeros(n)
    for i in range(n):
        job, speed = loop.shown[0, i], loop.speed[0, i]
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
