"""Strict against weighted classes: what each costs in mean JCT, whom each keeps waiting; see docs/classes.md.

Test windows of the workloads of docs/results.md. Every policy runs on the same jobs under both rules of the queue. With
`--write` the table of the page is replaced by what was measured.
"""

from __future__ import annotations

import itertools
import time
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

PAGE = _common.ROOT / "docs" / "classes.md"
BEGIN, END = "<!-- begin: written by benchmarks/classes.py -->", "<!-- end -->"
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


def measure(workload: str, load: float, limit: int) -> list[Row]:
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


def table(rows: Sequence[Row]) -> str:
    """The page's table, in Markdown."""
    lines = [
        "| workload | load | policy | classes | mean JCT [min] | wait high | normal | low [min] | longest wait [min] | "
        "overtaken by [min] |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        waits = " | ".join(f"{wait:.1f}" for wait in row.waits)
        lines.append(
            f"| {row.workload} | {row.load:g} | {row.policy} | {row.rule} | {row.jct:.1f} | {waits} | "
            f"{row.longest:.0f} | {row.overtaken_by:.0f} |"
        )
    return "\n".join(lines)


def replaced(page: str, text: str) -> str:
    """The page with `text` between its marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--limit", type=int, default=16, help="windows of each workload and load")
    arguments.add_argument("--write", action="store_true", help="put the table into docs/classes.md")
    options = arguments.parse_args()
    if options.limit < 1:
        _common.refuse("--limit: expected at least 1")
    workloads = [name for name in WORKLOADS if name == "synthetic" or has_data()]
    start, rows = time.process_time(), []
    with _common.bad_input():
        for workload, load in itertools.product(workloads, LOADS):
            rows += measure(workload, load, options.limit)
    taken = time.process_time() - start
    text = f"{table(rows)}\n\n{options.limit} test windows of each workload and load; {taken:.0f} s of CPU time."
    if options.write:
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    elif not options.json:
        print(text)
    _common.finish(checks_of(rows), options.json)


def has_data() -> bool:
    """True if the real traces are there; said if not."""
    found = Path(_common.data_folder(), "traces", "pollux").is_dir()
    if not found:
        print("pollux: skipped, no real data (set RLPTO_DATA)")
    return found


if __name__ == "__main__":
    main()
