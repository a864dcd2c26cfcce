"""Count arrivals per interval, from the jobs of a trace or a CSV of counts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd

from rlpto.forecasting.series import MONDAY, ForecastError, TimeSeries, as_series, local_seconds, seconds
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ConfigError, TraceError
from rlpto.workloads.files import read_any
from rlpto.workloads.importers.base import numbers, times
from rlpto.workloads.importers.csvfile import read_csv
from rlpto.workloads.trace import Trace
from rlpto.workloads.windows import WindowSettings

MOST_INTERVALS = 10_000_000


@contextmanager
def error_named(prefix: str) -> Iterator[None]:
    """Convert an error of forecasting to a TraceError that begins with the name of a file or option."""
    try:
        yield
    except ForecastError as wrong:
        raise TraceError(f"{prefix}: {wrong}") from None


def read_series(
    path: Path, every: str, end: str | None = None, time: str = "time", value: str | None = None
) -> TimeSeries:
    """Read the jobs per interval of a trace or, if `value` is given, the counts in a CSV. Raises RlptoError.

    every: length of an interval. end: a day, a share or `train`, before which to stop. time, value: columns of a CSV
    with times and counts.
    """
    with error_named("--every"):
        step = seconds(every)
    if value is None:
        trace = read_any(path)
        return _before(end, path, arrivals_per_interval(trace, step), trace.origin is not None)
    return _before(end, path, _of_counts(path, step, time, value), True)


def read_demand(path: Path, end: str | None = None, start: str | None = None) -> tuple[FloatArray, float]:
    """Return the counts [T, 2] of jobs and requested GPUs in every minute of a trace, and the first minute's local
    time [s].

    start: a day; earlier jobs are left out. end: a day, a share or `train`, before which to stop. Raises RlptoError.
    """
    trace = read_any(path)
    jobs, gpus = arrivals_per_interval(trace, 60.0), arrivals_per_interval(trace, 60.0, trace.gpus)
    kept = _before(end, path, jobs, trace.origin is not None)
    first = 0
    if start is not None:
        if trace.origin is None:
            raise TraceError(f"{path}: local times unknown, expected no --start")
        first = max(0, _steps_before(_day("--start", start), jobs))
    if first >= len(kept):
        raise TraceError(f"{path}: nothing between --start {start} and the end, expected an earlier one")
    return np.stack([jobs.values, gpus.values], axis=1)[first : len(kept)], float(jobs.start + 60.0 * first)


def arrivals_per_interval(trace: Trace, step: float, weights: IntArray | None = None) -> TimeSeries:
    """Count the jobs of a trace, or sum their weights, in intervals of `step` seconds from the first job to the last.

    Intervals begin at multiples of the step since local midnight; without local times, second 0 is taken for a
    Monday's midnight. Raises TraceError without jobs.
    """
    origin = trace.origin
    midnight = MONDAY if origin is None else local_seconds(origin.normalize())
    times = trace.submit_time + (0.0 if origin is None else local_seconds(origin) - midnight)
    if not len(times):
        raise TraceError(f"{trace.source}: no jobs, expected some")
    if (times[-1] - times[0]) / step > MOST_INTERVALS:
        raise TraceError(f"{trace.source}: more than {MOST_INTERVALS:,} intervals of {step:g} s, expected longer ones")
    places = (times // step).astype(np.int64)
    counts = np.bincount(places - places[0], weights).astype(np.float64)
    return TimeSeries(counts, step, midnight + float(places[0] * step))


def _end(text: str) -> datetime | float:
    """Parse a day, or a share of the covered time. Raises ConfigError."""
    if text == "train":
        return WindowSettings().train
    if re.fullmatch(r"\d+(\.\d+)?%", text) and 0 < float(text[:-1]) <= 100:
        return float(text[:-1]) / 100
    return _day("--end", text, ", a share such as 80%, or train")


def _day(option: str, text: str, others: str = "") -> datetime:
    try:
        day = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r}: expected a day such as 2017-12-01{others}") from None
    try:
        local_seconds(day)
    except ForecastError:
        raise ConfigError(f"{option} {text!r}: expected a day in the years 1678 to 2261") from None
    return day


def _before(end: str | None, path: Path, series: TimeSeries, dated: bool) -> TimeSeries:
    """Return the part of a series before --end. dated: whether its local times are known."""
    if end is None:
        return series
    stop = _end(end)
    if isinstance(stop, datetime) and not dated:
        raise TraceError(f"{path}: local times unknown, expected --end to be a share, or train")
    points = _steps_before(stop, series)
    if points < 1:
        raise TraceError(f"{path}: nothing before --end {end}, expected a later one")
    return series.head(points)


def _steps_before(end: datetime | float, series: TimeSeries) -> int:
    """Return the number of whole steps of a series before the end.

    It is rounded down, because a cut interval would count too few jobs, and no later data may be used. The time of the
    last job within its interval is unknown here, so a share refers to the time up to the start of this interval.
    """
    if isinstance(end, datetime):
        points = math.floor((local_seconds(end) - series.start) / series.step + 1e-9)
    else:
        points = math.floor(end * (len(series) - 1) + 1e-9)
    return min(points, len(series))


def _of_counts(path: Path, step: float, time: str, value: str) -> TimeSeries:
    """Read a CSV with a row per interval; rows of shorter intervals are added up."""
    rows, lines = read_csv(path, (time, value), skip_bad_lines=False)
    counts = numbers(lines, value, rows[value])
    stamps = pd.to_datetime(times(lines, time, rows[time]), unit="s")
    lines.refuse_broken()
    table = pd.Series(counts, index=pd.DatetimeIndex(stamps))
    with error_named(str(path)):
        fine = as_series(table, step if len(table) == 1 else None)
        parts = step / fine.step
        if math.isclose(parts, 1.0):
            return fine
        if parts < 1 or not math.isclose(parts, round(parts)):
            raise TraceError(f"{path}: a row every {fine.step:g} s, expected --every to be a multiple of it")
        width = round(parts)
        whole = len(fine) // width * width
        return as_series(TimeSeries(fine.values[:whole].reshape(-1, width).sum(axis=1), step, fine.start))
