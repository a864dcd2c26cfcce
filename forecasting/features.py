"""Inputs of networks and trees: values relative to a recent level, lags, the calendar.

All features are functions of an origin t and of the log1p counts before it, x[:t]; step h of H has the target
x[t + h]. Only a bounded number of last values matters, so features computed value by value and for all origins of a
series at once are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlpto.forecasting.series import DAY, HOUR, MONDAY, WEEK, TimeSeries, fourier
from rlpto.io.arrays import FloatArray, IntArray

DAILY_LAGS = 7
"""Number of days averaged to a daily profile."""

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
class Features:
    """Features of N origins: level [N]; recent [N, RECENT]; targets [N, H, TARGETS], all but the last column relative
    to the level, in log1p; calendar [N, CALENDAR] at the origin and ahead [N, H, CALENDAR] at the targets."""

    level: FloatArray
    recent: FloatArray
    targets: FloatArray
    calendar: FloatArray
    ahead: FloatArray


def describe(series: TimeSeries, origins: IntArray, horizon: int, learnt: int) -> Features:
    """Return features at N origins (1 to T) of a series for the next `horizon` steps, from the values before each.

    learnt: steps ahead that are learnt; later steps get the features of the last learnt step, but with their own time.
    """
    day, week, short = series.lag(DAY), series.lag(WEEK), max(3, series.lag(LEVEL_HOURS * HOUR))
    smooth = day // 48  # steps on either side that are averaged with a daily or weekly lag
    memory = max(week, DAILY_LAGS * day, SHORT_LAGS, short) + 2 * smooth + 2
    first = 0 if len(origins) > 1 else max(0, int(origins[0]) - memory)
    x = np.log1p(series.values[first : origins.max()])
    total, local, ahead = np.concatenate([[0.0], np.cumsum(x)]), origins - first, np.arange(horizon)
    level = _mean_before(total, local, short)

    newest = local[:, None] - 1 - np.arange(SHORT_LAGS)
    lags = np.where(newest >= 0, x[np.maximum(newest, 0)], level[:, None])
    means = [_mean_before(total, local, lag) for lag in (day, week)]
    same = [_mean_around(total, local - lag, 0, level) for lag in (day, week)]

    recent = np.broadcast_to(level[:, None], (len(local), horizon))
    target, back = local[:, None] + ahead, _observed_lag(day, ahead + smooth)
    daily = _mean_around(total, target - back, smooth, recent)
    weekly = _mean_around(total, target - _observed_lag(week, ahead + smooth), smooth, recent)
    exact = _mean_around(total, target - _observed_lag(day, ahead), 0, recent)
    profile = daily.copy()
    for days in range(1, DAILY_LAGS):
        profile += _mean_around(total, target - back - days * day, smooth, recent)
    distance = np.broadcast_to(np.minimum((ahead + 1) / learnt, 1.0), recent.shape)
    relative = [lagged - recent for lagged in (daily, weekly, exact, profile / DAILY_LAGS)]
    return Features(
        level,
        np.concatenate([lags, np.stack(means + same, axis=1)], axis=1) - level[:, None],
        np.stack([*relative, distance], axis=2),
        _calendar(series, origins),
        _calendar(series, origins[:, None] + ahead),
    )


def _mean_before(total: FloatArray, ends: IntArray, length: int) -> FloatArray:
    """Return the mean of up to `length` last values before each end (1 or more). total: [T + 1] cumulative sums."""
    starts = np.maximum(ends - length, 0)
    return (total[ends] - total[starts]) / (ends - starts)


def _mean_around(total: FloatArray, places: IntArray, reach: int, missing: FloatArray) -> FloatArray:
    """Return the mean over places - reach .. places + reach, or `missing` if this range begins before the series.
    total: [T + 1] cumulative sums."""
    known = places >= reach
    low = np.where(known, places - reach, 0)
    high = np.where(known, places + reach + 1, 1)
    return np.where(known, (total[high] - total[low]) / (high - low), missing)


def _observed_lag(lag: int, ahead: IntArray) -> IntArray:
    """Return the smallest multiple of `lag` that reaches back before the origin from `ahead` steps after it."""
    return lag * (ahead // lag + 1)


def _calendar(series: TimeSeries, places: IntArray) -> FloatArray:
    """Return [..., CALENDAR]: two harmonics of the hour of day, one of the day of week, and whether it is a weekend."""
    times = series.times(places.ravel())
    weekend = ((times - MONDAY) % WEEK / DAY >= 5).astype(np.float64)
    columns = np.concatenate([fourier(times, DAY, 2), fourier(times, WEEK, 1), weekend[:, None]], axis=1)
    return columns.reshape(*places.shape, CALENDAR)
