"""How long a job stands still when it gets more or fewer workers: ours, and the same job under Ray Train v2."""

from __future__ import annotations

import statistics

import numpy as np
from _common import Check
from _ray_job import cluster, job, load
from _train_elastic import missing, pauses

MEDIAN, NEARLY_ALL, TIMES = 0.100, 0.250, 20.0
SIZES = (2, 4, 2, 1)


def run(repeats: int) -> tuple[list[Check], dict[str, object]]:
    own: dict[tuple[int, int], list[float]] = {}
    theirs: dict[tuple[int, int], float] = {}
    with cluster() as started:
        with job() as running:
            spread = started.node_ids
            running.command(spread[:1])
            held = 1
            for size in SIZES * repeats:
                running.steps(20)
                before = running.report().rescales
                running.command(spread[:size])
                report = running.until(
                    lambda now, before=before: now.rescales > before and len(now.pauses) >= now.rescales
                )
                own.setdefault((held, size), []).append(report.pauses[-1])
                held = size
                if report.rescales >= 20:
                    break
        if not (lacking := missing()):
            theirs = {(old, new): pause for old, new, pause in pauses(started.address, SIZES)}
    all_pauses = [pause for found in own.values() for pause in found]
    checks = [
        Check("pause, median", float(np.median(all_pauses)), "s", MEDIAN, False),
        Check("pause, 95 %", float(np.quantile(all_pauses, 0.95)), "s", NEARLY_ALL, False),
    ]
    facts: dict[str, object] = {
        f"pauses {old} -> {new}, ms": [round(1000 * pause) for pause in found] for (old, new), found in own.items()
    }
    if lacking:
        facts["Ray Train"] = f"skipped: needs {lacking}, which is not installed"
    else:
        times = {change: theirs[change] / statistics.median(own[change]) for change in own}
        checks.append(Check("Ray Train's pause over ours, least of all changes", min(times.values()), "", TIMES, True))
        facts["Ray Train's pauses, s"] = {f"{old} -> {new}": round(pause, 1) for (old, new), pause in theirs.items()}
    return checks, {**facts, "load during pause": load()}
