"""The compiled heart of the simulator: allocations and the passage of time for cluster b of a batch.

Between decisions allocations are constant, so every job is advanced analytically from event to
event; only node failures interrupt. What every decision calls is inlined: to hand a `World` over takes 25 to 50 ns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlpto.arrays import AnyArray, IntArray
from rlpto.compiled import kernel, njit
from rlpto.jobs import curve_at
from rlpto.performance.tables import MAX_EXACT_GROUPS, NO_GPUS, PLACEMENT_BASE, TYPE_STRIDE
from rlpto.placement import holds, main_node, release, shrink_in_place, span, take_most_free, take_packed
from rlpto.simulator.arrays import World
from rlpto.simulator.failures import next_toggle_after
from rlpto.simulator.training import (
    enter_epoch,
    last_epoch,
    progress_in_steps,
    work_seconds,
)


@njit()
def exact_row(w: World, b: int, j: int, spanned: int) -> int:
    """Row measured for exactly the placement of job j, or -1."""
    job, nodes = w.jobs[b, j], w.nodes[b, j]
    sizes = np.zeros(spanned, dtype=np.int64)
    group = -1
    for i in range(job.gpus):
        if i == 0 or nodes[i] != nodes[i - 1]:
            group += 1
        sizes[group] += 1
    if sizes.max() >= PLACEMENT_BASE:
        return -1
    smallest = np.int64(-1)
    for first in range(spanned):
        code = np.int64(0)
        for i in range(spanned):
            code = code * PLACEMENT_BASE + sizes[(first + i) % spanned]
        if smallest < 0 or code < smallest:
            smallest = code
    key = job.type_index * np.int64(TYPE_STRIDE) + smallest
    at = np.searchsorted(w.exact_keys, key)
    if at < len(w.exact_keys) and w.exact_keys[at] == key:
        return int(w.exact_rows[at])
    return -1


@kernel()
def speed_row(w: World, b: int, j: int) -> int:
    """Row of the speed tables for the placement job j has now."""
    job = w.jobs[b, j]
    if job.gpus == 0:
        return NO_GPUS
    spanned = span(w.nodes[b, j], job.gpus)
    if len(w.exact_keys) > 0 and spanned <= MAX_EXACT_GROUPS:
        row = exact_row(w, b, j, spanned)
        if row >= 0:
            return row
    return int(w.row[job.type_index, min(spanned, w.row.shape[1]) - 1, job.gpus])


@kernel()
def log_change(w: World, b: int, j: int, time: float) -> None:
    """Note in the log, if one is kept, how many GPUs job j holds from `time` on."""
    if w.log.shape[1] == 0:
        return
    job = w.jobs[b, j]
    entry = w.log[b, w.clusters[b].logged]
    entry.time = time
    entry.job = j
    entry.gpus = job.gpus
    entry.accuracy = job.accuracy
    w.clusters[b].logged += 1


@kernel()
def start_running(w: World, b: int, j: int, shrinks: int) -> None:
    """Set what follows from job j's new allocation: speed, rescale delay, predicted finish.

    Where growth overlaps training, a job that runs (or is about to) loses nothing: it trains on with the workers it
    has until the newest have started, and where GPUs are given up before that, with as many as remain of them.
    """
    job, cluster = w.jobs[b, j], w.clusters[b]
    row, delay = speed_row(w, b, j), float(w.types[job.type_index].delay)
    overlaps = w.rules[0].overlap == 1 and job.row != NO_GPUS
    job.wait_start = np.nan
    job.peak_gpus = max(job.peak_gpus, job.gpus)
    if np.isnan(job.start_time):
        job.start_time = cluster.time
    else:
        job.rescales += 1
        w.sums[b].rescales += 1
        if not overlaps:
            w.sums[b].rescale_seconds += delay
    if not overlaps:
        job.rescale_left = delay
    if overlaps and (not shrinks or (job.grow_left > 0.0 and job.gpus > job.training_gpus)):
        job.next_row = row
        if not shrinks:
            job.grow_left = delay
        if job.grow_left <= job.rescale_left:  # no worker trains before the newest do
            train_at(w, b, j, row)
    else:
        train_at(w, b, j, row)
    if w.rules[0].resolution == 0.0:
        job.finish_at = finish_time(w, b, j)


@kernel()
def choose_types(w: World, b: int, index: IntArray, types: IntArray) -> None:
    """Job index[i] is of types[i] from now on: it goes on with another batch size, and loses nothing by that.

    What it has trained until now counts as saved by a checkpoint.
    """
    for i in range(len(index)):
        j = index[i]
        job = w.jobs[b, j]
        before, kind = job.type_index, types[i]
        if before == kind:
            continue
        job.type_index = job.told_type = kind
        if job.gpus == 0:
            continue
        if job.grow_left > 0.0:
            job.next_row = speed_row(w, b, j)
            run_at(w, b, j, row_like(w, before, kind, job.training_gpus, job.row))
        else:
            run_at(w, b, j, speed_row(w, b, j))
        if w.rules[0].resolution == 0.0:
            job.finish_at = finish_time(w, b, j)


@kernel()
def row_like(w: World, before: int, after: int, gpus: int, row: int) -> int:
    """Row of type `after` for GPUs that span as many nodes as those which had `row` of type `before`."""
    spans = w.row.shape[1]
    for spanned in range(spans):
        if w.row[before, spanned, gpus] == row:
            return int(w.row[after, spanned, gpus])
    return int(w.row[after, 0, gpus])


@kernel()
def train_at(w: World, b: int, j: int, row: int) -> None:
    """Job j trains with all its GPUs, at this row of the speed tables, as soon as its start is over."""
    job = w.jobs[b, j]
    job.grow_left = 0.0
    job.training_gpus = job.gpus
    run_at(w, b, j, row)


@kernel()
def run_at(w: World, b: int, j: int, row: int) -> None:
    """Job j goes on from where it stands at this row of the speed tables."""
    job = w.jobs[b, j]
    job.row = row
    job.base_progress = job.progress
    job.trained = 0.0
    job.clock = work_seconds(w.rates, w.elapsed, job.row, job.progress)
    epoch = min(int(job.progress), w.rates.shape[1] - 1)
    enter_epoch(job, w.rates, w.elapsed, w.accuracy, w.types[job.type_index].epochs, epoch)


@kernel()
def finish_time(w: World, b: int, j: int) -> float:
    """When job j finishes if nothing changes: its start first, then the workers it has, then those that join them."""
    job, now = w.jobs[b, j], w.clusters[b].time
    work = work_seconds(w.rates, w.elapsed, job.row, job.epochs)
    # Rounding must not let a job that is all but done finish in the past.
    finish = now + job.rescale_left + max(0.0, work - job.clock) / job.scale
    if job.grow_left == 0.0 or finish <= now + job.grow_left:
        return float(finish)
    reached = progress_at(w, job, job.clock + (job.grow_left - job.rescale_left) * job.scale)
    left = work_seconds(w.rates, w.elapsed, job.next_row, job.epochs)
    left -= work_seconds(w.rates, w.elapsed, job.next_row, reached)
    return float(now + job.grow_left + max(0.0, left) / job.scale)


@kernel()
def progress_at(w: World, job: Any, clock: float) -> float:
    """Epochs a JOB record has done when its row's clock, now in `job.epoch`, shows `clock` seconds."""
    epoch = last_epoch(w.elapsed, job.row, job.epoch, w.rates.shape[1], clock)
    return float(min(job.epochs, epoch + (clock - w.elapsed[job.row, epoch]) * w.rates[job.row, epoch]))


