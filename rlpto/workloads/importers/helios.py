"""SenseTime Helios `cluster_log.csv`. Hu et al., "Characterization and Prediction of Deep Learning
Workloads in Large-Scale GPU Datacenters", SC 2021. Times are local, durations in seconds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.workloads.importers.base import EPOCH, Format, ImportResult, is_blank, numbers, times
from rlpto.workloads.importers.csvfile import read_csv


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Import a cluster log; gpu_num counts all GPUs of a job, a job without start_time never ran."""
    table = read_csv(path, ("job_id", "user", "vc", "gpu_num", "submit_time", "start_time", "duration"), skip_bad_lines)
    lines = table.lines
    waiting = is_blank(table["start_time"])
    columns = {
        "name": np.array(table["job_id"], dtype=object),
        "user": np.array(table["user"], dtype=object),
        "group": np.array(table["vc"], dtype=object),
        "gpus": numbers(lines, "gpu_num", table["gpu_num"], whole=True),
        "submit_time": times(lines, "submit_time", table["submit_time"]),
        "duration": numbers(lines, "duration", table["duration"], blank=np.nan),
    }
    lines.without_gpus(columns["gpus"] == 0)
    lines.never_ran(waiting)
    return lines.finish(columns, origin=EPOCH)


FORMAT = Format(
    description="SenseTime Helios cluster_log.csv",
    read=read,
    recognises=lambda head: head.startswith("job_id,user,vc,gpu_num"),
)
