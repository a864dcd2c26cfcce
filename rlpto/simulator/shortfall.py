"""When a job gains its accuracy, to the second: compiled steps next to those that train it.

Accuracy is linear in progress within an epoch, and progress in time. So the share of its accuracy that a job is missing
is piecewise linear in time, with corners at the ends of epochs, and its integral a sum of trapezia: exact, however far
apart two looks at the job are. Only where epoch ends are rounded (`epoch_resolution`) is it taken to be linear between
two looks. All of it follows from where jobs stand when an interval begins, so training knows nothing of it, and nothing
of it is done unless configured (rule `follow_accuracy`).
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
    """Job j becomes active: until now it was missing all it can gain."""
    job = w.jobs[b, j]
    job.final_accuracy = accuracy_after(w, job, job.epochs)
    if job.gain_scale > 0.0:
        w.sums[b].shortfall[job.priority] += w.clusters[b].time - job.submit_time


@helper()
def follow_accuracy(w: World, b: int, until: float) -> None:
    """Add to the sums of cluster b what its jobs will miss until `until`, and note the levels that they will reach.

    They have not been trained until then yet; no node fails before.
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
    """Seconds until `until`, or its finish, times the share that a running JOB record misses; `missing` of it now."""
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
    """Shares of its accuracy that a JOB record gains from progress `start` to `stop` at a row, each times the seconds
    from then to `end`.

    time [s]: when it is at `start`. Notes the levels that it reaches.
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
    """Note which levels a JOB record reaches while its accuracy rises from `before` to `after`, linearly.

    time [s]: when that begins; seconds: how long it takes. A level that a failure takes back was reached nevertheless.
    """
    for level in range(len(ACCURACY_LEVELS)):
        wanted = accuracy_at_level(job, level)
        if after >= wanted and np.isnan(job.reached[level]):
            part = (wanted - before) / (after - before) if after > before else 1.0
            job.reached[level] = time + min(max(part, 0.0), 1.0) * seconds


@helper()
def next_level(job: Any) -> float:
    """Accuracy of the lowest level that a JOB record has not reached yet; infinity: it has reached all."""
    for level in range(len(ACCURACY_LEVELS)):
        if np.isnan(job.reached[level]):
            return accuracy_at_level(job, level)
    return float(np.inf)


@kernel()
def accuracy_at_level(job: Any, level: int) -> float:
    """Accuracy at which a JOB record, which can gain some, reaches a level, by its number in ACCURACY_LEVELS."""
    return float(job.final_accuracy - (1.0 - ACCURACY_LEVELS[level]) / job.gain_scale)


@helper()
def accuracy_after(w: World, job: Any, progress: float) -> float:
    """Accuracy of a JOB record after `progress` epochs."""
    return float(curve_at(w.accuracy, job.type_index, w.types[job.type_index].epochs, progress))
