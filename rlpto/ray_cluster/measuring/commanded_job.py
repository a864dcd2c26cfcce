"""A job commanded by this process instead of a scheduler, and the duration of its changes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from rlpto.io.errors import JobError
from rlpto.ray_cluster.controllers import answer_of, control_node, stop_controller
from rlpto.ray_cluster.messages import JobReport, JobSpec, Nodes, Plan, raised_in

POLL_INTERVAL_S = 0.02
"""Time between two checks of a job: the error of a measured delay."""
CHANGE_TIMEOUT_S = 300.0
"""Longest time for a change to take effect."""

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


class CommandedJob(AbstractContextManager["CommandedJob"]):
    """Starts the job's controller on the cluster that this process is connected to; as a context manager it ends it.

    resume: go on from the job's newest checkpoint. generation: of the newest command. nodes: that it commands.
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
        """The controller's report."""
        return answer_of(self.controller.report.remote())

    def command(
        self, nodes: Sequence[str], wait: bool = True, batch_size: int | None = None, servers: Sequence[str] = ()
    ) -> JobReport:
        """Command workers on `nodes`. wait: until the command is completely in force and all of them train.

        batch_size: of all workers together; None: the job's own choice. servers: as in `Plan`.
        """
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
        """Raises JobError if the job has failed, once its workers have gone."""
        if report.state == "failed" and not report.holding:
            raise JobError(f"{self.spec.training} fails: {raised_in(report.failure)}")

    def steps(self, more: int) -> JobReport:
        """The report after `more` more steps."""
        start = self.report().step
        return self.until(lambda now: now.step >= start + more)

    def move(self, nodes: Nodes) -> Change:
        """Move the workers, and wait until those on `nodes` train and no others are there."""
        before, first = self.nodes, self.generation == 0
        since = self._created if first else time.monotonic()
        rescales = 0 if first else self.report().rescales
        self.command(nodes)
        seconds = time.monotonic() - since
        new = (Counter(nodes) - Counter(before)).total()
        if not (before and nodes):
            return Change("start" if first else "restart", len(nodes), new, seconds)
        report = self.until(lambda now: now.ended or (len(now.pauses) > 0 and now.rescales > rescales))
        pause = sum(report.pauses[-(report.rescales - rescales) :])
        more = len(nodes) - len(before)
        return Change("grow" if more > 0 else "shrink" if more < 0 else "move", len(nodes), new, seconds, pause)

    def train(self, seconds: float, steps: int) -> None:
        """Let it train at its present size for a time, and until its speed is measured over enough steps."""
        size = (len(self.nodes), len(set(self.nodes)))
        earliest = time.monotonic() + seconds

        def enough(report: JobReport) -> bool:
            done = next((m.count for m in report.throughput if (m.workers, m.nodes) == size), 0)
            return time.monotonic() >= earliest and done >= steps

        self.until(enough)

    def stop(self) -> JobReport | None:
        """End the job, with a checkpoint: the last report, None if it was gone already."""
        return stop_controller(self.controller)
