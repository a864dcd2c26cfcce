"""Compiled steps of one job of a simulated cluster: its row of the speed tables, its clock, its start and stop."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlpto.core.placement import release, span
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.compiled import helper, kernel
from rlpto.performance.tables import MAX_EXACT_GROUPS, NO_GPUS, PLACEMENT_BASE, TYPE_STRIDE
from rlpto.simulator.arrays import World


@kernel()
def work_seconds(rates: FloatArray, elapsed: FloatArray, row: int, progress: float) -> float:
    """Seconds the row's curve takes from epoch 0 to `progress` epochs."""
    last = rates.shape[1] - 1
    epoch = min(int(progress), last)
    return float(elapsed[row, epoch] + (progress - epoch) / rates[row, epoch])


@kernel()
def last_epoch(elapsed: FloatArray, row: int, epoch: int, epochs: int, clock: float) -> int:
    """Return the epoch of the row's curve after `clock` seconds; `epoch`: any epoch begun by then.

    epochs: number of epochs in the tables; later epochs repeat the last.
    """
    epoch = min(epoch, epochs - 1)
    while epoch < epochs - 1 and elapsed[row, epoch + 1] <= clock:
        epoch += 1
    return epoch


@kernel()
def enter_epoch(
    job: Any, rates: FloatArray, elapsed: FloatArray, curves: FloatArray, measured: int, epoch: int
) -> None:
    """Read the values of `epoch` from the tables into a JOB record whose clock is in that epoch.

    curves: accuracy [T, P + 1], known for `measured` epochs of the job's type and constant from there on.
    """
    row = job.row
    job.epoch = epoch
    job.epoch_start = elapsed[row, epoch]
    job.epoch_end = elapsed[row, epoch + 1]
    job.rate = rates[row, epoch]
    past_tables = epoch == rates.shape[1] - 1 and job.clock >= job.epoch_end
    if past_tables:
        job.epoch_end = np.inf
    if epoch < measured and not past_tables:
        job.slope = curves[job.type_index, epoch + 1] - curves[job.type_index, epoch]
    else:
        job.slope = 0.0


@helper()
def progress_in_steps(
    rates: FloatArray, row: int, pace: float, progress: float, target: float, seconds: float, resolution: float
) -> tuple[float, float]:
    """Epochs done after `seconds` when epoch ends are rounded to `resolution` seconds, and seconds unused.

    An epoch that would end within the remaining time ends at the nearest multiple of the resolution from where its time
    began (half to even); the time after the last epoch is unused.
    """
    last = rates.shape[1] - 1
    while seconds > 0.0 and progress < target:
        epoch = int(progress)
        rate = rates[row, min(epoch, last)] * pace
        boundary = min(epoch + 1.0, target)
        if progress + rate * seconds < boundary:
            return progress + rate * seconds, 0.0
        taken = np.rint((boundary - progress) / rate / resolution) * resolution
        seconds = max(0.0, seconds - taken)
        progress = boundary
    return progress, seconds


@kernel()
def exact_row(w: World, b: int, j: int, spanned: int) -> int:
    """Row measured for exactly the placement of job j, or -1."""
    job, nodes = w.jobs[b, j], w.nodes[b, j]
    code, first_digit, size = np.int64(0), np.int64(1), 0
    for i in range(job.gpus):
        size += 1
        if size >= PLACEMENT_BASE:
            return -1
        if i + 1 == job.gpus or nodes[i + 1] != nodes[i]:
            code, size = code * PLACEMENT_BASE + size, 0
    for _ in range(spanned - 1):
        first_digit *= PLACEMENT_BASE
    smallest = code
    for _ in range(spanned - 1):  # turned by one node
        code = code % first_digit * PLACEMENT_BASE + code // first_digit
        smallest = min(smallest, code)
    key = job.type_index * np.int64(TYPE_STRIDE) + smallest
    low, high = 0, len(w.exact_keys)  # not searchsorted, which takes half a second to compile
    while low < high:
        middle = (low + high) // 2
        if w.exact_keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    if low < len(w.exact_keys) and w.exact_keys[low] == key:
        return int(w.exact_rows[low])
    return -1


