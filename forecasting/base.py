"""What every forecaster can do: learn from counts, take in new ones, and say what comes next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np

from rlpto.forecasting.errors import ForecastError
from rlpto.forecasting.history import History
from rlpto.forecasting.series import MIN_POINTS, FloatArray, Gaps, IntArray, TimeSeries, Values, as_series, is_dated
from rlpto.forecasting.storage import State, read_state, write_state

if TYPE_CHECKING:
    import pandas as pd

    from rlpto.forecasting.backtest import Backtest

Counts: TypeAlias = "TimeSeries | pd.Series[Any] | Values"
"""A series as users hold it; see `as_series`."""

SPREAD_LEVELS = np.concatenate([[0.005], np.arange(1, 100) / 100, [0.995]])
"""[L] levels at which the spread of past errors is kept."""

SPREAD_HORIZON = 24
"""Steps ahead for which errors are kept; those of later steps are taken to be like the last one's."""

SPREAD_ORIGINS = 1000
"""At most so many past forecasts tell how wide intervals are."""


@dataclass(frozen=True)
class Forecast:
    """What comes next, H intervals ahead, in counts per interval.

    point: [H] meant for absolute error, near the median.
    mean: [H] meant for squared error.
    levels: [Q] of the quantiles, ascending.
    values: [H, Q] quantiles, ascending along Q.
    step: length of an interval [s]. start: local time of the first one [s since 1970-01-01].
    """

    point: FloatArray
    mean: FloatArray
    levels: FloatArray
    values: FloatArray
    step: float
    start: float

    def quantile(self, level: float) -> FloatArray:
        """[H] one of the quantiles. Raises ForecastError if it was not asked for."""
        at = np.flatnonzero(np.isclose(self.levels, level))
        if not len(at):
            raise ForecastError(f"quantile {level:g}: expected one of {', '.join(f'{q:g}' for q in self.levels)}")
        return self.values[:, at[0]]

    @property
    def index(self) -> pd.DatetimeIndex:
        """[H] local starts of the intervals."""
        return TimeSeries(self.point, self.step, self.start).index()


@dataclass(frozen=True)
class Batch:
    """Forecasts from N origins: point and mean [N, H], quantiles [N, H, Q], all in counts."""

    point: FloatArray
    mean: FloatArray
    quantiles: FloatArray


