"""The scheduler's process, and the head of the cluster, killed under jobs that train."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from _chaos_scheduler import Scheduler
from _chaos_watcher import query
from _ray_job import experiment

from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.nodes.persistent_cluster import restart_head, start_cluster, stop_cluster
from rlpto.ray_cluster.nodes.processes import head_family, signal_to

PACE = 0.2
GONE = 5.0
"""s for which the head stays away."""
WAIT_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Attached:
    """seconds: that a scheduler took to take jobs over, by its own session database. processes: the same from the
    start of its process. lost: steps that jobs did again."""

    seconds: list[float]
    processes: list[float]
    lost: int


@dataclass(frozen=True)
class Back:
    """seconds: from the restart of the head until a scheduler is at work. share: of the steps that the pace allows,
    what the job did since the head was killed. recoveries: of the job."""

    seconds: float
    share: float
    recoveries: int


def scheduler_killed(started: LocalCluster, repeats: int) -> Attached:
    """Kill the command `rlpto evaluate`, and start it again, a few times."""
    with tempfile.TemporaryDirectory() as folder:
        scheduler = Scheduler(Path(folder), started.address, config(len(started.node_ids)))
        scheduler.start()
        try:
            wait_for(lambda: steps(scheduler) > 5)
            processes, lost = [], 0
            for time_again in range(repeats):
                scheduler.kill()
                before = steps(scheduler)
                began = time.monotonic()
                scheduler.start()
                wait_for(lambda expected=time_again + 1: len(returns(scheduler)) == expected)
                processes.append(time.monotonic() - began)
                wait_for(lambda least=before: steps(scheduler) > least)
                lost = max(lost, recoveries(scheduler))
            return Attached(returns(scheduler), processes, lost)
        finally:
            scheduler.end()


def head_killed() -> Back:
    """Kill all of the head of a durable cluster, start it again, and then the command that ran on it."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLPTO_STATE"] = str(Path(folder, "cluster.json"))
        up = start_cluster([1, 1], durable=True)
        scheduler = Scheduler(Path(folder), up.address, config(2))
        try:
            scheduler.start()
            wait_for(lambda: steps(scheduler) > 5)
            before, killed = steps(scheduler), time.monotonic()
            for pid in head_family(up.folder):
                signal_to(pid, signal.SIGKILL)
            time.sleep(GONE)
            scheduler.kill()
            began = time.monotonic()
            up = restart_head(up)
            scheduler.start()
            wait_for(lambda: len(returns(scheduler)) == 1)
            seconds = time.monotonic() - began
            wait_for(lambda: steps(scheduler) > before)
            share = (steps(scheduler) - before) / ((time.monotonic() - killed) / PACE)
            return Back(seconds, share, recoveries(scheduler))
        finally:
            scheduler.end()
            stop_cluster()
            del os.environ["RLPTO_STATE"]


def config(nodes: int) -> str:
    """One job that trains with one worker for longer than anything here takes."""
    return experiment("scheduler-faults", nodes, 1, {}, {"epochs": 10_000, "pace": PACE}, checkpoint_interval=5)


def steps(scheduler: Scheduler) -> int:
    return int(sum(row[0] for row in query(scheduler.database, "SELECT step FROM jobs")))


def recoveries(scheduler: Scheduler) -> int:
    return int(sum(row[0] for row in query(scheduler.database, "SELECT recoveries FROM jobs")))


def returns(scheduler: Scheduler) -> list[float]:
    """s that each restarted scheduler took to take the jobs over."""
    return [row[0] for row in query(scheduler.database, "SELECT value FROM events WHERE kind = 'scheduler_returned'")]


def wait_for(holds: Callable[[], bool]) -> None:
    by = time.monotonic() + WAIT_TIMEOUT_S
    while not holds():
        if time.monotonic() > by:
            raise TimeoutError(f"waited {WAIT_TIMEOUT_S:g} s in vain")
        time.sleep(0.05)
