"""Real jobs on a local Ray cluster with logical GPUs: pauses, overhead, recovery, and how near the simulator is."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import _common
import numpy as np
from _common import Check, Found

from rlpto.core.cluster import Node
from rlpto.ray_cluster.measuring.commanded_job import CommandedJob
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.nodes.environment import ray_environment
from rlpto.ray_cluster.nodes.local import LocalCluster

DIGITS = "rlpto.ray_cluster.programs.digits"
SAMPLES, BATCH = 1437, 64
WORKER_PROGRAM = "RLPTO_WORKER_PROGRAM"
"""Workers are forked, unless this says otherwise: starts that share two cores with training would dominate figures."""


def main() -> None:
    parser = _common.parser(__doc__, PARTS, ", ".join(USUAL))
    parser.add_argument("--repeats", type=_common.positive, default=3)
    options = parser.parse_args()
    os.environ.setdefault(WORKER_PROGRAM, str(_common.ROOT / "tests" / "ray_cluster" / "fork_server.py"))
    parts = {name: partial(part, options.repeats) for name, part in PARTS.items()}
    with ray_environment():  # some of it counts only from before the import on
        checks, facts = _common.run_parts(parts, options.parts or USUAL)
    _common.finish(checks, options.json, **facts)


@contextmanager
def started_job(**values: Any) -> Iterator[CommandedJob]:
    """A job in a folder of its own, stopped at the end."""
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {
            "id": "job",
            "name": "job",
            "session": f"benchmark-{os.getpid()}",
            "training": f"{DIGITS}:DigitsCnn",
            "folder": folder,
            "batch_size": BATCH,
            "epochs": 1e6,
            "data_size": SAMPLES,
        }
        running = CommandedJob(JobSpec(**given | values))
        try:
            yield running
        finally:
            running.stop()


def rlpto(*arguments: str) -> None:
    """Run the command in a process of its own, as Ray runs once in a process."""
    subprocess.run([sys.executable, "-m", "rlpto.cli.main", *arguments], check=True, cwd=_common.ROOT)


# Pauses -------------------------------------------------------------------------------------------------------------

SIZES = (2, 4, 2, 1)
MOST_RESCALES = 20


def pause(repeats: int) -> Found:
    """How long a job stands still when it gets more or fewer workers."""
    pauses: dict[tuple[int, int], list[float]] = {}
    with LocalCluster([Node(2)] * 4) as started, started_job() as running:
        running.command(started.node_ids[:1])
        held = 1
        for size in (SIZES * repeats)[:MOST_RESCALES]:
            _common.progress(f"pause: {held} to {size} workers")
            running.steps(20)
            before = running.report().rescales
            running.command(started.node_ids[:size])
            report = running.until(lambda now, before=before: now.rescales > before and len(now.pauses) >= now.rescales)
            pauses.setdefault((held, size), []).append(report.pauses[-1])
            held = size
    every = [pause for found in pauses.values() for pause in found]
    checks = [
        Check("pause, median", float(np.median(every)), "s", 0.100, False),
        Check("pause, 95 %", float(np.quantile(every, 0.95)), "s", 0.250, False),
    ]
    return checks, {
        f"pauses {old} -> {new}, ms": [round(1000 * pause) for pause in found] for (old, new), found in pauses.items()
    }


# Overhead -----------------------------------------------------------------------------------------------------------

STEPS = {"7 ms": (64, 0.10), "50 ms": (512, 0.03)}
"""Batch size, and the share of a step that training on Ray may cost, by duration of a step."""
REPORTS = 0.02
SECONDS = 6.0
"""For which a job trains on Ray, then in plain torch, to be compared."""
TIMES = 3
"""Such comparisons for every repeat: on a shared machine one of the two may be slower by half than a minute later."""
BLOCK, LEAST_PAIRS = 40, 5
"""Steps with, then steps without measuring; pairs of such blocks for every repeat, at least."""
BLOCKS_SECONDS = 40.0
"""CPU seconds of such blocks for every repeat: on a shared machine one block differs from the next by a tenth."""


def overhead(repeats: int) -> Found:
    """What a job on Ray takes longer than plain torch with one worker, and what its reports cost."""
    import torch

    torch.set_num_threads(1)
    checks: list[Check] = []
    facts: dict[str, object] = {}
    with LocalCluster([Node(1)]) as started:
        for name, (batch, limit) in STEPS.items():
            ratios, steps = [], []
            with started_job(batch_size=batch) as running:
                running.command([started.node_ids[0]])
                running.steps(10)
                count = max(10, round(SECONDS / plain_seconds(running.spec, 10)))
                for number in range(TIMES * repeats):
                    _common.progress(f"overhead of {name} steps: {number + 1} of {TIMES * repeats}")
                    begin = running.steps(1)
                    end = running.steps(count)
                    on_ray = (end.time - begin.time) / (end.step - begin.step)
                    running.command([])  # the two must not share the machine
                    plain = plain_seconds(running.spec, count)
                    running.command([started.node_ids[0]])
                    ratios.append(on_ray / plain - 1)
                    steps.append(round(1000 * plain, 1))
            _common.progress(f"reporting, {name} steps")
            cost, pairs = reporting(running.spec, repeats)
            checks.append(Check(f"overhead of {name} steps", statistics.median(ratios), "of a step", limit, False))
            checks.append(Check(f"reporting, {name} steps", cost, "of a step", REPORTS, False))
            facts[f"overhead of {name} steps, each"] = [round(ratio, 3) for ratio in ratios]
            facts[f"plain torch at {name}, ms"] = steps
            facts[f"pairs of blocks compared for reporting, {name} steps"] = pairs
    return checks, facts


def plain_seconds(spec: JobSpec, steps: int) -> float:
    """Mean seconds of a step of plain torch."""
    from tests.ray_cluster.test_training import plain_torch

    plain_torch(spec, 3)
    start = time.perf_counter()
    plain_torch(spec, steps)
    return (time.perf_counter() - start) / steps


def reporting(spec: JobSpec, repeats: int) -> tuple[float, int]:
    """CPU time that measuring the noise of gradients adds to a step: median over pairs of blocks, and their number."""
    from rlpto.ray_cluster.worker import worker_group
    from rlpto.ray_cluster.worker.training import Trainer

    trainer = Trainer(spec)
    trainer.run(5)
    usual, ratios, spent = worker_group.MEASURE_EVERY_STEPS, [], 0.0
    try:
        while len(ratios) < LEAST_PAIRS * repeats or spent < BLOCKS_SECONDS * repeats:
            pair, taken = len(ratios), {}
            # Which of the two comes first changes, so that a machine that grows slower is no advantage.
            for measured in (pair % 2 == 0, pair % 2 == 1):
                worker_group.MEASURE_EVERY_STEPS = usual if measured else 10**12
                trainer._evaluation_due = float("inf")
                start = time.process_time()
                trainer.run(trainer.position.step + BLOCK)
                taken[measured] = time.process_time() - start
            ratios.append(taken[True] / taken[False] - 1)
            spent += sum(taken.values())
    finally:
        worker_group.MEASURE_EVERY_STEPS = usual
    return statistics.median(ratios), len(ratios)


# Recovery -----------------------------------------------------------------------------------------------------------

LIMITS = {"worker killed": 6.0, "only worker killed": 6.0, "raylet killed": 3.0, "node frozen": 12.0}
LIMITS |= {"worker frozen": 12.0, "controller killed": 8.0}
"""Seconds from a fault to the next step, at most."""


def recovery(repeats: int) -> Found:
    """Seconds from a fault of a worker, a node or a controller to training again."""
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
    with started_job(checkpoint_interval=2.0) as running:
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
        after = running.until(lambda now: now.recoveries > before.recoveries)
    if fault == "node frozen":
        started.kill_node(b)
    if fault in ("raylet killed", "node frozen"):
        started.add_node(2)
    return after.time - start, max(0, before.step - after.step)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


# Fidelity -----------------------------------------------------------------------------------------------------------

POLICIES = "fifo,equal_share,optimus"
MEAN_OFF, JOB_OFF = 0.05, 0.10


def fidelity(repeats: int) -> Found:
    """Jobs of `configs/ray.yaml`, real and simulated with profiles from `rlpto profile` alone, as a user would."""
    with tempfile.TemporaryDirectory() as folder:
        profiles, results = Path(folder, "here.yaml"), Path(folder, "run")
        config = str(_common.CONFIGS / "ray.yaml")
        rlpto("profile", config, "-o", str(profiles), "--quiet")
        where = ["--cluster", "both", "--profiles", str(profiles), "--run-dir", str(results)]
        how = ["--policies", POLICIES, "--seeds", str(repeats), "--no-report", "--quiet"]
        rlpto("evaluate", config, *where, *how)
        found = json.loads((results / "fidelity.json").read_text())
        measured = profiles.read_text()
    checks = []
    for policy in found["policies"]:
        name, mean = policy["policy"], abs(policy["metrics"]["jct_mean"]["relative"])
        worst = max(abs(job["relative"]) for job in policy["jobs"].values())
        checks.append(Check(f"{name}: mean JCT off by", mean, "", MEAN_OFF, least=False))
        checks.append(Check(f"{name}: worst job's JCT off by", worst, "", JOB_OFF, least=False))
        checks.append(Check(f"{name}: finished on one only", policy["unfinished"], "jobs", 0, least=False))
    same = float(found["same_ranking"]["jct_mean"])
    checks.append(Check("policies ranked the same by mean JCT", same, "", 1, least=True))
    return checks, {"fidelity": found, "profiles": measured}


PARTS = {"pause": pause, "overhead": overhead, "recovery": recovery, "fidelity": fidelity}
USUAL = ("pause", "overhead", "recovery")

if __name__ == "__main__":
    main()
