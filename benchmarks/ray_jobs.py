"""Real jobs on a local Ray cluster with logical GPUs: pauses, recovery, and faults of hosts."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import _common
import numpy as np
from _common import Check, Found
from _ray_latency import latency

from rlpto.core.cluster import Node
from rlpto.ray_cluster.measuring import CommandedJob
from rlpto.ray_cluster.messages import FaultTolerance, JobReport, JobSpec
from rlpto.ray_cluster.nodes.environment import ray_environment
from rlpto.ray_cluster.nodes.local import LocalCluster

WORKER_PROGRAM = "RLPTO_WORKER_PROGRAM"
"""Workers are forked by default: starts that share two cores with training would dominate figures."""


@contextmanager
def started_job(**more: Any) -> Iterator[CommandedJob]:
    """A job in a temporary folder, stopped at the end. more: fields of its spec."""
    with tempfile.TemporaryDirectory() as folder:
        spec = JobSpec(
            id="job",
            name="job",
            session=f"benchmark-{os.getpid()}",
            training="rlpto.ray_cluster.programs.digits:DigitsCnn",
            folder=folder,
            batch_size=64,
            epochs=1e6,
            data_size=1437,
            **more,
        )
        running = CommandedJob(spec)
        try:
            yield running
        finally:
            running.stop()


# Pauses -------------------------------------------------------------------------------------------------------------

SIZES = (2, 4, 2, 1)
MOST_RESCALES = 20


def _has_paused(before: int, report: JobReport) -> bool:
    return len(report.interruptions.pauses) > before


def pause(repeats: int) -> Found:
    """Duration of a job's pause when its number of workers changes."""
    pauses: dict[tuple[int, int], list[float]] = {}
    with LocalCluster([Node(2)] * 4) as started, started_job() as running:
        running.command(started.node_ids[:1])
        held = 1
        for size in (SIZES * repeats)[:MOST_RESCALES]:
            _common.progress(f"pause: {held} to {size} workers")
            running.steps(20)
            before = running.report().interruptions
            running.command(started.node_ids[:size])
            report = running.until(partial(_has_paused, len(before.pauses)))
            pauses.setdefault((held, size), []).append(report.interruptions.pauses[-1])
            held = size
    every = [pause for found in pauses.values() for pause in found]
    checks = [
        Check("pause, median", float(np.median(every)), "s", 0.100, False),
        Check("pause, 95 %", float(np.quantile(every, 0.95)), "s", 0.250, False),
    ]
    return checks, {
        f"pauses {old} -> {new}, ms": [round(1000 * pause) for pause in found] for (old, new), found in pauses.items()
    }


# Recovery -----------------------------------------------------------------------------------------------------------

LIMITS = {"worker killed": 6.0, "only worker killed": 6.0, "raylet killed": 3.0, "node frozen": 12.0}
LIMITS |= {"worker frozen": 12.0, "controller killed": 8.0}
"""Most seconds from a fault to the next step."""


def recovery(repeats: int) -> Found:
    """Seconds from a fault of a worker, a node or a controller to the next step of training."""
    with LocalCluster([Node(2)] * 4) as started:
        found = {fault: [recovered(started, fault) for _ in range(repeats)] for fault in LIMITS}
    taken = {fault: [seconds for seconds, _ in pairs] for fault, pairs in found.items()}
    checks = [
        Check(f"{fault}: training again after", statistics.median(taken[fault]), "s", limit, False)
        for fault, limit in LIMITS.items()
    ]
    facts: dict[str, object] = {f"{fault}, each": [round(one, 2) for one in each] for fault, each in taken.items()}
    return checks, facts | {"steps trained again, at most": max(lost for pairs in found.values() for _, lost in pairs)}


def recovered(started: LocalCluster, fault: str) -> tuple[float, int]:
    """Seconds from a fault to the next step, and steps that had to be trained again."""
    _common.progress(f"recovery: {fault}")
    a, b, *_ = started.node_ids
    with started_job(faults=FaultTolerance(checkpoint_interval=2.0)) as running:
        running.command([a] if fault == "only worker killed" else [a, b])
        before = running.until(lambda now: now.checkpoint is not None and now.checkpoint.step > 0)
        frozen = [started.raylet_pid(b), *started.worker_pids(b)]
        faults: dict[str, Callable[[], object]] = {
            "worker killed": lambda: send(started.worker_pids(b), signal.SIGKILL),
            "only worker killed": lambda: send(started.worker_pids(a), signal.SIGKILL),
            "raylet killed": lambda: started.kill_node(b),
            "node frozen": lambda: send(frozen, signal.SIGSTOP),
            "worker frozen": lambda: send(started.worker_pids(b), signal.SIGSTOP),
            "controller killed": lambda: send([before.pid], signal.SIGKILL),
        }
        start = time.time()
        faults[fault]()
        after = running.until(lambda now: now.interruptions.recoveries > before.interruptions.recoveries)
    if fault == "node frozen":
        started.kill_node(b)
    if fault in ("raylet killed", "node frozen"):
        started.add_node(2)
    return after.time - start, max(0, before.step - after.step)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


# Hosts --------------------------------------------------------------------------------------------------------------


def hosts(repeats: int) -> Found:  # noqa: ARG001 - 25 minutes: once
    """Faults of hosts and of the network while a job has workers on two hosts, which are namespaces of this machine."""
    from tests.hosts import spanning

    with tempfile.TemporaryDirectory() as folder, spanning.cluster(Path(folder)) as ray:
        job = spanning.Evaluation(ray)
        outcomes: dict[str, Callable[[], Any]] = {
            name: partial(spanning.suffer, job, fault) for name, fault in spanning.FAULTS.items()
        }
        outcomes["Ray on the head killed"] = partial(spanning.lose_head, job, power=False)
        outcomes["head killed"] = partial(spanning.lose_head, job, power=True)
        return figures(outcomes)


def figures(outcomes: Mapping[str, Callable[[], Any]]) -> Found:
    """Figures of outcomes, one after the other; of what the terminal shows only the number of lines."""
    found, farthest = dict[str, object](), 0.0
    for name, outcome in outcomes.items():
        values = vars(outcome())
        farthest = max(farthest, values["distance"])
        values |= {"said": len(values["said"])}
        found[name] = {key: float(f"{one:.3g}") if isinstance(one, float) else one for key, one in values.items()}
        _common.progress(f"{name}: {found[name]}")
    return [Check("weights off one process", farthest, "", 1e-12, False)], found


PARTS = {"pause": pause, "recovery": recovery, "hosts": hosts, "latency": latency}

if __name__ == "__main__":
    os.environ.setdefault(WORKER_PROGRAM, str(_common.ROOT / "tests" / "ray_cluster" / "fork_server.py"))
    with ray_environment():  # some of it counts only from before the import on
        _common.main(__doc__, PARTS, repeats=3)
