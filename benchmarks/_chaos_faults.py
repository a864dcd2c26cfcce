"""Faults at random, done for real, and mended where nobody else does."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from _chaos_scheduler import Scheduler
from _chaos_watcher import Watcher

from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.job.job_folder import list_checkpoints
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.scheduler.session_database import request_policy

POLICIES = ("fifo", "equal_share", "las", "optimus", "elastic_fifo")
NODE_BACK = 10.0
"""s after which a machine that died is replaced."""
NOTICED = 10.0
"""s that a frozen node is given to be noticed before it is replaced."""


class Faults:
    """Does one at a time, drawn by `rng`. done: how often each was. gpus: of a new node."""

    def __init__(
        self, started: LocalCluster, watcher: Watcher, scheduler: Scheduler, rng: random.Random, gpus: int
    ) -> None:
        self._started, self._watcher, self._scheduler = started, watcher, scheduler
        self._rng, self._gpus = rng, gpus
        self.done: Counter[str] = Counter()
        self._mending: list[tuple[float, Callable[[], object]]] = []
        self._kinds: dict[str, Callable[[], bool]] = {
            "worker killed": lambda: self._signal_worker(signal.SIGKILL),
            "worker frozen": lambda: self._signal_worker(signal.SIGSTOP),
            "raylet killed": self._kill_node,
            "node frozen": self._freeze_node,
            "controller killed": self._kill_controller,
            "scheduler killed": self._restart_scheduler,
            "checkpoint corrupted": self._corrupt,
            "policy switched": self._switch,
        }

    def strike(self) -> str:
        """Do one that can be done now: its name, empty if there was none."""
        kinds = list(self._kinds)
        self._rng.shuffle(kinds)
        for kind in kinds:
            if self._kinds[kind]():
                self.done[kind] += 1
                return kind
        return ""

    def mend(self) -> bool:
        """Bring back nodes whose time has come; True if some are still to come. Not in a thread: Ray refuses that."""
        due = [what for at, what in self._mending if at <= time.monotonic()]
        self._mending = [(at, what) for at, what in self._mending if at > time.monotonic()]
        for what in due:
            what()
        return bool(self._mending)

    def _signal_worker(self, number: signal.Signals) -> bool:
        nodes = list(self._started.node_ids)
        pids = [pid for node in nodes for pid in self._started.worker_pids(node)]
        return bool(pids) and _send(self._rng.choice(pids), number)

    def _kill_node(self) -> bool:
        nodes = self._started.node_ids
        if len(nodes) < 3:
            return False  # the others are still on their way back
        self._started.kill_node(self._rng.choice(nodes))
        self._later(NODE_BACK, lambda: self._started.add_node(self._gpus))
        return True

    def _freeze_node(self) -> bool:
        nodes = self._started.node_ids
        if len(nodes) < 3:
            return False
        node = self._rng.choice(nodes)
        for pid in [self._started.raylet_pid(node), *self._started.worker_pids(node)]:
            _send(pid, signal.SIGSTOP)

        def replace() -> None:
            self._started.kill_node(node)
            self._started.add_node(self._gpus)

        self._later(NOTICED, replace)
        return True

    def _kill_controller(self) -> bool:
        controllers = [
            report.pid for report in self._watcher.reports.values() if not report.ended and report.training_on
        ]
        return bool(controllers) and _send(self._rng.choice(controllers), signal.SIGKILL)

    def _restart_scheduler(self) -> bool:
        if self._scheduler.ended or not self._scheduler.database.exists():
            return False
        self._scheduler.restart()
        return True

    def _corrupt(self) -> bool:
        """Damage a job's newest checkpoint, and kill its controller, which then has to read it."""
        jobs = [
            report
            for report in self._watcher.reports.values()
            if not report.ended and report.training_on and report.checkpoint is not None
        ]
        if not jobs:
            return False
        job = self._rng.choice(jobs)
        folder = Path(job.checkpoint.path).parent if job.checkpoint is not None else Path()
        found = list_checkpoints(folder)
        if len(found) < 2 or not _send(job.pid, signal.SIGSTOP):
            return False
        Path(list_checkpoints(folder)[0].path).write_bytes(b"what a failing disk gives back")
        self._watcher.corrupted.add(job.job)
        return _send(job.pid, signal.SIGKILL)

    def _switch(self) -> bool:
        if self._scheduler.ended or not self._scheduler.database.exists():
            return False
        try:
            request_policy(self._scheduler.database, self._rng.choice(POLICIES))
        except (ClusterError, sqlite3.Error):
            return False  # the database is being made
        return True

    def _later(self, seconds: float, what: Callable[[], object]) -> None:
        self._mending.append((time.monotonic() + seconds, what))


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
