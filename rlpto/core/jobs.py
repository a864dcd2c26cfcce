"""Jobs, the records of their state, and the columns of these records that policies see.

Columns have the same names in Python and in compiled code: a job's state is a record of `JOB`, its visible part a
record of `VIEW`. `fill_limits`, `fill_estimates` and `fill_speed` fill views for policies, environments and batches of
simulators alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from rlpto.core.stopping import StopRule
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import kernel
from rlpto.io.errors import JobError
from rlpto.performance.metrics import DEFAULT_METRIC, METRICS
from rlpto.performance.tables import JobType

PRIORITY_CLASSES = ("high", "normal", "low")
"""Names of the priority classes; class 0 is served first."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training task.

    name: unique within a workload.
    submit_time: seconds since the start of the workload.
    model: name of a performance profile.
    epochs: work, in scale-invariant epochs over the job's own data.
    data_size: samples in one epoch.
    requested_gpus: GPUs that the user asked for; rigid policies allocate exactly this number.
    min_gpus, max_gpus: limits of an elastic policy.
    priority: class, 0 (high) to 2 (low).
    batch_size: fixed total batch size in samples. Default: the job adapts its batch size.
    metric: metric by which batch sizes are chosen, a name in `rlpto.performance.metrics.METRICS`.
    stop: rule that ends the job before its epochs are done. Default: it trains all its epochs.
    user: name of the submitter. Default: not known.
    gpu_types: names of the cluster's GPU types that the job may use. Default: all.
    """

    name: str
    submit_time: float
    model: str
    epochs: float
    data_size: float
    requested_gpus: int = 1
    min_gpus: int = 1
    max_gpus: int = 1
    priority: int = 1
    batch_size: int | None = None
    metric: str = DEFAULT_METRIC
    stop: StopRule | None = None
    user: str = ""
    gpu_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (np.isfinite(self.submit_time) and self.submit_time >= 0):
            raise JobError(f"job {self.name}: submit_time {self.submit_time} s, expected 0 or more")
        if not (np.isfinite(self.epochs) and self.epochs > 0):
            raise JobError(f"job {self.name}: epochs {self.epochs}, expected more than 0")
        if not (np.isfinite(self.data_size) and self.data_size > 0):
            raise JobError(f"job {self.name}: data_size {self.data_size} samples, expected more than 0")
        if not 1 <= self.min_gpus <= self.requested_gpus <= self.max_gpus:
            raise JobError(
                f"job {self.name}: expected 1 <= min_gpus <= requested_gpus <= max_gpus, "
                f"got {self.min_gpus}, {self.requested_gpus}, {self.max_gpus}"
            )
        if not 0 <= self.priority < len(PRIORITY_CLASSES):
            raise JobError(f"job {self.name}: priority {self.priority}, expected 0 to {len(PRIORITY_CLASSES) - 1}")
        if self.metric not in METRICS:
            raise JobError(f"job {self.name}: metric {self.metric!r}, expected one of {', '.join(METRICS)}")

    @property
    def type(self) -> JobType:
        """The job type, which determines the job's speed."""
        return JobType(self.model, self.batch_size, self.metric, gpu_types=self.gpu_types)


class FinishedJob(NamedTuple):
    """A job that has finished, and the epochs that it trained."""

    job_type: JobType
    user: str
    epochs: float


@cache
def user_code(user: str) -> int:
    """Return the number that stands for a user in job records: a digest of the name, 0 for an empty name."""
    return int.from_bytes(blake2b(user.encode(), digest_size=8).digest(), "big", signed=True) if user else 0


ACCURACY_LEVELS = (0.9, 0.95, 0.99)
"""Shares of the accuracy that a job can gain. The times at which a job reaches them are recorded."""

