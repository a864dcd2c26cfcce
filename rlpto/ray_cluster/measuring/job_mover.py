"""Jobs that are moved from one set of workers to the next, and how long that takes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from rlpto.ray_cluster.measuring.commanded_job import POLL_INTERVAL_S, CommandedJob
from rlpto.ray_cluster.messages import JobReport, JobSpec

Placement = tuple[str, ...]
"""Node id of every worker."""
ChangeKind = Literal["start", "restart", "grow", "shrink", "move"]

OTHER_JOBS_INTERVAL_S = 0.5
"""Time between two looks at the jobs that are not waited for."""


@dataclass(frozen=True)
class Change:
    """A change of a job's workers. start: the job's first; restart: from no worker. workers: afterwards; new: of them
    started for it. seconds: from the decision until all of them train. pause: of them without a training step, NaN
    where the job did not train before."""

    kind: ChangeKind
    workers: int
    new: int
    seconds: float
    pause: float = math.nan


class MovedJobs(ExitStack):
    """Jobs that are moved at the same time; to be used with `with`, at whose end they are gone with their workers."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[MovedJob] = []
        self._looked = -math.inf

    def start(self, spec: JobSpec) -> MovedJob:
        """A new job; its controller starts now."""
        self.jobs.append(MovedJob(spec, self))
        self.callback(self.jobs[-1].stop)
        return self.jobs[-1]

    def rest(self, seconds: float) -> None:
        """Let all jobs train so long."""
        by = time.monotonic() + seconds
        while time.monotonic() < by:
            self.look()
            time.sleep(POLL_INTERVAL_S)

    def look(self) -> None:
        """Look at all jobs, now and then. Raises JobError once any of them has failed."""
        now = time.monotonic()
        if now >= self._looked + OTHER_JOBS_INTERVAL_S:
            self._looked = now
            for job in self.jobs:
                if job.generation:  # until the first command its controller may not be able to answer
                    job.refuse_failure(job.report())


class MovedJob(CommandedJob):
    """A job whose changes are timed. present: where its workers are to be."""

    def __init__(self, spec: JobSpec, others: MovedJobs) -> None:
        self._others, self._began = others, time.monotonic()
        super().__init__(spec)
        self.present: Placement = ()

    def meanwhile(self) -> None:
        """Notice that others fail."""
        self._others.look()

    def go(self, place: Placement, since: float | None = None) -> Change:
        """Move the workers, and wait until those of `place` train and no others are there.

        since: `time.monotonic()` of the decision, if it was made before others could make room.
        """
        before, first = self.present, self.generation == 0
        if since is None:
            since = self._began if first else time.monotonic()
        rescales = 0 if first else self.report().rescales
        self.present = place
        report = self.command(place)
        seconds = time.monotonic() - since
        new = (Counter(place) - Counter(before)).total()
        if before and place:
            report = self.until(lambda now: now.ended or (len(now.pauses) > 0 and now.rescales > rescales))
        pause = sum(report.pauses[-(report.rescales - rescales) :]) if before and place else math.nan
        return Change(_kind(before, place, first), len(place), new, seconds, pause)

    def give_up(self, left: Placement) -> None:
        """Keep the workers of `left` only, and wait until no others hold a GPU."""
        self.present = left
        self.command(left, wait=False)
        self.until(lambda now: not Counter(now.holding) - Counter(left))

    def train(self, seconds: float, steps: int) -> None:
        """Let it train at its present size for so long, and until its speed rests on so many steps."""
        size = (len(self.present), len(set(self.present)))
        earliest = time.monotonic() + seconds

        def enough(report: JobReport) -> bool:
            done = next((m.count for m in report.throughput if (m.workers, m.nodes) == size), 0)
            return time.monotonic() >= earliest and done >= steps

        self.until(enough)


def hand_over(giver: MovedJob, left: Placement, taker: MovedJob, place: Placement) -> Change:
    """Decide that a job keeps the workers of `left` only, and another takes `place`, as soon as it is free."""
    since = time.monotonic()
    giver.give_up(left)
    return taker.go(place, since)


def _kind(before: Sequence[str], after: Sequence[str], first: bool) -> ChangeKind:
    if first:
        return "start"
    if not before or not after:
        return "restart"
    if len(after) == len(before):
        return "move"
    return "grow" if len(after) > len(before) else "shrink"
