"""Jobs that nobody schedules: this process moves them from one set of workers to the next, and times what happens."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from rlpto.errors import JobError
from rlpto.ray_cluster.controllers import answer_of, control_node, stop_controller
from rlpto.ray_cluster.messages import JobReport, JobSpec

Placement = tuple[str, ...]
"""Node id of every worker."""

POLL = 0.02
"""Seconds between two looks at a job: what a delay may be off by."""
OTHERS_SECONDS = 0.5
"""Seconds between two looks at the jobs that are not waited for."""
PATIENCE = 300.0
"""Seconds after which a change that does not take effect never will."""


@dataclass(frozen=True)
class Change:
    """A change of a job's workers. start: the job's first; restart: from no worker. workers: afterwards; new: of them
    started for it. seconds: from the decision until all of them train. pause: of them without a training step, NaN
    where the job did not train before."""

    kind: Literal["start", "restart", "grow", "shrink", "move"]
    workers: int
    new: int
    seconds: float
    pause: float = math.nan


class MovedJobs:
    """Jobs that are moved at the same time; to be used with `with`, at whose end they are gone with their workers."""

    def __init__(self) -> None:
        self.jobs: list[MovedJob] = []
        self._looked = -math.inf

    def __enter__(self) -> MovedJobs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job in self.jobs:
            stop_controller(job.controller)

    def start(self, spec: JobSpec) -> MovedJob:
        """A new job; its controller starts now."""
        self.jobs.append(MovedJob(spec, self))
        return self.jobs[-1]

    def rest(self, seconds: float) -> None:
        """Let all jobs train so long."""
        by = time.monotonic() + seconds
        while time.monotonic() < by:
            self.look()
            time.sleep(POLL)

    def look(self) -> None:
        """Look at all jobs, now and then. Raises JobError once any of them has failed."""
        now = time.monotonic()
        if now >= self._looked + OTHERS_SECONDS:
            self._looked = now
            for job in self.jobs:
                if not job.starting:  # its controller may not be able to answer yet
                    job.report()


class MovedJob:
    """A job that this process commands."""

    def __init__(self, spec: JobSpec, others: MovedJobs) -> None:
        from rlpto.ray_cluster.job.controller import start_controller

        self.spec, self._others = spec, others
        self._began = time.monotonic()
        self.controller: Any = start_controller(spec, control_node(), resume=False)
        self._generation = 0
        self.present: Placement = ()

    @property
    def starting(self) -> bool:
        """True until its first command: its controller may not be there yet."""
        return self._generation == 0

    def report(self) -> JobReport:
        """What the controller says. Raises JobError once the job has failed."""
        report = answer_of(self.controller.report.remote())
        if report.state == "failed":
            lines = report.failure.strip().splitlines()
            raise JobError(f"{self.spec.training} fails: {lines[-1] if lines else 'without a word'}")
        return report

    def go(self, place: Placement, since: float | None = None) -> Change:
        """Move the workers, and wait until those of `place` train and no others are there.

        since: `time.monotonic()` of the decision, if it was made before others could make room.
        """
        before, first = self.present, self.starting
        if since is None:
            since = self._began if first else time.monotonic()
        rescales = 0 if first else self.report().rescales
        self._command(place)
        report = self.until(lambda now: now.applied == self._generation and sorted(now.training_on) == sorted(place))
        seconds = time.monotonic() - since
        new = (Counter(place) - Counter(before)).total()
        if before and place:
            report = self.until(lambda now: now.ended or (len(now.pauses) > 0 and now.rescales > rescales))
        pause = sum(report.pauses[-(report.rescales - rescales) :]) if before and place else math.nan
        return Change(_kind(before, place, first), len(place), new, seconds, pause)

    def give_up(self, left: Placement) -> None:
        """Keep the workers of `left` only, and wait until no others hold a GPU."""
        self._command(left)
        self.until(lambda now: now.generation == self._generation and not Counter(now.holding) - Counter(left))

    def train(self, seconds: float, steps: int) -> None:
        """Let it train at its present size for so long, and until its speed rests on so many steps."""
        size = (len(self.present), len(set(self.present)))
        earliest = time.monotonic() + seconds

        def enough(report: JobReport) -> bool:
            done = next((m.count for m in report.throughput if (m.workers, m.nodes) == size), 0)
            return time.monotonic() >= earliest and done >= steps

        self.until(enough)

    def until(self, holds: Callable[[JobReport], bool]) -> JobReport:
        """The first report of which something holds. Raises JobError if that takes too long."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            report = self.report()
            if holds(report):
                return report
            self._others.look()
            time.sleep(POLL)
        raise JobError(f"{self.spec.training} does not get on: {PATIENCE:.0f} s with {len(self.present)} workers")

    def _command(self, place: Placement) -> None:
        self._generation += 1
        answer_of(self.controller.command.remote(self._generation, place))
        self.present = place


def hand_over(giver: MovedJob, left: Placement, taker: MovedJob, place: Placement) -> Change:
    """Decide that a job keeps the workers of `left` only, and another takes `place`, as soon as it is free."""
    since = time.monotonic()
    giver.give_up(left)
    return taker.go(place, since)


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