JOB = np.dtype(
    [
        # Columns used by every simulator step come first, to share cache lines.
        ("gpus", "i8"),
        ("rescale_left", "f8"),
        ("finish_at", "f8"),
        ("clock", "f8"),
        ("pace", "f8"),
        ("progress", "f8"),
        ("epoch", "i8"),
        ("epoch_start", "f8"),
        ("epoch_end", "f8"),
        ("rate", "f8"),
        ("slope", "f8"),
        ("gain_scale", "f8"),
        ("accuracy", "f8"),
        ("trained", "f8"),
        ("attained_service", "f8"),
        ("priority", "i8"),
        ("scale", "f8"),
        ("wait_start", "f8"),
        ("risen", "i8"),
        ("min_gpus", "i8"),
        ("requested_gpus", "i8"),
        ("max_gpus", "i8"),
        ("submit_time", "f8"),
        ("start_time", "f8"),
        ("finish_time", "f8"),
        ("epochs", "f8"),
        ("stop_epoch", "f8"),
        ("data_size", "f8"),
        ("base_progress", "f8"),
        ("type_index", "i8"),
        ("user", "i8"),
        ("estimated_type", "i8"),
        ("measured_accuracy", "f8"),
        ("row", "i8"),
        ("rescales", "i8"),
        ("peak_gpus", "i8"),
        ("grow_left", "f8"),
        ("training_gpus", "i8"),
        ("next_row", "i8"),
        ("final_accuracy", "f8"),
        ("reached", "f8", (len(ACCURACY_LEVELS),)),
        ("writing", "f8"),
        ("kept", "f8"),
        ("lost", "f8"),
        ("reserved", "i8"),
    ],
    align=True,
)
"""State of a job.

Given by the workload:
    submit_time [s], epochs, data_size [samples], requested_gpus, min_gpus, max_gpus, priority, type_index (into the
    speed tables), scale (profile samples / data_size: factor on rates).
    user: number of the submitter by `user_code`, the same in every store; 0 if not known.
    stop_epoch: epochs after which a simulated job finishes; less than `epochs` if it stops early. It is not
    known in advance: no policy may see it, and no snapshot may contain it.
Changed by any cluster:
    gpus (held now), progress [epochs], rescale_left [s] (until the job trains after a start or rescale),
    attained_service [GPU-s], start_time [s] (first GPU; NaN before), finish_time [s] (NaN before), rescales, peak_gpus
    (most held so far),
    wait_start [s]: time since which the job holds no GPUs (NaN while it holds some).
    reached [s]: when the job first reached each of ACCURACY_LEVELS (NaN before).
    estimated_type: job type that policies see; measured_accuracy: accuracy in [0, 1] that policies see instead of the
    profile's curve (NaN if not measured).
Changed by the queue:
    risen: number of classes the job has risen by waiting. reserved: 1 once GPUs were reserved for the job, else 0.
Used by the simulator only:
    finish_at [s]: when the job will finish if nothing changes (infinity without GPUs).
    row: the job's row of the speed tables. clock [s]: its position on the time axis of that row. pace: clock seconds
    per real second; equal to `scale`, reduced by the time spent writing checkpoints. writing: share of training time
    spent writing checkpoints.
    epoch: current epoch, with its bounds epoch_start and epoch_end [s of the row's clock], its rate [epochs/s of the
    row's clock] and its slope [accuracy per epoch]; `rlpto.simulator.job_kernels.enter_epoch` reads them once an epoch.
    accuracy: accuracy now; gain_scale: 1 / accuracy that the job can gain in total (0 if it can gain none).
    final_accuracy: accuracy at the job's end; set only if the simulator follows accuracy.
    base_progress [epochs], trained [s]: progress at the last change of GPUs, and training time since; the last
    checkpoint follows from both. kept [s]: training time before that change, without writing checkpoints and without
    lost time. lost [GPU-s]: training lost to failures (NaN if nodes never fail, or if the job is real).
    grow_left [s]: time until the newest workers train (0 if none is starting). Until then, training_gpus of the job's
    GPUs train at `row`; afterwards all of them train at next_row. Used only if jobs train while they grow."""

VIEW = np.dtype(
    [
        ("index", "i8"),
        ("effective_priority", "i8"),
        ("class_rank", "i8"),
        ("gpus", "i8"),
        ("min_gpus", "i8"),
        ("max_gpus", "i8"),
        ("requested_gpus", "i8"),
        ("remaining", "f8"),
        ("submit_time", "f8"),
        ("attained_service", "f8"),
        ("rescale_delay", "f8"),
        ("rescale_left", "f8"),
        ("wait_start", "f8"),
        ("progress", "f8"),
        ("epochs", "f8"),
        ("data_size", "f8"),
        ("accuracy", "f8"),
        ("first_accuracy", "f8"),
        ("final_accuracy", "f8"),
        ("accuracy_ahead", "f8"),
        ("scale", "f8"),
        ("start_time", "f8"),
        ("type_index", "i8"),
        ("epoch", "i8"),
        ("priority", "i8"),
        ("rescales", "i8"),
        ("peak_gpus", "i8"),
        ("sizes_seen", "f8"),
        ("speed_sigma", "f8"),
    ],
    align=True,
)
"""Columns of a job that policies see. Columns not listed here have the same meaning in `JOB`.

index: position in the workload; it does not change while the job lives. effective_priority: class after aging.
class_rank: rank of the class; jobs of a lower rank always come first. It is the class after aging in a strict queue,
and 0 for all jobs if classes only have weights.
type_index: job type; jobs of one type share their speed and accuracy curves. epoch: current epoch, at most the last
measured one.
remaining: estimated remaining work, in the unit of work of `JobTable.speed` (epochs, or the unit of
`SpeedTables.known_remaining`).
progress: epochs done, always exact. epochs: progress plus the estimated remaining epochs. If remaining work is
estimated with errors, or unknown, the job may end after a different number of epochs.
rescale_delay [s]: time without progress after a change of the job's GPUs.
accuracy, first_accuracy, final_accuracy: accuracy now, before training, and after all epochs.
accuracy_ahead: steepest rise of accuracy from now on, over any number of epochs, as in
`rlpto.performance.accuracy.accuracy_ahead`: share of the total gain in accuracy per share of the remaining work.
sizes_seen: numbers of GPUs at which steps were measured. speed_sigma: standard deviation of the logarithm of the
estimated speed at twice the GPUs that the job holds (at least 1, at most max_gpus). Both are 0 if speeds are exact.
"""


