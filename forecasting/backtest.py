"""Rolling-origin evaluation: forecasts from many moments of a series, each from what was known then."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlpto.forecasting.base import LONGEST_HORIZON, Batch, Counts, Forecaster, targets
from rlpto.forecasting.series import DAY, MOST_POINTS, ForecastError, TimeSeries, as_series, checked_integer
from rlpto.io.arrays import FloatArray, IntArray

TEST_SHARE = 0.2
"""Default share of the series, at its end, whose origins are scored."""


@dataclass(frozen=True)
class Score:
    """How good one forecaster was at one distance, or on average over all of them.

    forecaster: its name. ahead: steps, `1`, or `1-12` for the mean over steps 1 to 12.
    mae [counts]: mean absolute error of the point forecasts. rmse [counts], r2: of the means; r2
    against the mean of the scored counts. mase: mae over the mean absolute error of the seasonal
    naive (24 h) on the part before the first origin. coverage: share of counts within the outermost
    quantiles. pinball [counts]: mean quantile loss over the levels. NaN where a figure has no meaning.
    """

    forecaster: str
    ahead: str
    mae: float
    rmse: float
    mase: float
    r2: float
    coverage: float
    pinball: float


@dataclass(frozen=True)
class Backtest:
    """Forecasts of a series from N origins by one or more forecasters, and what came.

    series: all of it. origins: [N] points known. levels: [Q]. actual: [N, H] counts, NaN past the end.
    forecasts: by name. scale: the denominator of MASE [counts]. fitted: the forecasters, as last fitted.
    """

    series: TimeSeries
    origins: IntArray
    levels: FloatArray
    actual: FloatArray
    forecasts: Mapping[str, Batch]
    scale: float
    fitted: Mapping[str, Forecaster]

    @property
    def horizon(self) -> int:
        """Steps ahead."""
        return int(self.actual.shape[1])

    @property
    def nominal(self) -> float:
        """Share of counts that should lie within the outermost quantiles; NaN with fewer than two levels."""
        return float(self.levels[-1] - self.levels[0]) if len(self.levels) > 1 else math.nan

    def scores(self) -> list[Score]:
        """First and last step, then the mean over all steps, for every forecaster in turn."""
        last = self.horizon
        distances = [(str(step), [step - 1]) for step in sorted({1, last})]
        if last > 1:
            distances.append((f"1-{last}", list(range(last))))
        return [self.score(name, ahead, steps) for name in self.forecasts for ahead, steps in distances]

    def score(self, name: str, ahead: str, steps: Sequence[int]) -> Score:
        """The figures of one forecaster over some steps (0 is one step ahead): means of those of each step that has
        them."""
        each = np.array([self._figures(self.forecasts[name], step) for step in steps])
        known = [column[~np.isnan(column)] for column in each.T]
        return Score(name, ahead, *(float(figures.mean()) if len(figures) else math.nan for figures in known))

    def errors_by_step(self, name: str) -> FloatArray:
        """[H] mean absolute error at each distance [counts]."""
        return np.array([self._figures(self.forecasts[name], step)[0] for step in range(self.horizon)])

    def _figures(self, forecasts: Batch, step: int) -> tuple[float, ...]:
        """mae, rmse, mase, r2, coverage, pinball at one distance."""
        known = ~np.isnan(self.actual[:, step])
        if not known.any():
            return (math.nan,) * 6
        actual = self.actual[known, step]
        mae = float(np.abs(forecasts.point[known, step] - actual).mean())
        squared = float(np.square(forecasts.mean[known, step] - actual).mean())
        spread = float(actual.var())
        quantiles = forecasts.quantiles[known, step]
        under, several = actual[:, None] - quantiles, len(self.levels) > 1
        return (
            mae,
            math.sqrt(squared),
            mae / self.scale if self.scale > 0 else math.nan,
            1 - squared / spread if spread > 0 else math.nan,
            float(((actual >= quantiles[:, 0]) & (actual <= quantiles[:, -1])).mean()) if several else math.nan,
            float(np.maximum(self.levels * under, (self.levels - 1) * under).mean()) if len(self.levels) else math.nan,
        )


def backtest(
    forecasters: Mapping[str, Forecaster],
    y: Counts,
    *,
    horizon: int = 12,
    start: int | None = None,
    step_size: int = 1,
    windows: int | None = None,
    refit: int | None = None,
    quantiles: Sequence[float] = (0.1, 0.5, 0.9),
    step: float | str | None = None,
    on_done: Callable[[str], None] | None = None,
) -> Backtest:
    """Forecast a series from every `step_size`-th origin with fresh copies of the forecasters.

    forecasters: by their name in tables; only their settings are used.
    y: [T] counts; plain numbers need `step`.
    start: first origin, in points; forecasters are fitted on the points before it. None: all but the last 20 %.
    windows: most origins, counted from the first. None: all.
    refit: number of origins after which to fit again on all that is known by then. None: never, only filter.
    on_done: called with the name of each forecaster that is done.

    Only steps whose counts are in the series are scored. Raises ForecastError.
    """
    series = as_series(y, step)
    first = len(series) - round(TEST_SHARE * len(series)) if start is None else start
    if not 1 <= first < len(series):
        raise ForecastError(f"start {first}: expected 1 to {len(series) - 1}, points before the first origin")
    for name, value in (("step_size", step_size), ("windows", windows), ("refit", refit)):
        if value is not None:
            checked_integer(name, value, 1, MOST_POINTS)
    checked_integer("horizon", horizon, 1, LONGEST_HORIZON)
    if not forecasters:
        raise ForecastError("no forecasters given, expected at least one")
    origins = np.arange(first, len(series), step_size)[:windows]
    levels = np.unique(np.asarray(quantiles, dtype=np.float64))
    made, fitted = {}, {}
    for name, forecaster in forecasters.items():
        made[name], fitted[name] = _forecasts(forecaster, series, origins, horizon, refit, levels)
        if on_done is not None:
            on_done(name)
    return Backtest(
        series=series,
        origins=origins,
        levels=levels,
        actual=targets(series.values, origins, horizon),
        forecasts=made,
        scale=_seasonal_error(series.head(first)),
        fitted=fitted,
    )


def _forecasts(
    forecaster: Forecaster,
    series: TimeSeries,
    origins: IntArray,
    horizon: int,
    refit: int | None,
    levels: FloatArray,
) -> tuple[Batch, Forecaster]:
    """Forecasts from all origins, and the forecaster as last fitted."""
    pieces = []
    size = len(origins) if refit is None else refit
    for begin in range(0, len(origins), size):
        some = origins[begin : begin + size]
        fitted = type(forecaster)(**forecaster.settings()).fit(series.head(int(some[0])))
        pieces.append(fitted.batch_forecasts(series, some, horizon, levels.tolist()))
    made = Batch(
        np.concatenate([piece.point for piece in pieces]),
        np.concatenate([piece.mean for piece in pieces]),
        np.concatenate([piece.quantiles for piece in pieces]),
    )
    return made, fitted


def _seasonal_error(series: TimeSeries) -> float:
    """Mean absolute error of the seasonal naive (24 h) within a series [counts]; of the naive if it is shorter."""
    season = series.lag(DAY)
    lag = season if len(series) > season else 1
    differences = np.abs(series.values[lag:] - series.values[:-lag])
    return float(differences.mean()) if len(differences) else math.nan
