"""Every policy of `rlpto policies` schedules real jobs of its kind for a minute, under the command that users start.

Jobs of its kind: plain ones for policies that count GPUs, on GPUs of two kinds for those that choose kinds, with
parameter servers for those that give servers, and with a batch for each worker for Pollux, which is told what jobs
report. The others are told estimates with errors of 20 %.
"""

from __future__ import annotations

import json
import math
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _common import Check
from _ray_job import BATCH, DIGITS, SAMPLES, load, rlpto

from rlpto.evaluation.runner import Cell
from rlpto.experiments.on_ray import session_folder
from rlpto.policies.registry import available, is_complete
from rlpto.ray_cluster.scheduler.session_folder import DATABASE

SECONDS, INTERVAL = 60.0, 5.0
PACE = 0.2
"""Seconds of a step with one worker."""
JOBS = 8
CHOOSING = "max_throughput:choose_batch_size=true,change_above=1.05"
NOISY = {"mode": "noisy", "speed_sigma": 0.2, "remaining_sigma": 0.2, "scaling_sigma": 0.2}


@dataclass(frozen=True)
class Kind:
    """A kind of jobs and nodes. policies: that are run on it. program: further settings of what jobs train."""

    policies: tuple[str, ...]
    program: dict[str, Any] = field(default_factory=dict)
    nodes: tuple[dict[str, Any], ...] = ({"count": 4, "gpus": 2},)
    knowledge: dict[str, Any] = field(default_factory=lambda: NOISY)

    def config(self) -> dict[str, Any]:
        """An experiment: jobs that come through the first half of the minute, of which some outlast it."""
        work = [{"name": "short", "count": 5, "every": 6.0, "epochs": 4}, {"name": "long", "count": 3, "epochs": 1000}]
        trained = {"training": f"{DIGITS}:DigitsMlp", "samples": SAMPLES, "batch_size": BATCH, "pace": PACE}
        return {
            "name": "policies",
            "cluster": {"nodes": list(self.nodes)},
            "workload": {"source": "jobs", "jobs": [{"model": "digits", "max_gpus": 4, **one} for one in work]},
            "knowledge": self.knowledge,
            "simulator": {"interval": INTERVAL, "max_hours": SECONDS / 3600, "growth": "overlap"},
            "ray": {"programs": {"digits": trained | self.program}, "tensorboard": False, "checkpoint_interval": 10},
            "policies": list(self.policies),
            "evaluation": {"reference": self.policies[0]},
        }


BY_KIND: dict[str, Kind] = {
    "GPUs of two kinds": Kind(
        ("sia", "gavel"), nodes=({"count": 2, "gpus": 2, "gpu": "t4"}, {"count": 2, "gpus": 2, "gpu": "a100"})
    ),
    "parameter servers": Kind(
        ("coach", "configuration_manager:period=10"),
        {"architecture": "parameter_server", "servers": 1, "most_servers": 3},
        ({"count": 4, "gpus": 2, "cpus": 4},),
    ),
    "a batch for each worker": Kind(("pollux",), {"batch_rule": "per_worker"}, knowledge={"mode": "online"}),
    "a batch that is chosen": Kind((CHOOSING,), {"largest_batch_size": 512}),
}
"""Policies that are for special jobs, by what is special."""


def kinds() -> dict[str, Kind]:
    """All kinds: those above, and plain jobs for the policies that are not there."""
    special = {spec.partition(":")[0] for kind in BY_KIND.values() for spec in kind.policies if spec != CHOOSING}
    complete = [name for name, policy in available().items() if is_complete(policy)]
    plain = [name for name in complete if name not in special]
    return BY_KIND | {"plain": Kind((*plain, "pretrained:synthetic"))}


def run(_: int) -> tuple[list[Check], dict[str, object]]:
    """One minute each, however many are asked for: about half an hour in all."""
    rows: list[dict[str, object]] = []
    checks: list[Check] = []
    for name, kind in kinds().items():
        with tempfile.TemporaryDirectory() as folder:
            config, results = Path(folder, "policies.yaml"), Path(folder, "run")
            config.write_text(json.dumps(kind.config()))
            rlpto("evaluate", str(config), "--cluster", "ray", "--run-dir", str(results), "--no-report", "--quiet")
            for policy in kind.policies:
                own = session_folder(results, Cell(policy, "jobs", 0))
                with closing(sqlite3.connect(own / DATABASE)) as database:
                    row = outcome(database, policy)
                rows.append({"policy": policy, "jobs": name, **row})
                checks += judged(policy, row)
    return checks, {"minutes": rows, "load during policies": load()}


def outcome(database: sqlite3.Connection, policy: str) -> dict[str, float]:
    """What the session database tells of a minute."""
    decisions = database.execute("SELECT policy, latency, held, capacity FROM decisions").fetchall()
    jobs = database.execute("SELECT state, step, recoveries, gpu_seconds FROM jobs").fetchall()
    ((over,),) = database.execute("SELECT count(*) FROM decisions WHERE held > capacity")
    return {
        "decisions": sum(taken[0] == policy for taken in decisions),
        "slowest decision [ms]": round(1e3 * max((taken[1] for taken in decisions), default=math.inf), 1),
        "jobs that trained": sum(step > 0 for _, step, _, _ in jobs),
        "finished": sum(state == "finished" for state, *_ in jobs),
        "failed": sum(state == "failed" for state, *_ in jobs),
        "recoveries": sum(job[2] for job in jobs),
        "steps": sum(job[1] for job in jobs),
        "GPUs held, mean": round(sum(job[3] for job in jobs) / SECONDS, 1),
        "decisions beyond capacity": over,
    }


def judged(policy: str, row: dict[str, float]) -> Sequence[Check]:
    """What every policy must do."""
    return [
        Check(f"{policy}: decisions in a minute", row["decisions"], "", SECONDS / INTERVAL - 1, True),
        Check(f"{policy}: jobs that trained", row["jobs that trained"], "", 1, True),
        Check(f"{policy}: jobs that failed", row["failed"], "", 0, False),
        Check(f"{policy}: faults of jobs", row["recoveries"], "", 0, False),
        Check(f"{policy}: decisions beyond capacity", row["decisions beyond capacity"], "", 0, False),
    ]
