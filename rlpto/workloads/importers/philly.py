"""Microsoft Philly, the original `cluster_job_log`: one JSON list of jobs with their attempts.

Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019.
Times are local. A job is described by status, vc, jobid, user, submitted_time and its attempts, each
with start_time, end_time and the GPUs it held on every machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.errors import TraceError
from rlpto.io.reading import one_line
from rlpto.workloads.importers.base import EPOCH, Format, ImportResult, Lines, Moments, elapsed, read_log, times

_BETWEEN = re.compile(r"\s*(,?)\s*")


class _Attempt(NamedTuple):
    """job: number of the job in the file. start, end: texts in the file. gpus: GPUs on all machines."""

    job: int
    start: str
    end: str
    gpus: int


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Import a `cluster_job_log`.

    A job's GPUs are the GPUs of its largest attempt, its duration the summed run time of its attempts. A job without
    any started attempt is left out, since it never ran. If the last attempt has no end, the job was still running and
    its duration is unknown. An earlier attempt without start or end (a known fault of the log) counts as 0. A broken
    record is reported with the line on which it begins; a fault in the JSON itself cannot be skipped. A job without a
    jobid is named after its line.
    """
    records, numbers, said = zip(*_records(path, read_log(path)), strict=True)
    lines = Lines(path, np.array(numbers, dtype=np.int64), skip_bad_lines)
    attempts: list[_Attempt] = []
    faults = {}
    text: dict[str, list[str]] = {"jobid": [], "vc": [], "user": [], "submitted_time": []}
    for i, record in enumerate(records):
        fault = _fault(record)
        if fault:
            faults[i] = fault
        for key, column in text.items():
            column.append("" if fault else _text(record.get(key)))
        for attempt in [] if fault else record["attempts"]:
            start, end = (str(attempt.get(key) or "") for key in ("start_time", "end_time"))
            gpus = sum(len(machine["gpus"]) for machine in attempt.get("detail") or ())
            attempts.append(_Attempt(i, start, end, gpus))
    count = len(records)
    lines.reject(np.isin(np.arange(count), list(faults)), faults.__getitem__)
    texts = text["submitted_time"]
    submit = ("submitted_time", texts, times(lines, "submitted_time", texts))
    lines.once(pd.Series(said, dtype=object).duplicated().to_numpy())
    duration, most_gpus, started = _sum_attempts(lines, attempts, submit)
    lines.leave_out(~started)
    lines.without_gpus(most_gpus == 0)
    names = [name or f"philly-{line}" for name, line in zip(text["jobid"], numbers, strict=True)]
    columns = {"name": names, "user": text["user"], "group": text["vc"]}
    return lines.finish(
        {name: np.array(column, dtype=object) for name, column in columns.items()}
        | {"submit_time": submit[2], "duration": duration, "gpus": most_gpus},
        origin=EPOCH,
    )


def _records(path: Path, text: str) -> Iterator[tuple[object, int, str]]:
    """Yield every element of a JSON list with the line on which it begins, and its text."""
    decoder = json.JSONDecoder()
    at = len(text) - len(text.lstrip())
    if text[at] != "[":
        line = text.count("\n", 0, at) + 1
        raise TraceError(f"{path}:{line}: begins with {text[at : at + 20]!r}, expected a JSON list of jobs")
    line, counted, first = 1, 0, True
    at += 1
    while True:
        between = _BETWEEN.match(text, at)
        at = at if between is None else between.end()
        line, counted = line + text.count("\n", counted, at), at
        if text[at : at + 1] == "]":
            break
        if not first and (between is None or not between[1]):
            raise TraceError(f"{path}:{line}: {text[at : at + 20]!r}, expected a comma or the end of the list of jobs")
        try:
            begin = at
            record, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise TraceError(f"{path}:{error.lineno}: not valid JSON: {error.msg.lower()}, expected a job") from None
        except (RecursionError, ValueError) as error:  # such as a number of more digits than Python reads
            reason = "nested too deeply" if isinstance(error, RecursionError) else one_line(error)
            raise TraceError(f"{path}:{line}: not valid JSON: {reason}, expected a job") from None
        first = False
        yield record, line, text[begin:at]
    if first:
        raise TraceError(f"{path}: an empty list, expected jobs")
    if rest := text[at + 1 :].lstrip():
        line = text.count("\n", 0, len(text) - len(rest)) + 1
        raise TraceError(f"{path}:{line}: {rest[:20]!r} after the list of jobs, expected the end of the file")


def _text(value: object) -> str:
    """Return a text of the file, empty for null. Halves of characters become question marks: no trace can hold them."""
    return str(value or "").encode("utf-8", "replace").decode("utf-8")


def _fault(record: object) -> str | None:
    """Return the error in the form of a record, or None."""
    if not isinstance(record, dict):
        return f"record {str(record)[:40]!r}, expected an object with jobid, submitted_time and attempts"
    for key in ("jobid", "submitted_time", "attempts"):
        if key not in record:
            return f"key {key} missing, expected jobid, vc, user, submitted_time and attempts"
    attempts = record["attempts"]
    if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
        return f"job {record['jobid']}: attempts {str(attempts)[:40]!r}, expected a list of objects"
    for attempt in attempts:
        machines = attempt.get("detail") or []
        if not isinstance(machines, list) or not all(
            isinstance(machine, dict) and isinstance(machine.get("gpus"), list) for machine in machines
        ):
            return f"job {record['jobid']}: detail {str(machines)[:40]!r}, expected a list of machines with gpus"
    return None


def _sum_attempts(lines: Lines, attempts: list[_Attempt], submit: Moments) -> tuple[FloatArray, IntArray, BoolArray]:
    """Return the duration [s] and GPUs of every job, and whether it ever started."""
    count = len(lines.number)
    job = np.array([attempt.job for attempt in attempts], dtype=np.int64)
    own = Lines(lines.path, lines.number[job], lines.skip_bad_lines)
    own.good, own.clock = lines.good[job], lines.clock
    starts, ends = [attempt.start for attempt in attempts], [attempt.end for attempt in attempts]
    start = times(own, "start_time", starts, blank=True)
    end = times(own, "end_time", ends, blank=True)
    elapsed(own, (submit[0], [submit[1][i] for i in job.tolist()], submit[2][job]), ("start_time", starts, start))
    run = elapsed(own, ("start_time", starts, start), ("end_time", ends, end))
    lines.adopt(own, job)
    duration: FloatArray = np.bincount(job, weights=np.nan_to_num(run), minlength=count).astype(np.float64)
    started = np.bincount(job, weights=np.isfinite(start), minlength=count) > 0
    gpus = np.zeros(count, dtype=np.int64)
    np.maximum.at(gpus, job, np.array([attempt.gpus for attempt in attempts], dtype=np.int64))
    last = np.flatnonzero(np.diff(job, append=count))
    duration[job[last[np.isfinite(start[last]) & np.isnan(end[last])]]] = np.nan
    return duration, gpus, started


FORMAT = Format(read=read, recognises=lambda head: head.lstrip().startswith("["))
