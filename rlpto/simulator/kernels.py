"""The compiled core of the simulator: the passage of time for cluster b of a batch.

Between decisions allocations are constant, so every job is advanced analytically from event to event; only node
failures interrupt. Functions called for every job are inlined: passing a `World` takes 25 to 50 ns.
"""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import ClusterShape, Placement
from rlpto.core.jobs import curve_at
from rlpto.core.renting import TICK_S
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import helper, kernel
from rlpto.simulator.allocating import apply_allocation
from rlpto.simulator.arrays import World
from rlpto.simulator.failures import schedule_failures, toggle_nodes
from rlpto.simulator.job_kernels import (
    enter_epoch,
    foresee_finish,
    last_epoch,
    log_change,
    progress_at,
    progress_in_steps,
    speed_row,
    stop_running,
    train_at,
)
from rlpto.simulator.shortfall import follow_accuracy, join_followed

Outlook = tuple[float, int, int, int, int, int, bool]
"""Time, GPUs up, GPUs held, active jobs, 1 if something changed, entries in the log, whether the cluster is over."""


@helper()
def join_arrivals(w: World, b: int) -> None:
    """Make every job active whose submit time has come."""
    cluster = w.clusters[b]
    while cluster.arrived < cluster.jobs and w.jobs[b, cluster.arrived].submit_time <= cluster.time:
        job = w.jobs[b, cluster.arrived]
        job_type = job.type_index
        job.accuracy = w.accuracy[job_type, 0]
        job.lost = 0.0 if w.rules[0].may_fail else np.nan
        in_all = curve_at(w.accuracy, job_type, w.types[job_type].epochs, job.epochs) - job.accuracy
        job.gain_scale = 1.0 / in_all if in_all > 0.0 else 0.0
        if w.rules[0].follow_accuracy:
            join_followed(w, b, cluster.arrived)
        w.active[b, cluster.active] = cluster.arrived
        w.sums[b].unfinished += cluster.time - job.submit_time
        cluster.active += 1
        cluster.arrived += 1
        w.sums[b].arrived += 1
        cluster.changed = 1


@kernel()
def train_jobs(w: World, b: int, until: float) -> None:
    """Advance every active job to `until` with the GPUs it holds; finished jobs leave and release theirs."""
    jobs, active, rates, elapsed = w.jobs[b], w.active[b], w.rates, w.elapsed
    curves, types, sums, gain = w.accuracy, w.types, w.sums[b], w.sums[b].accuracy_gain
    cluster, resolution = w.clusters[b], w.rules[0].resolution
    seconds = until - cluster.time
    gpu_seconds, unfinished, priced = 0.0, 0.0, w.rules[0].priced
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
                rates, job.row, job.pace, before, job.stop_epoch, seconds - delay, resolution
            )
            finished = after >= job.stop_epoch
        elif job.finish_at <= until:
            unused = until - job.finish_at
        else:
            finished = False
            if job.grow_left > seconds:
                job.grow_left -= seconds
            elif job.grow_left > 0.0:  # its newest workers join in between
                job.progress = max(before, progress_at(w, job, job.clock + (job.grow_left - delay) * job.pace))
                trains = seconds - job.grow_left
                job.trained += job.grow_left - delay  # by its present workers; `trains` is with all of them
                train_at(w, b, j, job.next_row)
            job.clock += trains * job.pace
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
        if priced:
            for gpu in range(job.gpus):
                sums.cost += held * w.machines[b, w.nodes[b, j, gpu]].price
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
def tick_after(time: float, interval: float) -> float:
    """The first multiple of `interval` later than `time`, however division rounds: time must pass."""
    nearest = np.rint(time / interval)
    return float(nearest * interval if nearest * interval > time else (nearest + 1.0) * interval)


@kernel()
def tick_from(time: float, interval: float) -> float:
    """The first multiple of `interval` not earlier than `time`."""
    nearest = np.rint(time / interval)
    return float(nearest * interval if nearest * interval >= time else (nearest + 1.0) * interval)


@helper()
def next_decision(w: World, b: int) -> float:
    """Time of the next decision: the next tick with a job in the system or, if configured, the next event.

    Infinity when nothing is left to come.
    """
    cluster, interval = w.clusters[b], w.rules[0].interval
    idle = cluster.active == 0
    arrival = w.jobs[b, cluster.arrived].submit_time if cluster.arrived < cluster.jobs else np.inf
    if idle and arrival == np.inf:
        return np.inf
    tick = tick_after(cluster.time, interval)
    if not w.rules[0].on_events:
        return float(min(cluster.next_rent, max(tick, tick_from(arrival, interval)) if idle else tick))
    event = min(arrival, cluster.next_toggle, cluster.next_rent)
    jobs, active = w.jobs[b], w.active[b]
    for i in range(cluster.active):
        event = min(event, jobs[active[i]].finish_at)
    return float(event if idle else min(tick, event))


