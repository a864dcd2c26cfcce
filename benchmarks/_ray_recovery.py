"""How long it takes from a fault to the next step of training, and from a scheduler's end to the next one at work."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable

from _common import Check
from _ray_job import Job, cluster, job, load, send
from _scheduler_faults import head_killed, scheduler_killed

from rlpto.ray_cluster.nodes.local import LocalCluster

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
        "controller killed": lambda: send([running.report().pid], signal.SIGKILL),
    }


def measure(running: Job, fault: Callable[[], None]) -> tuple[float, int]:
    """A fault has been overcome when the job says so, which it does after the first step."""
    before = running.report()
    start = time.time()
    fault()
    after = running.until(lambda now: now.recoveries > before.recoveries)
    return after.time - start, max(0, before.step - after.step)
