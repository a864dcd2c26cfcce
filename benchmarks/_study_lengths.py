"""Lengths learnt from jobs that had finished before a window, on three clusters of Microsoft. The page is
docs/workloads.md.

Users, models and work last for the whole trace. All rows have the same jobs.
"""

from __future__ import annotations

import _common
import numpy as np
from _studies import Part, Plan, finished, geometric_mean, shown

from rlpto.experiments.config import load_config
from rlpto.io.arrays import FloatArray

CLUSTERS = ("cluster03", "cluster04", "cluster07")
INDEX = "index:weights={}/submissions/index_microsoft03/microsoft030.yaml"
"""First of rlpto-bench's realistic division, tuned on training windows of cluster03 without history."""
KNOWN = {
    "unknown": ("knowledge.remaining=unknown",),
    "learnt in the window": ("knowledge.history_days=0",),
    "learnt from a week before, too": ("knowledge.history_days=7",),
    "learnt from all before, too": (),
    "true": ("knowledge.remaining=declared",),
}
USUAL, ALL = "learnt in the window", "learnt from all before, too"
ON = ("cluster.nodes.0.count=16", "workload.mapping.lasting=true", "queue.classes=weighted", "simulator.interval=300")


def history(plan: Plan) -> Part:
    """A row for each knowledge of lengths: the mean JCT of a window, relative to lengths learnt in it."""
    found = {known: completion(plan, overrides) for known, overrides in KNOWN.items()}
    intervals = {known: geometric_mean(np.log(mine / found[USUAL])) for known, mine in found.items()}
    rows = [
        {"lengths are": known, "windows": interval.samples, "mean JCT": shown(interval, ".3f")}
        for known, interval in intervals.items()
    ]
    return Part({"all before by the window alone, upper end": intervals[ALL].high}, rows)


def completion(plan: Plan, known: tuple[str, ...]) -> FloatArray:
    """[windows] mean JCT under the index in the test windows of all clusters at all loads."""
    found = []
    for cluster in CLUSTERS:
        for load in plan.loads:
            limits = f"workload.load={load}", f"workload.windows.limit={plan.windows}"
            where = f"workload.path=microsoft/{cluster}"
            config = load_config(_common.CONFIGS / "microsoft04.yaml", [where, *limits, *ON, *known])
            done = finished(plan, config, [INDEX.format(_common.CONFIGS.parent)], f"{cluster}-{load:g}", (config.seed,))
            found += [cell.metrics["jct_mean"] for cell in done]
    return np.array(found)
