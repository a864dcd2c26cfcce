"""Compiled steps of one job of a simulated cluster: its row of the speed tables, its clock, its start and stop."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlpto.core.placement import release, span
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.compiled import kernel, njit
from rlpto.performance.tables import MAX_EXACT_GROUPS, NO_GPUS, PLACEMENT_BASE, TYPE_STRIDE
from rlpto.simulator.arrays import World
from rlpto.simulator.training import (
    enter_epoch,
    last_epoch,
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

    What it has trained until now counts as saved by a checkpoint. A job that moves to another kind of GPU gives
    back those it has: its workers there are of no use on the others.
    """
    for i in range(len(index)):
        j = index[i]
        job = w.jobs[b, j]
        before, kind = job.type_index, types[i]
        if before == kind:
            continue
        job.type_index = job.believed_type = kind
        if w.types[before].kind != w.types[kind].kind and job.gpus > 0:
            stop_running(w, b, j, w.clusters[b].time)
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
def restart_jobs(w: World, b: int, index: IntArray, rescales: IntArray) -> None:
    """Job index[i], which runs and has other servers now, starts from a checkpoint, and none of it trains until then.

    rescales: [n] of theirs before the decision. A job that also got other GPUs starts only once.
    """
    for i in range(len(index)):
        j = index[i]
        job = w.jobs[b, j]
        delay = float(w.types[job.type_index].delay)
        resized = job.rescales > rescales[i]
        if resized and w.rules[0].overlap == 0:
            continue
        if not resized:
            job.rescales += 1
            w.sums[b].rescales += 1
        w.sums[b].rescale_seconds += delay
        job.rescale_left = delay
        train_at(w, b, j, speed_row(w, b, j))
        if w.rules[0].resolution == 0.0:
            job.finish_at = finish_time(w, b, j)


@kernel()
def change_scale(w: World, b: int, index: IntArray, scale: FloatArray) -> None:
    """Job index[i] goes on at scale[i] times the rates of its row, and loses nothing by that.

    What it has trained until now counts as saved by a checkpoint.
    """
    for i in range(len(index)):
        j = index[i]
        job = w.jobs[b, j]
        if job.scale == scale[i]:
            continue
        job.scale = scale[i]
        if job.gpus == 0:
            continue
        run_at(w, b, j, job.row)
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


@njit()
def take_row(w: World, b: int, j: int, row: int, joining: bool) -> None:
    """Job j, which starts to run, trains at this row; joining: once its newest workers have joined."""
    if joining:
        w.jobs[b, j].next_row = row
    else:
        run_at(w, b, j, row)
    if w.rules[0].resolution == 0.0:
        w.jobs[b, j].finish_at = finish_time(w, b, j)


@njit()
def reread_row(w: World, b: int, j: int) -> None:
    """The row that job j trains at has been rewritten: it goes on from where it stands."""
    job = w.jobs[b, j]
    job.clock = work_seconds(w.rates, w.elapsed, job.row, job.progress)
    epoch = min(int(job.progress), w.rates.shape[1] - 1)
    enter_epoch(job, w.rates, w.elapsed, w.accuracy, w.types[job.type_index].epochs, epoch)
    if w.rules[0].resolution == 0.0:
        job.finish_at = finish_time(w, b, j)


@kernel()
def finish_time(w: World, b: int, j: int) -> float:
    """When job j finishes if nothing changes: its start first, then the workers it has, then those that join them."""
    job, now = w.jobs[b, j], w.clusters[b].time
    work = work_seconds(w.rates, w.elapsed, job.row, job.stop_epoch)
    # Rounding must not let a job that is all but done finish in the past.
    finish = now + job.rescale_left + max(0.0, work - job.clock) / job.scale
    if job.grow_left == 0.0 or finish <= now + job.grow_left:
        return float(finish)
    reached = progress_at(w, job, job.clock + (job.grow_left - job.rescale_left) * job.scale)
    left = work_seconds(w.rates, w.elapsed, job.next_row, job.stop_epoch)
    left -= work_seconds(w.rates, w.elapsed, job.next_row, reached)
    return float(now + job.grow_left + max(0.0, left) / job.scale)


@kernel()
def progress_at(w: World, job: Any, clock: float) -> float:
    """Epochs a JOB record has done when its row's clock, now in `job.epoch`, shows `clock` seconds."""
    epoch = last_epoch(w.elapsed, job.row, job.epoch, w.rates.shape[1], clock)
    return float(min(job.stop_epoch, epoch + (clock - w.elapsed[job.row, epoch]) * w.rates[job.row, epoch]))


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
