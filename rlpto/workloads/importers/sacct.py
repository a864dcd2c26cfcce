"""Slurm's accounting, written by `sacct -P` (also with -D). Durations are Elapsed, which no clock change affects.

Steps (`7.batch`, `7.0`) are left out. All runs of a requeued job, whose JobID repeats, are one job, and the
components of a heterogeneous job (`7+0`, `7+1`) are one job. Elements of an array (`7_3`) are separate jobs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.io.errors import TraceError
from rlpto.workloads.importers.base import EPOCH, Format, ImportResult, is_blank, merge
from rlpto.workloads.importers.csvfile import header_of, job_columns, read_csv
from rlpto.workloads.importers.tables import Table

_RESOURCES = ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES")  # the first one that is not empty counts


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Import an export."""
    optional = ("User", "Account", "Partition", "State", "ElapsedRaw", "Elapsed", *_RESOURCES)
    parts = tuple(f"{column}.{part}" for column in _RESOURCES for part in ("gpu", "gpu_type"))
    found, lines = read_csv(path, ("JobID", "Submit", "Start"), skip_bad_lines, (*optional, *parts))
    resources = [column for column in _RESOURCES if column in found]
    duration = next((column for column in ("ElapsedRaw", "Elapsed") if column in found), "")
    if not (resources and duration):
        missing = "Elapsed" if resources else "AllocTRES"
        raise TraceError(f"{path}:1: column {missing} missing, expected JobID,Submit,Start,Elapsed,AllocTRES at least")
    lines.leave_out(np.array(["." in name for name in found["JobID"]], dtype=np.bool_), "a step of a job")
    lines.once()
    lines.leave_out(is_blank(found["Start"]))
    allocated = resources[0].startswith("Alloc")
    # A job that was cancelled in the queue has the time of its cancellation as Start.
    lines.leave_out(is_blank(found[resources[0]]) if allocated else np.isin(found[duration], ("0", "00:00:00")))
    first = [next((r for r in resources if found[r][i].strip()), resources[0]) for i in range(len(lines.number))]
    for part in ("gpu", "gpu_type"):
        found[part] = [found[f"{column}.{part}"][i] for i, column in enumerate(first)]
    group = "Partition" if "Partition" in found else "Account"
    columns = ("Submit", "gpu", "JobID", "User", group, duration, "Start")
    table = Table("", *columns, state="State", gpu_type="gpu_type", dates=True)
    jobs = job_columns("sacct", table, found, lines)
    rows = lines.good.copy()
    jobs["duration"] = np.where(np.isnan(jobs["duration"]), np.inf, jobs["duration"])  # makes sums with it unknown
    jobs = merge(lines, jobs, submit_time="min", duration="sum", gpus="max")
    jobs["name"] = np.array([name.partition("+")[0] for name in jobs["name"]], dtype=object)
    jobs = merge(lines, jobs, submit_time="min", duration="max", gpus="sum")
    jobs["duration"] = np.where(np.isinf(jobs["duration"]), np.nan, jobs["duration"])
    lines.notes["a further run or component of a job: added to it"] = int(np.count_nonzero(rows & ~lines.good))
    lines.without_gpus(jobs["gpus"] == 0)
    return lines.finish(jobs, EPOCH)


FORMAT = Format(read, lambda head: {"JobID", "Submit", "Start"} <= set(header_of(head)))
