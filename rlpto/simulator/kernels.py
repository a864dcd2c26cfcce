"""The compiled heart of the simulator: allocations and the passage of time for cluster b of a batch.

Between decisions allocations are constant, so every job is advanced analytically from event to
event; only node failures interrupt. What every decision calls is inlined: to hand a `World` over takes 25 to 50 ns.
"""

from __future__ import annotations

import numpy as np

from rlpto.core.jobs import curve_at
from rlpto.core.placement import holds, main_node, release, shrink_in_place, take_most_free, take_packed
from rlpto.io.arrays import AnyArray, IntArray
from rlpto.io.compiled import kernel, njit
from rlpto.simulator.accuracy import follow_accuracy, join_followed
from rlpto.simulator.arrays import World
from rlpto.simulator.failures import next_toggle_after
from rlpto.simulator.job_kernels import log_change, progress_at, start_running, stop_running, train_at
from rlpto.simulator.training import (
    enter_epoch,
    last_epoch,
    progress_in_steps,
    work_seconds,
)


@njit()
def sort_growing(growing: IntArray, gpus: IntArray, order: IntArray, most_free: int) -> None:
    """Sort rows into the order in which they are placed: as `order` says under most_free, else those that
    get most GPUs first (they need whole nodes), first of equals first."""
    if most_free:
        turn = np.empty(len(order), dtype=np.int64)
        for place in range(len(order)):
            turn[order[place]] = place
        growing[:] = growing[np.argsort(turn[growing])]
    elif len(growing) > 16:
        growing[:] = growing[np.argsort(-gpus[growing], kind="mergesort")]
    else:  # few rows: sorting in place spares the memory that argsort takes
        for k in range(1, len(growing)):
            row, at = growing[k], k
            while at > 0 and gpus[growing[at - 1]] < gpus[row]:
                growing[at] = growing[at - 1]
                at -= 1
            growing[at] = row


@kernel()
def apply_allocation(w: World, b: int, index: IntArray, gpus: IntArray, order: IntArray) -> None:
    """Give job index[i] gpus[i] GPUs, for every active job; order: rows in which jobs are placed.

    First all GPUs that are given back, then those that are taken. Jobs whose number does not change
    are not touched.
    """
    now, most_free, free, jobs = w.clusters[b].time, w.rules[0].most_free, w.free[b], w.jobs[b]
    growing, count = w.scratch, 0  # rows that get more GPUs
    for i in range(len(index)):
        j = index[i]
        job = jobs[j]
        if job.gpus == gpus[i]:
            continue
        if gpus[i] == 0:
            stop_running(w, b, j, now)
            log_change(w, b, j, now)
        elif gpus[i] < job.gpus and not most_free:
            shrink_in_place(w.nodes[b, j], job.gpus, gpus[i], free)
            w.clusters[b].held -= job.gpus - gpus[i]
            job.gpus = gpus[i]
            start_running(w, b, j, 1)
            log_change(w, b, j, now)
        else:
            release(w.nodes[b, j], job.gpus, free)
            growing[count] = i
            count += 1
    if count > 1:
        sort_growing(growing[:count], gpus, order, most_free)
    for k in range(count):
        i = growing[k]
        j = index[i]
        job, nodes = jobs[j], w.nodes[b, j]
        if most_free:
            take_most_free(nodes, gpus[i], free)
        else:
            take_packed(nodes, gpus[i], free, main_node(nodes, job.gpus))
        w.clusters[b].held += gpus[i] - job.gpus
        job.gpus = gpus[i]
        start_running(w, b, j, 0)
        log_change(w, b, j, now)


@kernel()
def join_arrivals(w: World, b: int) -> None:
    """Make every job active whose submit time has come."""
    cluster = w.clusters[b]
    while cluster.arrived < cluster.jobs and w.jobs[b, cluster.arrived].submit_time <= cluster.time:
        job = w.jobs[b, cluster.arrived]
        kind = job.type_index
        job.accuracy = w.accuracy[kind, 0]
        in_all = curve_at(w.accuracy, kind, w.types[kind].epochs, job.epochs) - job.accuracy
        job.gain_scale = 1.0 / in_all if in_all > 0.0 else 0.0
        if w.rules[0].follow_accuracy:
            join_followed(w, b, cluster.arrived)
        w.active[b, cluster.active] = cluster.arrived
        w.sums[b].unfinished += cluster.time - job.submit_time
        cluster.active += 1
        cluster.arrived += 1
        w.sums[b].arrived += 1
        cluster.changed = 1


