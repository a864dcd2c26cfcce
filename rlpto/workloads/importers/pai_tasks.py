"""Alibaba PAI 2020 `pai_task_table`: one line per task (role) of a job, with or without header line.

Weng et al., "MLaaS in the Wild", NSDI 2022. Times are seconds, with the right hour of the day and
day of the week if read as Unix time in UTC+8; plan_gpu is percent of a GPU per instance.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from rlpto.io.arrays import AnyArray
from rlpto.workloads.importers.base import EPOCH, Format, ImportResult, elapsed, is_blank, merge, numbers
from rlpto.workloads.importers.csvfile import header_of, read_csv

_HEADER = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type"
_COLUMNS = tuple(_HEADER.split(","))
_LOCAL_TIME = pd.Timedelta(hours=8)


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Import the table, the GPU tasks of one job_name as one job.

    A job's GPUs are the sum over tasks of inst_num x plan_gpu / 100, rounded up; it runs from the first
    start to the last end. Submit times are not recorded; the first start replaces them. A job with
    a task that has started but not ended has an unknown duration.
    """
    table, lines = read_csv(
        path,
        ("job_name", "inst_num", "status", "start_time", "end_time", "plan_gpu"),
        skip_bad_lines,
        optional=("gpu_type",),
        headerless=_COLUMNS,
    )
    lines.reject(is_blank(table["job_name"]), lambda _: "job_name is empty, expected the name of a job")
    plan = numbers(lines, "plan_gpu", table["plan_gpu"], blank=0.0)
    instances = numbers(lines, "inst_num", table["inst_num"], low=1.0, blank=1.0, whole=True)
    start = numbers(lines, "start_time", table["start_time"], blank=np.nan)
    end = numbers(lines, "end_time", table["end_time"], blank=np.nan)
    ended = (end > 0) & np.isin(table["status"], ("Terminated", "Failed"))
    started = ("start_time", table["start_time"], start)
    elapsed(lines, started, ("end_time", table["end_time"], np.where(ended, end, np.nan)))
    lines.once()
    lines.without_gpus(plan == 0)
    lines.leave_out(np.isnan(start) | is_blank(table["start_time"]))
    tasks: dict[str, AnyArray] = {
        "name": np.array(table["job_name"], dtype=object),
        "gpu_type": np.array(table.get("gpu_type", [""] * len(plan)), dtype=object),
        "gpus": instances * plan / 100,
        "submit_time": start,
        "end": np.where(ended, end, np.inf),
    }
    jobs = merge(lines, tasks, gpus="sum", submit_time="min", end="max")
    seconds = jobs.pop("end") - jobs["submit_time"]
    jobs["duration"] = np.where(np.isfinite(seconds), seconds, np.nan)
    return lines.finish(jobs, origin=EPOCH + _LOCAL_TIME)


FORMAT = Format(
    read=read,
    recognises=lambda head: (
        (first := header_of(head))[:3] == list(_COLUMNS[:3])
        or (len(first) == len(_COLUMNS) and first[2].replace(".", "", 1).isdecimal())
    ),
)
