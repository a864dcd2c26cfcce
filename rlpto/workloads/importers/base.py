"""What all importers share: reading text, broken lines, and turning columns into a trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rlpto.io.arrays import AnyArray, BoolArray, FloatArray, IntArray
from rlpto.io.errors import TraceError
from rlpto.io.reading import one_line, read_text
from rlpto.performance.efficiency import LARGEST_BATCH
from rlpto.workloads.calibration import LARGEST_GPUS
from rlpto.workloads.trace import LONGEST_S, Trace, make_trace

NEVER_RAN = "never ran"
"""Reason for leaving out jobs that never held a GPU, which is not an error of the file."""


class BadLine(NamedTuple):
    """A line (counted from 1) that was left out, and why."""

    line: int
    reason: str


@dataclass(frozen=True)
class ImportResult:
    """Result of importing a file.

    trace: the GPU jobs that ran.
    skipped: lines left out in order: broken ones, and jobs that never ran (reason NEVER_RAN).
    cpu_jobs: jobs without GPUs, which are left out as well.
    """

    trace: Trace
    skipped: tuple[BadLine, ...]
    cpu_jobs: int

    def reasons(self) -> dict[str, int]:
        """How many lines were skipped for each reason (quoted values left out), most frequent first."""
        return dict(Counter(re.sub(r"'.*?'", "...", bad.reason) for bad in self.skipped).most_common())


class Format(NamedTuple):
    """An importable format, called as its module.

    read: imports a file; TraceError at the first broken line, unless they are skipped as the second argument says.
    recognises: whether the first lines of a file look like it.
    """

    description: str
    read: Callable[[Path, bool], ImportResult]
    recognises: Callable[[str], bool]


def read_log(path: Path) -> str:
    """A text file, which may be packed under any name. Raises TraceError if it is missing, broken, too large, empty or
    not UTF-8 text."""
    return read_text(path, "a trace", TraceError, packed=True)


@dataclass
class Lines:
    """The lines of a file during the check: which are still valid, and what was wrong with the others.

    number: [N] line of every row, counted from 1. good: [N] rows that are still in.
    """

    path: Path
    number: IntArray
    skip_bad_lines: bool
    good: BoolArray = field(init=False)
    skipped: list[BadLine] = field(default_factory=list)
    cpu_jobs: int = 0
    _broken: list[BadLine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.good = np.ones(len(self.number), dtype=np.bool_)

    def reject(self, rows: BoolArray, reason: Callable[[int], str]) -> None:
        """Note rows [N] as broken; `reason` says what is wrong with row i and what was expected."""
        for row in np.flatnonzero(rows & self.good):
            self._broken.append(BadLine(int(self.number[row]), reason(int(row))))
        self.good &= ~rows

    def adopt(self, part: Lines, rows: IntArray) -> None:
        """Take over what was found broken in `part`, whose entry i belongs to row rows[i] here."""
        broken = np.zeros(len(self.number), dtype=np.bool_)
        broken[rows[~part.good]] = True
        self._broken.extend(part._broken)
        self.good &= ~broken

    def never_ran(self, rows: BoolArray) -> None:
        """Leave out jobs that never held a GPU."""
        rows = rows & self.good
        self.skipped.extend(BadLine(int(line), NEVER_RAN) for line in self.number[rows])
        self.good &= ~rows

    def without_gpus(self, rows: BoolArray) -> None:
        """Leave out CPU jobs."""
        self.cpu_jobs += int(np.count_nonzero(rows & self.good))
        self.good &= ~rows

    def finish(self, columns: dict[str, AnyArray], origin: pd.Timestamp | None, rebase: bool = True) -> ImportResult:
        """The trace of the rows that are still in; every column has N rows.

        rebase: make the first submission second 0 (and move the origin along).
        Raises TraceError at the first broken line unless they are skipped, and if no job is left.
        """
        self._check_ranges(columns)
        self.refuse_broken()
        broken = sorted(self._broken)
        if not self.good.any():
            why = f", {len(broken)} broken lines" if broken else ""
            raise TraceError(
                f"{self.path}: no GPU job in the file ({self.cpu_jobs} CPU jobs, "
                f"{len(self.skipped)} that never ran{why}), expected at least one"
            )
        kept = {name: column[self.good] for name, column in columns.items()}
        if rebase:
            first = float(kept["submit_time"].min())
            kept["submit_time"] = kept["submit_time"] - first
            origin = None if origin is None else origin + pd.Timedelta(seconds=first)
        trace = make_trace(kept, source=self.path.name, origin=origin)
        return ImportResult(trace, tuple(sorted([*broken, *self.skipped])), self.cpu_jobs)

    def refuse_broken(self) -> None:
        """Raise TraceError for the first broken line, unless broken lines are skipped."""
        if self._broken and not self.skip_bad_lines:
            first = min(self._broken)
            raise TraceError(f"{self.path}:{first.line}: {first.reason}")

    def _check_ranges(self, columns: dict[str, AnyArray]) -> None:
        """Reject what no trace can hold: a job far from all others in time, too long, or too large."""
        submit = np.asarray(columns["submit_time"], dtype=np.float64)
        middle = float(np.median(submit[self.good])) if self.good.any() else 0.0
        most = f"{LONGEST_S / 2 / _YEAR_S:g} years"
        self.reject(
            ~(np.abs(submit - middle) <= LONGEST_S / 2), lambda _: f"submitted more than {most} from other jobs"
        )
        for name, largest in (("duration", LONGEST_S), ("gpus", LARGEST_GPUS), ("batch_size", LARGEST_BATCH)):
            if name in columns:
                self._reject_beyond(name, np.asarray(columns[name], dtype=np.float64), largest)

    def _reject_beyond(self, name: str, values: FloatArray, largest: float) -> None:
        self.reject(values > largest, lambda row: f"{name} {values[row]:.15g}, expected at most {largest:.15g}")


_YEAR_S = 365 * 86_400.0
BLANKS = frozenset(("", "nan", "NaN", "None", "none", "null", "NULL", "NA", "N/A"))
"""Texts that stand for an unknown value in public traces."""


_LARGEST_NUMBER = 1e10
"""Largest plausible number of seconds or GPUs."""
LAST_SECOND = 130 * 365.25 * 86_400.0
"""Seconds since 1970 that a date may be at most: the year 2100."""


def is_blank(texts: Sequence[str]) -> BoolArray:
    """[N] whether each text stands for an unknown value."""
    return np.fromiter((text.strip() in BLANKS for text in texts), dtype=np.bool_, count=len(texts))


def numbers(
    lines: Lines, name: str, texts: Sequence[str], low: float = 0.0, blank: float | None = None, whole: bool = False
) -> FloatArray:
    """[N] a column of numbers, `low` or more; rows that are not are rejected.

    blank: what an empty field means; None: an empty field is broken. whole: only integers.
    """
    values = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    with np.errstate(invalid="ignore"):
        good = (values >= low) & (values <= _LARGEST_NUMBER)
    if whole:
        good &= values == np.floor(np.where(good, values, 0.0))
    if blank is not None:
        empty = is_blank(texts)
        values, good = np.where(empty, blank, values), good | empty
    kind = "an integer" if whole else "a number"
    lines.reject(~good, lambda row: f"{name} {_shown(texts[row])}, expected {kind}, {low:g} or more")
    return np.where(good, values, 0.0)


def _shown(text: str) -> str:
    return one_line(repr(text), 60)


EPOCH = pd.Timestamp(0)
"""Origin of what `times` returns."""
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


def times(lines: Lines, name: str, texts: Sequence[str], blank: bool = False, hours_from_utc: int = 0) -> FloatArray:
    """[N] a column of dates as seconds since 1970 of the local clock; rows that are not dates are rejected.

    blank: empty fields are allowed and become NaN. hours_from_utc: where times carry their own UTC
    offset, the local clock they are converted to.
    """
    series = pd.Series(texts, dtype=object)
    with_offset = series.str.contains(r"[+-]\d\d:?\d\d$", regex=True).to_numpy(dtype=np.bool_)
    local = pd.to_datetime(series.where(~with_offset), format=TIME_FORMAT, errors="coerce")
    seconds = seconds_of(local)
    if with_offset.any():
        aware = pd.to_datetime(series[with_offset], format=f"{TIME_FORMAT}%z", errors="coerce", utc=True)
        seconds[with_offset] = seconds_of(aware.dt.tz_localize(None)) + hours_from_utc * 3600.0
    with np.errstate(invalid="ignore"):
        good = (seconds >= 0) & (seconds <= LAST_SECOND)
    if blank:
        good |= is_blank(texts)
    lines.reject(
        ~good, lambda row: f"{name} {_shown(texts[row])}, expected a date as 2017-10-03 00:00:00, from 1970 to 2100"
    )
    return seconds


def seconds_of(dates: pd.Series[Any]) -> FloatArray:
    """[N] seconds since 1970 of dates however far off; NaN where there is no date."""
    since = dates.to_numpy(dtype="datetime64[us]") - np.datetime64(0, "us")
    return np.array(since / np.timedelta64(1, "s"), dtype=np.float64)
