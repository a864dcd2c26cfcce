"""The simple members: last count, average, smoothed level, and the count of a day or a week ago."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.signal import lfilter

from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.series import HOUR, ForecastError, TimeSeries
from rlpto.forecasting.storage import State
from rlpto.io.arrays import FloatArray, IntArray

LONGEST_HOURS = 24.0 * 366
"""Longest average, or season [h]."""


class Naive(Forecaster):
    """Forecasts the last count for all next intervals."""

    def _points(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        return _repeated(series.values[origins - 1], horizon)


class MovingAverage(Forecaster):
    """Forecasts the mean of the last `hours` hours, or of the whole history if it is shorter.

    hours: length of the average [h], rounded to whole steps, at least one.
    """

    def __init__(self, hours: float = 3.0) -> None:
        super().__init__()
        self.hours = _checked_hours(hours)

    def _points(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        length = series.lag(self.hours * HOUR)
        # Sums start just before the first origin, so one origin of a long history costs only one window.
        first = max(0, int(origins.min()) - length)
        sums = np.concatenate([[0.0], np.cumsum(series.values[first : origins.max()])])
        begins = np.maximum(origins - length, 0)
        means = (sums[origins - first] - sums[begins - first]) / (origins - begins)
        return _repeated(np.maximum(means, 0.0), horizon)


class SeasonalNaive(Forecaster):
    """Forecasts the counts of the same time one season earlier or, before a season has passed, the last count.

    hours: length of the season [h], such as 24 or 168.
    """

    def __init__(self, hours: float = 24.0) -> None:
        super().__init__()
        self.hours = _checked_hours(hours)

    def _points(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        season = series.lag(self.hours * HOUR)
        # Beyond one season ahead, the latest known season repeats.
        places = origins[:, None] - season + np.arange(horizon) % season
        return np.where(places >= 0, series.values[np.maximum(places, 0)], series.values[origins - 1][:, None])


class ExponentialSmoothing(Forecaster):
    """Forecasts an exponentially weighted mean of log1p counts.

    alpha: weight of the newest count, 0.001 to 1. Default: the weight with the least squared error one step ahead, in
    log1p, on the fitted series.
    """

    def __init__(self, alpha: float | None = None) -> None:
        super().__init__()
        if alpha is not None and not 0.001 <= alpha <= 1:
            raise ForecastError(f"alpha {alpha}: expected 0.001 to 1")
        self.alpha = alpha
        self._alpha = 1.0

    def _fit(self, series: TimeSeries) -> None:
        self._alpha = _best_alpha(np.log1p(series.values)) if self.alpha is None else self.alpha

    def _points(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        return _repeated(np.expm1(_levels(np.log1p(series.values), self._alpha)[origins - 1]), horizon)

    def _state(self) -> State:
        return State({"alpha": self._alpha})

    def _restore(self, state: State) -> None:
        self._alpha = state.number("alpha", 1e-3, 1.0)


def _repeated(values: FloatArray, horizon: int) -> FloatArray:
    """Return the same forecast for every step [N, H]."""
    return np.repeat(values[:, None], horizon, axis=1)


def _levels(logs: FloatArray, alpha: float) -> FloatArray:
    """Return the level [T] after each value. The first value is the first level."""
    return np.asarray(lfilter([alpha], [1.0, alpha - 1], logs, zi=[(1 - alpha) * logs[0]])[0])


def _best_alpha(logs: FloatArray) -> float:
    def cost(alpha: float) -> float:
        return float(np.square(logs[1:] - _levels(logs, alpha)[:-1]).mean())

    return float(minimize_scalar(cost, bounds=(0.01, 1.0), method="bounded").x)


def _checked_hours(hours: float) -> float:
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0 < hours <= LONGEST_HOURS:
        raise ForecastError(f"hours {hours!r}: expected above 0, at most {LONGEST_HOURS:g}")
    return float(hours)
