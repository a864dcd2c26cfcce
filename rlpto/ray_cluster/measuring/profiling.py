"""Measuring training programs on the cluster at hand: speed by size and placement, delays, learning.

Three kinds of runs without a scheduler: one learns at full speed with one worker, which gives the accuracy
curve and the gradient noise; one moves through sizes and placements, which gives speeds and pauses; and several share
the cluster and hand each other GPUs, which gives the time from a decision to training on a full cluster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlpto.io.errors import JobError
from rlpto.ray_cluster.measuring.commanded_job import Change, CommandedJob, CommandedJobs, Placement
from rlpto.ray_cluster.messages import JobSpec, Measured

LOOK_INTERVAL_S = 0.1
"""Seconds between two checks of a job that learns."""
MIN_MEASURED_STEPS = 20
"""Fewest steps over which a speed is measured, however long they take."""
MAX_SHARING_JOBS, MAX_SHARED_GPUS = 4, 8
"""Most jobs that hand each other GPUs, and most GPUs they share: processes starting on one machine delay each other."""
HAND_OVER_INTERVAL_S = 3.0
"""Time between two of their changes, or that of training at a size if it is shorter."""


@dataclass(frozen=True)
class ProgramMeasurements:
    """All measurements of one program.

    sizes: speed by workers and nodes. changes: of workers, of a job that is alone. handed: of workers that take over
    another job's GPUs; empty with one GPU only. untrained: accuracy before training. accuracy: by epochs.
    noise_scale: in samples, by epochs. complete: the training that measured them finished all epochs.
    """

    sizes: tuple[Measured, ...]
    changes: tuple[Change, ...]
    untrained: float
    accuracy: tuple[tuple[float, float], ...]
    noise_scale: tuple[tuple[float, float], ...]
    complete: bool
    handed: tuple[Change, ...] = ()


def sizes_up_to(most: int) -> list[int]:
    """Numbers of workers to measure: powers of two, halfway between them from 3 on, and `most` itself."""
    between = {2**i for i in range(most.bit_length())} | {3 * 2**i for i in range(most.bit_length())}
    return sorted({size for size in between if size <= most} | {most})


def placements(gpus: Mapping[str, int], most: int) -> list[Placement]:
    """Placements to measure: every size on as few nodes as possible, and sizes that fit on one node also spread over
    two.

    gpus: of every node. most: workers at most. A size follows the smaller ones, and keeps their workers in place as far
    as nodes allow.
    """
    nodes = sorted(gpus, key=lambda node: -gpus[node])
    slots = _slots(gpus)
    found: list[Placement] = []
    for size in sizes_up_to(min(most, len(slots))):
        found.append(tuple(slots[:size]))
        first, second = (size + 1) // 2, size // 2
        if second and size <= gpus[nodes[0]] and len(nodes) > 1 and gpus[nodes[1]] >= second:
            found.append((nodes[0],) * first + (nodes[1],) * second)
    return found


def visits(gpus: Mapping[str, int], most: int) -> list[Placement]:
    """Placements of the job whose speed is measured: up through all sizes, down to one worker, none, and half."""
    way = placements(gpus, most)
    return [*way, way[0], (), way[(len(way) - 1) // 2]]


@dataclass(frozen=True)
class HandOver:
    """A decision after which job `giver` keeps only `left`, and job `taker` has `place`."""

    giver: int
    left: Placement
    taker: int
    place: Placement


def shares(gpus: Mapping[str, int]) -> list[Placement]:
    """Shares of jobs on up to `MAX_SHARED_GPUS` GPUs: two each or more; of two or three GPUs the first job has one.
    None if there is one GPU only. gpus: of every node.
    """
    slots = _slots(gpus)[:MAX_SHARED_GPUS]
    if len(slots) < 2:
        return []
    jobs = min(max(len(slots) // 2, 2), MAX_SHARING_JOBS)
    borders = [len(slots) * job // jobs for job in range(jobs + 1)]
    return [tuple(slots[start:end]) for start, end in pairwise(borders)]


def hand_overs(parts: Sequence[Placement]) -> list[HandOver]:
    """Hand-overs among jobs with `parts`. At first job 0 does not exist, and job 1 has its part too.

    Job 0 starts on the GPUs that job 1 gives up. Then every other job that can gives it a worker, and gets it back.
    """
    if not parts:
        return []
    first = parts[0]
    found = [HandOver(1, parts[1], 0, first)]
    for job, own in enumerate(parts[1:], 1):
        if len(own) > 1:
            found += [HandOver(job, own[:-1], 0, first + own[-1:]), HandOver(0, first, job, own)]
    return found


def measure_program(
    spec: JobSpec, gpus: Mapping[str, int], most: int, seconds: float, learning: float, tell: Callable[[str], None]
) -> ProgramMeasurements:
    """Measure one program on the cluster that this process is connected to.

    spec: of a whole training; its folder is used for files that are left behind. gpus: of every node. most: workers.
    seconds: to train at every size. learning: longest s for the training that measures the accuracy. tell: called with
    the next stage, `stages` times. Raises JobError if the program fails.
    """
    tell("learning")
    untrained = _untrained(spec)
    way, parts = visits(gpus, most), shares(gpus)
    with CommandedJobs() as alone:
        learner = alone.start(replace(_part(spec, "learning"), pace=None))
        changes = [learner.move(way[0])]
        accuracy, noise, complete = _learn(learner, learning)
    with CommandedJobs() as alone:
        job = alone.start(replace(_part(spec, "speed"), epochs=1e9))
        for place in way:
            tell(f"{len(place)} on {len(set(place))} nodes" if place else "release")
            change = job.move(place)
            if place:
                changes.append(change)
                job.train(seconds, MIN_MEASURED_STEPS)
        sizes = job.report().throughput
    handed = _share_gpus(spec, parts, min(HAND_OVER_INTERVAL_S, seconds), tell)
    return ProgramMeasurements(sizes, tuple(changes), untrained, accuracy, noise, complete, handed)


def stages(gpus: Mapping[str, int], most: int) -> int:
    """Number of stages that `measure_program` announces."""
    return 1 + len(visits(gpus, most)) + len(hand_overs(shares(gpus)))


def _part(spec: JobSpec, name: str) -> JobSpec:
    """The program as one of the jobs that are measured."""
    return replace(spec, id=f"{spec.id}-{name}", folder=str(Path(spec.folder, name)))


def _share_gpus(
    spec: JobSpec, parts: Sequence[Placement], rest: float, tell: Callable[[str], None]
) -> tuple[Change, ...]:
    """Durations of changes among jobs that use all GPUs, from the decision until the receiving job trains on them."""
    handed = []
    with CommandedJobs() as sharing:
        specs = [replace(_part(spec, f"sharing-{number}"), epochs=1e9) for number in range(len(parts))]
        jobs: dict[int, CommandedJob] = {}
        for number in range(1, len(parts)):
            jobs[number] = sharing.start(specs[number])
            jobs[number].move(parts[number] + (parts[0] if number == 1 else ()))
        for trade in hand_overs(parts):
            tell(f"hand-over to {len(trade.place)} workers")
            sharing.rest(rest)
            if trade.taker not in jobs:
                jobs[trade.taker] = sharing.start(specs[trade.taker])  # starts while the other gives up
            decided = time.monotonic()
            jobs[trade.giver].give_up(trade.left)
            handed.append(jobs[trade.taker].move(trade.place, decided))
    return tuple(handed)


def _slots(gpus: Mapping[str, int]) -> list[str]:
    """The node of every GPU, large nodes first."""
    return [node for node in sorted(gpus, key=lambda node: -gpus[node]) for _ in range(gpus[node])]


def _learn(
    job: CommandedJob, seconds: float
) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float], ...], bool]:
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
