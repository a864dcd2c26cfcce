"""Strict against weighted classes: what each costs in mean JCT, whom each keeps waiting; see docs/classes.md.

Test windows of the workloads of docs/results.md. Every policy runs on the same jobs under both rules of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from _cells import finished
from _plan import Measured, Plan, Study, Workload, tuned

from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.core.records import JobRecords
from rlpto.evaluation.metrics import completion_times, queueing_delays
from rlpto.io.arrays import FloatArray

RULES = ("strict", "weighted")
INDEX = {"index tuned for strict": "{}-jct", "index tuned for weighted": "{}-jct-weighted"}
POLICIES = ("fifo", "srtf", "equal_share", *INDEX)
MINUTE = 60.0


@dataclass(frozen=True)
class ClassFigures:
    """Figures of one policy over all jobs of a workload's windows under one rule. Times in minutes.

    waits: mean time from submit to first GPU, high, normal and low. longest: of them all. overtaken_by: how much later
    than a job, at most, another was submitted that started before it.
    """

    jct: float
    waits: tuple[float, ...]
    longest: float
    overtaken_by: float


Key = tuple[str, float, str, str]
"""Workload, load, policy, rule."""


def measure(plan: Plan, study: Study) -> Measured:
    """Claims and the table; without real data that of the synthetic workload alone."""
    found: dict[Key, ClassFigures] = {}
    for workload, load in plan.places(study):
        if workload == "synthetic" or (plan.data is not None and (plan.data / "traces" / "pollux").is_dir()):
            for policy in POLICIES:
                for rule in RULES:
                    found[workload, load, policy, rule] = figures_of(records(plan, workload, load, policy, rule))
    rows = [row(key, figures) for key, figures in found.items()]
    return Measured(claimed(found), tables={f"{plan.windows} test windows of each workload and load": rows})


def records(plan: Plan, workload: Workload, load: float, policy: str, rule: str) -> list[JobRecords]:
    """Jobs of every window."""
    config = plan.config(workload, load, f"queue.classes={rule}")
    spec = tuned(INDEX[policy].format(workload)) if policy in INDEX else policy
    done = finished(plan, config, [spec], f"{workload}-{load:g}-{rule}", (config.seed,))
    return [one.record().jobs for one in done]


def figures_of(windows: Sequence[JobRecords]) -> ClassFigures:
    """Figures over the jobs of all windows."""
    jct: FloatArray = np.concatenate([completion_times(jobs) for jobs in windows]) / MINUTE
    waited: FloatArray = np.concatenate([queueing_delays(jobs) for jobs in windows]) / MINUTE
    classes = np.concatenate([jobs.priority for jobs in windows])
    assert not np.isnan(jct).any(), "every job finishes"
    waits = tuple(float(waited[classes == number].mean()) for number in range(len(PRIORITY_CLASSES)))
    latest = max(overtaken_by(jobs) for jobs in windows) / MINUTE
    return ClassFigures(float(jct.mean()), waits, float(waited.max()), latest)


def overtaken_by(jobs: JobRecords) -> float:
    """Seconds that a job was submitted after one before which it started, at most; 0 if no job was overtaken."""
    order = np.argsort(jobs.submit_time, kind="stable")
    submit, start = jobs.submit_time[order], jobs.start_time[order]
    later = [submit[j + 1 :][start[j + 1 :] < start[j]].max(initial=submit[j]) - submit[j] for j in range(len(order))]
    return float(max(later, default=0.0))


def claimed(found: Mapping[Key, ClassFigures]) -> dict[str, float]:
    """The figures that the page claims something of."""
    places = sorted({key[:2] for key in found})

    def in_all(policy: str, rule: str) -> list[ClassFigures]:
        return [found[(*place, policy, rule)] for place in places]

    def jct_ratio(strict: str, weighted: str) -> float:
        """Geometric mean over all places of the mean JCT under weighted classes by that under strict ones."""
        pairs = zip(in_all(weighted, "weighted"), in_all(strict, "strict"), strict=True)
        return float(np.exp(np.mean([np.log(one.jct / other.jct) for one, other in pairs])))

    (index, retuned), name = INDEX, "mean JCT, weighted by strict"
    pairs = zip(in_all("fifo", "weighted"), in_all("fifo", "strict"), strict=True)
    high = [one.waits[0] / other.waits[0] for one, other in pairs]
    late = "no job is overtaken by one submitted later than the aging bound after it"
    return {
        **{f"fifo, {rule}: {late}": max(one.overtaken_by for one in in_all("fifo", rule)) for rule in RULES},
        f"{index}, also where weighted: {name}": jct_ratio(index, index),
        f"index, each tuned for its rule: {name}": jct_ratio(index, retuned),
        f"srtf: {name}": jct_ratio("srtf", "srtf"),
        f"fifo, gain or loss: {name}": abs(jct_ratio("fifo", "fifo") - 1),
        "fifo: mean wait of high, weighted by strict, worst": max(high),
        **{
            f"{policy}, weighted: mean wait of high by that of low, worst": max(
                one.waits[0] / one.waits[2] for one in in_all(policy, "weighted")
            )
            for policy in ("fifo", "srtf")
        },
    }


def row(key: Key, found: ClassFigures) -> dict[str, object]:
    """A row of the page's table."""
    workload, load, policy, rule = key
    high, normal, low = (f"{wait:.1f}" for wait in found.waits)
    return {
        "workload": workload,
        "load": f"{load:g}",
        "policy": policy,
        "classes": rule,
        "mean JCT [min]": f"{found.jct:.1f}",
        "wait high": high,
        "normal": normal,
        "low [min]": low,
        "longest wait [min]": f"{found.longest:.0f}",
        "overtaken by [min]": f"{found.overtaken_by:.0f}",
    }
