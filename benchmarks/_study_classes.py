"""Strict against weighted classes: cost in mean JCT, and waiting times by class. The page is docs/classes.md.

Test windows of the workloads of docs/results.md. Every policy runs on the same jobs under both rules of the queue.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from _studies import Part, Plan, Workload, finished, tuned

from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.core.records import JobRecords
from rlpto.evaluation.metrics import completion_times, queueing_delays

RULES = ("strict", "weighted")
INDEX = {"index tuned for strict": "{}-jct", "index tuned for weighted": "{}-jct-weighted"}
POLICIES = ("fifo", "srtf", "equal_share", *INDEX)
MINUTE = 60.0
PLACE = ["workload", "load"]
SHOWN = {
    "jct": ("mean JCT [min]", "{:.1f}"),
    "high": ("wait high", "{:.1f}"),
    "normal": ("normal", "{:.1f}"),
    "low": ("low [min]", "{:.1f}"),
    "longest": ("longest wait [min]", "{:.0f}"),
    "overtaken_by": ("overtaken by [min]", "{:.0f}"),
}
"""Heading and format of each figure; waits are means from submit to first GPU."""


def compared(plan: Plan) -> Part:
    """Claims and the table."""
    keys = [(*place, policy, rule) for place in plan.places() for policy in POLICIES for rule in RULES]
    found = pd.DataFrame([dict(zip((*PLACE, "policy", "classes"), key, strict=True)) for key in keys])
    found = found.join(pd.DataFrame([figures_of(plan, *key) for key in keys]))
    shown = found[[*PLACE, "policy", "classes"]].assign(load=found["load"].map("{:g}".format))
    for column, (heading, form) in SHOWN.items():
        shown[heading] = found[column].map(form.format)
    return Part(claimed(found), [{str(key): value for key, value in row.items()} for row in shown.to_dict("records")])


def figures_of(plan: Plan, workload: Workload, load: float, policy: str, rule: str) -> dict[str, float]:
    """Figures of one policy over all jobs of a workload's windows under one rule. Times in minutes.

    overtaken_by: result of `overtaken_by`, the largest of all windows.
    """
    config = plan.config(workload, load, f"queue.classes={rule}")
    spec = tuned(INDEX[policy].format(workload)) if policy in INDEX else policy
    done = finished(plan, config, [spec], f"{workload}-{load:g}-{rule}", (config.seed,))
    windows = [one.record().jobs for one in done]
    jct = np.concatenate([completion_times(jobs) for jobs in windows]) / MINUTE
    waited = np.concatenate([queueing_delays(jobs) for jobs in windows]) / MINUTE
    classes = np.concatenate([jobs.priority for jobs in windows])
    assert not np.isnan(jct).any(), "every job finishes"
    waits = {name: float(waited[classes == number].mean()) for number, name in enumerate(PRIORITY_CLASSES)}
    latest = max(overtaken_by(jobs) for jobs in windows) / MINUTE
    return {"jct": float(jct.mean()), **waits, "longest": float(waited.max()), "overtaken_by": latest}


def overtaken_by(jobs: JobRecords) -> float:
    """Longest time from a job's submission to the submission of a later job that started before it [s]; 0 if none."""
    order = np.argsort(jobs.submit_time, kind="stable")
    submit, start = jobs.submit_time[order], jobs.start_time[order]
    later = [submit[j + 1 :][start[j + 1 :] < start[j]].max(initial=submit[j]) - submit[j] for j in range(len(order))]
    return float(max(later, default=0.0))


def claimed(found: pd.DataFrame) -> dict[str, float]:
    """Figures that the page makes claims about."""
    by_place = found.set_index(["policy", "classes", *PLACE]).sort_index()

    def of(policy: str, rule: str, figure: str) -> pd.Series[float]:
        """[places] a figure of a policy under a rule."""
        return by_place[figure].xs((policy, rule))

    def jct_ratio(strict: str, weighted: str) -> float:
        """Geometric mean over all places of the mean JCT under weighted classes relative to strict classes."""
        return float(np.exp(np.log(of(weighted, "weighted", "jct") / of(strict, "strict", "jct")).mean()))

    (index, retuned), name = INDEX, "mean JCT, weighted by strict"
    late = "no job is overtaken by one submitted later than the aging bound after it"
    return {
        **{f"fifo, {rule}: {late}": of("fifo", rule, "overtaken_by").max() for rule in RULES},
        f"{index}, also where weighted: {name}": jct_ratio(index, index),
        f"index, each tuned for its rule: {name}": jct_ratio(index, retuned),
        f"srtf: {name}": jct_ratio("srtf", "srtf"),
        f"fifo, gain or loss: {name}": abs(jct_ratio("fifo", "fifo") - 1),
        "fifo: mean wait of high, weighted by strict, worst": (
            of("fifo", "weighted", "high") / of("fifo", "strict", "high")
        ).max(),
        **{
            f"{policy}, weighted: mean wait of high by that of low, worst": (
                of(policy, "weighted", "high") / of(policy, "weighted", "low")
            ).max()
            for policy in ("fifo", "srtf")
        },
    }
