"""The decision loop, compiled: the steps of `rlpto.core.loop.DecisionLoop`, built from the same compiled parts.

For cluster b of a batch of simulated clusters it fills the view, decides with index weights, and advances the cluster.
The batch that agents learn on (`rlpto.envs.compiled_batch`) and a planner's rollouts (`rlpto.planning.planner`) use it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlpto.core.admission import admit
from rlpto.core.gpu_kinds import Kinds, choose_kinds
from rlpto.core.jobs import VIEW, curve_at, fill_estimates, fill_limits, fill_speed
from rlpto.core.queue_order import next_promotion, order_rows
from rlpto.core.queues import QueueSettings
from rlpto.core.records import add_interval
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.by_reference import by_reference
from rlpto.io.compiled import helper, kernel, njit
from rlpto.knowledge.by_size import believed_by_size
from rlpto.knowledge.known import Knowledge
from rlpto.knowledge.remaining import LEAST_EPOCHS, RemainingKnowledge, fill_learnt
from rlpto.performance.tables import SpeedTables
from rlpto.policies.greedy import GrowthSteps, walk_hull
from rlpto.policies.index import steer_by
from rlpto.simulator.allocating import apply_allocation, apply_placement, choose_types
from rlpto.simulator.arrays import World
from rlpto.simulator.kernels import advance, clear_sums

KNOWN = np.dtype([(name, "i8") for name in ("job", "type", "epoch", "level")], align=True)
"""Cache key of a row's speed and steps. job = -1: the row is empty. No other input changes during a job's life."""

UNSEEN, KNOWN_LEVEL = 0, -1
"""Observation levels: no observation, and speeds known exactly."""


class CompiledBeliefs(NamedTuple):
    """Rules of estimates in a compiled loop.

    guessed, learnt, tail: rule for remaining work that is not declared, in `rlpto.knowledge.remaining.RemainingWork`.
    by_size: [T, L, K + 1] estimated over true speed by observation level, from `rlpto.knowledge.by_size`. Default:
    speeds are known. shared: jobs of a type share observations. unseen: remaining seconds that jobs seem to have before
    any observation, with any number of GPUs; with 0, `by_size` applies.
    """

    guessed: bool = False
    learnt: bool = False
    tail: float = 1.0
    by_size: FloatArray = np.zeros((0, 0, 0))
    shared: bool = False
    unseen: float = 0.0

    @classmethod
    def of(cls, knowledge: Knowledge, tables: SpeedTables, gpus_per_node: int) -> CompiledBeliefs:
        """Compile knowledge whose `remaining` is in COMPILED_WORK; noise is given by workload instead."""
        work = knowledge.remaining != "declared", knowledge.remaining == "learnt", knowledge.tail
        if knowledge.beliefs is None:
            return cls(*work)
        rules = knowledge.rules
        by_size = believed_by_size(knowledge.beliefs, rules, tables, gpus_per_node)
        return cls(*work, by_size, rules.shared, 3600.0 * (rules.unseen_hours or 0.0))


COMPILED_WORK: tuple[RemainingKnowledge, ...] = ("declared", "learnt", "unknown")
"""Rules for remaining work that compiled loops support."""
ALL_KNOWN = CompiledBeliefs()
"""Rules with exact knowledge."""


@by_reference
class Loop(NamedTuple):
    """B simulated clusters under one queue, W workloads that they can run, M jobs at most in one.

    world: the simulators. current: [B] workload that each cluster runs.
    shown: [B, M] `VIEW` of its active jobs in queue order, with their speed: [B, M, K + 1] and steps: [B, M, K + 1]
    `hull_steps` of it, since the last `look_around`. known: [B, M] `KNOWN`, the cache keys of `speed` and `steps`.
    chain: [K + 1] memory.
    packed: [T, K + 1] rows of the speed tables, and shown_rates: [R, P] their rates. accuracy_ahead: [T, P].
    fit: [T, K + 1] `SpeedTables.fit_anywhere`, or empty.
    known_remaining, known_speed: columns of the speed tables, or empty.
    beliefs, pooled: rules of estimates, and [T] `SpeedTables.pooled`. left: [M], sums: [M, 4] memory for them.
    seen: [B, T or M] observation level of each job type, or of each job.
    noise: [W, M, 2 + K + 1] factors on remaining, on speed, and on scaling with 0..K GPUs; or empty.
    aging: [2] s, normal and low. strict: whether a higher class comes first.
    reserve_after [s]: infinity reserves nothing.
    ordered_until: [B] s until which the queue order in `shown` is valid unless a job comes or goes.
    numbers, given: [M] memory of one decision: numbers of jobs, and their GPUs or classes.
    order: [M] 0, 1, ...: rows are placed in queue order.
    kinds: GPU types, if there are several; otherwise None, and jobs are placed on any node.
    """

    world: World
    current: IntArray
    shown: AnyArray
    speed: FloatArray
    steps: GrowthSteps
    known: AnyArray
    chain: IntArray
    packed: IntArray
    fit: IntArray
    shown_rates: FloatArray
    accuracy_ahead: FloatArray
    known_remaining: FloatArray
    known_speed: FloatArray
    beliefs: CompiledBeliefs
    pooled: IntArray
    left: FloatArray
    sums: FloatArray
    seen: IntArray
    noise: FloatArray
    aging: FloatArray
    strict: bool
    reserve_after: float
    gpus_per_node: int
    ordered_until: FloatArray
    numbers: IntArray
    given: IntArray
    order: IntArray
    kinds: Kinds | None


def build_loop(
    world: World,
    tables: SpeedTables,
    queue: QueueSettings,
    gpus_per_node: int,
    noise: FloatArray,
    beliefs: CompiledBeliefs = ALL_KNOWN,
    kinds: Kinds | None = None,
) -> Loop:
    """Build the loop of a world. tables: tables that policies see. noise and the others: fields of `Loop`."""
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
        fit=tables.fit_anywhere,
        shown_rates=np.ascontiguousarray(tables.shown_rates),
        accuracy_ahead=tables.accuracy_ahead,
        known_remaining=tables.shown_remaining,
        known_speed=tables.shown_speed,
        beliefs=beliefs,
        pooled=np.ascontiguousarray(tables.pooled),
        left=np.zeros(most),
        sums=np.zeros((most, 4)),
        seen=np.zeros((count, len(tables.own) if beliefs.shared else most), dtype=np.int64),
        noise=noise,
        aging=np.array([queue.aging_normal, queue.aging_low]),
        strict=queue.strict,
        reserve_after=queue.reserved_after(1 if kinds is None else 2),
        gpus_per_node=gpus_per_node,
        ordered_until=np.full(count, -np.inf),
        numbers=np.zeros(most, dtype=np.int64),
        given=np.zeros(most, dtype=np.int64),
        order=np.arange(most),
        kinds=kinds,
    )


@kernel()
def look_around(loop: Loop, b: int) -> None:
    """Fill `shown`, `speed` and `steps` of cluster b with its active jobs in queue order, in their present state.

    A row keeps speed and steps if it shows the same job in the same epoch as before.
    """
    look_at_queue(loop, b)
    w, n, noise = loop.world, loop.world.clusters[b].active, loop.noise[loop.current[b]]
    view, speed, target, gain = loop.shown[b, :n], loop.speed[b, :n], loop.steps.target[b], loop.steps.gain[b]
    fill_estimates(w.jobs[b], w.types, w.accuracy, loop.accuracy_ahead, loop.known_remaining, noise, view)
    if loop.beliefs.guessed:
        guess_work(loop, b, view)
    if loop.beliefs.by_size.size:
        see_sizes(loop, b, view)
    for row in range(n):
        job, known = view[row], loop.known[b, row]
        level = level_seen(loop, b, job)
        same = known.job == job.index and known.type == job.type_index
        if not same or known.epoch != job.epoch or known.level != level or level == UNSEEN:
            # Nothing reads beyond a job's max_gpus, and every entry is a stride away in memory.
            at = slice(row, row + 1)
            fill_speed(view[at], loop.shown_rates, loop.packed, loop.known_speed, noise, 0, speed[at])
            if loop.beliefs.by_size.size:
                believe_speed(loop.beliefs, job, level, speed[row])
            known.job, known.type, known.epoch, known.level = job.index, job.type_index, job.epoch, level
            walk_hull(speed[row], job.min_gpus, job.max_gpus, loop.chain, target[row], gain[row])


@kernel()
def see_sizes(loop: Loop, b: int, view: AnyArray) -> None:
    """Record the numbers of GPUs with which jobs in view [n] of cluster b train."""
    for row in range(len(view)):
        job = loop.world.jobs[b, view[row].index]
        if job.gpus > 0 and job.rescale_left == 0:
            level, gpus, at = 0, job.training_gpus, slot(loop, job.type_index, view[row].index)
            while gpus > 0:
                level += 1
                gpus >>= 1
            loop.seen[b, at] = max(loop.seen[b, at], level)


@kernel()
def slot(loop: Loop, type_index: int, job: int) -> int:
    """Return the column of `seen` of a job."""
    return int(loop.pooled[type_index] if loop.beliefs.shared else job)


@kernel()
def level_seen(loop: Loop, b: int, job: Any) -> int:
    """Observation level of a job [VIEW] of cluster b; constant if speeds are known."""
    if loop.beliefs.by_size.size == 0:
        return KNOWN_LEVEL
    return int(loop.seen[b, slot(loop, job.type_index, job.index)])


@kernel()
def believe_speed(beliefs: CompiledBeliefs, job: Any, level: int, speed: FloatArray) -> None:
    """Replace the true speed [K + 1] of a job [VIEW] by its estimate."""
    for k in range(1, min(job.max_gpus, len(speed) - 1) + 1):
        if level == UNSEEN and beliefs.unseen > 0:
            speed[k] = job.remaining / beliefs.unseen
        else:
            speed[k] *= beliefs.by_size[job.type_index, level, k]


@kernel()
def guess_work(loop: Loop, b: int, view: AnyArray) -> None:
    """Write the estimated remaining work into view [n] of cluster b, like `rlpto.core.job_table.JobTable.records`."""
    w, noise, left = loop.world, loop.noise[loop.current[b]], loop.left[: len(view)]
    for row in range(len(view)):
        loop.numbers[row] = view[row].index
        left[row] = max(loop.beliefs.tail * view[row].progress, LEAST_EPOCHS)
    if loop.beliefs.learnt:
        fill_learnt(w.jobs[b], loop.pooled, loop.numbers[: len(view)], loop.sums, left)
    for row in range(len(view)):
        job, epochs = view[row], w.types[view[row].type_index].epochs
        if loop.known_remaining.size:  # in the operator's unit, for a whole training
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
    """Discard everything cached of cluster b after a change from outside."""
    loop.ordered_until[b] = -np.inf
    for row in range(loop.known.shape[1]):
        loop.known[b, row].job = -1


@kernel()
def look_at_queue(loop: Loop, b: int) -> None:
    """Fill the columns of `shown` of cluster b that `rlpto.core.jobs.fill_limits` fills; some policies need no others.

    If the order is still valid, these columns are too, because `carry_out` updates each job's GPUs.
    """
    w, cluster = loop.world, loop.world.clusters[b]
    if not cluster.changed and cluster.time < loop.ordered_until[b]:
        return
    jobs, active, index, effective = w.jobs[b], w.active[b, : cluster.active], loop.numbers, loop.given
    order_rows(jobs, active, cluster.time, loop.aging[0], loop.aging[1], loop.strict, index, effective)
    for i in range(len(active)):
        index[i] = active[index[i]]
    fill_limits(jobs, index[: len(active)], effective, loop.strict, loop.shown[b])
    # A job that stops from now on waits at least this long before it rises.
    soonest = cluster.time + min(loop.aging[0], loop.aging[1])
    loop.ordered_until[b] = min(soonest, next_promotion(jobs, active, loop.aging[0], loop.aging[1]))


@kernel()
def carry_out(loop: Loop, b: int, wishes: IntArray) -> None:
    """Trim requested GPUs [n] of the jobs in view of cluster b, carry out the changes, and update the view."""
    n, changes = len(wishes), 0
    view, index, given = loop.shown[b, :n], loop.numbers, loop.given
    cluster, jobs = loop.world.clusters[b], loop.world.jobs[b]
    admit(view, wishes, cluster.capacity, given[:n], jobs, loop.fit, cluster.time, loop.reserve_after)
    for i in range(n):
        if given[i] != view[i].gpus:
            index[changes], given[changes], view[i].gpus = view[i].index, given[i], given[i]
            changes += 1
    if changes:
        give(loop.kinds, loop, b, changes)


@helper()
def give(kinds: Kinds | None, loop: Loop, b: int, changes: int) -> None:
    """Give `changes` jobs number `loop.numbers` of cluster b `loop.given` GPUs, each job on one GPU type."""
    if kinds is None:  # kinds is an argument so that the other branch is not compiled
        apply_allocation(loop.world, b, loop.numbers[:changes], loop.given[:changes], loop.order)
    else:
        give_on_kinds(kinds, loop, b)


@njit()
def give_on_kinds(kinds: Kinds, loop: Loop, b: int) -> None:
    """Give the active jobs of cluster b the numbers of GPUs in `loop.shown`, on the GPU type that suits each."""
    w = loop.world
    n, groups = w.clusters[b].active, kinds.by_type.shape[1]
    view, offered, index, types = loop.shown[b, :n], w.free[b].copy(), np.empty(n, np.int64), np.empty(n, np.int64)
    held, on_each = np.zeros((n, len(offered)), dtype=np.int64), np.zeros((n, groups), dtype=np.int64)
    speed, shown = np.zeros((groups, n, loop.speed.shape[2])), view.copy()
    for row in range(n):
        job = w.jobs[b, view[row].index]
        index[row], types[row], on_each[row] = view[row].index, job.type_index, kinds.by_type[job.believed_type]
        for gpu in range(job.gpus):
            held[row, w.nodes[b, index[row], gpu]] += 1
        offered += held[row]
        if job.gpus != view[row].gpus > 0:
            for g in range(groups):
                at, level = slice(row, row + 1), level_seen(loop, b, view[row])
                shown[row].type_index = on_each[row, g]
                fill_speed(
                    shown[at],
                    loop.shown_rates,
                    loop.packed,
                    loop.known_speed,
                    loop.noise[loop.current[b]],
                    0,
                    speed[g, at],
                )
                if loop.beliefs.by_size.size:
                    believe_speed(loop.beliefs, shown[row], level, speed[g, row])
    wishes = view["gpus"].copy()
    placement = choose_kinds(view, wishes, held, offered, kinds.of_node, speed, on_each, kinds.fit)
    for row in range(n):
        view[row].gpus = placement[row].sum()
        for node in range(len(offered)):
            if placement[row, node] > 0:
                types[row] = kinds.by_type[types[row], kinds.of_node[node]]
    choose_types(w, b, index, types)
    apply_placement(w, b, index, placement)


@njit()
def decide_and_run(loop: Loop, b: int, weights: FloatArray, total: AnyArray) -> None:
    """Decide with weights [1, STEERING_FEATURES], run cluster b to the next decision, and look around.

    Call it after `look_around`. The interval is added to total [1] INTERVAL.
    """
    w = loop.world
    cluster, n = w.clusters[b], w.clusters[b].active
    steps = GrowthSteps(loop.steps.target[b, :n], loop.steps.gain[b, :n])
    view, speed = loop.shown[b, :n], loop.speed[b, :n]
    carry_out(loop, b, steer_by(cluster.time, cluster.capacity, view, speed, steps, weights))
    advance(w, b)
    add_interval(total, w.sums[b : b + 1])
    clear_sums(w, b)  # only now: the time before the first decision of a workload counts too
    look_around(loop, b)
