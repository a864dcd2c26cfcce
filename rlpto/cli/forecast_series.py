"""The series that `rlpto forecast` works on: counts of a trace, or of a CSV. Imports nothing heavy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlpto.forecasting.series import TimeSeries
    from rlpto.workloads.trace import Trace


class What(StrEnum):
    """Quantity to count: jobs, or the GPUs they request."""

    jobs = "jobs"
    gpus = "gpus"


@dataclass(frozen=True)
class Counted:
    """What to count. every: length of an interval. group: its jobs alone. start: first day.

    end: day, share or `train` before which to stop. time, value: columns of a CSV of counts; no value: a trace.
    """

    every: str
    what: What
    group: str | None
    start: datetime | None
    end: str | None
    time: str
    value: str | None


@contextmanager
def bad_input(prefix: str = "") -> Iterator[None]:
    """Turn an error of forecasting into one line that names the file or option and ends the command."""
    from rlpto.forecasting.series import ForecastError
    from rlpto.io.errors import TraceError

    try:
        yield
    except ForecastError as wrong:
        raise TraceError(f"{prefix}{wrong}") from None


def read_series(path: Path, counted: Counted) -> TimeSeries:
    """Counts per interval of a trace or, with the name of a column of counts, of a CSV. Raises RlptoError."""
    from rlpto.forecasting.series import seconds
    from rlpto.io.errors import ConfigError

    with bad_input("--every: "):
        step = seconds(counted.every)
    end = None if counted.end is None else _end(counted.end)
    if counted.value is None:
        return _of_trace(path, step, counted, end)
    if counted.group is not None or counted.what != What.jobs:
        raise ConfigError("--value: a CSV of counts has neither groups nor GPUs to count, expected no such option")
    series = _of_counts(path, step, counted, counted.value)
    return series if end is None else series.head(_steps_before(end, series, path, counted))


def _end(text: str) -> datetime | float:
    """A day, or a share of the time covered. Raises ConfigError."""
    from rlpto.io.errors import ConfigError
    from rlpto.workloads.windows import WindowSettings

    if text == "train":
        return WindowSettings().train
    if re.fullmatch(r"\d+(\.\d+)?%", text) and 0 < float(text[:-1]) <= 100:
        return float(text[:-1]) / 100
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--end {text!r}: expected a day such as 2017-12-01, a share such as 80%, or train") from None


def _steps_before(end: datetime | float, series: TimeSeries, path: Path, counted: Counted) -> int:
    """Whole steps of a series before the end. Raises TraceError if there are none.

    Rounded down: a cut interval would count too few jobs, and no later data may be used. The time of the last job
    within its interval is not known here, so a share refers to the time up to the beginning of that interval.
    """
    from rlpto.forecasting.series import local_seconds
    from rlpto.io.errors import TraceError

    if isinstance(end, datetime):
        points = math.floor((local_seconds(end) - series.start) / series.step + 1e-9)
    else:
        points = math.floor(end * (len(series) - 1) + 1e-9)
    if points < 1:
        raise TraceError(f"{path}: nothing before --end {counted.end}, expected a later one")
    return min(points, len(series))


def _of_trace(path: Path, step: float, counted: Counted, end: datetime | float | None) -> TimeSeries:
    import numpy as np

    from rlpto.forecasting.series import TimeSeries
    from rlpto.io.errors import TraceError
    from rlpto.workloads.files import read_any

    trace, until = read_any(path), 0.0
    if end is not None:
        trace, until = _beginning(path, trace, step, counted, end)
    if counted.group is not None:
        rows = np.array([name == counted.group for name in trace.texts("group")])
        if not rows.any():
            known = ", ".join(map(repr, sorted(set(trace.texts("group")))[:20]))
            raise TraceError(f"{path}: no jobs of group {counted.group!r}, expected one of {known}")
        trace = trace.take(rows)
    series = _counts(path, trace, step, counted)
    # Empty intervals before the end are data too.
    empty = max(0, round((until - series.start) / step) - len(series)) if trace.origin is not None else 0
    return TimeSeries(np.pad(series.values, (0, empty)), step, series.start)


def _counts(path: Path, trace: Trace, step: float, counted: Counted) -> TimeSeries:
    import pandas as pd

    from rlpto.forecasting.series import as_series
    from rlpto.workloads.volume import task_volume

    first = None if counted.start is None else pd.Timestamp(counted.start)
    volume = task_volume(trace, step, counted.what.value, first)
    with bad_input(f"{path}: "):
        return as_series(volume.counts, step, volume.start)


def _beginning(path: Path, trace: Trace, step: float, counted: Counted, end: datetime | float) -> tuple[Trace, float]:
    """The jobs of whole intervals before the end, and when the last of these ends [s since 1970-01-01, local].

    The end refers to the whole trace, even if one group is counted.
    """
    import numpy as np

    from rlpto.forecasting.series import local_seconds
    from rlpto.io.errors import TraceError

    if isinstance(end, datetime) and trace.origin is None:
        raise TraceError(f"{path}: local times unknown, expected --end to be a share, or train")
    series = _counts(path, trace, step, counted)
    points = _steps_before(end, series, path, counted)
    # Without local times, intervals begin at multiples of the step.
    begins = series.start - local_seconds(trace.origin) if trace.origin else trace.submit_time[0] // step * step
    return trace.take(np.asarray(trace.submit_time < begins + points * step)), series.start + points * step


def _of_counts(path: Path, step: float, counted: Counted, value: str) -> TimeSeries:
    """A CSV with a row per interval; rows of shorter intervals are added up."""
    import pandas as pd

    from rlpto.forecasting.series import TimeSeries, as_series
    from rlpto.io.errors import TraceError
    from rlpto.io.reading import one_line, parsing
    from rlpto.workloads.importers.base import LAST_SECOND, numbers, seconds_of
    from rlpto.workloads.importers.csvfile import read_csv

    time = counted.time
    rows = read_csv(path, (time, value), skip_bad_lines=False)
    counts = numbers(rows.lines, value, rows[value])
    with parsing(path, "a CSV of counts", TraceError):
        stamps = pd.to_datetime(pd.Series(rows[time]), errors="coerce", format="ISO8601")
        seconds = pd.Series(seconds_of(stamps))
    rows.lines.reject(
        ~seconds.between(0, LAST_SECOND).to_numpy(),
        lambda row: f"{time} {one_line(rows[time][row], 40)}, expected a time such as 2020-04-01 00:00:00, to 2100",
    )
    rows.lines.refuse_broken()
    table = pd.Series(counts, index=pd.DatetimeIndex(stamps))
    table = table if counted.start is None else table[table.index >= pd.Timestamp(counted.start)]
    with bad_input(f"{path}: "):
        fine = as_series(table)
        parts = step / fine.step
        if math.isclose(parts, 1.0):
            return fine
        if parts < 1 or not math.isclose(parts, round(parts)):
            raise TraceError(f"{path}: a row every {fine.step:g} s, expected --every to be a multiple of it")
        width = round(parts)
        whole = len(fine) // width * width
        return as_series(TimeSeries(fine.values[:whole].reshape(-1, width).sum(axis=1), step, fine.start))
