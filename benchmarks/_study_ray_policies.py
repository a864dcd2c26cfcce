"""Policies over jobs that train on a local Ray cluster, and the same in simulation (docs/ray-policies.md)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import _common
import numpy as np
from _studies import Part, Plan, Row, exit_code, geometric_mean, ratio_of_means, shown

from rlpto.evaluation.fidelity import Fidelity, simulated_against_real
from rlpto.evaluation.metrics import completion_times
from rlpto.evaluation.plots import gantt, png
from rlpto.evaluation.runner import FinishedCell, load_cells
from rlpto.evaluation.statistics import Interval
from rlpto.evaluation.timeline import run_span
from rlpto.experiments.evaluate import labelled
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ConfigError
from rlpto.ray_cluster.scheduler.job_knowledge import STARTS
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase

CONFIG = _common.CONFIGS / "ray_policies.yaml"
IMAGES = _common.ROOT / "docs" / "images"
FORKED = _common.ROOT / "tests" / "ray_cluster" / "fork_server.py"
RIVALS, OURS, SHOWN = ("tiresias", "pollux"), ("tuned_index", "planner", "agent"), ("pollux", "agent")
"""Policies to compare with, policies of this project, and policies shown in pictures."""
TRUE_SPEEDS = ("--set", "knowledge.mode=exact")
"""For simulations: real jobs guess their speed from their pace, which is true within a few per cent."""


def compared(plan: Plan) -> Part:
    """A row for each policy: real, against the better of the rivals, and simulated in two ways."""
    real = cells(plan, "real", "--cluster", "ray")
    starts = f"simulator.rescale_delay={start_seconds(plan.folder / 'ray_policies' / 'real'):.2f}"
    found = simulated_against_real(cells(plan, "simulated", *TRUE_SPEEDS), real)
    later = simulated_against_real(cells(plan, "slow-starts", *TRUE_SPEEDS, "--set", starts), real)
    rival = next(policy for policy in found.policies if policy in RIVALS)
    part = Part()
    for policy in found.policies:
        mine, its = times_of(real, policy), times_of(real, rival)
        by_window = windows_ratio(mine, its)
        by_job = ratio_of_means(np.concatenate(mine), np.concatenate(its))
        part.rows.append(row(policy, mine, {f"JCT / {rival}": by_window, "the same over jobs": by_job}, found, later))
        part.figures[f"{policy}: mean JCT simulated off by"] = abs(figures(found, policy, "jct_mean")["relative"])
        if policy in OURS:
            part.figures[f"{policy} against the better of tiresias and pollux"] = by_window.estimate
            part.figures[f"{policy} against it, upper end over windows"] = by_window.high
            part.figures[f"{policy} against it, upper end over jobs"] = by_job.high
    part.figures["pairs of policies ranked as simulated"] = float(found.agreeing_pairs("jct_mean")[0])
    records = {done.cell.policy: done.record() for done in reversed(real)}
    seconds = max(end - start for start, end in (run_span(records[policy]) for policy in SHOWN))
    for policy in SHOWN:
        (IMAGES / f"ray-policies-{policy}.png").write_bytes(png(gantt(records[policy], seconds)))
    return part


def cells(plan: Plan, name: str, *options: str) -> list[FinishedCell]:
    """Cells of an evaluation of the configuration, run with the users' command; an earlier evaluation continues."""
    folder = plan.folder / "ray_policies" / name
    environment = {"RLPTO_WORKER_PROGRAM": str(FORKED)} | os.environ
    words = ["evaluate", CONFIG, "--no-report", "--run-dir", folder, *options]
    if code := exit_code(words, cwd=_common.ROOT, env=environment, stdout=sys.stderr):
        raise ConfigError(f"{folder}: the evaluation ended with exit code {code}")
    return labelled(load_cells(folder))


def start_seconds(folder: Path) -> float:
    """Mean seconds from the decision that gave a job its first GPUs to its first step, over the sessions of a run."""
    found: list[float] = []
    for path in sorted(folder.glob("ray/*/state.sqlite")):
        with closing(SessionDatabase(path)) as database:
            found += json.loads(database.fact(STARTS) or "[]")
    return float(np.mean(found))


def figures(found: Fidelity, policy: str, metric: str) -> dict[str, float]:
    """Real and simulated value of a policy's metric, and their difference."""
    row = found.metrics.loc[[(policy, metric)]]
    return {column: float(row[column].item()) for column in ("real", "simulated", "relative")}


def row(policy: str, times: Sequence[FloatArray], ratios: dict[str, Interval], found: Fidelity, later: Fidelity) -> Row:
    """A policy's row of the table. times: [windows] of [jobs] JCTs [s]."""
    jct, reward = (figures(found, policy, name) for name in ("jct_mean", "reward"))
    slow = figures(later, policy, "jct_mean")
    return {
        "policy": policy,
        "mean JCT [s]": f"{jct['real']:.1f}",
        "by window": ", ".join(f"{each.mean():.1f}" for each in times),
        **{name: shown(ratio, ".2f") for name, ratio in ratios.items()},
        "reward": f"{reward['real']:.1f}",
        "simulated / real: JCT": f"{jct['simulated'] / jct['real']:.3f}",
        "with starts as slow": f"{slow['simulated'] / slow['real']:.3f}",
        "simulated reward": f"{reward['simulated']:.1f}",
    }


def times_of(done: Sequence[FinishedCell], policy: str) -> list[FloatArray]:
    """[windows] of [jobs] JCTs [s] of a policy, windows in order of their names."""
    mine = sorted((one for one in done if one.cell.policy == policy), key=lambda one: one.cell.window)
    return [completion_times(one.record().jobs) for one in mine]


def windows_ratio(mine: Sequence[FloatArray], its: Sequence[FloatArray]) -> Interval:
    """Geometric mean over windows of the ratio of mean JCTs, with Student's interval over windows."""
    return geometric_mean(np.array([np.log(a.mean() / b.mean()) for a, b in zip(mine, its, strict=True)]))
