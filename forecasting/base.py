"""Common interface of forecasters: fit on counts, update with new counts, and predict the next ones."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from rlpto.forecasting.series import (
    LARGEST_COUNT,
    LATEST_SECONDS,
    MIN_POINTS,
    MOST_POINTS,
    STEP_SECONDS,
    ForecastError,
    TimeSeries,
    Values,
    as_series,
    checked_integer,
    is_dated,
)
from rlpto.forecasting.storage import State, write_state
from rlpto.io.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd


Counts: TypeAlias = "TimeSeries | pd.Series[Any] | Values"
"""Types of series that `as_series` accepts."""

SPREAD_LEVELS = np.concatenate([[0.005], np.arange(1, 100) / 100, [0.995]])
"""[L] quantile levels at which the spread of past errors is stored."""

SPREAD_HORIZON = 24
"""Steps ahead for which errors are stored; later steps are assumed to have the errors of the last one."""

SPREAD_ORIGINS = 1000
"""Most past forecasts from which the width of intervals is estimated."""

LARGEST_GROWTH = 2.0
"""No forecast, mean or quantile exceeds this many times the largest count of the fitted series and all later counts."""

LONGEST_HORIZON = 10_000
"""Most steps ahead in one forecast."""

NO_LEVELS = np.empty(0)
"""Empty levels, for forecasts without quantiles."""


@dataclass(frozen=True)
class SeriesForecast:
    """Forecast of the next H intervals, in counts per interval.

    point: [H] minimises absolute error, near the median. mean: [H] minimises squared error. levels: [Q] of quantiles,
    ascending; values: [H, Q]. step: length of an interval [s]. start: local time of the first interval [s since
    1970-01-01].
    """

    point: FloatArray
    mean: FloatArray
    levels: FloatArray
    values: FloatArray
    step: float
    start: float


@dataclass(frozen=True)
class Batch:
    """Forecasts from N origins: point and mean [N, H], quantiles [N, H, Q], all in counts."""

    point: FloatArray
    mean: FloatArray
    quantiles: FloatArray


class Forecaster:
    """A method of forecasting counts.

    Online: `fit`, then `update` with counts as they are observed, and `predict`. `batch` gives the same numbers for
    many origins of a series. Origin t is the moment at which y[:t] is known; its forecasts are for y[t], y[t + 1], ...

    A subclass defines training and state (`_fit`, `_state`, `_restore`), and `_points`, or `_batch` if it computes
    means and quantiles itself; also `_update` and `_predict` if these are quicker than a batch of one. It stores its
    constructor's arguments as attributes of the same names. All returned forecasts have passed `_bounded`.
    """

    def __init__(self) -> None:
        self._history: TimeSeries | None = None
        self._largest = 0.0  # largest count of the fitted series
        self._spread: FloatArray = np.zeros((len(SPREAD_LEVELS), SPREAD_HORIZON))

    def _points(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        """Return point forecasts [N, H] in counts, 0 or more, for N origins (1 to T), from the values before each."""
        return self._batch(series, origins, horizon, NO_LEVELS).point

    def batch(self, series: TimeSeries, origins: IntArray, horizon: int, levels: FloatArray = NO_LEVELS) -> Batch:
        """Return forecasts from origins [N], 1 to T, of a series with the fitted step, each from the values before it.

        levels: levels of the quantiles, ascending. Nothing is fitted again.
        """
        seen = np.maximum.accumulate(series.values)[origins - 1]
        return self._bounded(self._batch(series, origins, horizon, levels), levels, seen)

    def _batch(self, series: TimeSeries, origins: IntArray, horizon: int, levels: FloatArray) -> Batch:
        """Return the forecasts of `batch` before bounds are applied."""
        return self._around(self._points(series, origins, horizon), levels)

    def _fit(self, series: TimeSeries) -> None:
        """Train on a series."""

    def _update(self, new: TimeSeries) -> None:
        """Take in new counts, which are already at the end of the history."""

    def _predict(self, horizon: int, levels: FloatArray) -> Batch:
        """Forecast the counts after the history, as a batch of one, before bounds are applied."""
        series = self._observed()
        return self._batch(series, np.array([len(series)]), horizon, levels)

    def _state(self) -> State:
        """Return the learnt state, without settings and history."""
        return State()

    def _restore(self, state: State) -> None:
        """Restore the result of `_state`; the history is already set. Raises ForecastError if it is broken."""

    def settings(self) -> dict[str, Any]:
        """Arguments of the constructor, as JSON values."""
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def fit(self, y: Counts, step: float | str | None = None) -> Self:
        """Train on a series and store it as the history. Earlier training is discarded.

        y: [T] counts per interval: a pandas Series with a regular DatetimeIndex, a TimeSeries, or numbers with their
        `step` (seconds or '10min').

        Raises ForecastError if the series is broken or has fewer than MIN_POINTS points.
        """
        series = as_series(y, step, MIN_POINTS)
        self._history, self._largest = series, float(series.values.max())
        self._fit(series)
        self._spread = self._measure_spread(series)
        return self

    def update(self, new: Counts | float) -> Self:
        """Take in the counts that follow the history, without fitting again.

        new: one count, [n] numbers, or a pandas Series that starts where the history ends.

        Raises ForecastError if nothing was fitted, or the counts are broken or start elsewhere.
        """
        history = self._observed()
        if isinstance(new, int | float | np.number):
            new = [float(new)]
        series, end = as_series(new, history.step), history.start + len(history) * history.step
        if is_dated(new) and abs(series.start - end) > history.step / 1e3:
            expected = history.shown(len(history))
            raise ForecastError(f"update starts at {series.shown(0)}: expected {expected}, where the history ends")
        self.take_in(TimeSeries(series.values, history.step, end))
        return self

    def take_in(self, new: TimeSeries) -> None:
        """Do the work of `update` for checked counts."""
        history = self._observed()
        self._history = replace(history, values=np.concatenate([history.values, new.values]))
        self._update(new)

    def predict(self, horizon: int, quantiles: Sequence[float] = ()) -> SeriesForecast:
        """Forecast the counts after the history.

        horizon: intervals ahead, 1 to LONGEST_HORIZON. quantiles: levels in (0, 1), in any order.

        Raises ForecastError if nothing was fitted, or an argument is out of range.
        """
        series, levels = self._observed(), checked_levels(quantiles)
        found = self._predict(checked_integer("horizon", horizon, 1, LONGEST_HORIZON), levels)
        found = self._bounded(found, levels, series.values.max(keepdims=True))
        end = series.start + len(series) * series.step
        return SeriesForecast(found.point[0], found.mean[0], levels, found.quantiles[0], series.step, end)

    def moved(self, series: TimeSeries, updated: int) -> Self:
        """Return a copy of this forecaster with another series of the fitted step as its history.

        updated: number of last points, at least one, that the copy takes in with `update` to bring its state up to
        date; earlier points (at least one) are only its history.
        """
        head = series.head(len(series) - updated)
        other = copy.deepcopy(self)
        other._look_back_on(head)
        return other.update(series.values[len(head) :])

    def _look_back_on(self, history: TimeSeries) -> None:
        """Replace the fitted history by another of the same step."""
        self._history = history

    def save(self, path: str | Path) -> None:
        """Write settings, learnt state and history as one file. Raises ForecastError."""
        write_state(Path(path), type(self).__name__, self.state())

    def state(self) -> State:
        """Return everything that `save` writes. Raises ForecastError if nothing was fitted."""
        series = self._observed()
        state = State({"settings": self.settings(), "step": series.step, "start": series.start})
        state.values["largest"] = self._largest
        state.arrays.update({"history": series.values, "spread": self._spread})
        state.nested("learnt", self._state())
        return state

    @classmethod
    def from_state(cls, state: State, source: str) -> Self:
        """Restore a forecaster from a result of `state`. Raises ForecastError, naming `source`, if it is broken."""
        try:
            forecaster = cls(**state.values["settings"])
            history = state.array("history", (None,), LARGEST_COUNT)
            if not (1 <= len(history) <= MOST_POINTS and (history >= 0).all()):
                raise ForecastError(f"history of {len(history)} points: expected 1 to {MOST_POINTS:,}, each 0 or more")
            step, start = state.number("step", *STEP_SECONDS), state.number("start", -LATEST_SECONDS, LATEST_SECONDS)
            forecaster._history = TimeSeries(history, step, start)
            forecaster._largest = state.number("largest", 0, LARGEST_COUNT)
            forecaster._spread = state.array("spread", (len(SPREAD_LEVELS), SPREAD_HORIZON))
            forecaster._restore(state.part("learnt"))
        except ForecastError as wrong:
            raise ForecastError(f"{source}: {wrong}, in a saved {cls.__name__}") from None
        except (KeyError, TypeError, ValueError, IndexError) as wrong:
            raise ForecastError(f"{source}: broken, expected a saved {cls.__name__} ({wrong})") from None
        return forecaster

    def _observed(self) -> TimeSeries:
        """Return the history. Raises ForecastError if nothing was fitted."""
        if self._history is None:
            raise ForecastError(f"{type(self).__name__}: nothing fitted yet, call fit first")
        return self._history

    def _bounded(self, found: Batch, levels: FloatArray, seen: FloatArray) -> Batch:
        """Limit forecasts to LARGEST_GROWTH times the largest count seen, and points to lie between the quantiles.

        seen: [N] largest count before each origin. Raises ForecastError if a forecast is NaN.
        """
        if any(np.isnan(part).any() for part in (found.point, found.mean, found.quantiles)):
            raise ForecastError(f"{type(self).__name__} forecasts NaN: expected counts")
        most = LARGEST_GROWTH * np.maximum(seen, self._largest)[:, None]
        point, mean = (np.clip(part, 0.0, most) for part in (found.point, found.mean))
        quantiles, middle = np.clip(found.quantiles, 0.0, most[..., None]), point[..., None]
        quantiles = np.where(levels < 0.5, np.minimum(quantiles, middle), quantiles)
        quantiles = np.where(levels > 0.5, np.maximum(quantiles, middle), quantiles)
        return Batch(point, mean, np.maximum.accumulate(quantiles, axis=-1))  # interpolation rounds

    def _around(self, point: FloatArray, levels: FloatArray) -> Batch:
        """Add quantiles, from errors on the fitted series, to point forecasts [N, H], which serve as means too."""
        steps = np.minimum(np.arange(point.shape[1]), SPREAD_HORIZON - 1)
        shifts = np.stack([np.interp(levels, SPREAD_LEVELS, self._spread[:, step]) for step in steps])
        # expm1(log1p(point) + shift), without rounding errors if the shift is 0.
        quantiles = np.maximum(point[:, :, None] + (1 + point[:, :, None]) * np.expm1(shifts), 0.0)
        return Batch(point, point, quantiles)

    def _measure_spread(self, series: TimeSeries) -> FloatArray:
        """Return quantiles [L, SPREAD_HORIZON], at SPREAD_LEVELS, of log1p errors on a fitted series' newer half."""
        origins = np.arange(max(len(series) // 2, len(series) - SPREAD_ORIGINS, 2), len(series))
        horizon = min(SPREAD_HORIZON, max(1, len(series) // 4))
        predicted = self.batch(series, origins, horizon).point
        errors = np.log1p(targets(series.values, origins, horizon)) - np.log1p(predicted)
        spread = np.nanquantile(errors, SPREAD_LEVELS, axis=0)
        return np.pad(spread, ((0, 0), (0, SPREAD_HORIZON - horizon)), mode="edge")


def targets(values: FloatArray, origins: IntArray, horizon: int) -> FloatArray:
    """Return the counts [N, H] after each origin; NaN past the end of the series."""
    padded: FloatArray = np.concatenate([values, np.full(horizon, np.nan)])
    return np.asarray(padded[origins[:, None] + np.arange(horizon)])


def checked_levels(levels: Sequence[float] | FloatArray) -> FloatArray:
    """Return levels of quantiles in ascending order. Raises ForecastError."""
    try:
        checked = np.unique(np.asarray(levels, dtype=np.float64))
    except (ValueError, TypeError):
        raise ForecastError(f"quantiles {levels!r}: expected numbers between 0 and 1") from None
    if not ((checked > 0) & (checked < 1)).all():
        raise ForecastError(f"quantiles {', '.join(f'{q:g}' for q in checked)}: expected levels between 0 and 1")
    return checked
