"""Rolling-origin evaluation: forecasts from many moments of a series, each from what was known then."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlpto.forecasting.base import LONGEST_HORIZON, Batch, Counts, Forecaster, targets
from rlpto.forecasting.series import DAY, ForecastError, TimeSeries, as_series, checked_integer
from rlpto.io.arrays import FloatArray, IntArray

LEVELS = (0.1, 0.5, 0.9)
"""Of the quantiles that are forecast."""
NOMINAL = LEVELS[-1] - LEVELS[0]
"""Share of counts that should lie within the outermost ones."""
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

    series: all of it. origins: [N] points known. actual: [N, H] counts, NaN past the end. forecasts: by name, with
    quantiles at LEVELS. scale: the denominator of MASE [counts].
    """

    series: TimeSeries
    origins: IntArray
    actual: FloatArray
    forecasts: Mapping[str, Batch]
    scale: float

    @property
    def horizon(self) -> int:
        """Steps ahead."""
        return int(self.actual.shape[1])

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
        quantiles, levels = forecasts.quantiles[known, step], np.array(LEVELS)
        under = actual[:, None] - quantiles
        return (
            mae,
            math.sqrt(squared),
            mae / self.scale if self.scale > 0 else math.nan,
            1 - squared / spread if spread > 0 else math.nan,
            float(((actual >= quantiles[:, 0]) & (actual <= quantiles[:, -1])).mean()),
            float(np.maximum(levels * under, (levels - 1) * under).mean()),
        )


def backtest(
    forecasters: Mapping[str, Forecaster],
    y: Counts,
    *,
    horizon: int = 12,
    start: int | None = None,
    step: float | str | None = None,
    on_done: Callable[[str], None] | None = None,
) -> Backtest:
    """Forecast a series from every origin in its last part with fresh copies of the forecasters, fitted once.

    forecasters: by their name in tables; only their settings are used.
    y: [T] counts; plain numbers need `step`.
    start: first origin, in points; forecasters are fitted on the points before it. None: all but the last 20 %.
    on_done: called with the name of each forecaster that is done.

    Only steps whose counts are in the series are scored. Raises ForecastError.
    """
    series = as_series(y, step)
    first = len(series) - round(TEST_SHARE * len(series)) if start is None else start
    if not 1 <= first < len(series):
        raise ForecastError(f"start {first}: expected 1 to {len(series) - 1}, points before the first origin")
    checked_integer("horizon", horizon, 1, LONGEST_HORIZON)
    if not forecasters:
        raise ForecastError("no forecasters given, expected at least one")
    origins = np.arange(first, len(series))
    made = {}
    for name, forecaster in forecasters.items():
        fitted = type(forecaster)(**forecaster.settings()).fit(series.head(first))
        made[name] = fitted.batch_forecasts(series, origins, horizon, LEVELS)
        if on_done is not None:
            on_done(name)
    return Backtest(
        series=series,
        origins=origins,
        actual=targets(series.values, origins, horizon),
        forecasts=made,
        scale=_seasonal_error(series.head(first)),
    )


def _seasonal_error(series: TimeSeries) -> float:
    """Mean absolute error of the seasonal naive (24 h) within a series [counts]; of the naive if it is shorter."""
    season = series.lag(DAY)
    lag = season if len(series) > season else 1
    differences = np.abs(series.values[lag:] - series.values[:-lag])
    return float(differences.mean()) if len(differences) else math.nan
