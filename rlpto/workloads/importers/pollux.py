"""Workloads of the Pollux (OSDI 2021) and Sia (SOSP 2023) artifacts: name,time,application,num_replicas,batch_size.

Times are seconds from the start of the workload. A file may carry more columns, and may lack batch_size. A columns of
ours may say what each job chooses its batch size by (`metric`) and when it stops early (`stop`: gain/over/after).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.core.stopping import RULE_TEXT, are_rules
from rlpto.io.reading import one_line
from rlpto.performance.metrics import METRICS
from rlpto.workloads.importers.base import Format, ImportResult, numbers
from rlpto.workloads.importers.csvfile import read_csv


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Import a workload; second 0 stays the file's own, durations are unknown (mapping: given)."""
    table = read_csv(
        path, ("name", "time", "application", "num_replicas"), skip_bad_lines, ("batch_size", "metric", "stop")
    )
    lines = table.lines
    application = np.array([text.strip() for text in table["application"]], dtype=object)
    lines.reject(application == "", lambda _: "application is empty, expected the name of a model")
    columns = {
        "name": np.array(table["name"], dtype=object),
        "submit_time": numbers(lines, "time", table["time"]),
        "model": application,
        "gpus": numbers(lines, "num_replicas", table["num_replicas"], whole=True),
    }
    if "batch_size" in table:
        columns["batch_size"] = numbers(lines, "batch_size", table["batch_size"], blank=0.0, whole=True)
    if "metric" in table:
        columns["metric"] = metric = np.array([text.strip() for text in table["metric"]], dtype=object)
        known = np.isin(metric.astype(str), ["", *METRICS])
        lines.reject(~known, lambda i: f"metric {one_line(repr(metric[i]))}, expected one of {', '.join(METRICS)}")
    if "stop" in table:
        columns["stop"] = stop = np.array([text.strip() for text in table["stop"]], dtype=object)
        good = are_rules(stop.tolist())
        lines.reject(~good, lambda i: f"stop {one_line(repr(stop[i]))}, expected {RULE_TEXT}")
    lines.without_gpus(columns["gpus"] == 0)
    return lines.finish(columns, origin=None, rebase=False)


FORMAT = Format(
    description="Pollux and Sia workload csv (name,time,application,num_replicas,batch_size)",
    read=read,
    recognises=lambda head: head.startswith("name,time,application"),
)
