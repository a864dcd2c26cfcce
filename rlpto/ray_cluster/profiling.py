"""Measuring what training programs do on the cluster at hand: speed by size and placement, delays, learning.

Two runs of a program that nobody schedules: one learns as fast as it can with one worker, which tells the accuracy
curve and the gradient noise; one is moved through sizes and placements, which tells speeds and delays.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rlpto.errors import JobError
from rlpto.ray_cluster.messages import JobReport, JobSpec, Measured
from rlpto.ray_cluster.spares import Spares

Placement = tuple[str, ...]
"""Node id of every worker."""

POLL = 0.02
"""Seconds between two looks at a job: what a delay may be off by."""
PATIENCE = 300.0
"""Seconds after which a change that does not take effect never will."""
FEWEST_STEPS = 20
"""Steps that a speed must rest on, however long they take."""


@dataclass(frozen=True)
class Effort:
    """How long to measure. seconds: at every size. learning: longest time for the training that tells the accuracy."""

    seconds: float = 10.0
    learning: float = 300.0


@dataclass(frozen=True)
class Change:
    """A change of a job's workers. start: from no runner at all; restart: from none. workers: afterwards; new: of them
    started for it. seconds: from the command until all of them train. pause: of them without a training step, NaN where
    the job did not train before."""

    kind: Literal["start", "restart", "grow", "shrink", "move"]
    workers: int
    new: int
    seconds: float
    pause: float = math.nan


@dataclass(frozen=True)
class ProgramMeasurements:
    """All that was measured of one program.

    sizes: speed by workers and nodes. changes: of workers. untrained: accuracy before training. accuracy: after so many
    epochs. noise_scale: in samples, likewise. complete: the training that tells them went through all epochs.
    """

    sizes: tuple[Measured, ...]
    changes: tuple[Change, ...]
    untrained: float
    accuracy: tuple[tuple[float, float], ...]
    noise_scale: tuple[tuple[float, float], ...]
    complete: bool


def sizes_up_to(most: int) -> list[int]:
    """Numbers of workers to measure: powers of two, halfway between them from 3 on, and `most` itself."""
    between = {2**i for i in range(most.bit_length())} | {3 * 2**i for i in range(most.bit_length())}
    return sorted({size for size in between if size <= most} | {most})


def placements(gpus: Mapping[str, int], most: int) -> list[Placement]:
    """Where to measure: every size on as few nodes as it fits, and those that fit on one node spread over two as well.

    gpus: of every node. most: workers at most. A size follows the smaller ones, and keeps their workers in place as far
    as nodes allow.
    """
    nodes = sorted(gpus, key=lambda node: -gpus[node])
    slots = [node for node in nodes for _ in range(gpus[node])]
    found: list[Placement] = []
    for size in sizes_up_to(min(most, len(slots))):
        found.append(tuple(slots[:size]))
        first, second = (size + 1) // 2, size // 2
        if second and size <= gpus[nodes[0]] and len(nodes) > 1 and gpus[nodes[1]] >= second:
            found.append((nodes[0],) * first + (nodes[1],) * second)
    return found


def visits(gpus: Mapping[str, int], most: int) -> list[Placement]:
    """The way of the job whose speed is measured: up through all placements, down to one worker, none, and half."""
    way = placements(gpus, most)
    return [*way, way[0], (), way[(len(way) - 1) // 2]]


def measure_program(
    spec: JobSpec,
    gpus: Mapping[str, int],
    most: int,
    effort: Effort,
    tell: Callable[[str], None],
    spares: Spares | None = None,
) -> ProgramMeasurements:
    """Measure one program on the cluster that this process is connected to.

    spec: of a whole training; its folder is used for files that are left behind. gpus: of every node. tell: is told
    what comes next, `stages` times. spares: kept meanwhile, as while jobs are scheduled. Raises JobError if the program
    fails.
    """
    tell("learning")
    untrained = _untrained(spec)
    learner = replace(spec, name=f"{spec.name}-learning", folder=str(Path(spec.folder, "learning")), pace=None)
    way = visits(gpus, most)
    with _job(learner, spares) as job:
        first = job.go(way[0])
        accuracy, noise, complete = _learn(job, effort.learning)
    mover = replace(spec, name=f"{spec.name}-speed", folder=str(Path(spec.folder, "speed")), epochs=1e9)
    changes = [first]
    with _job(mover, spares) as job:
        for place in way:
            tell(f"{len(place)} on {len(set(place))} nodes" if place else "release")
            change = job.go(place)
            if change.kind != "restart" or change.workers:
                changes.append(change)
            if place:
                job.train(effort.seconds)
        sizes = job.report().throughput
    return ProgramMeasurements(sizes, tuple(changes), untrained, accuracy, noise, complete)


def stages(gpus: Mapping[str, int], most: int) -> int:
    """How often `measure_program` tells what comes next."""
    return 1 + len(visits(gpus, most))


class _Moved:
    """A job that this process commands."""

    def __init__(self, spec: JobSpec, spares: Spares | None) -> None:
        from rlpto.ray_cluster.backend import control_node
        from rlpto.ray_cluster.runner import start_runner

        self.spec, self._spares = spec, spares
        self._began = time.monotonic()
        self.runner: Any = start_runner(spec, control_node(), resume=False)
        self._generation = 0
        self._present: Placement = ()

    def report(self) -> JobReport:
        """What the runner says. Raises JobError once the job has failed."""
        import ray

        report: JobReport = ray.get(self.runner.report.remote())
        if report.state == "failed":
            lines = report.failure.strip().splitlines()
            raise JobError(f"{self.spec.training} fails: {lines[-1] if lines else 'without a word'}")
        if self._spares is not None:
            self._spares.tend([report])
        return report

    def go(self, place: Placement) -> Change:
        """Move the workers, and wait until those of `place` train and no others are there."""
        import ray

        before, first = self._present, self._generation == 0
        began = self._began if first else time.monotonic()
        rescales = 0 if first else self.report().rescales
        self._generation += 1
        ray.get(self.runner.command.remote(self._generation, place))
        report = self._until(lambda now: now.applied == self._generation and sorted(now.training_on) == sorted(place))
        seconds = time.monotonic() - began
        self._present = place
        new = (Counter(place) - Counter(before)).total()
        if before and place:
            report = self._until(lambda now: now.ended or (len(now.pauses) > 0 and now.rescales > rescales))
        pause = sum(report.pauses[-(report.rescales - rescales) :]) if before and place else math.nan
        return Change(_kind(before, place, first), len(place), new, seconds, pause)

    def train(self, seconds: float) -> None:
        """Let it train at its present size until its speed rests on enough steps."""
        size = (len(self._present), len(set(self._present)))
        earliest = time.monotonic() + seconds

        def enough(report: JobReport) -> bool:
            steps = next((m.count for m in report.throughput if (m.workers, m.nodes) == size), 0)
            return time.monotonic() >= earliest and steps >= FEWEST_STEPS

        self._until(enough)

    def _until(self, holds: Callable[[JobReport], bool]) -> JobReport:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            report = self.report()
            if holds(report):
                return report
            time.sleep(POLL)
        raise JobError(f"{self.spec.training} does not get on: {PATIENCE:.0f} s with {len(self._present)} workers")


@contextmanager
def _job(spec: JobSpec, spares: Spares | None) -> Iterator[_Moved]:
    """A job that is gone at the end, with its workers."""
    from rlpto.ray_cluster.runner import stop_runner

    job = _Moved(spec, spares)
    try:
        yield job
    finally:
        stop_runner(job.runner)


def _kind(
    before: Sequence[str], after: Sequence[str], first: bool
) -> Literal["start", "restart", "grow", "shrink", "move"]:
    if first:
        return "start"
    if not before or not after:
        return "restart"
    if len(after) == len(before):
        return "move"
    return "grow" if len(after) > len(before) else "shrink"


def _learn(
    job: _Moved, seconds: float
) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float], ...], bool]:
    """Accuracy and noise scale by epochs, until the job has finished or time is up; and whether it has finished."""
    noise: list[tuple[float, float]] = []
    by = time.monotonic() + seconds
    while True:
        report = job.report()
        if math.isfinite(report.noise_scale) and report.noise_scale > 0:
            noise.append((report.progress, report.noise_scale))
        if report.state == "finished" or time.monotonic() >= by:
            return report.accuracy_curve, tuple(noise), report.state == "finished"
        time.sleep(5 * POLL)


def _untrained(spec: JobSpec) -> float:
    """Accuracy of the program's model before training, on some node's CPU."""
    import ray
    from ray.exceptions import RayTaskError

    check: Any = ray.remote(num_cpus=0, max_retries=1)(_first_accuracy)
    try:
        return float(ray.get(check.remote(replace(spec, device="cpu").to_json())))
    except RayTaskError as error:
        cause = " ".join(str(error.cause).split())
        raise JobError(f"{spec.training} cannot be used: {cause}") from None


def _first_accuracy(spec: str) -> float:
    from rlpto.ray_cluster.training import Trainer

    return Trainer(JobSpec.from_json(spec)).evaluate()
