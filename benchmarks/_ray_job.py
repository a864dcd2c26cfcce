"""A cluster and a job for the parts of the Ray benchmark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from _common import ROOT

from rlpto.ray_cluster.controllers import control_node, stop_controller
from rlpto.ray_cluster.job.controller import start_controller
from rlpto.ray_cluster.messages import JobReport, JobSpec
from rlpto.ray_cluster.nodes.local import LocalCluster

PATIENCE = 180.0
DIGITS = "rlpto.ray_cluster.programs.digits"


@contextmanager
def cluster(nodes: int = 4, gpus: int = 2) -> Iterator[LocalCluster]:
    """A local cluster; what the machine did beside it is said by its load."""
    with LocalCluster([gpus] * nodes) as started:
        yield started


class Job:
    """A job whose controller is on the head."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.controller: Any = start_controller(spec, control_node(), resume=False)
        self.generation = 0

    def command(self, nodes: Sequence[str]) -> JobReport:
        """Command workers on `nodes` and wait until all of them train."""
        self.generation += 1
        ray.get(self.controller.command.remote(self.generation, tuple(nodes)))
        return self.until(lambda now: now.applied == self.generation)

    def report(self) -> JobReport:
        said: JobReport = ray.get(self.controller.report.remote())
        return said

    def until(self, holds: Callable[[JobReport], bool]) -> JobReport:
        """The first report of which something holds."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            report = self.report()
            if report.state == "failed":
                raise RuntimeError(f"the job failed: {report.failure}")
            if holds(report):
                return report
            time.sleep(0.02)
        raise TimeoutError(f"waited {PATIENCE:g} s in vain; the job says {report}")

    def steps(self, more: int) -> JobReport:
        """The report after so many more steps."""
        start = self.report().step
        return self.until(lambda now: now.step >= start + more)


@contextmanager
def job(**values: Any) -> Iterator[Job]:
    """A job in a folder of its own, stopped at the end."""
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {
            "id": "job",
            "name": "job",
            "session": f"benchmark-{os.getpid()}",
            "training": f"{DIGITS}:DigitsCnn",
            "folder": folder,
            "batch_size": 64,
            "epochs": 1e6,
            "data_size": 1437,
        }
        running = Job(JobSpec(**given | values))
        try:
            yield running
        finally:
            stop_controller(running.controller)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def rlpto(*arguments: str) -> None:
    """Run the command in a process of its own, as Ray runs once in a process."""
    subprocess.run([sys.executable, "-m", "rlpto.cli.main", *arguments], check=True, cwd=ROOT)


def load() -> str:
    """What else runs on this machine, as far as its load tells."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