class Forecaster(ABC):
    """A method of forecasting counts; the base of all of them.

    Online: `fit`, then `update` with counts as they are observed, and `predict`. In a batch:
    `forecasts` gives the same numbers for many origins of a series at once. Origin t is the moment
    at which y[:t] is known: its forecasts are of y[t], y[t + 1] and so on. Nothing is fitted again.

    A new method defines `kind`, `settings` (its constructor's arguments), `_fit`, `_forecasts`,
    `_state` and `_restore`, and where that is quicker than a batch of one, `_update` and `_predict`.
    """

    kind: ClassVar[str]
    """Name, in tables and in files."""

    uses_covariates: ClassVar[bool] = False
    """Whether covariates other than the calendar may be given."""

    def __init__(self) -> None:
        self._history = History()
        self._spread: FloatArray | None = None

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Arguments of the constructor, as JSON values."""

    @abstractmethod
    def _fit(self, series: TimeSeries, covariates: FloatArray | None) -> None:
        """Learn from [T] counts and [T, K] covariates."""

    @abstractmethod
    def _forecasts(
        self, series: TimeSeries, origins: IntArray, horizon: int, covariates: FloatArray | None
    ) -> FloatArray:
        """[N, H] point forecasts in counts, 0 or more, for N origins (1 to T), from series.values[:origin] only."""

    @abstractmethod
    def _state(self) -> State:
        """What was learnt, without settings and history."""

    @abstractmethod
    def _restore(self, state: State) -> None:
        """Take over what `_state` gave; the history is already there."""

    def _mean_forecasts(
        self, series: TimeSeries, origins: IntArray, horizon: int, covariates: FloatArray | None
    ) -> FloatArray:
        """[N, H] forecasts meant for squared error; the point forecasts if there is nothing better."""
        return self._forecasts(series, origins, horizon, covariates)

    def _quantile_forecasts(
        self, series: TimeSeries, origins: IntArray, horizon: int, levels: FloatArray, covariates: FloatArray | None
    ) -> FloatArray:
        """[N, H, Q] quantiles in counts: point forecasts with the errors of the fitted series around them."""
        return self._quantiles(self._forecasts(series, origins, horizon, covariates), levels)

    def _batch_forecasts(
        self, series: TimeSeries, origins: IntArray, horizon: int, levels: FloatArray, covariates: FloatArray | None
    ) -> Batch:
        """All three; for methods that find them in one go."""
        return Batch(
            self._forecasts(series, origins, horizon, covariates),
            self._mean_forecasts(series, origins, horizon, covariates),
            self._quantile_forecasts(series, origins, horizon, levels, covariates),
        )

    def _update(self, values: FloatArray, covariates: FloatArray | None) -> None:  # noqa: B027
        """Take in [n] new counts; the history already ends with them."""

    def _predict(self, horizon: int, levels: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """[H] point forecasts, [H] means and [H, Q] quantiles that follow the history: a batch of one."""
        series, covariates = self._observed()
        origins = np.array([len(series)])
        point = self._forecasts(series, origins, horizon, covariates)[0]
        # Members of a combination are asked at every step: what is not wanted, or the same, is not computed.
        same = type(self)._mean_forecasts is Forecaster._mean_forecasts
        mean = point if same else self._mean_forecasts(series, origins, horizon, covariates)[0]
        if not len(levels):
            return point, mean, np.empty((horizon, 0))
        return point, mean, self._quantile_forecasts(series, origins, horizon, levels, covariates)[0]

    def _calibration_origins(self, series: TimeSeries) -> IntArray:
        """Origins of the fitted series whose errors tell how wide intervals are."""
        first = max(len(series) // 2, len(series) - SPREAD_ORIGINS, 2)
        return np.arange(first, len(series))

    def fit(
        self,
        y: Counts,
        covariates: Values | None = None,
        *,
        step: float | str | None = None,
        start: Any = None,
        gaps: Gaps = "refuse",
    ) -> Self:
        """Learn from a series and remember it as the history; what was learnt before is forgotten.

        y: [T] counts per interval: a pandas Series with a regular DatetimeIndex, a TimeSeries, or
            numbers together with their `step` (seconds or '10min') and, if known, their local `start`.
        covariates: [T, K] numbers known once their interval is over; the calendar is always there.
        gaps: what becomes of NaN and of missing intervals: refuse, zero or previous.

        Raises ForecastError if the series is broken or has fewer than MIN_POINTS points.
        """
        series = as_series(y, step, start, gaps, min_points=MIN_POINTS)
        given = self._checked_covariates(covariates, len(series))
        self._history = History(series, given)
        self._spread = None
        self._fit(series, given)
        self._spread = self._measure_spread(series, given)
        return self

    def update(self, new: Counts | float, covariates: Values | None = None, *, gaps: Gaps = "refuse") -> Self:
        """Take in the counts that follow the history, without fitting again.

        new: one count, [n] numbers, or a pandas Series that starts where the history ends.

        Raises ForecastError if nothing was fitted, or the counts are broken or start elsewhere.
        """
        history, _ = self._observed()
        series = self._following(history, new, gaps)
        self.take_in(series.values, self._checked_covariates(covariates, len(series), self._history.columns))
        return self

    def take_in(self, values: FloatArray, covariates: FloatArray | None) -> None:
        """What `update` does with [n] counts and [n, K] covariates that are known to be sound."""
        self._history.append(values, covariates)
        self._update(values, covariates)

    def predict(self, horizon: int, quantiles: Sequence[float] = ()) -> Forecast:
        """What follows the history.

        horizon: intervals ahead, 1 or more. quantiles: levels in (0, 1), in any order.

        Raises ForecastError if nothing was fitted, or an argument is out of range.
        """
        series, _ = self._observed()
        levels = _checked_levels(quantiles)
        point, mean, values = self._predict(_checked_horizon(horizon), levels)
        return Forecast(point, mean, levels, values, series.step, series.start + len(series) * series.step)

    def forecasts(self, y: Counts, origins: Values, horizon: int, covariates: Values | None = None) -> FloatArray:
        """[N, H] point forecasts for N origins of a series, each from y[:origin] only; nothing is fitted again.

        y: [T] counts of the fitted step; plain numbers start where the fitted series started.
        origins: [N] integers, 1 to T. covariates: [T, K] as for `fit`.

        The numbers are those of `predict` after `update` up to the origin. Raises ForecastError.
        """
        return self._forecasts(*self._batch(y, origins, horizon, covariates))

    def mean_forecasts(self, y: Counts, origins: Values, horizon: int, covariates: Values | None = None) -> FloatArray:
        """[N, H] as `forecasts`, but meant for squared error."""
        return self._mean_forecasts(*self._batch(y, origins, horizon, covariates))

    def quantile_forecasts(
        self, y: Counts, origins: Values, horizon: int, levels: Sequence[float], covariates: Values | None = None
    ) -> FloatArray:
        """[N, H, Q] as `forecasts`, but quantiles at ascending levels in (0, 1)."""
        series, checked, steps, given = self._batch(y, origins, horizon, covariates)
        return self._quantile_forecasts(series, checked, steps, _checked_levels(levels), given)

    def batch_forecasts(
        self, y: Counts, origins: Values, horizon: int, levels: Sequence[float], covariates: Values | None = None
    ) -> Batch:
        """What `forecasts`, `mean_forecasts` and `quantile_forecasts` give, at the cost of one of them."""
        series, checked, steps, given = self._batch(y, origins, horizon, covariates)
        return self._batch_forecasts(series, checked, steps, _checked_levels(levels), given)

    def backtest(
        self,
        y: Counts,
        *,
        horizon: int = 12,
        start: int | None = None,
        step_size: int = 1,
        windows: int | None = None,
        refit: int | None = None,
        quantiles: Sequence[float] = (0.1, 0.5, 0.9),
        covariates: Values | None = None,
        step: float | str | None = None,
    ) -> Backtest:
        """Forecast a series from many origins, as `backtest.backtest` does; this object stays as it is."""
        from rlpto.forecasting.backtest import backtest

        return backtest(
            {self.kind: self},
            y,
            step=step,
            horizon=horizon,
            start=start,
            step_size=step_size,
            windows=windows,
            refit=refit,
            quantiles=quantiles,
            covariates=covariates,
        )

    def fresh(self) -> Self:
        """Another forecaster of the same settings that has learnt nothing."""
        return type(self)(**self.settings())

    def moved(self, y: TimeSeries, told: int = 0) -> Self:
        """Another forecaster that has learnt what this one has, with another series as its history.

        y: of the fitted step, 1 point or more. told: so many of its last points are told to the other one count by
        count, as `update` does, which brings up to date what it keeps in mind; the others are only looked back on.

        Raises ForecastError if nothing was fitted, or the series is broken, of another step, or no longer than told.
        """
        history, covariates = self._observed()
        if covariates is not None:
            raise ForecastError(f"{self.kind}: fitted with covariates, expected a model without them to move")
        series = as_series(y)
        if abs(series.step - history.step) > history.step / 1e6:
            raise ForecastError(f"series of {series.step:g} s a step: expected {history.step:g} s")
        if not 0 <= told < len(series):
            raise ForecastError(f"told {told}: expected 0 to {len(series) - 1}, less than the points of the series")
        head = series.head(len(series) - told)
        other = self.from_state(self.state().looking_back_on(head.values, head.start), self.kind)
        return other.update(series.values[len(head) :]) if told else other

    def save(self, path: str | Path) -> None:
        """Write settings, what was learnt and the history as one file. Raises ForecastError."""
        write_state(Path(path), self.kind, self.state())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. Raises ForecastError if it is broken, foreign or of another kind."""
        kind, state = read_state(Path(path))
        if kind != cls.kind:
            raise ForecastError(f"{path}: a forecaster of kind {kind}, expected {cls.kind}")
        return cls.from_state(state, str(path))

    def state(self) -> State:
        """Everything that `save` keeps. Raises ForecastError if nothing was fitted."""
        series, covariates = self._observed()
        state = State({"settings": self.settings(), "step": series.step, "start": series.start})
        state.arrays["history"] = series.values
        state.arrays["spread"] = self._fitted_spread()
        if covariates is not None:
            state.arrays["covariates"] = covariates
        state.nested("learnt", self._state())
        return state

    @classmethod
    def from_state(cls, state: State, source: str) -> Self:
        """A forecaster as `state` described it. Raises ForecastError, naming `source`, if that is broken."""
        try:
            forecaster = cls(**state.values["settings"])
            series = TimeSeries(state.arrays["history"], state.values["step"], state.values["start"])
            forecaster._history = History(series, state.arrays.get("covariates"))
            forecaster._spread = state.arrays["spread"]
            forecaster._restore(state.part("learnt"))
        except (KeyError, TypeError, ValueError, IndexError) as wrong:
            raise ForecastError(f"{source}: broken, expected a saved {cls.kind} ({wrong})") from None
        return forecaster

    def _observed(self) -> tuple[TimeSeries, FloatArray | None]:
        """The history: [T] counts, and [T, K] covariates if there are any."""
        if self._history.series is None:
            raise ForecastError(f"{self.kind}: nothing fitted yet, call fit first")
        return self._history.series, self._history.covariates

    def _fitted_spread(self) -> FloatArray:
        if self._spread is None:
            raise ForecastError(f"{self.kind}: nothing fitted yet, call fit first")
        return self._spread

    def _quantiles(self, point: FloatArray, levels: FloatArray) -> FloatArray:
        """[N, H, Q] quantiles around [N, H] point forecasts, as wide as the errors on the fitted series."""
        return spread_quantiles(point, self._fitted_spread(), levels)

    def _measure_spread(self, series: TimeSeries, covariates: FloatArray | None) -> FloatArray:
        """[L, SPREAD_HORIZON] quantiles, at SPREAD_LEVELS, of errors in log1p on the fitted series."""
        origins = self._calibration_origins(series)
        horizon = min(SPREAD_HORIZON, max(1, len(series) // 4))
        predicted = self._forecasts(series, origins, horizon, covariates)
        errors = np.log1p(targets(series.values, origins, horizon)) - np.log1p(predicted)
        spread = np.nanquantile(errors, SPREAD_LEVELS, axis=0)
        return np.pad(spread, ((0, 0), (0, SPREAD_HORIZON - horizon)), mode="edge")

    def _batch(
        self, y: Counts, origins: Values, horizon: int, covariates: Values | None
    ) -> tuple[TimeSeries, IntArray, int, FloatArray | None]:
        """Checked arguments of the batched methods."""
        history, _ = self._observed()
        series = as_series(y, history.step)
        if not is_dated(y):
            series = TimeSeries(series.values, series.step, history.start)
        given = self._checked_covariates(covariates, len(series), self._history.columns)
        return series, _checked_origins(origins, len(series)), _checked_horizon(horizon), given

    def _checked_covariates(self, covariates: Values | None, points: int, columns: int | None = None) -> Any:
        """[T, K] covariates; K must be `columns` if that is given."""
        if covariates is None:
            if columns:
                raise ForecastError(f"covariates missing: {self.kind} was fitted with {columns} columns of them")
            return None
        if not self.uses_covariates:
            raise ForecastError(f"{self.kind} forecasts take no covariates, expected none")
        given = np.asarray(covariates, dtype=np.float64)
        expected = f"({points}, {'K' if columns is None else columns})"
        if given.ndim != 2 or len(given) != points or (columns is not None and given.shape[1] != columns):
            raise ForecastError(f"covariates of shape {given.shape}: expected {expected}")
        if not np.isfinite(given).all():
            raise ForecastError("covariates: expected finite numbers")
        return given

    def _following(self, history: TimeSeries, new: Counts | float, gaps: Gaps) -> TimeSeries:
        """New counts as a series that starts where the history ends."""
        end = history.start + len(history) * history.step
        if isinstance(new, int | float | np.number):
            new = [float(new)]
        series = as_series(new, history.step, gaps=gaps)
        if is_dated(new) and abs(series.start - end) > history.step / 1e3:
            expected = TimeSeries(history.values, history.step, end).index(0, 1)[0]
            raise ForecastError(
                f"update starts at {series.index(0, 1)[0]}: expected {expected}, where the history ends"
            )
        return TimeSeries(series.values, history.step, end)


def targets(values: FloatArray, origins: IntArray, horizon: int) -> FloatArray:
    """[N, H] what came after each origin; NaN where the series ends before."""
    padded: FloatArray = np.concatenate([values, np.full(horizon, np.nan)])
    following: FloatArray = padded[origins[:, None] + np.arange(horizon)]
    return following


def spread_quantiles(point: FloatArray, spread: FloatArray, levels: FloatArray) -> FloatArray:
    """[N, H, Q] quantiles in counts around [N, H] point forecasts.

    spread: [L, S] quantiles of errors in log1p at SPREAD_LEVELS, for 1 to S steps ahead.
    """
    horizon = point.shape[1]
    steps = np.minimum(np.arange(horizon), spread.shape[1] - 1)
    if not len(levels):
        return np.empty((*point.shape, 0))
    shifts = np.stack([np.interp(levels, SPREAD_LEVELS, spread[:, step]) for step in steps])
    # expm1(log1p(point) + shift), without rounding where the shift is 0.
    return np.maximum(point[:, :, None] + (1 + point[:, :, None]) * np.expm1(shifts), 0.0)


def load(path: str | Path) -> Forecaster:
    """Read a forecaster of whatever kind. Raises ForecastError if the file is broken or foreign."""
    from rlpto.forecasting.registry import forecaster_class

    kind, state = read_state(Path(path))
    return forecaster_class(kind, f"{path}: ").from_state(state, str(path))


def _checked_horizon(horizon: int) -> int:
    if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 1:
        raise ForecastError(f"horizon {horizon!r}: expected an integer, 1 or more")
    return int(horizon)


def _checked_levels(levels: Sequence[float]) -> FloatArray:
    if not len(levels):
        return np.empty(0)
    checked = np.unique(np.asarray(levels, dtype=np.float64))
    if not ((checked > 0) & (checked < 1)).all():
        raise ForecastError(f"quantiles {', '.join(f'{q:g}' for q in checked)}: expected levels between 0 and 1")
    return checked


def _checked_origins(origins: Values, points: int) -> IntArray:
    checked = np.asarray(origins)
    if checked.ndim != 1 or not (np.issubdtype(checked.dtype, np.integer) or not len(checked)):
        raise ForecastError("origins: expected a list of integers")
    if len(checked) and (checked.min() < 1 or checked.max() > points):
        raise ForecastError(f"origins {checked.min()} to {checked.max()}: expected 1 to {points}")
    return checked.astype(np.int64)
