"""The decision loop, compiled: what `rlpto.core.loop.DecisionLoop` does, over the same compiled parts.

Cluster b of a batch of simulated clusters is looked at, decided on with steering weights, and run on. The batch that
agents learn on steps it (`rlpto.envs.compiled_batch`), and so do the rollouts of a planner (`rlpto.planning.rollout`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.core.jobs import VIEW, curve_at, fill_estimates, fill_limits, fill_speed
from rlpto.core.queue_order import next_promotion, order_rows
from rlpto.core.queues import QueueSettings, admit, shrink_converging
from rlpto.core.records import add_interval
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import kernel, njit
from rlpto.knowledge.remaining import LEAST_EPOCHS, RemainingKnowledge, fill_learnt
from rlpto.performance.tables import SpeedTables
from rlpto.policies.greedy import GrowthSteps, walk_hull
from rlpto.policies.index import steer_by
from rlpto.simulator.allocating import apply_allocation
from rlpto.simulator.arrays import World
from rlpto.simulator.kernels import advance, clear_sums, is_over

NO_RESERVE: IntArray = np.zeros((0, 0), dtype=np.int64)
"""No GPUs are held back."""
KNOWN = np.dtype([("job", "i8"), ("epoch", "i8"), ("max_gpus", "i8")], align=True)
"""What speed and steps of a row are of; job -1: of nothing. All else that they follow from stays while a job lives."""


class GuessedWork(NamedTuple):
    """How remaining work is believed, where it is not declared; see `rlpto.knowledge.remaining.RemainingWork`."""

    guessed: bool = False
    learnt: bool = False
    tail: float = 1.0

    @classmethod
    def of(cls, remaining: RemainingKnowledge, tail: float) -> GuessedWork:
        """That of settings, one of COMPILED_WORK."""
        return cls(remaining != "declared", remaining == "learnt", tail)


COMPILED_WORK: tuple[RemainingKnowledge, ...] = ("declared", "learnt", "unknown")
"""Knowledge of remaining work that compiled loops support."""
DECLARED = GuessedWork()
"""It is declared."""


class Loop(NamedTuple):
    """B simulated clusters under one queue, W workloads that they can run, M jobs at most in one.

    world: the simulators. current: [B] workload that each cluster runs.
    shown: [B, M] `VIEW` of its active jobs in queue order, speed: [B, M, K + 1], and steps: [B, M, K + 1] `hull_steps`
    of that, theirs: as `look_around` left them. known: [B, M] `KNOWN`, what the last two are of. chain: [K + 1] memory.
    packed: [T, K + 1] rows of the speed tables, and shown_rates: [R, P] theirs. accuracy_ahead: [T, P].
    known_remaining, known_speed: as in the speed tables, or empty.
    work, own: how remaining work is believed, and [T] types of jobs by their models alone. left: [M] memory for it.
    noise: [W, M, 2 + K + 1] factors on remaining, on speed, and further on speed with 0..K GPUs; or empty.
    reserve: [W, T] GPUs to hold back from second t x `reserve_step` on, or empty.
    aging: [2] s, normal and low. strict: whether a higher class comes first. shrink_lower.
    converging: [2] share of accuracy gained, and GPUs to keep.
    ordered_until: [B] s until when the queue order in `shown` stands unless a job comes or goes.
    numbers, given: [M] memory of one decision: numbers of jobs, and GPUs or classes of them.
    order: [M] 0, 1, ...: rows are placed in queue order.
    """

    world: World
    current: IntArray
    shown: AnyArray
    speed: FloatArray
    steps: GrowthSteps
    known: AnyArray
    chain: IntArray
    packed: IntArray
    shown_rates: FloatArray
    accuracy_ahead: FloatArray
    known_remaining: FloatArray
    known_speed: FloatArray
    work: GuessedWork
    own: IntArray
    left: FloatArray
    noise: FloatArray
    reserve: IntArray
    reserve_step: float
    aging: FloatArray
    strict: bool
    shrink_lower: bool
    converging: FloatArray
    gpus_per_node: int
    ordered_until: FloatArray
    numbers: IntArray
    given: IntArray
    order: IntArray


def build_loop(
    world: World,
    tables: SpeedTables,
    queue: QueueSettings,
    gpus_per_node: int,
    noise: FloatArray,
    reserve: IntArray = NO_RESERVE,
    reserve_step: float = 1.0,
    work: GuessedWork = DECLARED,
) -> Loop:
    """The loop of a world. tables: what policies are shown. noise, reserve, reserve_step, work: as in `Loop`."""
    count, most = world.jobs.shape
    packed = tables.packed_rows(gpus_per_node)
    by_gpus = count, most, packed.shape[1]
    known = np.zeros((count, most), dtype=KNOWN)
    known["job"] = -1
    return Loop(
        world=world,
        current=np.zeros(count, dtype=np.int64),
        shown=np.zeros((count, most), dtype=VIEW),
        speed=np.zeros(by_gpus),
        steps=GrowthSteps(np.zeros(by_gpus, dtype=np.int64), np.zeros(by_gpus)),
        known=known,
        chain=np.zeros(packed.shape[1], dtype=np.int64),
        packed=packed,
        shown_rates=np.ascontiguousarray(tables.shown_rates),
        accuracy_ahead=tables.accuracy_ahead,
        known_remaining=tables.shown_remaining,
        known_speed=tables.shown_speed,
        work=work,
        own=np.ascontiguousarray(tables.own),
        left=np.zeros(most),
        noise=noise,
        reserve=reserve,
        reserve_step=reserve_step,
        aging=np.array([queue.aging_normal, queue.aging_low]),
        strict=queue.strict,
        shrink_lower=queue.shrink_lower,
        converging=np.array([queue.converging.gained, queue.converging.keep]),
        gpus_per_node=gpus_per_node,
        ordered_until=np.full(count, -np.inf),
        numbers=np.zeros(most, dtype=np.int64),
        given=np.zeros(most, dtype=np.int64),
        order=np.arange(most),
    )


@kernel()
def look_around(loop: Loop, b: int) -> None:
    """Fill `shown`, `speed` and `steps` of cluster b with its active jobs in queue order, as they stand now.

    A row that shows a job in the epoch that it showed it in before keeps speed and steps.
    """
    look_at_queue(loop, b)
    w, n, noise = loop.world, loop.world.clusters[b].active, loop.noise[loop.current[b]]
    view, speed, target, gain = loop.shown[b, :n], loop.speed[b, :n], loop.steps.target[b], loop.steps.gain[b]
    fill_estimates(w.jobs[b], w.types, w.accuracy, loop.accuracy_ahead, loop.known_remaining, noise, view)
    if loop.work.guessed:
        guess_work(loop, b, view)
    for row in range(n):
        job, known = view[row], loop.known[b, row]
        if known.job != job.index or known.epoch != job.epoch:
            # Nothing looks beyond a job's own limit, and every entry is a stride away in memory.
            at = slice(row, row + 1)
            fill_speed(view[at], loop.shown_rates, loop.packed, loop.known_speed, noise, 0, speed[at])
            known.job, known.epoch, known.max_gpus = job.index, job.epoch, -1
    if loop.converging[0] < 1:
        shrink_converging(view, loop.converging[0], loop.converging[1])
    for row in range(n):
        job, known = view[row], loop.known[b, row]
        if known.max_gpus != job.max_gpus:
            known.max_gpus = job.max_gpus
            walk_hull(speed[row], job.min_gpus, job.max_gpus, loop.chain, target[row], gain[row])


@kernel()
def guess_work(loop: Loop, b: int, view: AnyArray) -> None:
    """Put what is believed of remaining work into view [n] of cluster b: as `rlpto.core.job_table.JobTable.records`."""
    w, noise, left = loop.world, loop.noise[loop.current[b]], loop.left[: len(view)]
    for row in range(len(view)):
        loop.numbers[row] = view[row].index
        left[row] = max(loop.work.tail * view[row].progress, LEAST_EPOCHS)
    if loop.work.learnt:
        fill_learnt(w.jobs[b], loop.own, loop.numbers[: len(view)], left)
    for row in range(len(view)):
        job, epochs = view[row], w.types[view[row].type_index].epochs
        if loop.known_remaining.size:  # in a unit of its own, of a whole training
            whole = epochs - job.progress
            job.remaining *= left[row] / whole if whole > 0 else 1.0
        if noise.size:
            left[row] *= noise[job.index, 0]
        if not loop.known_remaining.size:
            job.remaining = left[row]
        job.epochs = job.progress + left[row]
        job.final_accuracy = curve_at(w.accuracy, job.type_index, epochs, job.epochs)


@kernel()
def forget(loop: Loop, b: int) -> None:
    """Cluster b has been changed from outside: all of it has to be looked at."""
    loop.ordered_until[b] = -np.inf
    for row in range(loop.known.shape[1]):
        loop.known[b, row].job = -1


@kernel()
def look_at_queue(loop: Loop, b: int) -> None:
    """Fill what `rlpto.core.jobs.fill_limits` does of `shown` of cluster b: all that some policies want to know.

    Where the order stands, so does all of that: `carry_out` has noted how many GPUs each job got.
    """
    w, cluster = loop.world, loop.world.clusters[b]
    if not cluster.changed and cluster.time < loop.ordered_until[b] and loop.converging[0] >= 1:
        return
    jobs, active, index, effective = w.jobs[b], w.active[b, : cluster.active], loop.numbers, loop.given
    order_rows(jobs, active, cluster.time, loop.aging[0], loop.aging[1], loop.strict, index, effective)
    for i in range(len(active)):
        index[i] = active[index[i]]
    fill_limits(jobs, index[: len(active)], effective, loop.strict, loop.shown[b])
    # A job that is stopped from now on waits for so long before it rises.
    soonest = cluster.time + min(loop.aging[0], loop.aging[1])
    loop.ordered_until[b] = min(soonest, next_promotion(jobs, active, loop.aging[0], loop.aging[1]))


@kernel()
def reserved(loop: Loop, b: int) -> int:
    """GPUs to hold back in cluster b now."""
    if loop.reserve.size == 0:
        return 0
    at = min(int(loop.world.clusters[b].time / loop.reserve_step), loop.reserve.shape[1] - 1)
    return int(loop.reserve[loop.current[b], at])


@kernel()
def carry_out(loop: Loop, b: int, wishes: IntArray) -> None:
    """Trim wishes [n] for the jobs in view of cluster b, carry out what that changes, and note it in the view."""
    n, changes = len(wishes), 0
    view, index, given = loop.shown[b, :n], loop.numbers, loop.given
    admit(view, wishes, loop.world.clusters[b].capacity, loop.shrink_lower, reserved(loop, b), given[:n])
    for i in range(n):
        if given[i] != view[i].gpus:
            index[changes], given[changes], view[i].gpus = view[i].index, given[i], given[i]
            changes += 1
    if changes:
        apply_allocation(loop.world, b, index[:changes], given[:changes], loop.order)


@njit()
def decide_and_run(loop: Loop, b: int, weights: FloatArray, total: AnyArray) -> None:
    """Decide with weights [1, STEERING_FEATURES], run cluster b to the next decision, and look around.

    Cluster b has been looked at. What passed is added to total [1] INTERVAL.
    """
    w = loop.world
    cluster, n = w.clusters[b], w.clusters[b].active
    steps = GrowthSteps(loop.steps.target[b, :n], loop.steps.gain[b, :n])
    view, speed = loop.shown[b, :n], loop.speed[b, :n]
    carry_out(loop, b, steer_by(cluster.time, cluster.capacity, view, speed, steps, weights))
    advance(w, b)
    add_interval(total, w.sums[b : b + 1])
    clear_sums(w, b)  # only now: what passed before the first decision of a workload counts too
    look_around(loop, b)


@njit()
def run_until(loop: Loop, b: int, weights: FloatArray, until: float, total: AnyArray) -> None:
    """Decide with weights [1, STEERING_FEATURES] until `until` [s] (at least once) or the end; see `decide_and_run`."""
    while True:
        decide_and_run(loop, b, weights, total)
        if is_over(loop.world, b) or loop.world.clusters[b].time >= until:
            break