@kernel(inline="always")
def train_jobs(w: World, b: int, until: float) -> None:
    """Advance every active job to `until` with the GPUs it holds; finished ones leave and free theirs."""
    jobs, active, rates, elapsed = w.jobs[b], w.active[b], w.rates, w.elapsed
    curves, types, sums, gain = w.accuracy, w.types, w.sums[b], w.sums[b].accuracy_gain
    cluster, resolution = w.clusters[b], w.rules[0].resolution
    seconds = until - cluster.time
    gpu_seconds, unfinished = 0.0, 0.0
    kept = 0
    for i in range(cluster.active):
        j = active[i]
        job = jobs[j]
        if job.gpus == 0:
            unfinished += seconds
            active[kept] = j
            kept += 1
            continue
        delay = min(job.rescale_left, seconds)
        job.rescale_left -= delay
        before, after, unused, trains = job.progress, job.stop_epoch, 0.0, seconds - delay
        finished, same_epoch = True, False
        if resolution > 0.0:
            after, unused = progress_in_steps(
                rates, job.row, job.scale, before, job.stop_epoch, seconds - delay, resolution
            )
            finished = after >= job.stop_epoch
        elif job.finish_at <= until:
            unused = until - job.finish_at
        else:
            finished = False
            if job.grow_left > seconds:
                job.grow_left -= seconds
            elif job.grow_left > 0.0:  # its newest workers join in between
                job.progress = max(before, progress_at(w, job, job.clock + (job.grow_left - delay) * job.scale))
                trains = seconds - job.grow_left
                train_at(w, b, j, job.next_row)
            job.clock += trains * job.scale
            same_epoch = job.clock < job.epoch_end and job.progress == before
            if job.clock >= job.epoch_end:
                epoch = last_epoch(elapsed, job.row, job.epoch, rates.shape[1], job.clock)
                enter_epoch(job, rates, elapsed, curves, types[job.type_index].epochs, epoch)
            after = job.epoch + (job.clock - job.epoch_start) * job.rate
            # Rounding must neither take work back nor finish a job early.
            after = max(before, min(job.stop_epoch, after))
        held = seconds - unused
        job.progress = after
        job.trained += trains - unused
        job.attained_service += job.gpus * held
        gpu_seconds += job.gpus * held
        unfinished += held
        if after > before:
            if same_epoch:
                accuracy = job.accuracy + (after - before) * job.slope
            else:
                accuracy = curve_at(curves, job.type_index, types[job.type_index].epochs, after)
            gain[job.priority] += (accuracy - job.accuracy) * job.gain_scale
            job.accuracy = accuracy
        if finished:
            job.finish_time = until - unused
            stop_running(w, b, j, np.nan)
            log_change(w, b, j, job.finish_time)
            sums.finished += 1
            cluster.changed = 1
        else:
            active[kept] = j
            kept += 1
    sums.gpu_seconds += gpu_seconds
    sums.unfinished += unfinished
    cluster.active = kept
    cluster.time = until


@kernel()
def toggle_nodes(w: World, b: int) -> None:
    """Fail or repair the nodes whose time has come, and take over what other processes free now."""
    cluster, rules = w.clusters[b], w.rules[0]
    for node in range(w.machines.shape[1]):
        machine = w.machines[b, node]
        if machine.toggle_at > cluster.time:
            continue
        cluster.changed = 1
        if node >= w.free.shape[1]:
            machine.up = 1
            machine.toggle_at = np.inf
            freed = w.machines[b, machine.node]
            freed.size += machine.size
            if freed.up:
                w.free[b, machine.node] += machine.size
                cluster.capacity += machine.size
            continue
        machine.toggles += 1
        if machine.up:
            stop_jobs_of(w, b, node)
            machine.up = 0
            w.free[b, node] = 0
            cluster.capacity -= machine.size
        else:
            machine.up = 1
            w.free[b, node] = machine.size
            cluster.capacity += machine.size
        mean = rules.mtbf if machine.up else rules.mttr
        machine.toggle_at = next_toggle_after(cluster.time, mean, cluster.seed, node, machine.toggles)
    cluster.next_toggle = np.inf
    for node in range(w.machines.shape[1]):
        cluster.next_toggle = min(cluster.next_toggle, w.machines[b, node].toggle_at)


@kernel()
def stop_jobs_of(w: World, b: int, node: int) -> None:
    """Stop every job that holds a GPU of a failing node and take it back to its last checkpoint: the
    latest whole checkpoint interval of training since its last change of GPUs."""
    now, interval = w.clusters[b].time, w.rules[0].checkpoint_interval
    for i in range(w.clusters[b].active):
        j = w.active[b, i]
        job = w.jobs[b, j]
        if not holds(w.nodes[b, j], job.gpus, node):
            continue
        saved = np.floor(job.trained / interval) * interval * job.scale
        start = job.base_progress
        clock = work_seconds(w.rates, w.elapsed, job.row, start) + saved
        epoch = last_epoch(w.elapsed, job.row, int(start), w.rates.shape[1], clock)
        reached = epoch + (clock - w.elapsed[job.row, epoch]) * w.rates[job.row, epoch]
        back = max(start, min(job.progress, reached))
        accuracy = curve_at(w.accuracy, job.type_index, w.types[job.type_index].epochs, back)
        w.sums[b].accuracy_gain[job.priority] += (accuracy - job.accuracy) * job.gain_scale
        job.accuracy = accuracy
        job.progress = back
        stop_running(w, b, j, now)
        log_change(w, b, j, now)


