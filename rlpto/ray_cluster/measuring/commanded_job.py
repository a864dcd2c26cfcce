"""A job that this process commands itself, rather than a scheduler: for measuring, benchmarks and tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rlpto.errors import JobError
from rlpto.ray_cluster.messages import JobReport, JobSpec, Plan

POLL_INTERVAL_S = 0.02
"""Time between two looks at a job: what a delay may be off by."""
CHANGE_TIMEOUT_S = 300.0
"""Longest time for a change to take effect."""


class CommandedJob:
    """Starts the job's controller on the cluster that this process is connected to.

    resume: go on from the job's newest checkpoint. generation: of the newest command.
    """

    def __init__(self, spec: JobSpec, resume: bool = False) -> None:
        from rlpto.ray_cluster.controllers import control_node
        from rlpto.ray_cluster.job.controller import start_controller

        self.spec = spec
        self.controller: Any = start_controller(spec, control_node(), resume)
        self.generation = 0

    def report(self) -> JobReport:
        """What the controller says."""
        from rlpto.ray_cluster.controllers import answer_of

        said: JobReport = answer_of(self.controller.report.remote())
        return said

    def command(self, nodes: Sequence[str], wait: bool = True, batch_size: int | None = None) -> JobReport:
        """Command workers on `nodes`. wait: until the command is wholly in force and all of them train.

        batch_size: of all workers together; None: the job's own choice.
        """
        from rlpto.ray_cluster.controllers import answer_of

        self.generation += 1
        said: JobReport = answer_of(self.controller.command.remote(self.generation, Plan(tuple(nodes), batch_size)))
        if wait:
            said = self.until(lambda now: now.applied == self.generation)
            self.refuse_failure(said)
        return said

    def until(self, holds: Callable[[JobReport], bool], timeout: float = CHANGE_TIMEOUT_S) -> JobReport:
        """The first report of which something holds. Raises JobError if that takes too long, or once the job failed."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            report = self.report()
            if holds(report):
                return report
            self.refuse_failure(report)
            self.meanwhile()
            time.sleep(POLL_INTERVAL_S)
        raise JobError(f"{self.spec.training} does not get on within {timeout:.0f} s; it says {self.report()}")

    def meanwhile(self) -> None:
        """What else is to be done while the job is waited for."""

    def refuse_failure(self, report: JobReport) -> None:
        """Raises JobError if the job has failed, once its workers have gone."""
        if report.state == "failed" and not report.holding:
            lines = report.failure.strip().splitlines()
            raise JobError(f"{self.spec.training} fails: {lines[-1] if lines else 'without a word'}")

    def steps(self, more: int) -> JobReport:
        """The report after so many more steps."""
        start = self.report().step
        return self.until(lambda now: now.step >= start + more)

    def stop(self) -> JobReport | None:
        """End the job, with a checkpoint: the last report, None if it was gone already."""
        from rlpto.ray_cluster.controllers import stop_controller

        return stop_controller(self.controller)
