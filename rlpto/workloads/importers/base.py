"""Shared code of all importers: reading text, broken lines, and turning columns into a trace."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlpto.io.arrays import AnyArray, BoolArray, FloatArray, IntArray
from rlpto.io.errors import TraceError
from rlpto.io.reading import one_line, read_text
from rlpto.performance.efficiency import LARGEST_BATCH
from rlpto.workloads.calibration import LARGEST_GPUS
from rlpto.workloads.trace import LONGEST_S, Trace, make_trace

NEVER_RAN = "never ran"
"""Reason for leaving out jobs that never held a GPU. They are no errors of the file."""


class BadLine(NamedTuple):
    """A line (counted from 1) that was left out, and the reason."""

    line: int
    reason: str


@dataclass(frozen=True)
class ImportResult:
    """Result of importing a file.

    trace: the GPU jobs that ran.
    skipped: lines left out, in order: broken lines, and lines left out for other reasons, such as NEVER_RAN.
    cpu_jobs: number of jobs without GPUs, which are left out as well.
    notes: number of times that something uncommon was imported, such as jobs of the same name.
    """

    trace: Trace
    skipped: tuple[BadLine, ...]
    cpu_jobs: int
    notes: dict[str, int]

    def reasons(self) -> dict[str, int]:
        """Number of skipped lines for each reason (without quoted values), most frequent first."""
        return dict(Counter(re.sub(r"'.*?'", "...", bad.reason) for bad in self.skipped).most_common())


class Format(NamedTuple):
    """An importable format, named after its module.

    read: imports a file; raises TraceError at the first broken line, unless the second argument is True (skip them).
    recognises: returns whether the first lines of a file look like this format.
    """

    read: Callable[[Path, bool], ImportResult]
    recognises: Callable[[str], bool]


def read_log(path: Path) -> str:
    """Read a text file, which may be compressed under any name. Raises TraceError if it is missing, broken, too large,
    empty or not UTF-8 text."""
    return read_text(path, "a trace as text, such as csv", TraceError, packed=True)


@dataclass
class Lines:
    """The lines of a file while they are checked: valid lines, and the errors of the others.

    number: [N] line of every row, counted from 1. good: [N] whether a row is still valid. repeats: [N] whether a row
    equals an earlier row. clock: offset from UTC [s] of the clock of dates, NaN if dates have no offset, and the line
    that decided it; None before a date was read.
    """

    path: Path
    number: IntArray
    skip_bad_lines: bool
    good: BoolArray = field(init=False)
    repeats: BoolArray = field(init=False)
    skipped: list[BadLine] = field(default_factory=list)
    cpu_jobs: int = 0
    notes: Counter[str] = field(default_factory=Counter)
    clock: tuple[float, int] | None = None
    _broken: dict[int, BadLine] = field(default_factory=dict)  # by row

    def __post_init__(self) -> None:
        self.good = np.ones(len(self.number), dtype=np.bool_)
        self.repeats = np.zeros(len(self.number), dtype=np.bool_)

    def reject(self, rows: BoolArray, reason: Callable[[int], str]) -> None:
        """Mark rows [N] as broken; `reason` returns the error of row i and the expected value."""
        for row in np.flatnonzero(rows & self.good):
            self._broken[int(row)] = BadLine(int(self.number[row]), reason(int(row)))
        self.good &= ~rows

    def adopt(self, part: Lines, rows: IntArray) -> None:
        """Take over the broken rows of `part`, whose entry i belongs to row rows[i] here; a row counts once."""
        for at, bad in part._broken.items():
            self._broken.setdefault(int(rows[at]), bad)
        self.notes.update(part.notes)
        self.good[rows[~part.good]] = False

    def leave_out(self, rows: BoolArray, reason: str = NEVER_RAN) -> None:
        """Leave out rows [N] without counting them as errors of the file."""
        rows = rows & self.good
        self.skipped.extend(BadLine(int(line), reason) for line in self.number[rows])
        self.good &= ~rows

    def once(self, rows: BoolArray | None = None) -> None:
        """Leave out rows [N] that repeat an earlier row. Default: `repeats`."""
        self.leave_out(self.repeats if rows is None else rows, "the same row again")

    def note(self, rows: BoolArray, text: str) -> None:
        """Count the rows [N] that are still valid, for the summary of the import."""
        self.notes[text] += int(np.count_nonzero(rows & self.good))

    def without_gpus(self, rows: BoolArray) -> None:
        """Leave out CPU jobs."""
        self.cpu_jobs += int(np.count_nonzero(rows & self.good))
        self.good &= ~rows

    def finish(self, columns: dict[str, AnyArray], origin: pd.Timestamp | None, rebase: bool = True) -> ImportResult:
        """Return the trace of the rows that are still valid; every column has N rows.

        rebase: make the first submission second 0 (and move the origin along).
        Raises TraceError at the first broken line unless broken lines are skipped, and if no job is left.
        """
        self._check_ranges(columns, origin)
        self.refuse_broken()
        broken = sorted(self._broken.values())
        if not self.good.any():
            reasons = Counter(bad.reason for bad in self.skipped)
            never = reasons.pop(NEVER_RAN, 0)
            why = "".join(f", {count} x {reason}" for reason, count in reasons.items())
            why += f", {len(broken)} broken lines" if broken else ""
            raise TraceError(
                f"{self.path}: no GPU job in the file ({self.cpu_jobs} CPU jobs, {never} that never ran{why}), "
                "expected at least one"
            )
        kept = {name: column[self.good] for name, column in columns.items()}
        kept["gpus"] = np.maximum(np.ceil(np.round(kept["gpus"].astype(np.float64), 9)), 1)
        if rebase:
            first = float(kept["submit_time"].min())
            kept["submit_time"] = kept["submit_time"] - first
            origin = None if origin is None else origin + pd.Timedelta(seconds=first)
        again = pd.Series(kept["name"], dtype=object).duplicated()
        self.notes["the name of an earlier job: #2, #3, ... added"] = int(again.sum())
        trace = make_trace(kept, source=self.path.name, origin=origin)
        return ImportResult(trace, tuple(sorted([*broken, *self.skipped])), self.cpu_jobs, dict(+self.notes))

    def refuse_broken(self) -> None:
        """Raise TraceError for the first broken line, unless broken lines are skipped."""
        if self._broken and not self.skip_bad_lines:
            first = min(self._broken.values())
            raise TraceError(f"{self.path}:{first.line}: {first.reason}")

    def _check_ranges(self, columns: dict[str, AnyArray], origin: pd.Timestamp | None) -> None:
        """Reject jobs that no trace can hold: too late, far from all others in time, too long, or too large."""
        submit = np.asarray(columns["submit_time"], dtype=np.float64)
        if origin is not None:
            late = submit > LAST_SECOND - (origin - EPOCH).total_seconds()
            self.reject(late, lambda _: "submitted after 2100, expected a time from 1970 to 2100")
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
BLANKS = frozenset(("", "nan", "NaN", "None", "none", "null", "NULL", "NA", "N/A", "Unknown", "UNLIMITED"))
"""Texts that stand for an unknown value in public traces."""


_LARGEST_NUMBER = 1e10
"""Largest plausible number of seconds or GPUs."""
LAST_SECOND = 130 * 365.25 * 86_400.0
"""Latest allowed date [s since 1970]: the year 2100."""


def is_blank(texts: Sequence[str]) -> BoolArray:
    """Return whether each text [N] stands for an unknown value."""
    return np.fromiter((text.strip() in BLANKS for text in texts), dtype=np.bool_, count=len(texts))


def numbers(
    lines: Lines, name: str, texts: Sequence[str], low: float = 0.0, blank: float | None = None, whole: bool = False,
    clock: bool = False,
) -> FloatArray:  # fmt: skip
    """Parse a column of numbers [N]; rows that hold no number, or one below `low` or too large, are rejected.

    blank: value of an empty field. Default: an empty field is broken. whole: allow only integers. clock: a number of
    seconds may also be given as [D-]HH:MM:SS.
    """
    series = pd.Series(texts, dtype=object)
    if clock and any(":" in text for text in texts):
        parts = series.str.extract(_CLOCK).astype(np.float64)
        seconds = parts.fillna(0.0).to_numpy() @ np.array([86_400.0, _HOUR_S, 60.0, 1.0])
        series = series.where(parts[3].isna(), pd.Series(seconds))
    values = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64)
    with np.errstate(invalid="ignore"):
        good = (values >= low) & (values <= _LARGEST_NUMBER)
    if whole:
        good &= values == np.floor(np.where(good, values, 0.0))
    if blank is not None:
        empty = is_blank(texts)
        values, good = np.where(empty, blank, values), good | empty
    kind = "an integer" if whole else "a number"
    more = f"{low:g} or more{', or [D-]HH:MM:SS' if clock else ''}"

    def reason(row: int) -> str:
        expected = f"{low:g} to {_LARGEST_NUMBER:,.0f}" if values[row] > _LARGEST_NUMBER else more
        return f"{name} {_shown(texts[row])}, expected {kind}, {expected}"

    lines.reject(~good, reason)
    return np.where(good, values, 0.0)


def _shown(text: str) -> str:
    return one_line(repr(text), 60)


_CLOCK = re.compile(r"^\s*(?:(\d{1,9})-)?(\d{1,9}):([0-5]?\d):([0-5]?\d(?:\.\d{1,9})?)\s*$", re.ASCII)
EPOCH = pd.Timestamp(0)
"""Origin of the seconds that `times` returns."""
_MONTH = re.compile(r"\d{4}-\d\d", re.ASCII)
_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
_HOUR_S = 3600.0
_CHANGE_MONTHS = (3, 4, 10, 11)
"""Months in which clocks are set back, in the north and in the south."""


def times(
    lines: Lines, name: str, texts: Sequence[str], blank: bool = False, hours_from_utc: int | None = None
) -> FloatArray:
    """Parse a column of dates [N] into seconds since 1970 on one local clock; rows that hold no date are rejected.

    Dates are in ISO 8601, with a space or a T before the time. Either all dates of a file have an offset from UTC, and
    are converted to one clock, or none has. blank: empty fields are allowed and become NaN. hours_from_utc: the clock
    for dates with an offset. Default: the clock of the dates, or UTC if offsets differ.
    """
    local, offset = np.array([_date(text) for text in texts], dtype=np.float64).reshape(-1, 2).T
    dated, aware = np.isfinite(local), np.isfinite(offset)
    if lines.clock is None and dated.any():
        first = int(np.argmax(aware if aware.any() else dated))
        one = len(np.unique(offset[aware])) <= 1
        lines.clock = float(offset[first]) if one else 0.0, int(lines.number[first])
    zone, line = lines.clock or (np.nan, 0)
    wrong = f"{'without' if math.isfinite(zone) else 'with'} an offset from UTC, unlike line {line}"
    lines.reject(
        dated & (aware != math.isfinite(zone)),
        lambda row: f"{name} {_shown(texts[row])} {wrong}, expected one in every date or in none",
    )
    seconds = np.where(aware, local - offset + (zone if hours_from_utc is None else hours_from_utc * _HOUR_S), local)
    with np.errstate(invalid="ignore"):
        good = (seconds >= 0) & (seconds <= LAST_SECOND)
    if blank:
        good |= is_blank(texts)
    lines.reject(
        ~good, lambda row: f"{name} {_shown(texts[row])}, expected a date as 2017-10-03 00:00:00, from 1970 to 2100"
    )
    return seconds


def _date(text: str) -> tuple[float, float]:
    """Return the seconds since 1970 on a date's clock and the clock's offset from UTC [s], or NaN if it has none."""
    shown = text.strip()
    try:
        date = datetime.fromisoformat(f"{shown}-01" if _MONTH.fullmatch(shown) else shown)
    except ValueError:
        return math.nan, math.nan
    offset = date.utcoffset()
    return (date.replace(tzinfo=None) - _EPOCH) / _SECOND, math.nan if offset is None else offset / _SECOND


Moments = tuple[str, Sequence[str], FloatArray]
"""A column of times: its name, its texts, and seconds [N], NaN for empty fields."""


def elapsed(lines: Lines, earlier: Moments, later: Moments) -> FloatArray:
    """Return the seconds [N] from one column of times to another; rows with a negative difference are rejected.

    Differences of local dates may be negative by less than an hour when clocks are set back at the end of daylight
    saving time: in a Sunday's first four hours, in spring or autumn. In these rows an hour is added, and noted.
    """
    (before, early, start), (after, late, end) = earlier, later
    seconds = end - start
    if lines.clock is not None and math.isnan(lines.clock[0]):
        dates = pd.to_datetime(pd.Series(start), unit="s", errors="coerce").dt
        night = (dates.day_of_week == 6) & (dates.hour < 4) & dates.month.isin(_CHANGE_MONTHS)
        back = night.to_numpy() & (seconds < 0) & (seconds > -_HOUR_S)
        lines.note(back, f"clock set back between {before} and {after}: an hour added")
        seconds = seconds + np.where(back, _HOUR_S, 0.0)
    lines.reject(seconds < 0, lambda i: f"{after} {_shown(late[i])}, expected {before} {_shown(early[i])} or later")
    return seconds


def merge(lines: Lines, columns: dict[str, AnyArray], **how: str) -> dict[str, AnyArray]:
    """Merge the valid rows of the same name into the first of them, and remove the others from `lines`.

    how: name of a pandas aggregation by column, such as min or sum. Other columns keep the value of the first row.
    """
    merged = pd.DataFrame(columns)
    kept = merged[lines.good]
    rows = kept.index[~kept["name"].duplicated()]
    lines.good &= merged.index.isin(rows)
    together = kept.groupby("name", sort=False).agg(how)
    for name in how:
        merged.loc[rows, name] = together[name].to_numpy()
    return {str(name): values.to_numpy() for name, values in merged.items()}
