"""When a job gains its accuracy, to the second: compiled steps of one job.

Accuracy is linear in progress within an epoch, and progress in time. So the share of its accuracy that a job is missing
is piecewise linear in time, with corners at the ends of epochs, and its integral a sum of trapezia: exact, however far
apart two looks at the job are. Only where epoch ends are rounded (`epoch_resolution`) is it taken to be linear between
two looks. No job that waits needs a look for that: it is what all jobs are missing when an interval begins, times its
seconds, minus each share that is gained in it times the seconds that are left of it by then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlpto.compiled import kernel
from rlpto.jobs import ACCURACY_LEVELS, curve_at
from rlpto.simulator.arrays import World
from rlpto.simulator.job_kernels import progress_at


@kernel()
def accuracy_after(w: World, job: Any, progress: float) -> float:
    """Accuracy of a JOB record after `progress` epochs."""
    return float(curve_at(w.accuracy, job.type_index, w.types[job.type_index].epochs, progress))


@kernel()
def level_of(job: Any, level: int) -> float:
    """Accuracy at which a JOB record reaches a level, by its number in ACCURACY_LEVELS; infinity past the last.

    One that can gain nothing never reaches any.
    """
    if level >= len(ACCURACY_LEVELS) or not job.gain_scale > 0.0:
        return np.inf
    return float(job.final_accuracy - (1.0 - ACCURACY_LEVELS[level]) / job.gain_scale)


@kernel()
def begin_levels(job: Any) -> None:
    """A JOB record has reached no level yet."""
    job.next_level = level_of(job, 0)


@kernel()
def note_levels(job: Any, time: float, seconds: float, before: float, after: float) -> None:
    """Note which levels a JOB record reaches while its accuracy rises from `before` to `after`, linearly.

    time [s]: when that begins; seconds: how long it takes. A level that a failure takes back was reached nevertheless.
    """
    for level in range(len(ACCURACY_LEVELS)):
        wanted = level_of(job, level)
        if after < wanted:
            job.next_level = wanted
            return
        if np.isnan(job.reached[level]):
            part = (wanted - before) / (after - before) if after > before else 1.0
            job.reached[level] = time + min(max(part, 0.0), 1.0) * seconds
    job.next_level = np.inf


@kernel()
def pass_epochs(w: World, job: Any, row: int, start: float, end: float, time: float, until: float) -> float:
    """Shares of its accuracy that a JOB record gains from progress `start` to `end` at a row, each times the seconds
    from then to `until`.

    time [s]: when it is at `start`. Notes the levels that it reaches.
    """
    last, early = w.rates.shape[1] - 1, 0.0
    at, before = start, accuracy_after(w, job, start)
    while at < end:
        epoch = int(at)
        stop = min(end, epoch + 1.0)
        seconds = (stop - at) / (w.rates[row, min(epoch, last)] * job.scale)
        after = accuracy_after(w, job, stop)
        if after >= job.next_level:
            note_levels(job, time, seconds, before, after)
        early += (after - before) * job.gain_scale * (until - time - 0.5 * seconds)
        at, before, time = stop, after, time + seconds
    return float(early)


@kernel()
def pass_rest(w: World, job: Any, now: float, delay: float, until: float) -> float:
    """`pass_epochs` of a JOB record that finishes before `until` and trains from `delay` seconds after `now` on."""
    begins, joins = now + delay, now + job.grow_left
    if job.grow_left == 0.0 or job.finish_at <= joins:
        return pass_epochs(w, job, job.row, job.progress, job.stop_epoch, begins, until)
    joined = max(job.progress, progress_at(w, job, job.clock + (job.grow_left - delay) * job.scale))
    early = pass_epochs(w, job, job.row, job.progress, joined, begins, until)
    return float(early + pass_epochs(w, job, job.next_row, joined, job.stop_epoch, joins, until))
