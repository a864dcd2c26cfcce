"""Seconds from a fault to training or scheduling again: of workers, nodes, controllers, the scheduler, the head."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from _chaos import Scheduler, query
from _common import Check
from _ray_job import cluster, experiment, job, load, send

from rlpto.ray_cluster.measuring.commanded_job import CommandedJob
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
    where = "json_extract(body, '$.what') = 'scheduler_returned'"
    found = query(scheduler.database, f"SELECT json_extract(body, '$.value') FROM events WHERE {where}")
    return [row[0] for row in found]


def wait_for(holds: Callable[[], bool]) -> None:
    by = time.monotonic() + WAIT_TIMEOUT_S
    while not holds():
        if time.monotonic() > by:
            raise TimeoutError(f"waited {WAIT_TIMEOUT_S:g} s in vain")
        time.sleep(0.05)


LIMITS = {"worker killed": 6.0, "only worker killed": 6.0, "raylet killed": 3.0, "node frozen": 12.0}
LIMITS |= {"worker frozen": 12.0, "controller killed": 8.0}
SCHEDULER, HEAD = 2.0, 15.0
GOES_ON = 0.9
"""Of the steps that the pace allows, what a job must do while the head is gone."""


def run(repeats: int) -> tuple[list[Check], dict[str, object]]:
    taken: dict[str, list[float]] = {name: [] for name in LIMITS}
    lost: list[int] = []
    with cluster() as started:
        for _ in range(repeats):
            for name, found in taken.items():
                seconds, steps = one(started, name)
                found.append(seconds)
                lost.append(steps)
        attached = scheduler_killed(started, repeats)
    back = [head_killed() for _ in range(repeats)]
    checks = [
        Check(f"{name}: training again after", statistics.median(taken[name]), "s", limit, False)
        for name, limit in LIMITS.items()
    ]
    checks += [
        Check("scheduler killed: re-attached after", statistics.median(attached.seconds), "s", SCHEDULER, False),
        Check("scheduler killed: steps lost", attached.lost, "", 0, False),
        Check("head killed: scheduling again after", statistics.median(one.seconds for one in back), "s", HEAD, False),
        Check("head killed: training meanwhile", min(one.share for one in back), "of its pace", GOES_ON, True),
        Check("head killed: recoveries of jobs", max(one.recoveries for one in back), "", 0, False),
    ]
    each = {f"{name}, each": [round(seconds, 2) for seconds in found] for name, found in taken.items()}
    each["scheduler killed, from its own start of taking over, each"] = [round(one, 2) for one in attached.seconds]
    each["scheduler killed, from the start of its process, each"] = [round(one, 2) for one in attached.processes]
    each["head killed, from its restart to a scheduler at work, each"] = [round(one.seconds, 2) for one in back]
    facts: dict[str, object] = {"steps trained again, at most": max(lost), "load during recovery": load()}
    return checks, each | facts


def one(started: LocalCluster, fault: str) -> tuple[float, int]:
    """Seconds from a fault to the next step, and steps that had to be trained again."""
    a, b, *_ = started.node_ids
    with job(checkpoint_interval=2.0) as running:
        running.command([a] if fault == "only worker killed" else [a, b])
        running.until(lambda now: now.checkpoint is not None and now.checkpoint.step > 0)
        seconds, steps = measure(running, faults(started, running)[fault])
    if fault == "node frozen":
        started.kill_node(b)
    if fault in ("raylet killed", "node frozen"):
        started.add_node(2)
    return seconds, steps


def faults(started: LocalCluster, running: CommandedJob) -> dict[str, Callable[[], None]]:
    a, b, *_ = started.node_ids

    def freeze_node() -> None:
        send([started.raylet_pid(b), *started.worker_pids(b)], signal.SIGSTOP)

    return {
        "worker killed": lambda: send(started.worker_pids(b), signal.SIGKILL),
        "only worker killed": lambda: send(started.worker_pids(a), signal.SIGKILL),
        "raylet killed": lambda: started.kill_node(b),
        "node frozen": freeze_node,
        "worker frozen": lambda: send(started.worker_pids(b), signal.SIGSTOP),
        "controller killed": lambda: send([running.report().pid], signal.SIGKILL),
    }


def measure(running: CommandedJob, fault: Callable[[], None]) -> tuple[float, int]:
    """A fault has been overcome when the job says so, which it does after the first step."""
    before = running.report()
    start = time.time()
    fault()
    after = running.until(lambda now: now.recoveries > before.recoveries)
    return after.time - start, max(0, before.step - after.step)
