"""A job on the tests' cluster, from a test's point of view."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rlpto.ray_cluster.measuring import CommandedJob
from rlpto.ray_cluster.messages import FaultTolerance, JobReport, JobSpec
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.nodes.processes import load_factor

TIMEOUT_S = 120.0
SESSION = f"tests-{os.getpid()}"


class Running(CommandedJob):
    """A job with its controller on the head, which is gone at the end, also after a failed test.

    Every report is checked: on no node more workers than were commanded.
    """

    def __init__(self, cluster: LocalCluster, spec: JobSpec, resume: bool = False) -> None:
        self.cluster = cluster
        self._allowed: Counter[str] = Counter()
        super().__init__(spec, resume)

    def __exit__(self, *_: object) -> None:
        super().stop()

    def command(
        self, nodes: Sequence[str], wait: bool = True, batch_size: int | None = None, servers: Sequence[str] = ()
    ) -> JobReport:
        # What is held may be what the old command allowed until what it no longer allows has been released.
        self._allowed = Counter(nodes) | Counter(self.report().holding)
        report = super().command(nodes, wait, batch_size, servers)
        if wait:
            self._allowed = Counter(nodes)
            assert sorted(report.training_on) == sorted(nodes)
        return report

    def report(self) -> JobReport:
        report = super().report()
        if self.generation:
            assert Counter(report.holding) <= self._allowed, "more GPUs held than commanded"
        return report

    def until(self, holds: Callable[[JobReport], bool], timeout: float = TIMEOUT_S) -> JobReport:
        return super().until(holds, timeout * load_factor())

    def signal_worker(self, node: str, number: int) -> None:
        """Send a signal to one of this cluster's workers on a node: no other job has any there."""
        os.kill(self.cluster.worker_pids(node)[0], number)

    def stop(self) -> JobReport:
        report = super().stop()
        assert report is not None
        assert report.holding == ()
        return report


def make_spec(folder: Path, **more: Any) -> JobSpec:
    """A job of the tests' tiny program, slow enough to be changed while it trains.

    On a busy machine a healthy worker may be silent for longer, which is no fault that a test asked for.
    """
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
        "heartbeat_timeout": 5.0 * load_factor(),
    }
    values |= more
    faults = {field.name: values.pop(field.name) for field in fields(FaultTolerance) if field.name in values}
    return JobSpec(**values, faults=FaultTolerance(**faults))


KILL, FREEZE = signal.SIGKILL, signal.SIGSTOP
