"""Standard Workload Format of the Parallel Workloads Archive: 18 columns, `;` begins a comment.

Columns used (counted from 1): job 1, submit 2 [s], run time 4 [s], processors used 5, processors
requested 8, status 11, user 12, queue 15. -1 stands for unknown. A processor is taken for a GPU.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pandas as pd

from rlpto.io.errors import TraceError
from rlpto.workloads.importers.base import EPOCH, LAST_SECOND, Format, ImportResult, Lines, numbers, read_log

_WIDTH = 18
_MOST_DIGITS = 12
_JOB, _SUBMIT, _RUN, _USED, _REQUESTED, _STATUS, _USER, _QUEUE = 0, 1, 3, 4, 7, 10, 11, 14
_PIECES = ("2", "3", "4")
"""Status of the pieces of a job that was swapped out: continued, and last piece of a completed or a killed job."""


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Import a log.

    GPUs are the requested processors or, if unknown, the used processors; a job that has neither
    counts as a CPU job. A job ran if its run time is above 0, or 0 with status 1 (completed). The pieces of a
    job that was swapped out are left out: the standard gives such a job a separate line, with status 0 or 1, which
    sums them up. The local time of second 0 is taken from the comments UnixStartTime and TimeZoneString, if present.
    """
    text = read_log(path)
    rows, at = [], []
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if line.strip() and not line.lstrip().startswith(";"):
            rows.append(line.split())
            at.append(number)
    if not rows:
        raise TraceError(f"{path}: only comments, expected lines of {_WIDTH} columns")
    lines = Lines(path, np.array(at, dtype=np.int64), skip_bad_lines)
    widths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    lines.reject(widths != _WIDTH, lambda row: f"{widths[row]} columns, expected {_WIDTH}")
    rows = [row if len(row) == _WIDTH else ["-1"] * _WIDTH for row in rows]
    status = np.array([row[_STATUS] for row in rows])
    lines.leave_out(np.isin(status, _PIECES), "a piece of a job (status 2, 3, 4)")
    lines.once(pd.Series([" ".join(row) for row in rows], dtype=object).duplicated().to_numpy())
    run = numbers(lines, "run time", [row[_RUN] for row in rows], low=-1.0)
    used = numbers(lines, "processors", [row[_USED] for row in rows], low=-1.0, whole=True)
    requested = numbers(lines, "requested processors", [row[_REQUESTED] for row in rows], low=-1.0, whole=True)
    gpus = np.where(requested > 0, requested, used)
    columns = {
        "name": np.array([row[_JOB] for row in rows], dtype=object),
        "user": np.array([_known(row[_USER]) for row in rows], dtype=object),
        "group": np.array([_known(row[_QUEUE]) for row in rows], dtype=object),
        "submit_time": numbers(lines, "submit time", [row[_SUBMIT] for row in rows]),
        "duration": run,
        "gpus": gpus,
    }
    lines.leave_out((run < 0) | ((run == 0) & (status != "1")))
    lines.without_gpus(gpus <= 0)
    return lines.finish(columns, origin=_origin(path, text))


def _known(text: str) -> str:
    return "" if text == "-1" else text


def _origin(path: Path, text: str) -> pd.Timestamp | None:
    """Return the local time of second 0 from the comments, or None."""
    start = re.search(r"^;\s*UnixStartTime:\s*([0-9]+)", text, re.MULTILINE)
    zone = re.search(r"^;\s*TimeZoneString:\s*(\S+)", text, re.MULTILINE)
    if start is None or not start[1].strip("0"):
        return None
    if int(start[1][:_MOST_DIGITS]) > LAST_SECOND or len(start[1]) > _MOST_DIGITS:
        line = text.count("\n", 0, start.start()) + 1
        raise TraceError(f"{path}:{line}: UnixStartTime {start[1][:20]}, expected seconds from 1970 to 2100")
    utc = EPOCH + pd.Timedelta(seconds=int(start[1]))
    try:
        return utc if zone is None else utc.tz_localize("UTC").tz_convert(ZoneInfo(zone[1])).tz_localize(None)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # unknown or invalid name of a zone
        return utc


def _recognises(head: str) -> bool:
    first = next((line for line in head.splitlines() if line.strip() and not line.lstrip().startswith(";")), "")
    return head.lstrip().startswith(";") or ("," not in first and len(first.split()) == _WIDTH)


FORMAT = Format(read=read, recognises=_recognises)