@helper()
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


@helper()
def log_change(w: World, b: int, j: int, time: float) -> None:
    """Record in the log, if one is kept, how many GPUs job j holds from `time` on."""
    if w.log.shape[1] == 0:
        return
    job = w.jobs[b, j]
    entry = w.log[b, w.clusters[b].logged]
    entry.time = time
    entry.job = j
    entry.gpus = job.gpus
    entry.accuracy = job.accuracy
    w.clusters[b].logged += 1


@helper()
def start_running(w: World, b: int, j: int, shrinks: int) -> None:
    """Set speed, rescale delay and predicted finish of job j by its new allocation.

    If growth overlaps training, a job that runs (or is about to) loses nothing: it keeps training with its present
    workers until the newest have started, or with fewer of them if GPUs are released before that.
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
    if w.rules[0].checkpoint_seconds > 0.0:
        write_checkpoints(w, b, j)
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
    foresee_finish(w, b, j)


@helper()
def write_checkpoints(w: World, b: int, j: int) -> None:
    """Let job j write checkpoints at the best interval for its present nodes, which slows it from here on.

    It trains for the interval out of every interval + checkpoint_seconds, averaged as a factor on its pace.
    """
    job, rules = w.jobs[b, j], w.rules[0]
    interval, cost = rules.checkpoint_interval, rules.checkpoint_seconds
    if rules.best_interval > 0:
        interval = best_interval(cost, 1.0 / stop_rate(w, b, j), rules.best_interval == 2)
    keep_trained(job)
    job.writing = cost / (interval + cost)
    if job.row != NO_GPUS:
        run_at(w, b, j, job.row)


@helper()
def stop_rate(w: World, b: int, j: int) -> float:
    """Rate at which failures stop job j where it runs now [1/s]: any of its nodes goes down, or it alone must restart.

    A spot node reclaimed with enough notice costs no work, and does not count.
    """
    job, restarts, rate = w.jobs[b, j], w.rules[0].restart_share, 0.0
    for i in range(job.gpus):
        node = w.nodes[b, j, i]
        machine = w.machines[b, node]
        first = i == 0 or w.nodes[b, j, i - 1] != node  # a node's GPUs are together
        rate += (restarts / machine.size + (1.0 - restarts) * first) / machine.mtbf
        if first and machine.spot > 0.0 and machine.notice < w.rules[0].checkpoint_seconds:
            rate += 1.0 / machine.spot
    return float(rate)


@kernel()
def best_interval(cost: float, mtbf: float, daly: bool) -> float:
    """Training time [s] between checkpoints of `cost` [s] that minimises lost time, with a failure every `mtbf` [s].

    Young (CACM 17(9), 1974): sqrt(2 cost mtbf). Daly (FGCS 22(3), 2006), equation 37, adds terms of higher order.
    """
    young = np.sqrt(2.0 * cost * mtbf)
    if not daly:
        return float(young)
    if cost >= 2.0 * mtbf:
        return mtbf
    part = cost / (2.0 * mtbf)
    return float(young * (1.0 + np.sqrt(part) / 3.0 + part / 9.0) - cost)


@helper()
def train_at(w: World, b: int, j: int, row: int) -> None:
    """Let job j train with all its GPUs, at this row of the speed tables, once its start is over."""
    job = w.jobs[b, j]
    job.grow_left = 0.0
    job.training_gpus = job.gpus
    run_at(w, b, j, row)


@kernel()
def run_at(w: World, b: int, j: int, row: int) -> None:
    """Continue job j from its present progress at this row of the speed tables."""
    job = w.jobs[b, j]
    keep_trained(job)
    job.row = row
    job.pace = job.scale * (1.0 - job.writing)
    job.base_progress = job.progress
    set_clock(w, job)


@kernel()
def keep_trained(job: Any) -> None:
    """Count the training of a JOB record since its last change of GPUs as saved."""
    job.kept += job.trained * (1.0 - job.writing)
    job.trained = 0.0


@kernel()
def set_clock(w: World, job: Any) -> None:
    """Set the clock of a JOB record to its progress on its row's time axis."""
    job.clock = work_seconds(w.rates, w.elapsed, job.row, job.progress)
    epoch = min(int(job.progress), w.rates.shape[1] - 1)
    enter_epoch(job, w.rates, w.elapsed, w.accuracy, w.types[job.type_index].epochs, epoch)


