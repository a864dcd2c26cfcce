"""The decision loop, compiled: the steps of `rlpto.core.loop.DecisionLoop`, built from the same compiled parts.

For cluster b of a batch of simulated clusters it fills the view, decides with index weights, and advances the cluster.
The batch that agents learn on (`rlpto.envs.compiled_batch`) and a planner's rollouts (`rlpto.planning.planner`) use it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlpto.core.admission import admit
from rlpto.core.gpu_types import GpuTypes, choose_gpu_types
from rlpto.core.jobs import VIEW, curve_at, fill_estimates, fill_limits, fill_speed
from rlpto.core.placement import pack
from rlpto.core.queue_order import next_promotion, order_rows
from rlpto.core.queues import QueueSettings
from rlpto.core.records import add_interval
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.by_reference import by_reference
from rlpto.io.compiled import helper, kernel, njit
from rlpto.knowledge.by_size import ALL_KNOWN, CompiledEstimates
from rlpto.knowledge.history import NO_HISTORY, History
from rlpto.knowledge.remaining import LEAST_EPOCHS, learnt_epochs
from rlpto.performance.tables import SpeedTables
from rlpto.policies.greedy import GrowthSteps, walk_hull
from rlpto.policies.index import steer_by
from rlpto.simulator.allocating import apply_allocation, apply_placement, choose_types
from rlpto.simulator.arrays import World
from rlpto.simulator.kernels import advance, clear_sums

KNOWN = np.dtype([(name, "i8") for name in ("job", "type", "epoch", "level")], align=True)
"""Cache key of a row's speed and steps. job = -1: the row is empty. No other input changes during a job's life."""

LEARNT = np.dtype([("type", "i8"), ("finished", "i8"), ("low", "f8"), ("high", "f8"), ("epochs", "f8")], align=True)
"""Cached `learnt_epochs` of a job. They hold while its pooled type and that type's number of finished jobs are the same
and its progress is in [low, high). finished = -1: nothing is cached."""

UNSEEN, KNOWN_LEVEL = 0, -1
"""Observation levels: no observation, and speeds known exactly."""


@by_reference
class Shown(NamedTuple):
    """The active jobs of each cluster as policies see them, in queue order.

    jobs: [B, M] `VIEW`. speed: [B, M, K + 1] speeds as of the last `look_around`. steps: [B, M, K + 1] `hull_steps` of
    the speeds. known: [B, M] `KNOWN`, the cache keys of speed and steps. ordered_until: [B] time [s] until which the
    order is valid, unless a job arrives or finishes or a node changes.
    """

    jobs: AnyArray
    speed: FloatArray
    steps: GrowthSteps
    known: AnyArray
    ordered_until: FloatArray


@by_reference
class Estimates(NamedTuple):
    """The inputs of policies' estimates of speed and remaining work.

    packed: [T, K + 1] row of the speed tables for each type and number of GPUs. rates: [R, P] epochs per second of each
    row. floor_size: [T, K + 1] `SpeedTables.floor_size_anywhere`, or empty. accuracy_ahead: [T, P] and remaining:
    [T, P + 1], speed: [T, K + 1] as in `SpeedTables`; the last two are empty if epochs and rates are known.
    rules: rules of estimates. pooled: [T] `SpeedTables.pooled`. seen: [B, T] observation level of each pooled type if
    jobs share observations, else [B, M] of each job. learnt: [B, M] LEARNT of each job. finished: [B, T + 1] number of
    finished jobs of each pooled type, and in all; -1 in all if they are not counted yet. noise: [W, M, 2 + K + 1]
    factors on remaining work, on speed, and on speed with 0..K GPUs; or empty. history: jobs that had finished before
    each workload.
    """

    packed: IntArray
    rates: FloatArray
    floor_size: IntArray
    accuracy_ahead: FloatArray
    remaining: FloatArray
    speed: FloatArray
    rules: CompiledEstimates
    pooled: IntArray
    seen: IntArray
    learnt: AnyArray
    finished: IntArray
    noise: FloatArray
    history: History


@by_reference
class QueueRules(NamedTuple):
    """Rules of the queue. aging: [2] seconds until a job of class normal, and of class low, rises a class.

    strict: whether a higher class comes first. reserve_after: wait [s] after which GPUs are reserved for a job, or
    infinity. order: [M] 0, 1, ..., the order in which rows are placed on nodes.
    """

    aging: FloatArray
    strict: bool
    reserve_after: float
    order: IntArray


@by_reference
class Scratch(NamedTuple):
    """Working memory for one cluster at a time; [M] each, except chain [K + 1].

    queued, effective: numbers of jobs in queue order, and their effective classes. given: GPUs after admission.
    changed, gpus: numbers of jobs whose GPUs change, and their new GPUs. chain: vertices in `walk_hull`. left:
    estimated remaining epochs.
    """

    queued: IntArray
    effective: IntArray
    given: IntArray
    changed: IntArray
    gpus: IntArray
    chain: IntArray
    left: FloatArray


@by_reference
class Loop(NamedTuple):
    """B simulated clusters with the same queue rules, W workloads that they can run, M jobs per workload at most.

    K is the largest number of GPUs of a job. world: the simulators. current: [B] workload that each cluster runs.
    gpus_per_node: size of the nodes on which speeds assume jobs to be packed. gpu_types: GPU types if there are
    several. Default: None, and jobs are placed on any node.
    """

    world: World
    current: IntArray
    shown: Shown
    estimates: Estimates
    queue: QueueRules
    scratch: Scratch
    gpus_per_node: int
    gpu_types: GpuTypes | None


def build_loop(
    world: World,
    tables: SpeedTables,
    queue: QueueSettings,
    gpus_per_node: int,
    noise: FloatArray,
    estimates: CompiledEstimates = ALL_KNOWN,
    gpu_types: GpuTypes | None = None,
    history: History = NO_HISTORY,
) -> Loop:
    """Build the loop of a world.

    tables: speed tables that policies see. noise, history: as in `Estimates`. estimates: `Estimates.rules`.
    """
    (count, most), packed = world.jobs.shape, tables.packed_rows(gpus_per_node)
    width = packed.shape[1]
    steps = GrowthSteps(np.zeros((count, most, width), dtype=np.int64), np.zeros((count, most, width)))
    known = np.zeros((count, most), dtype=KNOWN)
    known["job"] = -1
    shown = tables.floor_size_anywhere, tables.accuracy_ahead, tables.shown_remaining, tables.shown_speed
    rates, pooled = np.ascontiguousarray(tables.shown_rates), np.ascontiguousarray(tables.pooled)
    seen = np.zeros((count, len(tables.own) if estimates.shared else most), dtype=np.int64)
    rules = queue.strict, queue.reserved_after(1 if gpu_types is None else 2), np.arange(most)
    learnt = np.zeros((count, most), dtype=LEARNT)
    learnt["finished"] = -1
    finished = np.full((count, len(tables.own) + 1), -1)
    numbers, chain = np.zeros((5, most), dtype=np.int64), np.zeros(width, dtype=np.int64)
    jobs, until = np.zeros((count, most), dtype=VIEW), np.full(count, -np.inf)
    return Loop(
        world=world,
        current=np.zeros(count, dtype=np.int64),
        shown=Shown(jobs, np.zeros((count, most, width)), steps, known, until),
        estimates=Estimates(packed, rates, *shown, estimates, pooled, seen, learnt, finished, noise, history),
        queue=QueueRules(np.array([queue.aging_normal, queue.aging_low]), *rules),
        scratch=Scratch._make((*numbers, chain, np.zeros(most))),
        gpus_per_node=gpus_per_node,
        gpu_types=gpu_types,
    )


def copy_of(loop: Loop) -> Loop:
    """Copy a loop for another thread, without sharing anything that running it changes."""
    by_cluster = ("jobs", "nodes", "clusters", "active", "sums", "machines", "free", "rentals", "worked")
    changed = (*by_cluster, "rules", "scratch")
    learnt = {name: getattr(loop.estimates, name).copy() for name in ("seen", "learnt", "finished")}
    jobs, speed, steps, *others = loop.shown
    return loop._replace(
        world=loop.world._replace(**{name: getattr(loop.world, name).copy() for name in changed}),
        current=loop.current.copy(),
        shown=Shown(jobs.copy(), speed.copy(), GrowthSteps._make(map(np.copy, steps)), *map(np.copy, others)),
        estimates=loop.estimates._replace(**learnt),
        scratch=Scratch._make(map(np.copy, loop.scratch)),
    )


@kernel()
def look_around(loop: Loop, b: int) -> None:
    """Fill `loop.shown` of cluster b with its active jobs in queue order, in their present state.

    A row keeps its speed and steps if its cache key (`KNOWN`) is the same as before.
    """
    look_at_queue(loop, b)
    w, n, noise = loop.world, loop.world.clusters[b].active, loop.estimates.noise[loop.current[b]]
    shown, estimates, rules = loop.shown, loop.estimates, loop.estimates.rules
    view, speed, target, gain = shown.jobs[b, :n], shown.speed[b, :n], shown.steps.target[b], shown.steps.gain[b]
    fill_estimates(w.jobs[b], w.types, w.accuracy, estimates.accuracy_ahead, estimates.remaining, noise, view)
    if rules.guessed:
        guess_work(loop, b, view)
    if rules.by_size.size:
        see_sizes(loop, b, view)
    for row in range(n):
        job, known = view[row], shown.known[b, row]
        level = level_seen(loop, b, job)
        same = known.job == job.index and known.type == job.type_index
        if not same or known.epoch != job.epoch or known.level != level or level == UNSEEN:
            # Fill up to max_gpus only: nothing reads further, and each entry is in another row of `rates`.
            at = slice(row, row + 1)
            fill_speed(view[at], estimates.rates, estimates.packed, estimates.speed, noise, 0, speed[at])
            if rules.by_size.size:
                estimate_speed(rules, job, level, speed[row])
            known.job, known.type, known.epoch, known.level = job.index, job.type_index, job.epoch, level
            walk_hull(speed[row], job.min_gpus, job.max_gpus, loop.scratch.chain, target[row], gain[row])


@kernel()
def see_sizes(loop: Loop, b: int, view: AnyArray) -> None:
    """Raise observation levels in view [n] of cluster b to the level of the GPUs with which each job trains now."""
    for row in range(len(view)):
        job = loop.world.jobs[b, view[row].index]
        if job.gpus > 0 and job.rescale_left == 0:
            level, gpus, at = 0, job.training_gpus, slot(loop, job.type_index, view[row].index)
            while gpus > 0:
                level += 1
                gpus >>= 1
            loop.estimates.seen[b, at] = max(loop.estimates.seen[b, at], level)


@kernel()
def slot(loop: Loop, type_index: int, job: int) -> int:
    """Return the column of `seen` of a job."""
    return int(loop.estimates.pooled[type_index] if loop.estimates.rules.shared else job)


@kernel()
def level_seen(loop: Loop, b: int, job: Any) -> int:
    """Observation level of a job [VIEW] of cluster b; constant if speeds are known."""
    if loop.estimates.rules.by_size.size == 0:
        return KNOWN_LEVEL
    return int(loop.estimates.seen[b, slot(loop, job.type_index, job.index)])


@kernel()
def estimate_speed(estimates: CompiledEstimates, job: Any, level: int, speed: FloatArray) -> None:
    """Replace the true speed [K + 1] of a job [VIEW] by its estimate."""
    for k in range(1, min(job.max_gpus, len(speed) - 1) + 1):
        if level == UNSEEN and estimates.unseen > 0:
            speed[k] = job.remaining / estimates.unseen
        else:
            speed[k] *= estimates.by_size[job.type_index, level, k]


@kernel()
def guess_work(loop: Loop, b: int, view: AnyArray) -> None:
    """Write the estimated remaining work into view [n] of cluster b, like `rlpto.core.job_table.JobTable.records`."""
    w, noise, left = loop.world, loop.estimates.noise[loop.current[b]], loop.scratch.left[: len(view)]
    if loop.estimates.rules.learnt:
        count_finished(loop, b)
    for row in range(len(view)):
        left[row] = max(loop.estimates.rules.tail * view[row].progress, LEAST_EPOCHS)
        if loop.estimates.rules.learnt:
            epochs = learnt_of(loop, b, view[row].index)
            if epochs == epochs:
                left[row] = epochs - view[row].progress
    for row in range(len(view)):
        job, epochs = view[row], w.types[view[row].type_index].epochs
        if loop.estimates.remaining.size:  # scale the operator's figure, which is for a whole training
            whole = epochs - job.progress
            job.remaining *= left[row] / whole if whole > 0 else 1.0
        if noise.size:
            left[row] *= noise[job.index, 0]
        if not loop.estimates.remaining.size:
            job.remaining = left[row]
        job.epochs = job.progress + left[row]
        job.final_accuracy = curve_at(w.accuracy, job.type_index, epochs, job.epochs)


@kernel()
def count_finished(loop: Loop, b: int) -> None:
    """Count the finished jobs of cluster b by pooled type, unless none has finished since the last count."""
    cluster, jobs, finished = loop.world.clusters[b], loop.world.jobs[b], loop.estimates.finished[b]
    if finished[-1] == cluster.arrived - cluster.active:
        return
    for job_type in range(len(finished)):
        finished[job_type] = 0
    for j in range(cluster.arrived):
        if np.isfinite(jobs[j].finish_time):
            finished[loop.estimates.pooled[jobs[j].type_index]] += 1
    finished[-1] = cluster.arrived - cluster.active


@kernel()
def learnt_of(loop: Loop, b: int, index: int) -> float:
    """Return `learnt_epochs` of job number `index` of cluster b, from the cache if it is still valid."""
    w, cluster, job, known = (
        loop.world,
        loop.world.clusters[b],
        loop.world.jobs[b, index],
        loop.estimates.learnt[b, index],
    )
    job_type = loop.estimates.pooled[job.type_index]
    finished = loop.estimates.finished[b, job_type]
    same = known.finished == finished and known.type == job_type
    if not (same and known.low <= job.progress < known.high):
        arrived = w.jobs[b, : cluster.arrived]
        known.epochs, known.low, known.high = learnt_epochs(
            arrived, loop.estimates.pooled, loop.estimates.history, loop.current[b], job
        )
        known.finished, known.type = finished, job_type
    return float(known.epochs)


@kernel()
def forget(loop: Loop, b: int) -> None:
    """Discard all caches of cluster b after its state was changed from outside the loop."""
    loop.shown.ordered_until[b] = -np.inf
    loop.estimates.finished[b, -1] = -1
    for row in range(loop.shown.known.shape[1]):
        loop.shown.known[b, row].job = -1
        loop.estimates.learnt[b, row].finished = -1


@kernel()
def look_at_queue(loop: Loop, b: int) -> None:
    """Order the active jobs of cluster b and fill their columns in `fill_limits`; some policies need no others.

    If the order is still valid, so are these columns, because `carry_out` updates each job's GPUs.
    """
    w, cluster = loop.world, loop.world.clusters[b]
    if not cluster.changed and cluster.time < loop.shown.ordered_until[b]:
        return
    jobs, active, scratch = w.jobs[b], w.active[b, : cluster.active], loop.scratch
    index, effective = scratch.queued, scratch.effective
    strict, normal, low = loop.queue.strict, loop.queue.aging[0], loop.queue.aging[1]
    order_rows(jobs, active, cluster.time, normal, low, strict, index, effective)
    for i in range(len(active)):
        index[i] = active[index[i]]
    fill_limits(jobs, index[: len(active)], effective, strict, loop.shown.jobs[b])
    # A job that loses its GPUs from now on waits at least until then before it rises a class.
    soonest = cluster.time + min(normal, low)
    loop.shown.ordered_until[b] = min(soonest, next_promotion(jobs, active, normal, low))


@kernel()
def carry_out(loop: Loop, b: int, wishes: IntArray) -> None:
    """Trim requested GPUs [n] of the jobs in view of cluster b, carry out the changes, and update the view."""
    n, changes = len(wishes), 0
    view, given, memory = loop.shown.jobs[b, :n], loop.scratch.given[:n], loop.scratch
    cluster, jobs = loop.world.clusters[b], loop.world.jobs[b]
    admit(
        view, wishes, cluster.capacity, given, jobs, loop.estimates.floor_size, cluster.time, loop.queue.reserve_after
    )
    for i in range(n):
        if given[i] != view[i].gpus:
            memory.changed[changes], memory.gpus[changes], view[i].gpus = view[i].index, given[i], given[i]
            changes += 1
    if changes:
        give(loop.gpu_types, loop, b, changes)


@helper()
def give(gpu_types: GpuTypes | None, loop: Loop, b: int, changes: int) -> None:
    """Give the first `changes` jobs of `Scratch.changed` in cluster b their new GPUs, each job on one GPU type."""
    if gpu_types is None:  # passed as an argument, because the unused branch is then not compiled
        apply_allocation(loop.world, b, loop.scratch.changed[:changes], loop.scratch.gpus[:changes], loop.queue.order)
    else:
        give_on_gpu_types(gpu_types, loop, b)


@njit()
def give_on_gpu_types(gpu_types: GpuTypes, loop: Loop, b: int) -> None:
    """Give active jobs of cluster b their GPUs in `loop.shown.jobs`, each on the type chosen by `choose_gpu_types`."""
    w = loop.world
    n, groups = w.clusters[b].active, gpu_types.by_type.shape[1]
    view, offered, index, types = loop.shown.jobs[b, :n], w.free[b].copy(), np.empty(n, np.int64), np.empty(n, np.int64)
    held, on_each = np.zeros((n, len(offered)), dtype=np.int64), np.zeros((n, groups), dtype=np.int64)
    of_type, room = np.zeros_like(on_each), np.zeros(groups, dtype=np.int64)
    speed, shown = np.zeros((groups, n, loop.shown.speed.shape[2])), view.copy()
    estimates, noise = loop.estimates, loop.estimates.noise[loop.current[b]]
    for row in range(n):
        job = w.jobs[b, view[row].index]
        index[row], types[row], on_each[row] = view[row].index, job.type_index, gpu_types.by_type[job.estimated_type]
        for gpu in range(job.gpus):
            node = w.nodes[b, index[row], gpu]
            held[row, node] += 1
            of_type[row, gpu_types.of_node[node]] += 1
        offered += held[row]
        if job.gpus != view[row].gpus > 0:
            for g in range(groups):
                at, level = slice(row, row + 1), level_seen(loop, b, view[row])
                shown[row].type_index = on_each[row, g]
                fill_speed(shown[at], estimates.rates, estimates.packed, estimates.speed, noise, 0, speed[g, at])
                if estimates.rules.by_size.size:
                    estimate_speed(estimates.rules, shown[row], level, speed[g, row])
    for node in range(len(offered)):
        room[gpu_types.of_node[node]] += offered[node]
    gpus, chosen = choose_gpu_types(view, view["gpus"].copy(), of_type, room, speed, on_each, gpu_types.floor_size)
    for row in range(n):
        view[row].gpus = gpus[row]
        if gpus[row] > 0:
            types[row] = gpu_types.by_type[types[row], chosen[row]]
    placement = pack(held, gpus, chosen, gpu_types.of_node, offered, False)
    choose_types(w, b, index, types)
    apply_placement(w, b, index, placement)


@njit()
def decide_and_run(loop: Loop, b: int, weights: FloatArray, total: AnyArray) -> None:
    """Decide with weights [1, WEIGHT_NAMES], run cluster b to the next decision, and look around.

    Call it after `look_around`. The interval is added to total [1] INTERVAL.
    """
    w = loop.world
    cluster, n = w.clusters[b], w.clusters[b].active
    steps = GrowthSteps(loop.shown.steps.target[b, :n], loop.shown.steps.gain[b, :n])
    view, speed = loop.shown.jobs[b, :n], loop.shown.speed[b, :n]
    carry_out(loop, b, steer_by(cluster.time, cluster.capacity, view, speed, steps, weights))
    advance(w, b)
    add_interval(total, w.sums[b : b + 1])
    clear_sums(w, b)  # only now: the time before the first decision of a workload counts too
    look_around(loop, b)
