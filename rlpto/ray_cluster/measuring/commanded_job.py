"""Jobs commanded by this process instead of a scheduler, and the duration of their changes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from rlpto.io.errors import JobError
from rlpto.ray_cluster.controllers import answer_of, control_node, stop_controller
from rlpto.ray_cluster.messages import JobReport, JobSpec, Plan

POLL_INTERVAL_S = 0.02
"""Time between two checks of a job: the error of a measured delay."""
CHANGE_TIMEOUT_S = 300.0
"""Longest time for a change to take effect."""
OTHER_JOBS_INTERVAL_S = 0.5
"""Time between two checks of the jobs that are not waited for."""

Placement = tuple[str, ...]
"""Node id of every worker."""
ChangeKind = Literal["start", "restart", "grow", "shrink", "move"]


@dataclass(frozen=True)
class Change:
    """A change of a job's workers. start: the job's first; restart: from no worker. workers: number afterwards; new:
    workers started for it. seconds: from the decision until all of them train. pause: seconds without a training step,
    NaN if the job did not train before."""

    kind: ChangeKind
    workers: int
    new: int
    seconds: float
    pause: float = math.nan


class CommandedJob:
    """Starts the job's controller on the cluster that this process is connected to.

    resume: go on from the job's newest checkpoint. meanwhile: called now and then while the job is waited for.
    generation: of the newest command. placement: that it commands.
    """

    def __init__(self, spec: JobSpec, resume: bool = False, meanwhile: Callable[[], None] = lambda: None) -> None:
        from rlpto.ray_cluster.job.controller import start_controller

        self.spec, self.generation = spec, 0
        self.placement: Placement = ()
        self._meanwhile, self._created = meanwhile, time.monotonic()
        self.controller: Any = start_controller(spec, control_node(), resume)

    def report(self) -> JobReport:
        """The controller's report."""
        return answer_of(self.controller.report.remote())

    def command(
        self, nodes: Sequence[str], wait: bool = True, batch_size: int | None = None, servers: Sequence[str] = ()
    ) -> JobReport:
        """Command workers on `nodes`. wait: until the command is completely in force and all of them train.

        batch_size: of all workers together; None: the job's own choice. servers: as in `Plan`.
        """
        self.generation += 1
        self.placement = tuple(nodes)
        report = answer_of(
            self.controller.command.remote(self.generation, Plan(self.placement, batch_size, tuple(servers)))
        )
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
            self._meanwhile()
            time.sleep(POLL_INTERVAL_S)
        raise JobError(f"{self.spec.training} has made no progress within {timeout:.0f} s: {self.report()}")

    def refuse_failure(self, report: JobReport) -> None:
        """Raises JobError if the job has failed, once its workers have gone."""
        if report.state == "failed" and not report.holding:
            lines = report.failure.strip().splitlines()
            raise JobError(f"{self.spec.training} fails: {lines[-1] if lines else 'without a word'}")

    def steps(self, more: int) -> JobReport:
        """The report after `more` more steps."""
        start = self.report().step
        return self.until(lambda now: now.step >= start + more)

    def move(self, placement: Placement, since: float | None = None) -> Change:
        """Move the workers, and wait until those of `placement` train and no others are there.

        since: `time.monotonic()` of the decision, if it was made before others could make room.
        """
        before, first = self.placement, self.generation == 0
        if since is None:
            since = self._created if first else time.monotonic()
        rescales = 0 if first else self.report().rescales
        report = self.command(placement)
        seconds = time.monotonic() - since
        new = (Counter(placement) - Counter(before)).total()
        if not (before and placement):
            return Change("start" if first else "restart", len(placement), new, seconds)
        report = self.until(lambda now: now.ended or (len(now.pauses) > 0 and now.rescales > rescales))
        pause = sum(report.pauses[-(report.rescales - rescales) :])
        more = len(placement) - len(before)
        return Change("grow" if more > 0 else "shrink" if more < 0 else "move", len(placement), new, seconds, pause)

    def give_up(self, left: Placement) -> None:
        """Keep the workers of `left` only, and wait until no others hold a GPU."""
        self.command(left, wait=False)
        self.until(lambda now: not Counter(now.holding) - Counter(left))

    def train(self, seconds: float, steps: int) -> None:
        """Let it train at its present size for a time, and until its speed is measured over enough steps."""
        size = (len(self.placement), len(set(self.placement)))
        earliest = time.monotonic() + seconds

        def enough(report: JobReport) -> bool:
            done = next((m.count for m in report.throughput if (m.workers, m.nodes) == size), 0)
            return time.monotonic() >= earliest and done >= steps

        self.until(enough)

    def stop(self) -> JobReport | None:
        """End the job, with a checkpoint: the last report, None if it was gone already."""
        return stop_controller(self.controller)


class CommandedJobs(ExitStack):
    """Jobs that train at the same time, as a context manager that ends them and their workers."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[CommandedJob] = []
        self._looked = -math.inf

    def start(self, spec: JobSpec) -> CommandedJob:
        """A new job; its controller starts now."""
        self.jobs.append(CommandedJob(spec, meanwhile=self.look))
        self.callback(self.jobs[-1].stop)
        return self.jobs[-1]

    def rest(self, seconds: float) -> None:
        """Let all jobs train for a time."""
        by = time.monotonic() + seconds
        while time.monotonic() < by:
            self.look()
            time.sleep(POLL_INTERVAL_S)

    def look(self) -> None:
        """Check all jobs from time to time. Raises JobError once any of them has failed."""
        now = time.monotonic()
        if now >= self._looked + OTHER_JOBS_INTERVAL_S:
            self._looked = now
            for job in self.jobs:
                if job.generation:  # before the first command its controller may be unable to answer
                    job.refuse_failure(job.report())