@kernel()
def take_rows(w: World, b: int, jobs: IntArray, rows: IntArray, joining: BoolArray) -> None:
    """Let jobs [n] train at rows that were written just now; `joining` [n] as in `take_row`."""
    for at in range(len(jobs)):
        take_row(w, b, jobs[at], rows[at], joining[at])


@helper()
def take_row(w: World, b: int, j: int, row: int, joining: bool) -> None:
    """Let running job j train at this newly written row; joining: only once its newest workers have joined.

    If it already trains at this row, it continues from its present progress.
    """
    job = w.jobs[b, j]
    if joining:
        job.next_row = row
    elif row == job.row:
        set_clock(w, job)
    else:
        run_at(w, b, j, row)
    foresee_finish(w, b, j)


@helper()
def foresee_finish(w: World, b: int, j: int) -> None:
    """Predict when job j finishes if nothing changes: first its start, then its present workers, then those that join.

    Unknown if epoch ends are rounded.
    """
    job, now = w.jobs[b, j], w.clusters[b].time
    if w.rules[0].resolution > 0.0:
        return
    work = work_seconds(w.rates, w.elapsed, job.row, job.stop_epoch)
    # Rounding must not let a job that is all but done finish in the past.
    job.finish_at = now + job.rescale_left + max(0.0, work - job.clock) / job.pace
    if job.grow_left > 0.0 and job.finish_at > now + job.grow_left:
        reached = progress_at(w, job, job.clock + (job.grow_left - job.rescale_left) * job.pace)
        left = work_seconds(w.rates, w.elapsed, job.next_row, job.stop_epoch)
        left -= work_seconds(w.rates, w.elapsed, job.next_row, reached)
        job.finish_at = now + job.grow_left + max(0.0, left) / job.pace


@helper()
def progress_at(w: World, job: Any, clock: float) -> float:
    """Epochs a JOB record has done when its row's clock, now in `job.epoch`, shows `clock` seconds."""
    epoch = last_epoch(w.elapsed, job.row, job.epoch, w.rates.shape[1], clock)
    return float(min(job.stop_epoch, epoch + (clock - w.elapsed[job.row, epoch]) * w.rates[job.row, epoch]))


@helper()
def progress_after(w: World, job: Any, row: int, start: float, seconds: float) -> float:
    """Epochs that a JOB record has done after seconds of training at a row, from progress `start` on."""
    epochs = w.rates.shape[1]
    clock = work_seconds(w.rates, w.elapsed, row, start) + seconds * job.pace
    epoch = last_epoch(w.elapsed, row, int(start), epochs, clock)
    reached = epoch + (clock - w.elapsed[row, epoch]) * w.rates[row, epoch]
    return float(max(start, min(job.stop_epoch, reached)))


@helper()
def stop_running(w: World, b: int, j: int, now: float) -> None:
    """Release all GPUs of job j, which waits from `now` on (NaN if it has finished)."""
    job = w.jobs[b, j]
    keep_trained(job)
    release(w.nodes[b, j], job.gpus, w.free[b])
    w.clusters[b].held -= job.gpus
    job.gpus = 0
    job.row = NO_GPUS
    job.finish_at = np.inf
    job.rescale_left = 0.0
    job.grow_left = 0.0
    job.wait_start = now
