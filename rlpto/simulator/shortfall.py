"""Compute when a job gains its accuracy, to the second: compiled steps alongside those that train it.

Accuracy is linear in progress within an epoch, and progress is linear in time. So the share of its accuracy that a job
is missing is piecewise linear in time, with corners at the ends of epochs, and its integral is a sum of trapezia:
exact, however long the interval. Only if epoch ends are rounded (`epoch_resolution`) is the share taken as linear over
the whole interval. All of it follows from the jobs' state at the start of an interval, so training is unaffected; it is
computed only if configured (rule `follow_accuracy`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlpto.core.jobs import ACCURACY_LEVELS, curve_at
from rlpto.io.compiled import helper, kernel
from rlpto.simulator.arrays import World
from rlpto.simulator.job_kernels import progress_after, progress_at, progress_in_steps


@kernel()
def join_followed(w: World, b: int, j: int) -> None:
    """Start following job j, which becomes active: until now it was missing all the accuracy it can gain."""
    job = w.jobs[b, j]
    job.final_accuracy = accuracy_after(w, job, job.epochs)
    if job.gain_scale > 0.0:
        w.sums[b].shortfall[job.priority] += w.clusters[b].time - job.submit_time


@helper()
def follow_accuracy(w: World, b: int, until: float) -> None:
    """Add the jobs' shortfall until `until` to the sums of cluster b, and record the levels that they will reach.

    Jobs are trained until then only afterwards, and no node fails before.
    """
    now, lost = w.clusters[b].time, w.sums[b].shortfall
    for i in range(w.clusters[b].active):
        job = w.jobs[b, w.active[b, i]]
        if not job.gain_scale > 0.0:
            continue  # it can gain nothing
        missing = (job.final_accuracy - job.accuracy) * job.gain_scale
        if job.gpus == 0:
            lost[job.priority] += missing * (until - now)
        else:
            lost[job.priority] += shortfall_of(w, job, missing, now, until)


@helper()
def shortfall_of(w: World, job: Any, missing: float, now: float, until: float) -> float:
    """Missing share of accuracy of a running JOB record, integrated over the seconds until `until` or its finish;
    `missing`: the share now.
    """
    delay = min(job.rescale_left, until - now)
    begins = now + delay
    if w.rules[0].resolution > 0.0:
        after, unused = progress_in_steps(
            w.rates, job.row, job.pace, job.progress, job.stop_epoch, until - begins, w.rules[0].resolution
        )
        end, reached = until - unused, accuracy_after(w, job, after)
        if after < job.stop_epoch:
            end = until
        if reached >= next_level(job):
            note_levels(job, begins, end - begins, job.accuracy, reached)
        return float(missing * (end - now) - 0.5 * (reached - job.accuracy) * job.gain_scale * (end - begins))
    end, joins = min(until, job.finish_at), now + job.grow_left
    row, start, time, early = job.row, job.progress, begins, 0.0
    if job.grow_left > 0.0 and joins < end:  # its newest workers join in between
        start = max(start, progress_at(w, job, job.clock + (job.grow_left - delay) * job.pace))
        early = pass_epochs(w, job, row, job.progress, start, begins, end)
        row, time = job.next_row, joins
    stop = job.stop_epoch
    if job.finish_at > until:
        stop = progress_after(w, job, row, start, until - time)
    return float(missing * (end - now) - early - pass_epochs(w, job, row, start, stop, time, end))


@helper()
def pass_epochs(w: World, job: Any, row: int, start: float, stop: float, time: float, end: float) -> float:
    """Integrate a JOB record's share of gained accuracy over time until `end`, for progress `start` to `stop` at a row.

    time [s]: when its progress is `start`. Records the levels that it reaches.
    """
    last, early, level = w.rates.shape[1] - 1, 0.0, next_level(job)
    at, before = start, accuracy_after(w, job, start)
    while at < stop:
        epoch = int(at)
        edge = min(stop, epoch + 1.0)
        seconds = (edge - at) / (w.rates[row, min(epoch, last)] * job.pace)
        after = accuracy_after(w, job, edge)
        if after >= level:
            note_levels(job, time, seconds, before, after)
            level = next_level(job)
        early += (after - before) * job.gain_scale * (end - time - 0.5 * seconds)
        at, before, time = edge, after, time + seconds
    return float(early)


@helper()
def note_levels(job: Any, time: float, seconds: float, before: float, after: float) -> None:
    """Record the levels that a JOB record reaches while its accuracy rises from `before` to `after`, linearly.

    time [s]: start of the rise; seconds: its duration. A level counts as reached even if a failure takes it back.
    """
    for level in range(len(ACCURACY_LEVELS)):
        wanted = accuracy_at_level(job, level)
        if after >= wanted and np.isnan(job.reached[level]):
            part = (wanted - before) / (after - before) if after > before else 1.0
            job.reached[level] = time + min(max(part, 0.0), 1.0) * seconds


@helper()
def next_level(job: Any) -> float:
    """Accuracy of the lowest level that a JOB record has not reached yet; infinity if it has reached all."""
    for level in range(len(ACCURACY_LEVELS)):
        if np.isnan(job.reached[level]):
            return accuracy_at_level(job, level)
    return float(np.inf)


@kernel()
def accuracy_at_level(job: Any, level: int) -> float:
    """Accuracy at which a JOB record that can gain some reaches a level, by its number in ACCURACY_LEVELS."""
    return float(job.final_accuracy - (1.0 - ACCURACY_LEVELS[level]) / job.gain_scale)


@helper()
def accuracy_after(w: World, job: Any, progress: float) -> float:
    """Accuracy of a JOB record after `progress` epochs."""
    return float(curve_at(w.accuracy, job.type_index, w.types[job.type_index].epochs, progress))