@dataclass(frozen=True)
class EstimateNoise:
    """Errors of the estimates that policies see, per job of the store ([M] each).

    remaining: factor on the remaining work. speed: factor on the speed at any number of GPUs.
    scaling: exponent e of another factor k**e on the speed with k GPUs.
    """

    remaining: FloatArray
    speed: FloatArray
    scaling: FloatArray
    _factors: dict[int, FloatArray] = field(default_factory=dict, init=False, repr=False, compare=False)

    def factors(self, width: int) -> FloatArray:
        """[M, 2 + width] factors on remaining, on speed, and on scaling with 0..width - 1 GPUs."""
        if width not in self._factors:
            gpus = np.maximum(np.arange(width), 1)
            scaling = gpus[None, :] ** self.scaling[:, None]
            self._factors[width] = np.column_stack([self.remaining, self.speed, scaling])
        return self._factors[width]


@kernel(inline="always")
def curve_at(curves: FloatArray, job_type: int, epochs: int, progress: float) -> float:
    """Accuracy of a job type after `progress` epochs; curves [T, P + 1] at whole epochs, known up to `epochs`."""
    at = min(progress, float(epochs))
    low = min(int(at), epochs - 1)
    return float(curves[job_type, low] + (at - low) * (curves[job_type, low + 1] - curves[job_type, low]))


@kernel()
def fill_limits(jobs: AnyArray, index: IntArray, effective: IntArray, strict: bool, view: AnyArray) -> None:
    """Fill the columns of view [n] VIEW that the queue needs, from index to requested_gpus.

    index: [n] rows of the jobs in jobs [M] JOB. effective: [n] classes after aging. strict: if true, the effective
    class is also the rank; otherwise all ranks are 0.
    """
    for i in range(len(index)):
        job, row = jobs[index[i]], view[i]
        row.index = index[i]
        row.effective_priority = effective[i]
        row.class_rank = effective[i] if strict else 0
        row.gpus = job.gpus
        row.min_gpus = job.min_gpus
        row.max_gpus = job.max_gpus
        row.requested_gpus = job.requested_gpus


@kernel()
def fill_estimates(
    jobs: AnyArray,
    types: AnyArray,
    curves: FloatArray,
    ahead: FloatArray,
    known_remaining: FloatArray,
    noise: FloatArray,
    view: AnyArray,
) -> None:
    """Fill the columns of view [n] VIEW that `fill_limits` has not filled, with estimates for jobs [M] JOB.

    types: [T] TYPE. curves: [T, P + 1] accuracy. ahead: [T, P] `SpeedTables.accuracy_ahead`.
    known_remaining: [T, P] remaining work; if it is empty, remaining work is counted in epochs.
    noise: [M, 2 + K + 1] result of `EstimateNoise.factors`; empty for exact values.
    """
    for i in range(len(view)):
        row = view[i]
        job = jobs[row.index]
        job_type = job.estimated_type
        epochs = types[job_type].epochs
        epoch = min(int(job.progress), epochs - 1)
        left = known_remaining[job_type, epoch] if known_remaining.size else job.epochs - job.progress
        row.epochs = job.epochs
        if noise.size:
            left = left * noise[row.index, 0]
            row.epochs = job.progress + (job.epochs - job.progress) * noise[row.index, 0]
        row.remaining = left
        row.submit_time = job.submit_time
        row.attained_service = job.attained_service
        row.rescale_delay = types[job_type].delay
        row.rescale_left = job.rescale_left
        row.wait_start = job.wait_start
        row.progress = job.progress
        row.data_size = job.data_size
        now = job.measured_accuracy
        row.accuracy = now if now == now else curve_at(curves, job_type, epochs, job.progress)
        row.first_accuracy = curve_at(curves, job_type, epochs, 0.0)
        row.final_accuracy = curve_at(curves, job_type, epochs, row.epochs)
        row.accuracy_ahead = ahead[job_type, epoch]
        row.scale = job.scale
        row.start_time = job.start_time
        row.type_index = job_type
        row.epoch = epoch
        row.priority = job.priority
        row.rescales = job.rescales
        row.peak_gpus = job.peak_gpus
        row.sizes_seen = 0.0
        row.speed_sigma = 0.0


@kernel()
def fill_speed(
    view: AnyArray,
    rates: FloatArray,
    packed: IntArray,
    known_speed: FloatArray,
    noise: FloatArray,
    most: int,
    speed: FloatArray,
) -> None:
    """Fill speed [n, K + 1], work per second of the jobs in `view`, for 0 to max(max_gpus, most) GPUs.

    rates, packed: arrays of the speed tables. known_speed: [T, K + 1]; `rates` apply if it is empty. noise: same as for
    `fill_estimates`.
    """
    for i in range(len(view)):
        job = view[i]
        job_type = job.type_index
        for k in range(min(max(job.max_gpus, most), packed.shape[1] - 1) + 1):
            if known_speed.size:
                speed[i, k] = known_speed[job_type, k]
            else:
                speed[i, k] = rates[packed[job_type, k], job.epoch] * job.scale
            if noise.size:
                speed[i, k] = speed[i, k] * noise[job.index, 1] * noise[job.index, 2 + k]
