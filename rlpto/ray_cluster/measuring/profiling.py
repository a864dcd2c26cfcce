"""Measuring training programs on a Ray cluster, and the profile that the simulator reads of it.

Two runs without a scheduler: one learns at full speed with one worker, which gives the accuracy curve and the gradient
noise; the other moves through sizes and placements, which gives speeds, pauses, and the time that a start takes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlpto.io.arrays import FloatArray
from rlpto.io.errors import JobError, ProfileError
from rlpto.performance.accuracy import Metric, fit_accuracy
from rlpto.performance.efficiency import BatchLimits, NoiseCurve, fit_noise
from rlpto.performance.profiles import FitErrors, Profile
from rlpto.performance.throughput import StepMeasurements, fit_throughput, relative_errors
from rlpto.ray_cluster.measuring.commanded_job import Change, CommandedJob
from rlpto.ray_cluster.messages import JobSpec, Measured, Nodes
from rlpto.ray_cluster.settings import ProgramSettings

LOOK_INTERVAL_S = 0.1
"""Seconds between two checks of a job that learns."""
MIN_MEASURED_STEPS = 20
"""Fewest steps over which a speed is measured, however long they take."""
ENDLESS = 1e9
"""Epochs of a job that trains until it is ended."""

Points = tuple[tuple[float, float], ...]
"""Values by epochs of training: (epochs, value)."""


@dataclass(frozen=True)
class MeasuringTimes:
    """at_size: s to train at every size. learning: longest s for the training that measures the accuracy."""

    at_size: float
    learning: float


@dataclass(frozen=True)
class ProgramMeasurements:
    """All measurements of one program.

    sizes: speed by workers and nodes. changes: of workers. untrained: accuracy before training. accuracy: by epochs.
    noise_scale: in samples, by epochs. complete: the training that measured them finished all epochs.
    """

    sizes: tuple[Measured, ...]
    changes: tuple[Change, ...]
    untrained: float
    accuracy: Points
    noise_scale: Points
    complete: bool


def placements(gpus: Mapping[str, int]) -> list[Nodes]:
    """Placements to measure: every size on as few nodes as possible, and sizes that fit on one node also spread over
    two.

    Sizes are powers of two, those halfway between them from 3 on, and all GPUs. gpus: of every node. A size follows the
    smaller ones, and keeps their workers in place as far as nodes allow.
    """
    nodes, slots = sorted(gpus, key=lambda node: -gpus[node]), _slots(gpus)
    powers = [2**i for i in range(len(slots).bit_length())]
    sizes = {size for size in (*powers, *(3 * power for power in powers)) if size < len(slots)}
    found: list[Nodes] = []
    for size in sorted(sizes | {len(slots)}):
        found.append(tuple(slots[:size]))
        first, second = (size + 1) // 2, size // 2
        if second and size <= gpus[nodes[0]] and len(nodes) > 1 and gpus[nodes[1]] >= second:
            found.append((nodes[0],) * first + (nodes[1],) * second)
    return found


def visits(gpus: Mapping[str, int]) -> list[Nodes]:
    """Placements of the job whose speed is measured: up through all sizes, down to one worker, none, and half."""
    way = placements(gpus)
    return [*way, way[0], (), way[(len(way) - 1) // 2]]


def measure_program(
    spec: JobSpec, gpus: Mapping[str, int], times: MeasuringTimes, on_stage: Callable[[str], None]
) -> ProgramMeasurements:
    """Measure one program on the cluster that this process is connected to.

    spec: of a whole training; its folder is used for files that are left behind. gpus: of every node. on_stage: called
    with the next stage, `stages` times. Raises JobError if the program fails.
    """
    on_stage("learning")
    untrained = _untrained(spec)
    way = visits(gpus)
    with CommandedJob(replace(_part(spec, "learning"), pace=None)) as learner:
        changes = [learner.move(way[0])]
        accuracy, noise, complete = _learn(learner, times.learning)
    with CommandedJob(replace(_part(spec, "speed"), epochs=ENDLESS)) as job:
        for nodes in way:
            on_stage(f"{len(nodes)} on {len(set(nodes))} nodes" if nodes else "release")
            change = job.move(nodes)
            if nodes:
                changes.append(change)
                job.train(times.at_size, MIN_MEASURED_STEPS)
        sizes = job.report().throughput
    return ProgramMeasurements(sizes, tuple(changes), untrained, accuracy, noise, complete)


def stages(gpus: Mapping[str, int]) -> int:
    """Number of stages that `measure_program` announces."""
    return 1 + len(visits(gpus))


def _part(spec: JobSpec, name: str) -> JobSpec:
    """The program as one of the jobs that are measured."""
    return replace(spec, id=f"{spec.id}-{name}", folder=str(Path(spec.folder, name)))


def _slots(gpus: Mapping[str, int]) -> list[str]:
    """The node of every GPU, large nodes first."""
    return [node for node in sorted(gpus, key=lambda node: -gpus[node]) for _ in range(gpus[node])]


def _learn(job: CommandedJob, seconds: float) -> tuple[Points, Points, bool]:
    """Accuracy and noise scale by epochs, until the job has finished or time is up; and whether it has finished."""
    noise: list[tuple[float, float]] = []
    by = time.monotonic() + seconds
    while True:
        report = job.report()
        job.refuse_failure(report)
        if math.isfinite(report.noise_scale) and report.noise_scale > 0:
            noise.append((report.progress, report.noise_scale))
        if report.state == "finished" or time.monotonic() >= by:
            return report.accuracy_curve, tuple(noise), report.state == "finished"
        time.sleep(LOOK_INTERVAL_S)


def _untrained(spec: JobSpec) -> float:
    """Accuracy of the program's model before training, on some node's CPU."""
    import ray
    from ray.exceptions import RayTaskError

    check: Any = ray.remote(num_cpus=0, max_retries=1)(_first_accuracy)
    try:
        return float(ray.get(check.remote(replace(spec, device="cpu"))))
    except RayTaskError as error:
        cause = " ".join(str(error.cause).split())
        raise JobError(f"{spec.training} cannot be used: {cause}") from None


def _first_accuracy(spec: JobSpec) -> float:
    from rlpto.ray_cluster.worker.training import Trainer

    return Trainer(spec).evaluate()


def fit_program(name: str, program: ProgramSettings, measured: ProgramMeasurements, source: str) -> Profile:
    """All fits of one program. source: where it was measured, in words.

    rescale_delay is the time from a decision until new workers train, the median over starts and growth. On Ray a job
    meanwhile trains on with the workers it has; the simulator's `growth` setting models that.
    Raises ProfileError if too little was measured.
    """
    steps = steps_of(program, measured.sizes)
    params = fit_throughput(steps).rounded(5)
    errors = relative_errors(params, steps)
    metric = Metric("accuracy on samples held out", "share", round(measured.untrained, 4))
    curve, accuracy_error = fit_accuracy(by_epoch(name, measured.accuracy)[None], metric)
    noise, noise_error = _noise(program, measured)
    reached = measured.accuracy[-1][0]
    return Profile(
        name=name,
        description=describe(program),
        source=source if measured.complete else f"{source}; trained for {reached:.1f} of its epochs only",
        samples=float(program.samples),
        epochs=program.epochs,
        batch=batch_limits(program, max(size.workers for size in measured.sizes)),
        throughput=params,
        noise=noise,
        accuracy=replace(
            curve, final=round(curve.final, 4), scale=_digits(curve.scale, 4), shape=_digits(curve.shape, 4)
        ),
        rescale_delay=round(start_delay(measured.changes), 3),
        errors=FitErrors(
            throughput_median=_digits(float(np.median(errors)), 3),
            throughput_p90=_digits(float(np.quantile(errors, 0.9)), 3),
            accuracy_rmse=_digits(accuracy_error, 3),
            noise_log_rmse=_digits(noise_error, 3),
        ),
    )


def describe(program: ProgramSettings) -> str:
    """Description of the measured program; other settings count as another program."""
    options = "".join(f" {key}={value}" for key, value in sorted(program.options.items()))
    pace = "" if program.pace is None else f", steps paced to {program.pace:g} s at one worker"
    servers = "" if program.architecture == "all_reduce" else f", {program.servers} parameter servers"
    return f"{program.training}{options}, batch {program.batch_size} {program.batch_rule}{servers}{pace}"


def steps_of(program: ProgramSettings, sizes: tuple[Measured, ...]) -> StepMeasurements:
    """Steps in the form that the throughput fit needs. Raises ProfileError if one worker was not measured.

    The synchronisation part of a step was not measured. With a batch for each worker it is the step time beyond that
    of one worker; with one batch for all, only one worker's step shows the time of computing.
    """
    alone = next((size for size in sizes if size.workers == 1), None)
    if alone is None:
        raise ProfileError(f"{program.training}: the speed of one worker was not measured")
    workers = np.array([size.workers for size in sizes], dtype=np.float64)
    batch = program.batch_size * (workers if program.batch_rule == "per_worker" else np.ones_like(workers))
    seconds = batch / np.array([size.samples_per_second for size in sizes])
    own = program.batch_size / alone.samples_per_second
    beyond = np.maximum(seconds - own, 0.0) if program.batch_rule == "per_worker" else seconds
    return StepMeasurements(
        nodes=np.array([size.nodes for size in sizes], dtype=np.float64),
        replicas=workers,
        local_batch=batch / workers,
        step_time=seconds,
        sync_time=np.where(workers > 1, beyond, 0.0),
    )


def batch_limits(program: ProgramSettings, most: int) -> BatchLimits:
    """A batch independent of the number of workers, or one for each of up to `most` workers."""
    batch = program.batch_size
    if program.batch_rule == "per_worker":
        return BatchLimits(base=batch, largest=batch * most, min_local=batch, max_local=batch)
    return BatchLimits(base=batch, largest=batch, min_local=1, max_local=batch)


def start_delay(changes: tuple[Change, ...]) -> float:
    """Median seconds until workers that had to be started trained. Raises ProfileError if none were."""
    delays = [change.seconds for change in changes if change.new and change.kind != "move"]
    if not delays:
        raise ProfileError("no start of a worker was measured")
    return statistics.median(delays)


def by_epoch(name: str, points: tuple[tuple[float, float], ...]) -> FloatArray:
    """Values at the end of every whole epoch, linear between (epochs, value) points, which need not be regular.

    Raises ProfileError if they do not reach the end of one epoch.
    """
    last = points[-1][0] if points else 0.0
    if last < 1.0:
        raise ProfileError(f"{name}: trained for {last:.2f} epochs in the time given, expected at least one")
    epochs, values = np.array(points, dtype=np.float64).T
    at = np.arange(1.0, np.floor(last + 1e-9) + 1)
    return np.asarray(np.interp(at, epochs, values))


def _noise(program: ProgramSettings, measured: ProgramMeasurements) -> tuple[NoiseCurve, float]:
    """Noise scale by epoch, and the error of the fit; the guess from the settings if nothing was measured."""
    if not measured.noise_scale:
        return NoiseCurve((0.0,), (program.guess.noise_scale,)), 0.0
    epochs, values = np.array(measured.noise_scale, dtype=np.float64).T
    at = np.arange(max(int(epochs[-1]), 1)) + 0.5
    scale = np.exp(np.interp(at, epochs, np.log(values)))[None]
    noise, error = fit_noise(np.ones_like(scale), scale, 1)
    return NoiseCurve(noise.epochs, tuple(_digits(value, 4) for value in noise.noise_scale)), error


def _digits(value: float, count: int) -> float:
    """The value to `count` significant digits."""
    return float(f"{value:.{count}g}")