@helper()
def clear_sums(w: World, b: int) -> None:
    """Begin a new interval's sums."""
    sums = w.sums[b]
    for c in range(len(sums.accuracy_gain)):
        sums.accuracy_gain[c] = 0.0
        sums.shortfall[c] = 0.0
    sums.unfinished = 0.0
    sums.gpu_seconds = 0.0
    sums.rescale_seconds = 0.0
    sums.cost = 0.0
    sums.rescales = 0
    sums.arrived = 0
    sums.finished = 0


@helper()
def advance(w: World, b: int) -> None:
    """Run cluster b to its next decision, or to the time limit if that is earlier."""
    cluster = w.clusters[b]
    cluster.changed = 0
    if cluster.next_rent <= cluster.time:  # at the beginning, or without a decision on nodes
        cluster.next_rent = 0.0 if cluster.next_rent < 0.0 else tick_after(cluster.time, TICK_S)
    w.sums[b].start = w.sums[b].end = cluster.time
    while True:
        due = min(next_decision(w, b), w.rules[0].limit)
        if due == np.inf:
            w.sums[b].end = cluster.time
            return
        until = min(due, max(cluster.next_toggle, cluster.time))
        if w.rules[0].follow_accuracy:
            follow_accuracy(w, b, until)
        w.sums[b].cost += cluster.rent * (until - cluster.time)
        train_jobs(w, b, until)
        if cluster.next_toggle <= until:
            toggle_nodes(w, b)
        if until >= due:
            break
    join_arrivals(w, b)
    w.sums[b].end = cluster.time


@kernel()
def is_over(w: World, b: int) -> bool:
    """True once every job of cluster b has finished, or the time limit is reached."""
    cluster = w.clusters[b]
    if cluster.active > 0 and cluster.time < w.rules[0].limit:
        return False
    return bool(cluster.arrived == cluster.jobs or cluster.time >= w.rules[0].limit)


@kernel()
def outlook(w: World, b: int) -> Outlook:
    """Return the `Outlook` of cluster b."""
    cluster = w.clusters[b]
    return (
        cluster.time, cluster.capacity, cluster.held, cluster.active, cluster.changed, cluster.logged, is_over(w, b)
    )  # fmt: skip


@kernel()
def begin(w: World, b: int) -> Outlook:
    """Run cluster b from time 0 to its first decision; returns `outlook`."""
    schedule_failures(w, b)
    advance(w, b)
    return outlook(w, b)


@kernel()
def apply_and_look(w: World, b: int, index: IntArray, gpus: IntArray, order: IntArray) -> Outlook:
    """`apply_allocation`, then `outlook`."""
    apply_allocation(w, b, index, gpus, order)
    return outlook(w, b)


@kernel()
def advance_until(w: World, b: int, until: float, passed: AnyArray) -> tuple[int, Outlook]:
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


def take_up_all(w: World, time: float, shape: ClusterShape, placement: Placement) -> None:
    """Set cluster 0 to `time` [s] with all its jobs active, its nodes as in shape and its GPUs as in placement.

    No node is requested or returned from then on.
    """
    w.machines["up"][0], w.free[0] = [node.up for node in shape], shape.offered
    w.clusters["capacity"] = shape.up_gpus
    w.clusters["next_rent"] = np.inf  # a new world's first decision on nodes is at time 0, in the past
    for job, nodes in enumerate(placement.nodes):
        w.nodes[0, job, : len(nodes)] = nodes
    take_up(w, 0, time, placement.training, placement.spanned, placement.starting)


@kernel()
def take_up(w: World, b: int, time: float, training: IntArray, spanned: IntArray, starting: FloatArray) -> None:
    """Set cluster b to `time` [s] with all its jobs active, holding GPUs on the nodes in `w.nodes`.

    training, spanned, starting: [M] columns of `rlpto.core.cluster.Placement`.
    """
    cluster = w.clusters[b]
    cluster.time = time
    join_arrivals(w, b)
    for j in range(cluster.jobs):
        job = w.jobs[b, j]
        job.accuracy = curve_at(w.accuracy, job.type_index, w.types[job.type_index].epochs, job.progress)
        if job.gpus == 0:
            continue
        for i in range(job.gpus):
            w.free[b, w.nodes[b, j, i]] -= 1
        cluster.held += job.gpus
        row = speed_row(w, b, j)
        if starting[j] > 0.0 and training[j] > 0:
            train_at(w, b, j, int(w.row[job.type_index, min(spanned[j], w.row.shape[1]) - 1, training[j]]))
            job.grow_left = starting[j]
            job.training_gpus = training[j]
            job.next_row = row
        else:
            train_at(w, b, j, row)
        foresee_finish(w, b, j)
        log_change(w, b, j, time)
    clear_sums(w, b)
    cluster.changed = 1
