"""From measurements of a program to its profile, as the simulator reads it."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np

from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ProfileError
from rlpto.performance.accuracy import Metric, fit_accuracy
from rlpto.performance.efficiency import BatchLimits, NoiseCurve, fit_noise
from rlpto.performance.profiles import FitErrors, Profile
from rlpto.performance.throughput import StepMeasurements, fit_throughput, relative_errors
from rlpto.ray_cluster.measuring.commanded_job import Change
from rlpto.ray_cluster.measuring.profiling import ProgramMeasurements
from rlpto.ray_cluster.messages import Measured
from rlpto.ray_cluster.settings import ProgramSettings


def fit_program(name: str, program: ProgramSettings, measured: ProgramMeasurements, source: str) -> Profile:
    """All fits of one program. source: where it was measured, in words.

    rescale_delay is the time from a decision until new workers train, the median over starts and growth; only changes
    for which another job makes room count, if those were measured. On Ray a job meanwhile trains on with the workers it
    has; the simulator's `growth` setting models that.
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
        rescale_delay=round(start_delay(measured.handed or measured.changes), 3),
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
