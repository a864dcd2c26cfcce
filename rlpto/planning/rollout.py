"""Rollouts: what a cluster comes to under candidates for its steering weights, simulated forward from what is known.

Every candidate starts at the same state and meets the same future (common random numbers): no job comes,
and no node fails.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.core.records import INTERVAL
from rlpto.core.rewards import HOUR, TERMS, weigh
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.compiled import njit
from rlpto.planning.compiled_loop import Loop, decide_and_run, look_around
from rlpto.simulator.arrays import World
from rlpto.simulator.kernels import is_over

ACCURACY = [term.name for term in TERMS].index("accuracy")
"""Place of a term that is the same for every plan: all jobs finish at last."""
MOST_IDLE_DECISIONS = 100
"""Decisions in a row after which no job holds GPUs, before a rollout ends."""
COUNT = len(TERMS)
"""Terms of the reward."""


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
    changed = ("shown", "speed", "ordered_until", "numbers", "given")
    return loop._replace(world=world, **{name: getattr(loop, name).copy() for name in changed})


@njit(nogil=True)
def roll_out(loop: Loop, start: Start, candidates: FloatArray, work: int, reward: AnyArray, cost: FloatArray) -> None:
    """Fill cost [C] with what candidates [C, STEERING_FEATURES] come to: minus the reward until all jobs have finished.

    loop: of one cluster; its state is lost. reward: [1] `rlpto.core.rewards.WEIGHTS`.
    A rollout is cut short where no job gets GPUs any more, since those that are left need nodes that are down, and once
    it has looked at `work` speeds, one for every job and number of GPUs in each decision; what the jobs that are left
    then cost further is estimated by `cost_to_go`.
    """
    w, terms = loop.world, np.zeros(COUNT)
    for i in range(len(candidates)):
        w.jobs[0] = start.jobs[0]
        w.nodes[0] = start.nodes[0]
        w.clusters[0] = start.clusters[0]
        w.active[0] = start.active[0]
        w.machines[0] = start.machines[0]
        w.free[0] = start.free[0]
        loop.ordered_until[0] = -np.inf
        total, looked, idle = np.zeros(1, INTERVAL), 0, 0
        look_around(loop, 0)
        while not is_over(w, 0) and looked < work and idle < MOST_IDLE_DECISIONS:
            for row in range(w.clusters[0].active):
                looked += loop.shown[0, row].max_gpus
            decide_and_run(loop, 0, candidates[i : i + 1], total)
            idle = idle + 1 if w.clusters[0].held == 0 else 0
        weigh(total, reward, terms)
        cost[i] = terms[ACCURACY] - terms.sum()
        if not is_over(w, 0):
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
