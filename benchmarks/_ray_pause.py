"""How long a job stands still when it gets more or fewer workers."""

from __future__ import annotations

import numpy as np
from _common import Check
from _ray_job import cluster, job, load

MEDIAN, NEARLY_ALL = 0.100, 0.250


def run(repeats: int) -> tuple[list[Check], dict[str, object]]:
    grown: list[float] = []
    shrunk: list[float] = []
    with cluster() as started, job() as running:
        a, b, c, d = started.node_ids
        running.command([a])
        held = 1
        for nodes in [[a, b], [a, b, c, d], [a, b], [a]] * repeats:
            running.steps(20)
            before = running.report().rescales
            running.command(nodes)
            report = running.until(lambda now, before=before: now.rescales > before and len(now.pauses) >= now.rescales)
            (grown if len(nodes) > held else shrunk).append(report.pauses[-1])
            held = len(nodes)
            if report.rescales >= 20:
                break
    pauses = [*grown, *shrunk]
    checks = [
        Check("pause, median", float(np.median(pauses)), "s", MEDIAN, False),
        Check("pause, 95 %", float(np.quantile(pauses, 0.95)), "s", NEARLY_ALL, False),
    ]
    facts = {
        "pauses growing, ms": [round(1000 * pause) for pause in grown],
        "pauses shrinking, ms": [round(1000 * pause) for pause in shrunk],
        "load during pause": load(),
    }
    return checks, facts
