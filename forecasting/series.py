"""Series to forecast: a count per interval, on a regular grid of local time."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np

from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.errors import RlptoError

if TYPE_CHECKING:
    import pandas as pd

Values = Sequence[float] | AnyArray

HOUR, DAY = 3600.0, 86400.0
WEEK = 7 * DAY
MONDAY = 4 * DAY
"""1970-01-05 0:00, a Monday: default start of a series without times [s since 1970-01-01]."""

MIN_POINTS = 10
"""Shortest series that can be fitted."""

LARGEST_COUNT = 1e12
"""Largest count of an interval; sums of its square do not overflow."""

MOST_POINTS = 10_000_000
"""Most points of a series, gaps included: 190 years of ten minutes."""

STEP_SECONDS = (1e-3, 366 * DAY)
"""Shortest and longest interval."""

LATEST_SECONDS = 1e11
"""Largest distance of a series from 1970-01-01 [s], about 3,000 years."""

_GRID_TOLERANCE_STEPS = 1e-6
"""Largest distance from the grid, in steps. Only rounding of seconds is tolerated."""


class ForecastError(RlptoError, ValueError):
    """An unusable series, argument or file, described in one line with the problem and the expected value."""


def checked_integer(name: str, value: object, low: int, high: int) -> int:
    """Return an integer if it is within bounds, both included. Raises ForecastError."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not low <= int(value) <= high:
        raise ForecastError(f"{name} {value!r}: expected an integer, {low} to {high}")
    return int(value)


@dataclass(frozen=True)
class TimeSeries:
    """Counts on a regular grid.

    values: [T] finite, 0 or more; entry i counts what arrived in [start + i step, start + (i + 1) step).
    step: length of an interval [s].
    start: local time of the first interval [s since 1970-01-01 0:00 local time].

    Values are not checked here; `as_series` does that.
    """

    values: FloatArray
    step: float
    start: float = MONDAY

    def __len__(self) -> int:
        return len(self.values)

    def lag(self, seconds: float) -> int:
        """Return a time span in steps, 1 or more."""
        return max(1, round(seconds / self.step))

    def head(self, points: int) -> TimeSeries:
        """Return the first `points` intervals."""
        return replace(self, values=self.values[:points])

    def tail(self, points: int) -> TimeSeries:
        """Return the last `points` intervals, or all if there are fewer."""
        first = max(0, len(self) - points)
        return TimeSeries(self.values[first:], self.step, self.start + first * self.step)

    def times(self, places: IntArray | None = None) -> FloatArray:
        """Return the local starts [s since 1970-01-01] of intervals at some places, also past the end. Default: all."""
        return self.start + self.step * (np.arange(len(self)) if places is None else places).astype(np.float64)

    def index(self, places: IntArray | None = None) -> pd.DatetimeIndex:
        """Return `times` as pandas timestamps without a time zone."""
        import pandas as pd

        return pd.DatetimeIndex(np.round(self.times(places) * 1e3).astype("datetime64[ms]"))

    def shown(self, place: int) -> str:
        """Return the start of the interval at a place, for messages."""
        return str(self.index(np.array([place]))[0])


def fourier(times: FloatArray, period: float, harmonics: int) -> FloatArray:
    """Return sines, then cosines, [T, 2 harmonics] of local times [s] with a period [s]."""
    angles = 2 * np.pi * np.outer(times % period, np.arange(1, harmonics + 1)) / period
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def seconds(step: float | str) -> float:
    """Convert a step to seconds: a number, or text such as '10min' or '1h'. Raises ForecastError for anything else."""
    try:
        if isinstance(step, str):
            import pandas as pd

            # pandas takes a number alone for nanoseconds, and does not accept a unit alone.
            text = re.fullmatch(r"([0-9.]*)\s*([A-Za-z]+)", step)
            if text is None:
                raise ValueError(step)
            value = pd.Timedelta(f"{text[1] or 1}{text[2]}").total_seconds()
        else:
            value = float(step)
    except (TypeError, ValueError, OverflowError):
        raise ForecastError(f"step {step!r}: expected seconds, or text such as '10min' or '1h'") from None
    if not STEP_SECONDS[0] <= value <= STEP_SECONDS[1]:
        raise ForecastError(f"step {step!r}: expected {STEP_SECONDS[0]:g} s to {STEP_SECONDS[1] / DAY:g} days")
    return value


