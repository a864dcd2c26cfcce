"""A job on the tests' cluster, from a test's point of view."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from rlpto.ray_cluster.controllers import control_node, find_controllers, stop_controller
from rlpto.ray_cluster.job.controller import start_controller
from rlpto.ray_cluster.messages import JobReport, JobSpec
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.nodes.machine_load import load_factor

PATIENCE = 120.0
SESSION = f"tests-{os.getpid()}"


class Running:
    """A job with its controller on the head. Every report is checked: on no node more workers than were commanded."""

    def __init__(self, cluster: LocalCluster, spec: JobSpec, resume: bool = False) -> None:
        self.spec, self.cluster = spec, cluster
        self.controller: Any = start_controller(spec, control_node(), resume)
        self._generation = 0
        self._allowed: Counter[str] = Counter()

    def command(self, nodes: Sequence[str], wait: bool = True) -> JobReport:
        """Command workers on `nodes`; wait: until the command is wholly in force and all of them train."""
        self._generation += 1
        # What is held may be what the old command allowed until what it no longer allows has been let go.
        before = self.report()
        self._allowed = Counter(nodes) | Counter(before.holding)
        report: JobReport = ray.get(self.controller.command.remote(self._generation, tuple(nodes)))
        if wait:
            report = self.until(lambda now: now.applied == self._generation)
            self._allowed = Counter(nodes)
            assert sorted(report.training_on) == sorted(nodes)
        return report

    def report(self) -> JobReport:
        report: JobReport = ray.get(self.controller.report.remote())
        if self._generation:
            assert Counter(report.holding) <= self._allowed, "more GPUs held than commanded"
        return report

    def until(self, holds: Callable[[JobReport], bool], patience: float = PATIENCE) -> JobReport:
        """The first report of which something holds."""
        began = time.monotonic()
        while time.monotonic() - began < patience * load_factor():
            report = self.report()
            if holds(report):
                return report
            letting_go = report.state == "failed" and report.holding  # its last workers are about to end
            assert letting_go or report.state != "failed", f"the job failed: {report.failure}"
            time.sleep(0.03)
        raise AssertionError(f"waited {patience:g} s in vain; the job says {report}")

    def steps(self, more: int) -> JobReport:
        """The report after so many more steps."""
        start = self.report().step
        return self.until(lambda now: now.step >= start + more)

    def signal_worker(self, node: str, number: int) -> None:
        """Send a signal to one of this cluster's workers on a node: no other job has any there."""
        os.kill(self.cluster.worker_pids(node)[0], number)

    def stop(self) -> JobReport:
        report = stop_controller(self.controller)
        assert report is not None
        assert report.holding == ()
        return report


@contextmanager
def running(cluster: LocalCluster, spec: JobSpec, resume: bool = False) -> Iterator[Running]:
    """A job whose controller is gone at the end, whatever the test did with it."""
    job = Running(cluster, spec, resume)
    try:
        yield job
    finally:
        for job_id, controller in find_controllers(spec.session).items():
            if job_id == spec.id:
                stop_controller(controller)


def make_spec(folder: Path, **more: Any) -> JobSpec:
    """A job of the tests' tiny program, slow enough to be changed while it trains."""
    values: dict[str, Any] = {
        "id": "job",
        "name": "a label / of any kind: ..",
        "session": SESSION,
        "training": "tests.ray_cluster.programs:Plain",
        "folder": str(folder),
        "batch_size": 16,
        "epochs": 10_000.0,
        "data_size": 101,
        "float64": True,
        "pace": 0.01,
        "backoff": 0.1,
        "checkpoint_interval": 1.0,
    }
    return JobSpec(**(values | more))


KILL, FREEZE = signal.SIGKILL, signal.SIGSTOP