@kernel()
def tick_after(time: float, interval: float) -> float:
    """The first multiple of `interval` later than `time`, however division rounds: time must pass."""
    nearest = np.rint(time / interval)
    return float(nearest * interval if nearest * interval > time else (nearest + 1.0) * interval)


@kernel()
def tick_from(time: float, interval: float) -> float:
    """The first multiple of `interval` not earlier than `time`."""
    nearest = np.rint(time / interval)
    return float(nearest * interval if nearest * interval >= time else (nearest + 1.0) * interval)


@kernel()
def next_decision(w: World, b: int) -> float:
    """Time of the next decision: the next tick at which a job is there or, if asked for, the next event.

    Infinity when nothing is left to come.
    """
    cluster, interval = w.clusters[b], w.rules[0].interval
    idle = cluster.active == 0
    arrival = w.jobs[b, cluster.arrived].submit_time if cluster.arrived < cluster.jobs else np.inf
    if idle and arrival == np.inf:
        return np.inf
    tick = tick_after(cluster.time, interval)
    if not w.rules[0].on_events:
        return float(max(tick, tick_from(arrival, interval)) if idle else tick)
    event = min(arrival, cluster.next_toggle)
    jobs, active = w.jobs[b], w.active[b]
    for i in range(cluster.active):
        event = min(event, jobs[active[i]].finish_at)
    return float(event if idle else min(tick, event))


@kernel()
def next_point(w: World, b: int) -> float:
    """Time [s] of the next decision point at the latest, were no further jobs to come; at most the time limit."""
    cluster, due = w.clusters[b], next_decision(w, b)
    if cluster.next_toggle < due and cluster.arrived < cluster.jobs:
        # A node that goes or comes before makes it later: should no job be left by then, it is put off till the next.
        due = max(due, tick_from(w.jobs[b, cluster.arrived].submit_time, w.rules[0].interval))
    return float(min(due, w.rules[0].limit))


@kernel()
def clear_sums(w: World, b: int) -> None:
    """Begin a new interval's sums."""
    sums = w.sums[b]
    for c in range(len(sums.accuracy_gain)):
        sums.accuracy_gain[c] = 0.0
        sums.shortfall[c] = 0.0
    sums.unfinished = 0.0
    sums.gpu_seconds = 0.0
    sums.rescale_seconds = 0.0
    sums.rescales = 0
    sums.arrived = 0
    sums.finished = 0


@kernel(inline="always")
def advance(w: World, b: int) -> None:
    """Run cluster b to its next decision, or to the time limit where that is earlier."""
    cluster = w.clusters[b]
    cluster.changed = 0
    w.sums[b].start = w.sums[b].end = cluster.time
    while True:
        due = min(next_decision(w, b), w.rules[0].limit)
        if due == np.inf:
            w.sums[b].end = cluster.time
            return
        until = min(due, max(cluster.next_toggle, cluster.time))
        if w.rules[0].follow_accuracy:
            follow_accuracy(w, b, until)
        train_jobs(w, b, until)
        if cluster.next_toggle <= until:
            toggle_nodes(w, b)
        if until >= due:
            break
    join_arrivals(w, b)
    w.sums[b].end = cluster.time


@kernel()
def is_over(w: World, b: int) -> bool:
    """True once every job of cluster b has finished, or its time is up."""
    cluster = w.clusters[b]
    if cluster.active > 0 and cluster.time < w.rules[0].limit:
        return False
    return bool(cluster.arrived == cluster.jobs or cluster.time >= w.rules[0].limit)


@kernel()
def outlook(w: World, b: int) -> tuple[float, int, int, int, int, int, bool]:
    """Time, GPUs up, GPUs held, active jobs, 1 if something changed, entries in the log, whether it is over."""
    cluster = w.clusters[b]
    return (
        cluster.time, cluster.capacity, cluster.held, cluster.active, cluster.changed, cluster.logged, is_over(w, b)
    )  # fmt: skip


@kernel()
def apply_and_look(
    w: World, b: int, index: IntArray, gpus: IntArray, order: IntArray
) -> tuple[float, int, int, int, int, int, bool]:
    """`apply_allocation`, then `outlook`."""
    apply_allocation(w, b, index, gpus, order)
    return outlook(w, b)


@kernel()
def advance_until(
    w: World, b: int, until: float, passed: AnyArray
) -> tuple[int, tuple[float, int, int, int, int, int, bool]]:
    """Run cluster b through decision points till `until`, or something has changed, or it is over, or passed is full.

    Fills passed [P] INTERVAL, one for each decision point; returns how many there were (at least one), and `outlook`.
    """
    cluster, count = w.clusters[b], 0
    while True:
        advance(w, b)
        passed[count] = w.sums[b]
        count += 1
        clear_sums(w, b)
        if cluster.changed or cluster.time >= until or count == len(passed) or is_over(w, b):
            return count, outlook(w, b)
