"""Shanghai AI Lab Acme `trace_seren.csv` and `trace_kalos.csv`.

Hu et al., "Characterization of Large Language Model Development in the Datacenter", NSDI 2024. Times
carry a UTC offset and are converted to the clusters' own clock, UTC+8.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.workloads.importers.base import EPOCH, Format, ImportResult, is_blank, numbers, times
from rlpto.workloads.importers.csvfile import read_csv

_CLUSTER_CLOCK = 8


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Import either file (Kalos has four columns more, which are not needed).

    A job's duration is end_time - start_time; in Kalos the column `duration` counts the queue in, so
    it serves only where one of the two is missing. The group is the workload type (Pretrain, ...).
    """
    names = ("job_id", "user", "gpu_num", "type", "submit_time", "start_time", "end_time", "duration")
    table = read_csv(path, names, skip_bad_lines)
    lines = table.lines
    start = times(lines, "start_time", table["start_time"], blank=True, hours_from_utc=_CLUSTER_CLOCK)
    end = times(lines, "end_time", table["end_time"], blank=True, hours_from_utc=_CLUSTER_CLOCK)
    lines.reject(
        end < start,
        lambda i: f"end_time {table['end_time'][i]!r}, expected start_time {table['start_time'][i]!r} or later",
    )
    recorded = numbers(lines, "duration", table["duration"], blank=np.nan)
    columns = {
        "name": np.array(table["job_id"], dtype=object),
        "user": np.array(table["user"], dtype=object),
        "group": np.array(table["type"], dtype=object),
        "gpus": numbers(lines, "gpu_num", table["gpu_num"], whole=True),
        "submit_time": times(lines, "submit_time", table["submit_time"], hours_from_utc=_CLUSTER_CLOCK),
        "duration": np.where(np.isfinite(start) & np.isfinite(end), end - start, recorded),
    }
    lines.without_gpus(columns["gpus"] == 0)
    lines.never_ran(is_blank(table["start_time"]))
    return lines.finish(columns, origin=EPOCH)


FORMAT = Format(
    description="Shanghai AI Lab Acme trace_seren.csv, trace_kalos.csv",
    read=read,
    recognises=lambda head: head.startswith("job_id,user,node_num,gpu_num"),
)
