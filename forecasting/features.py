"""Inputs of networks and trees: values relative to a recent level, lags, the calendar.

Everything is a function of an origin t and of the log1p counts before it, x[:t]; step h of H has the target
x[t + h]. Only the last `Layout.memory` values matter, so a forecaster fed value by value and one that computes all
origins of a series at once see the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlpto.forecasting.series import DAY, HOUR, WEEK, TimeSeries, calendar_features, day_of_week
from rlpto.io.arrays import FloatArray, IntArray

DAILY_LAGS = 7
"""Number of days that are averaged to a profile of the day."""

LEVEL_HOURS = 3.0
"""Hours over which the recent level is averaged."""

SHORT_LAGS = 12
"""Number of newest values that are separate features."""

RECENT, TARGETS, CALENDAR = SHORT_LAGS + 4, 5, 7
"""Numbers of columns that describe an origin, a step ahead, and a time."""

VALIDATION = 0.15
"""Share of a fitted series held out for early stopping: 12 % of a whole series when its last 20 % are not fitted."""

MOST_LEARNT = 1000
"""Most steps ahead that are learnt."""


@dataclass(frozen=True)
class Layout:
    """Lags of a time axis. day, week: 24 h and 168 h [steps]; short: steps in the recent level; smooth: steps on
    either side that are averaged with a daily or weekly lag; horizon: steps ahead that are learnt."""

    day: int
    week: int
    short: int
    smooth: int
    horizon: int

    @property
    def memory(self) -> int:
        """Number of values before an origin that its features can depend on."""
        return max(self.week, DAILY_LAGS * self.day, SHORT_LAGS, self.short) + 2 * self.smooth + 2


@dataclass(frozen=True)
class Features:
    """Of N origins: level [N]; recent [N, RECENT]; targets [N, H, TARGETS], all but the last column relative to
    the level, in log1p; calendar [N, CALENDAR] at the origin and ahead [N, H, CALENDAR] at the targets."""

    level: FloatArray
    recent: FloatArray
    targets: FloatArray
    calendar: FloatArray
    ahead: FloatArray


def layout_of(series: TimeSeries, horizon: int) -> Layout:
    """Lags for the step of a series."""
    day = series.lag(DAY)
    return Layout(day, series.lag(WEEK), max(3, series.lag(LEVEL_HOURS * HOUR)), day // 48, horizon)


def describe(layout: Layout, series: TimeSeries, origins: IntArray, horizon: int) -> Features:
    """Features at N origins (1 to T) of a series for the next `horizon` steps, from the values before each."""
    first = 0 if len(origins) > 1 else max(0, int(origins[0]) - layout.memory)
    x = np.log1p(series.values[first : int(origins.max(initial=0))])
    seen = _Seen(x, np.concatenate([[0.0], np.cumsum(x)]))
    local = origins - first
    level = seen.mean_before(local, layout.short)
    return Features(
        level,
        _recent(layout, seen, local, level),
        _targets(layout, seen, local, level, horizon),
        _calendar(series, origins),
        _calendar(series, origins[:, None] + np.arange(horizon)),
    )


@dataclass(frozen=True)
class _Seen:
    """Values [T] and their running sum [T + 1]."""

    x: FloatArray
    total: FloatArray

    def mean_before(self, ends: IntArray, length: int) -> FloatArray:
        """Mean of the last `length` values, or as many as there are, before each end (1 or more)."""
        starts = np.maximum(ends - length, 0)
        return (self.total[ends] - self.total[starts]) / (ends - starts)

    def around(self, places: IntArray, reach: int, missing: FloatArray) -> FloatArray:
        """Mean over places - reach .. places + reach; `missing` where that begins before the series."""
        known = places >= reach
        low = np.where(known, places - reach, 0)
        high = np.where(known, places + reach + 1, 1)
        return np.where(known, (self.total[high] - self.total[low]) / (high - low), missing)


def _recent(layout: Layout, seen: _Seen, origins: IntArray, level: FloatArray) -> FloatArray:
    newest = origins[:, None] - 1 - np.arange(SHORT_LAGS)
    lags = np.where(newest >= 0, seen.x[np.maximum(newest, 0)], level[:, None])
    means = [seen.mean_before(origins, layout.day), seen.mean_before(origins, layout.week)]
    same = [seen.around(origins - layout.day, 0, level), seen.around(origins - layout.week, 0, level)]
    return np.concatenate([lags, np.stack(means + same, axis=1)], axis=1) - level[:, None]


def _targets(layout: Layout, seen: _Seen, origins: IntArray, level: FloatArray, horizon: int) -> FloatArray:
    ahead = np.arange(horizon)
    around = layout.smooth
    recent = np.broadcast_to(level[:, None], (len(origins), horizon))
    target = origins[:, None] + ahead
    back = _observed_lag(layout.day, ahead + around)
    daily = seen.around(target - back, around, recent)
    weekly = seen.around(target - _observed_lag(layout.week, ahead + around), around, recent)
    exact = seen.around(target - _observed_lag(layout.day, ahead), 0, recent)
    profile = daily.copy()
    for days in range(1, DAILY_LAGS):
        profile += seen.around(target - back - days * layout.day, around, recent)
    # Steps beyond those learnt get the features of the last learnt step, but with their own time.
    distance = np.broadcast_to(np.minimum((ahead + 1) / layout.horizon, 1.0), recent.shape)
    relative = [lagged - recent for lagged in (daily, weekly, exact, profile / DAILY_LAGS)]
    return np.stack([*relative, distance], axis=2)


def _observed_lag(lag: int, ahead: IntArray) -> IntArray:
    """The smallest multiple of `lag` that reaches back before the origin from `ahead` steps after it."""
    return lag * (ahead // lag + 1)


def _calendar(series: TimeSeries, places: IntArray) -> FloatArray:
    times = series.start + series.step * places.ravel().astype(np.float64)
    weekend = (day_of_week(times) >= 5).astype(np.float64)
    columns = np.concatenate([calendar_features(times), weekend[:, None]], axis=1)
    return columns.reshape(*places.shape, CALENDAR)