@kernel()
def stop_running(w: World, b: int, j: int, now: float) -> None:
    """Job j gives all its GPUs back and waits from `now` on (NaN: it has finished)."""
    job = w.jobs[b, j]
    release(w.nodes[b, j], job.gpus, w.free[b])
    w.clusters[b].held -= job.gpus
    job.gpus = 0
    job.row = NO_GPUS
    job.finish_at = np.inf
    job.rescale_left = 0.0
    job.grow_left = 0.0
    job.wait_start = now


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
        before, after, unused, trains = job.progress, job.epochs, 0.0, seconds - delay
        finished, same_epoch = True, False
        if resolution > 0.0:
            after, unused = progress_in_steps(
                rates, job.row, job.scale, before, job.epochs, seconds - delay, resolution
            )
            finished = after >= job.epochs
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
            after = max(before, min(job.epochs, after))
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
    """Fail or repair the nodes whose time has come."""
    cluster, rules = w.clusters[b], w.rules[0]
    for node in range(w.machines.shape[1]):
        machine = w.machines[b, node]
        if machine.toggle_at > cluster.time:
            continue
        cluster.changed = 1
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
    """Time [s] of the next decision point, were no further jobs to come; at most the time limit."""
    return float(min(next_decision(w, b), w.rules[0].limit))


@kernel()
def clear_sums(w: World, b: int) -> None:
    """Begin a new interval's sums."""
    sums = w.sums[b]
    for c in range(len(sums.accuracy_gain)):
        sums.accuracy_gain[c] = 0.0
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
