"""Alibaba PAI 2020 `pai_task_table`: one line per task (role) of a job, with or without header line.

Weng et al., "MLaaS in the Wild", NSDI 2022. Times are seconds that give the right hour of the day
and day of the week when read as Unix time in UTC+8; plan_gpu is percent of a GPU per instance.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from rlpto.io.arrays import AnyArray
from rlpto.workloads.importers.base import EPOCH, Format, ImportResult, Lines, is_blank, numbers
from rlpto.workloads.importers.csvfile import read_csv

_HEADER = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type"
_COLUMNS = tuple(_HEADER.split(","))
_LOCAL_TIME = pd.Timedelta(hours=8)


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Import the table, the GPU tasks of one job_name as one job.

    Its GPUs are the sum over tasks of inst_num x plan_gpu / 100, rounded up; it runs from the first
    start to the last end. The submission is not recorded: the first start stands for it. A job with
    a task that has started but not ended has an unknown duration.
    """
    table, lines = read_csv(
        path,
        ("job_name", "inst_num", "status", "start_time", "end_time", "plan_gpu"),
        skip_bad_lines,
        optional=("gpu_type",),
        headerless=_COLUMNS,
    )
    plan = numbers(lines, "plan_gpu", table["plan_gpu"], blank=0.0)
    instances = numbers(lines, "inst_num", table["inst_num"], low=1.0, blank=1.0, whole=True)
    start = numbers(lines, "start_time", table["start_time"], blank=np.nan)
    end = numbers(lines, "end_time", table["end_time"], blank=np.nan)
    ended = (end > 0) & np.isin(table["status"], ("Terminated", "Failed"))
    lines.reject(ended & (end < start), lambda i: f"end_time {end[i]:g}, expected start_time {start[i]:g} or later")
    lines.without_gpus(plan == 0)
    lines.never_ran(np.isnan(start) | is_blank(table["start_time"]))
    tasks = pd.DataFrame(
        {
            "name": table["job_name"],
            "demand": instances * plan / 100,
            "start": start,
            "end": np.where(ended, end, np.inf),
            "group": table.get("gpu_type", [""] * len(plan)),
        }
    )
    return lines.finish(_merge_tasks(lines, tasks), origin=EPOCH + _LOCAL_TIME)


def _merge_tasks(lines: Lines, tasks: pd.DataFrame) -> dict[str, AnyArray]:
    """Columns of jobs, each on the row of its first task; its other rows are taken out of `lines`."""
    kept = tasks[lines.good]
    jobs = kept.groupby("name", sort=False).agg(
        demand=("demand", "sum"), start=("start", "min"), end=("end", "max"), group=("group", "first")
    )
    first = ~kept["name"].duplicated()
    rows = kept.index[first].to_numpy(dtype=np.int64)
    lines.good[:] = False
    lines.good[rows] = True
    seconds = (jobs["end"] - jobs["start"]).to_numpy(dtype=np.float64)
    merged = {
        "name": jobs.index.to_numpy(dtype=object),
        "group": jobs["group"].to_numpy(dtype=object),
        "submit_time": jobs["start"].to_numpy(dtype=np.float64),
        "duration": np.where(np.isfinite(seconds), seconds, np.nan),
        "gpus": np.ceil(np.round(jobs["demand"].to_numpy(dtype=np.float64), 9)),
    }
    columns: dict[str, AnyArray] = {}
    for name, values in merged.items():
        columns[name] = np.zeros(len(tasks), dtype=values.dtype)
        columns[name][rows] = values
    return columns


FORMAT = Format(
    description="Alibaba PAI 2020 pai_task_table.csv",
    read=read,
    recognises=lambda head: (
        head.startswith("job_name,task_name,inst_num")
        or (head.partition("\n")[0].count(",") == len(_COLUMNS) - 1 and not head.lstrip().startswith("["))
    ),
)
