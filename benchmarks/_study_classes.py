"""Strict against weighted classes: what each costs in mean JCT, whom each keeps waiting; see docs/classes.md.

Test windows of the workloads of docs/results.md. Every policy runs on the same jobs under both rules of the queue.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import _common
import numpy as np

from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.records import JobRecords
from rlpto.evaluation.metrics import completion_times, queueing_delays
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import FloatArray

WORKLOADS = ("synthetic", "pollux")
LOADS = (0.7, 0.9, 1.1)
RULES = ("strict", "weighted")
POLICIES = ("fifo", "srtf", "equal_share", "index tuned for strict", "index tuned for weighted")
MINUTE = 60.0


@dataclass(frozen=True)
class Row:
    """What one policy does to all jobs of a workload's windows under one rule. Times in minutes.

    waits: mean time from submit to first GPU, high, normal and low. longest: of them all. overtaken_by: how much later
    than a job, at most, another was submitted that started before it.
    """

    workload: str
    load: float
    policy: str
    rule: str
    jct: float
    waits: tuple[float, ...]
    longest: float
    overtaken_by: float


def spec_of(policy: str, workload: str) -> str:
    """What makes a policy of the table."""
    if not policy.startswith("index"):
        return policy
    weights = {"strict": f"{workload}-jct.yaml", "weighted": f"{workload}-jct-weighted.yaml"}[policy.split()[-1]]
    return f"index:weights={_common.CONFIGS / 'tuned' / weights}"


def overtaken_by(jobs: JobRecords) -> float:
    """Seconds that a job was submitted after one before which it started, at most; 0 if no job was overtaken."""
    order = np.argsort(jobs.submit_time, kind="stable")
    submit, start = jobs.submit_time[order], jobs.start_time[order]
    later = [submit[j + 1 :][start[j + 1 :] < start[j]].max(initial=submit[j]) - submit[j] for j in range(len(order))]
    return float(max(later, default=0.0))


def rows_on(workload: str, load: float, limit: int) -> list[Row]:
    """Rows of all policies and rules on one workload."""
    overrides = [f"workload.load={load}", f"workload.windows.limit={limit}"]
    experiment = Experiment(load_config(_common.CONFIGS / "results" / f"{workload}.yaml", overrides))
    config, rows = experiment.config, []
    windows = experiment.windows()
    for policy, rule in itertools.product(POLICIES, RULES):
        records = []
        for window in windows:
            cluster = experiment.cluster(window, config.seed)
            queue = QueueSettings.model_validate(config.queue.model_dump() | {"classes": rule})
            made = experiment.policy(spec_of(policy, workload))
            records.append(run(cluster, made, queue, config.reward).jobs)
        rows.append(row_of(workload, load, policy, rule, records))
    return rows


def row_of(workload: str, load: float, policy: str, rule: str, records: Sequence[JobRecords]) -> Row:
    """Figures over the jobs of all windows."""
    jct: FloatArray = np.concatenate([completion_times(jobs) for jobs in records])
    waited: FloatArray = np.concatenate([queueing_delays(jobs) for jobs in records])
    classes = np.concatenate([jobs.priority for jobs in records])
    assert not np.isnan(jct).any(), "every job finishes"
    waits = tuple(float(waited[classes == number].mean()) / MINUTE for number in range(len(PRIORITY_CLASSES)))
    latest = max(overtaken_by(jobs) for jobs in records)
    longest = float(waited.max())
    return Row(workload, load, policy, rule, float(jct.mean()) / MINUTE, waits, longest / MINUTE, latest / MINUTE)


def checks_of(rows: Sequence[Row]) -> list[_common.Check]:
    """What the page claims."""
    found = {(row.workload, row.load, row.policy, row.rule): row for row in rows}
    places = sorted({(row.workload, row.load) for row in rows})
    bound = QueueSettings().aging_bound / MINUTE

    def in_all(policy: str, rule: str) -> list[Row]:
        return [found[(*place, policy, rule)] for place in places]

    def jct_ratio(strict: str, weighted: str) -> float:
        """Geometric mean over all places of the mean JCT under weighted classes by that under strict ones."""
        pairs = zip(in_all(weighted, "weighted"), in_all(strict, "strict"), strict=True)
        return float(np.exp(np.mean([np.log(one.jct / other.jct) for one, other in pairs])))

    index, retuned = "index tuned for strict", "index tuned for weighted"
    checks = [
        _common.Check(
            f"fifo, {rule}: no job is overtaken by one submitted later than the aging bound after it",
            max(row.overtaken_by for row in in_all("fifo", rule)),
            "min",
            bound,
            False,
        )
        for rule in RULES
    ]
    name = "mean JCT, weighted by strict"
    kept = max(
        one.waits[0] / other.waits[0]
        for one, other in zip(in_all("fifo", "weighted"), in_all("fifo", "strict"), strict=True)
    )
    return [
        *checks,
        _common.Check(f"{index}, also where weighted: {name}", jct_ratio(index, index), "", 0.99, True),
        _common.Check(f"index, each tuned for its rule: {name}", jct_ratio(index, retuned), "", 0.985, False),
        _common.Check(f"srtf: {name}", jct_ratio("srtf", "srtf"), "", 0.97, False),
        _common.Check(f"fifo, gain or loss: {name}", abs(jct_ratio("fifo", "fifo") - 1), "", 0.01, False),
        _common.Check("fifo: mean wait of high, weighted by strict, worst", kept, "", 0.75, False),
        *(
            _common.Check(
                f"{policy}, weighted: mean wait of high by that of low, worst",
                max(row.waits[0] / row.waits[2] for row in in_all(policy, "weighted")),
                "",
                0.9,
                False,
            )
            for policy in ("fifo", "srtf")
        ),
    ]


def shown(row: Row) -> dict[str, object]:
    """A row of the page's table."""
    high, normal, low = (f"{wait:.1f}" for wait in row.waits)
    return {
        "workload": row.workload,
        "load": f"{row.load:g}",
        "policy": row.policy,
        "classes": row.rule,
        "mean JCT [min]": f"{row.jct:.1f}",
        "wait high": high,
        "normal": normal,
        "low [min]": low,
        "longest wait [min]": f"{row.longest:.0f}",
        "overtaken by [min]": f"{row.overtaken_by:.0f}",
    }


def measure(data: Path | None, windows: int = 16) -> tuple[list[_common.Check], dict[str, list[dict[str, object]]]]:
    """Checks and the table; without `data` that of the synthetic workload alone."""
    if windows < 1:
        _common.refuse("--set windows: expected at least 1")
    workloads = [name for name in WORKLOADS if name == "synthetic" or (data is not None and has_traces(data))]
    rows: list[Row] = []
    for workload, load in itertools.product(workloads, LOADS):
        _common.progress(f"classes: {workload} at load {load:g}")
        rows += rows_on(workload, load, windows)
    return checks_of(rows), {f"{windows} test windows of each workload and load": [shown(row) for row in rows]}


def has_traces(data: Path) -> bool:
    return (data / "traces" / "pollux").is_dir()