def as_series(
    y: TimeSeries | pd.Series[Any] | Values, step: float | str | None = None, min_points: int = 1
) -> TimeSeries:
    """Check counts of any supported type and convert them to a series.

    y: a TimeSeries; a pandas Series with a DatetimeIndex on a regular grid (with a time zone, the
        wall-clock time continues from its first timestamp); or [T] numbers.
    step: seconds, or text such as '10min'; needed for plain numbers, which start on a Monday 0:00, and for one dated
        value.

    Raises ForecastError, naming the place, for values that are not finite or below 0, timestamps
    that are duplicate, missing, out of order or off the grid, and too few points.
    """
    if isinstance(y, TimeSeries):
        values, width, first = _numbers(y.values), seconds(y.step), y.start
        if step is not None and not math.isclose(seconds(step), width):
            raise ForecastError(f"series with a step of {width:g} s: expected {seconds(step):g} s")
    elif is_dated(y):
        values, width, first = _from_pandas(cast("pd.Series[Any]", y), step)
    else:
        if step is None:
            raise ForecastError("numbers without timestamps: give their step in seconds, or as text such as '10min'")
        values, width, first = _numbers(y), seconds(step), MONDAY
    if not abs(first) <= LATEST_SECONDS:
        raise ForecastError(f"start {first:g} s: expected seconds since 1970-01-01, within 3,000 years of it")
    if len(values) > MOST_POINTS:
        raise ForecastError(f"series of {len(values):,} points: expected at most {MOST_POINTS:,}")
    if len(values) < min_points:
        raise ForecastError(f"series of {len(values)} points: expected at least {min_points}")
    series = TimeSeries(values, width, first)
    bad = ~((values >= 0) & (values <= LARGEST_COUNT))
    if bad.any():
        at = int(np.argmax(bad))
        place = f"entry {at} ({series.shown(at)})"
        raise ForecastError(f"value {values[at]:g} at {place}: expected a count, 0 to {LARGEST_COUNT:g}")
    return series


def is_dated(y: Any) -> TypeGuard[TimeSeries | pd.Series[Any]]:
    """Return whether a series has times, unlike plain numbers."""
    # A list has an `index` too; only pandas objects have both. This check needs no import of pandas.
    return isinstance(y, TimeSeries) or (hasattr(y, "index") and hasattr(y, "to_numpy"))


def local_seconds(time: Any) -> float:
    """Return the wall-clock seconds since 1970-01-01 of anything that pandas reads as a timestamp."""
    import pandas as pd

    try:
        stamp = pd.Timestamp(time)
        if not pd.isna(stamp):
            return float(stamp.tz_localize(None).as_unit("ns").value) / 1e9
    except (ValueError, TypeError, OverflowError):
        pass
    raise ForecastError(f"start {time!r}: expected a timestamp such as '2020-04-01 00:00', 1677 to 2262")


def _numbers(y: Any) -> FloatArray:
    try:
        values = np.array(y, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise ForecastError("series: expected numbers") from None
    if values.ndim != 1:
        raise ForecastError(f"series of shape {values.shape}: expected one dimension")
    return values


def _from_pandas(y: pd.Series[Any], step: float | str | None) -> tuple[FloatArray, float, float]:
    """Return the values, step and start of a pandas Series."""
    import pandas as pd

    if not isinstance(y.index, pd.DatetimeIndex):
        raise ForecastError(f"series with an index of {type(y.index).__name__}: expected a DatetimeIndex")
    values, stamps = _numbers(y.to_numpy()), y.index
    if not len(stamps):
        raise ForecastError("series of 0 points: expected some")
    if stamps.hasnans:
        raise ForecastError(f"timestamp of entry {int(np.argmax(stamps.isna()))} missing (NaT)")
    try:
        nanoseconds = stamps.as_unit("ns").asi8
    except ValueError:
        raise ForecastError(f"timestamps {stamps[0]} to {stamps[-1]}: expected years 1677 to 2262") from None
    # Whole numbers: doubles of seconds since 1970 are no finer than 0.2 microseconds.
    whole, rest = np.divmod(nanoseconds, 10**9)
    times = (whole - whole[0]) + (rest - rest[0]) / 1e9
    distances = np.abs(np.diff(nanoseconds)) / 1e9
    distances = np.sort(distances[distances > 0])
    if step is None and not len(distances):
        raise ForecastError("series of one timestamp: give its step in seconds, or as text such as '10min'")
    start = local_seconds(stamps[0])
    # The lower median is a distance that occurs, and not the distance across a gap.
    width = seconds(float(distances[(len(distances) - 1) // 2]) if step is None else step)
    places = np.arange(len(times))
    off = np.abs(times / width - places) > _GRID_TOLERANCE_STEPS * np.maximum(1.0, places)
    if off.any():
        at = int(np.argmax(off))
        raise ForecastError(
            f"timestamp {stamps[at]}: expected {TimeSeries(values, width, start).shown(at)}, as intervals are of "
            f"{width:g} s; y.asfreq(step, fill_value=0) fills gaps"
        )
    return values, width, start
