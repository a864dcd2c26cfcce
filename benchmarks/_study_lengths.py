"""Lengths learnt from jobs that had finished before a window, on three clusters of Microsoft. The page is
docs/workloads.md.

Users, models and work last for the whole trace. All rows have the same jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import _common
import numpy as np
from _studies import Part, Plan, Row, finished, geometric_mean, shown

from rlpto.evaluation.statistics import Interval
from rlpto.experiments.config import load_config
from rlpto.io.arrays import FloatArray
from rlpto.workloads.files import read_any
from rlpto.workloads.trace import write_trace

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
UNKNOWN, USUAL, WEEK, ALL, _ = KNOWN
ON = ("cluster.nodes.0.count=16", "workload.mapping.lasting=true", "queue.classes=weighted", "simulator.interval=300")


def history(plan: Plan) -> Part:
    """A row for each knowledge of lengths: the mean JCT of a window, relative to lengths learnt in it."""
    paths = {cluster: (f"workload.path=microsoft/{cluster}",) for cluster in CLUSTERS}
    intervals = relative(plan, paths, list(KNOWN), USUAL)
    return Part({"all before by the window alone, upper end": intervals[ALL].high}, rows_of(intervals))


def unrelated(plan: Plan) -> Part:
    """The same, relative to unknown lengths, where each job's user is drawn by chance and says nothing of it."""
    paths = {cluster: (random_users(plan, cluster), "workload.mapping.users=recorded") for cluster in CLUSTERS}
    intervals = relative(plan, paths, [name for name in KNOWN if name != WEEK], UNKNOWN)
    return Part({"learnt from users that say nothing, by unknown": intervals[ALL].low}, rows_of(intervals))


def random_users(plan: Plan, cluster: str) -> str:
    """Override of the path: a copy of a cluster's trace with a user for each job drawn from about the square root of
    their number."""
    config = load_config(_common.CONFIGS / "microsoft04.yaml", [f"workload.path=microsoft/{cluster}"])
    trace, path = read_any(config.workload.path[0]), plan.folder / "traces" / f"{cluster}.parquet"
    users = np.random.default_rng(0).integers(0, int(np.sqrt(len(trace))), len(trace))
    write_trace(replace(trace, jobs=trace.jobs.assign(user=[f"user-{user}" for user in users.tolist()])), path)
    return f"workload.path={path.absolute()}"


def relative(plan: Plan, paths: Mapping[str, Sequence[str]], known: Sequence[str], usual: str) -> dict[str, Interval]:
    """Mean JCT of a window by knowledge of lengths, relative to one of them, geometric mean over windows."""
    found = {name: completion(plan, paths, KNOWN[name]) for name in known}
    return {name: geometric_mean(np.log(mine / found[usual])) for name, mine in found.items()}


def rows_of(intervals: Mapping[str, Interval]) -> list[Row]:
    """Rows of a table."""
    return [
        {"lengths are": known, "windows": interval.samples, "mean JCT": shown(interval, ".3f")}
        for known, interval in intervals.items()
    ]


def completion(plan: Plan, paths: Mapping[str, Sequence[str]], known: Sequence[str]) -> FloatArray:
    """[windows] mean JCT under the index in the test windows of all clusters at all loads."""
    found = []
    for cluster, where in paths.items():
        for load in plan.loads:
            limits = f"workload.load={load}", f"workload.windows.limit={plan.windows}"
            config = load_config(_common.CONFIGS / "microsoft04.yaml", [*where, *limits, *ON, *known])
            done = finished(plan, config, [INDEX.format(_common.CONFIGS.parent)], f"{cluster}-{load:g}", (config.seed,))
            found += [cell.metrics["jct_mean"] for cell in done]
    return np.array(found)
