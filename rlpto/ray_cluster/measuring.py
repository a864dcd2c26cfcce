"""Measuring training programs on a Ray cluster, and fitting the profile that the simulator reads.

Two runs without a scheduler: one trains at full speed with one worker and gives the accuracy curve and the gradient
noise; the other moves through sizes and placements and gives speeds, pauses, and start times.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlpto.io.errors import JobError, ProfileError
from rlpto.knowledge.evidence import columns, with_sync
from rlpto.performance.accuracy import Metric, Points, by_epoch, fit_accuracy
from rlpto.performance.efficiency import NoiseCurve, fit_noise
from rlpto.performance.profiles import FitErrors, Profile
from rlpto.performance.throughput import fit_throughput, relative_errors
from rlpto.ray_cluster.controllers import answer_of, control_node, stop_controller
from rlpto.ray_cluster.messages import JobReport, JobSpec, Measured, Nodes, Plan, raised_in
from rlpto.ray_cluster.settings import GUESSED_NOISE_SCALE, ProgramSettings

POLL_INTERVAL_S = 0.02
"""Time between two checks of a job, which is the error of a measured delay."""
CHANGE_TIMEOUT_S = 300.0
"""Longest time for a change to take effect, and for the next measured step."""
LOOK_INTERVAL_S = 0.1
"""Time between two checks of the job whose accuracy is measured."""
MIN_MEASURED_STEPS = 20
"""Fewest steps over which a speed is measured, however long they take."""
ENDLESS = 1e9
"""Epochs of a job that trains until it is ended."""


@dataclass(frozen=True)
class Change:
    """A change of a job's workers. start: the job's first workers. restart: from no worker. workers: number after the
    change. new: workers started for it. seconds: time from the decision until all train. pause: seconds without a
    training step, NaN if the job did not train before."""

    kind: Literal["start", "restart", "grow", "shrink", "move"]
    workers: int
    new: int
    seconds: float
    pause: float = math.nan


class CommandedJob(AbstractContextManager["CommandedJob"]):
    """A job commanded by this process instead of a scheduler. Its controller starts on the connected cluster, and ends
    with the context manager.

    resume: continue from the job's newest checkpoint. generation: generation of the newest command. nodes: commanded
    nodes.
    """

    def __init__(self, spec: JobSpec, resume: bool = False) -> None:
        from rlpto.ray_cluster.job.controller import start_controller

        self.spec, self.generation = spec, 0
        self.nodes: Nodes = ()
        self._created = time.monotonic()
        self.controller: Any = start_controller(spec, control_node(), resume)

    def __exit__(self, *_: object) -> None:
        self.stop()

    def report(self) -> JobReport:
        """The controller's present report."""
        return answer_of(self.controller.report.remote())

    def command(
        self, nodes: Sequence[str], wait: bool = True, batch_size: int | None = None, servers: Sequence[str] = ()
    ) -> JobReport:
        """Command workers on `nodes`. wait: wait until the command is fully in force and all workers train. batch_size:
        samples of a step, all workers together. Default: the job's own choice. servers: nodes of the parameter
        servers."""
        self.generation += 1
        self.nodes = tuple(nodes)
        plan = Plan(self.nodes, batch_size, tuple(servers))
        report = answer_of(self.controller.command.remote(self.generation, plan))
        if wait:
            report = self.until(lambda now: now.applied == self.generation)
            self.refuse_failure(report)
        return report

    def until(self, holds: Callable[[JobReport], bool], timeout: float = CHANGE_TIMEOUT_S) -> JobReport:
        """The first report that meets a condition. Raises JobError if that takes too long, or once the job failed."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            report = self.report()
            if holds(report):
                return report
            self.refuse_failure(report)
            time.sleep(POLL_INTERVAL_S)
        raise JobError(f"{self.spec.training} has made no progress within {timeout:.0f} s: {self.report()}")

    def refuse_failure(self, report: JobReport) -> None:
        """Raise JobError if the job has failed, once its workers have gone."""
        if report.state == "failed" and not report.holding:
            raise JobError(f"{self.spec.training} fails: {raised_in(report.failure)}")

    def steps(self, more: int) -> JobReport:
        """Wait for `more` more steps, and return the report."""
        start = self.report().step
        return self.until(lambda now: now.step >= start + more)

    def move(self, nodes: Nodes) -> Change:
        """Move the workers, and wait until exactly one trains on each entry of `nodes`."""
        before, first = self.nodes, self.generation == 0
        since = self._created if first else time.monotonic()
        paused = 0.0 if first else self.report().interruptions.rescale_seconds
        step = self.command(nodes).step
        seconds = time.monotonic() - since
        new = (Counter(nodes) - Counter(before)).total()
        if not (before and nodes):
            return Change("start" if first else "restart", len(nodes), new, seconds)
        # The first steps of the new group end the pause.
        pause = self.until(lambda now: now.ended or now.step > step).interruptions.rescale_seconds - paused
        more = len(nodes) - len(before)
        return Change("grow" if more > 0 else "shrink" if more < 0 else "move", len(nodes), new, seconds, pause)

    def train(self, seconds: float, steps: int) -> None:
        """Train at the present size for `seconds` at least, and until its speed is measured over `steps` steps. Raises
        JobError if no step at this size is measured in `CHANGE_TIMEOUT_S`, such as after the loss of a node."""
        size = (len(self.nodes), len(set(self.nodes)))

        def measured(report: JobReport) -> int:
            return sum(one.count for one in report.throughput if (one.workers, one.nodes) == size)

        def has_more(report: JobReport) -> bool:
            return measured(report) > done

        earliest, done = time.monotonic() + seconds, measured(self.report())
        while time.monotonic() < earliest or done < steps:
            done = measured(self.until(has_more))

    def stop(self) -> JobReport | None:
        """End the job with a checkpoint. Returns the last report, or None if the controller was gone already."""
        return stop_controller(self.controller)


@dataclass(frozen=True)
class ProgramMeasurements:
    """All measurements of one program. sizes: speed by workers and nodes. untrained: accuracy before training.
    accuracy, noise_scale [samples]: values by epoch. complete: whether the training that measured them finished all
    epochs."""

    sizes: tuple[Measured, ...]
    changes: tuple[Change, ...]
    untrained: float
    accuracy: Points
    noise_scale: Points
    complete: bool


def placements(gpus: Mapping[str, int]) -> list[Nodes]:
    """Placements to measure: each size on as few nodes as possible; sizes that fit on one node also spread over two.

    Sizes are powers of two, the midpoints between them from 3 on, and all GPUs. gpus: GPUs of each node. Sizes ascend,
    and keep the workers of smaller ones in place as far as nodes allow.
    """
    nodes = sorted(gpus, key=lambda node: -gpus[node])
    slots = [node for node in nodes for _ in range(gpus[node])]
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
    """Placements of the job whose speed is measured: up through all sizes, then one worker, none, and about half."""
    way = placements(gpus)
    return [*way, way[0], (), way[(len(way) - 1) // 2]]


def measure_program(
    spec: JobSpec, gpus: Mapping[str, int], seconds: float, learning: float, on_stage: Callable[[str], None]
) -> ProgramMeasurements:
    """Measure one program on the connected cluster.

    spec: specification of a whole training; files left behind are in its folder. gpus: GPUs of each node. seconds: time
    to train at each size. learning: longest time of the training that measures the accuracy [s]. on_stage: called with
    the next stage, `stages` times. Raises JobError if the program fails.
    """
    on_stage("learning")
    untrained = _untrained(spec)
    way = visits(gpus)
    with CommandedJob(replace(_part(spec, "learning"), pace=None)) as learner:
        changes = [learner.move(way[0])]
        accuracy, noise, complete = _learn(learner, learning)
    with CommandedJob(replace(_part(spec, "speed"), epochs=ENDLESS)) as job:
        for nodes in way:
            on_stage(f"{len(nodes)} on {len(set(nodes))} nodes" if nodes else "release")
            change = job.move(nodes)
            if nodes:
                changes.append(change)
                job.train(seconds, MIN_MEASURED_STEPS)
        sizes = job.report().throughput
    return ProgramMeasurements(sizes, tuple(changes), untrained, accuracy, noise, complete)


def stages(gpus: Mapping[str, int]) -> int:
    """Number of stages that `measure_program` announces."""
    return 1 + len(visits(gpus))


def _part(spec: JobSpec, name: str) -> JobSpec:
    """The program as one of the two measured jobs."""
    return replace(spec, id=f"{spec.id}-{name}", folder=str(Path(spec.folder, name)))


def _learn(job: CommandedJob, seconds: float) -> tuple[Points, Points, bool]:
    """Measure accuracy and noise scale by epoch until the job has finished or time is up. Returns whether it has
    finished, too."""
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
    """Fit the profile of one program. source: where it was measured, in words.

    rescale_delay is the time from a decision until new workers train, the median over starts and growth. On Ray, the
    job meanwhile continues with its present workers; the simulator's `growth` setting models that. Raises ProfileError
    if too little was measured.
    """
    fixed = program.batch_rule == "fixed"
    seen = columns(size.step(program.batch_size, fixed=fixed) for size in measured.sizes)
    steps = with_sync(program.training, seen)
    params = fit_throughput(steps).rounded(5)
    errors = relative_errors(params, steps)
    metric = Metric("accuracy on samples held out", "share", round(measured.untrained, 4))
    curve, accuracy_error = fit_accuracy(by_epoch(name, measured.accuracy)[None], metric)
    noise, noise_error = _noise(measured)
    reached = measured.accuracy[-1][0]
    return Profile(
        name=name,
        description=describe(program),
        source=source if measured.complete else f"{source}; trained for {reached:.1f} of its epochs only",
        samples=float(program.samples),
        epochs=program.epochs,
        batch=program.batch_limits(max(size.workers for size in measured.sizes)),
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


def start_delay(changes: tuple[Change, ...]) -> float:
    """Median seconds from the decision until newly started workers train. Raises ProfileError if none were started."""
    delays = [change.seconds for change in changes if change.new and change.kind != "move"]
    if not delays:
        raise ProfileError("no start of a worker was measured")
    return statistics.median(delays)


def _noise(measured: ProgramMeasurements) -> tuple[NoiseCurve, float]:
    """Noise scale by epoch, and the error of the fit; a guess if nothing was measured."""
    if not measured.noise_scale:
        return NoiseCurve((0.0,), (GUESSED_NOISE_SCALE,)), 0.0
    epochs, values = np.array(measured.noise_scale, dtype=np.float64).T
    at = np.arange(max(int(epochs[-1]), 1)) + 0.5
    scale = np.exp(np.interp(at, epochs, np.log(values)))[None]
    noise, error = fit_noise(np.ones_like(scale), scale, 1)
    return NoiseCurve(noise.epochs, tuple(_digits(value, 4) for value in noise.noise_scale)), error


def _digits(value: float, count: int) -> float:
    """The value to `count` significant digits."""
    return float(f"{value:.{count}g}")
