"""How long it takes from a fault to the next step of training."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable

from _common import Check
from _ray_job import Job, cluster, job, load, send

from rlpto.ray_cluster.local import LocalCluster

LIMITS = {"worker killed": 6.0, "only worker killed": 6.0, "raylet killed": 3.0, "node frozen": 12.0}
LIMITS |= {"worker frozen": 12.0, "runner killed": 8.0}


def run(repeats: int) -> tuple[list[Check], dict[str, object]]:
    taken: dict[str, list[float]] = {name: [] for name in LIMITS}
    lost: list[int] = []
    with cluster() as started:
        for _ in range(repeats):
            for name in LIMITS:
                seconds, steps = one(started, name)
                taken[name].append(seconds)
                lost.append(steps)
    checks = [
        Check(f"{name}: training again after", statistics.median(taken[name]), "s", limit, False)
        for name, limit in LIMITS.items()
    ]
    each = {f"{name}, each": [round(seconds, 2) for seconds in found] for name, found in taken.items()}
    return checks, each | {"steps trained again, at most": max(lost), "load during recovery": load()}


def one(started: LocalCluster, name: str) -> tuple[float, int]:
    """Seconds from a fault to the next step, and steps that had to be trained again."""
    a, b, *_ = started.node_ids
    with job(checkpoint_interval=2.0) as running:
        running.command([a] if name == "only worker killed" else [a, b])
        running.until(lambda now: now.checkpoint is not None and now.checkpoint.step > 0)
        seconds, steps = measure(running, faults(started, running)[name])
    if name == "node frozen":
        started.kill_node(b)
    if name in ("raylet killed", "node frozen"):
        started.add_node(2)
    return seconds, steps


def faults(started: LocalCluster, running: Job) -> dict[str, Callable[[], None]]:
    a, b, *_ = started.node_ids

    def freeze_node() -> None:
        send([started.raylet_pid(b), *started.worker_pids(b)], signal.SIGSTOP)

    return {
        "worker killed": lambda: send(started.worker_pids(b), signal.SIGKILL),
        "only worker killed": lambda: send(started.worker_pids(a), signal.SIGKILL),
        "raylet killed": lambda: started.kill_node(b),
        "node frozen": freeze_node,
        "worker frozen": lambda: send(started.worker_pids(b), signal.SIGSTOP),
        "runner killed": lambda: send([running.report().pid], signal.SIGKILL),
    }


def measure(running: Job, fault: Callable[[], None]) -> tuple[float, int]:
    """A fault has been overcome when the job says so, which it does after the first step."""
    before = running.report()
    start = time.time()
    fault()
    after = running.until(lambda now: now.recoveries > before.recoveries)
    return after.time - start, max(0, before.step - after.step)
