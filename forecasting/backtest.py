"""Rolling-origin evaluation: forecast a series from many origins, each from earlier counts only; report the errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rlpto.forecasting.base import Batch, Forecaster, targets
from rlpto.forecasting.series import DAY, HOUR, ForecastError, TimeSeries
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.files import whole_file

LEVELS = (0.1, 0.5, 0.9)
"""Levels of the forecast quantiles."""
NOMINAL = LEVELS[-1] - LEVELS[0]
"""Share of counts that should lie within the outermost quantiles."""
MOST_FORECASTS = 50_000_000
"""Largest number of forecasts: origins times steps ahead."""
SHOWN_DAYS = 7.0
"""Days at the end of a backtest that are plotted."""
STYLES = ("-", "--", ":", "-.")
INK, LINE = "#1f2933", "#2f6db5"


@dataclass(frozen=True)
class Score:
    """Accuracy of one forecaster at one distance, or on average over all distances.

    forecaster: its name. ahead: steps, `1`, or `1-12` for the mean over steps 1 to 12.
    mae [counts]: mean absolute error of the point forecasts. rmse [counts], r2: root mean squared error of the mean
    forecasts, and 1 - its square over the variance of the scored counts. mase: mae over the mean absolute error of the
    seasonal naive forecast (24 h) on the part before the first origin. coverage: share of counts within the outermost
    quantiles. pinball [counts]: mean quantile loss over the levels. A figure that is undefined is NaN.
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
    """Forecasts of a series from N origins by one or more forecasters, and the actual counts.

    series: the whole series. origins: [N] number of points known at each origin. actual: [N, H] counts, NaN past the
    end. forecasts: forecasts of each forecaster by name, with quantiles at LEVELS. scale: denominator of MASE [counts].
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
        """Return the scores of every forecaster at the first and last step, then as mean over all steps."""
        last = self.horizon
        distances = [(str(step), [step - 1]) for step in sorted({1, last})]
        if last > 1:
            distances.append((f"1-{last}", list(range(last))))
        return [self.score(name, ahead, steps) for name in self.forecasts for ahead, steps in distances]

    def score(self, name: str, ahead: str, steps: Sequence[int]) -> Score:
        """Return the figures of one forecaster, averaged over the steps at which they are defined (0 is one step
        ahead)."""
        each = np.array([self._figures(self.forecasts[name], step) for step in steps])
        known = [column[~np.isnan(column)] for column in each.T]
        return Score(name, ahead, *(float(figures.mean()) if len(figures) else math.nan for figures in known))

    def errors_by_step(self, name: str) -> FloatArray:
        """Return the mean absolute error [H] at each distance [counts]."""
        return np.array([self._figures(self.forecasts[name], step)[0] for step in range(self.horizon)])

    def _figures(self, forecasts: Batch, step: int) -> tuple[float, ...]:
        """Return mae, rmse, mase, r2, coverage, pinball at one distance."""
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
    series: TimeSeries,
    horizon: int,
    start: int,
    on_done: Callable[[str], None] | None = None,
) -> Backtest:
    """Forecast a series from every origin from `start` on. Fresh copies of the forecasters are fitted once, to the
    points before `start`.

    forecasters: by their name in tables; only their settings are used. on_done: called with the name of each finished
    forecaster. Only steps whose counts are in the series are scored. Raises ForecastError.
    """
    if len(series) < 2:
        raise ForecastError(f"series of {len(series)} points: expected 2 or more, to forecast the last from the others")
    if not 1 <= start < len(series):
        raise ForecastError(f"start {start}: expected 1 to {len(series) - 1}, points before the first origin")
    origins, before, made = np.arange(start, len(series)), series.head(start), {}
    if len(origins) * horizon > MOST_FORECASTS:
        raise ForecastError(f"{len(origins)} origins, {horizon} steps: expected {MOST_FORECASTS:g} forecasts at most")
    for name, forecaster in forecasters.items():
        fitted = type(forecaster)(**forecaster.settings()).fit(before)
        made[name] = fitted.batch(series, origins, horizon, np.array(LEVELS))
        if on_done is not None:
            on_done(name)
    return Backtest(series, origins, targets(series.values, origins, horizon), made, _seasonal_error(before))


def _seasonal_error(series: TimeSeries) -> float:
    """Return the mean absolute error of the seasonal naive forecast (24 h) within a series [counts]; if the series is
    shorter than a day, the error of the naive forecast."""
    season = series.lag(DAY)
    lag = season if len(series) > season else 1
    differences = np.abs(series.values[lag:] - series.values[:-lag])
    return float(differences.mean()) if len(differences) else math.nan


def write_report(result: Backtest, folder: Path) -> None:
    """Write scores.csv, forecasts.csv (the first and the last step ahead) and plots into a folder.

    errors.png shows all forecasters, forecasts.png `hybrid` or, without it, the first one. Raises ForecastError.
    """
    forecasts = []
    for name, made in result.forecasts.items():
        for ahead in sorted({1, result.horizon}):
            times = result.series.index(result.origins + ahead - 1)
            figures = {"actual": result.actual, "point": made.point, "mean": made.mean}
            figures |= {f"q{level:g}": made.quantiles[..., place] for place, level in enumerate(LEVELS)}
            columns = {column: figure[:, ahead - 1] for column, figure in figures.items()}
            forecasts.append(pd.DataFrame({"forecaster": name, "ahead": ahead, "time": times.map(str), **columns}))
    tables = {"scores": pd.DataFrame([asdict(score) for score in result.scores()]), "forecasts": pd.concat(forecasts)}
    for what, table in tables.items():
        with whole_file(folder / f"{what}.csv", what, ForecastError) as unfinished:
            table.to_csv(unfinished, index=False, na_rep="nan", lineterminator="\n")
    best = "hybrid" if "hybrid" in result.forecasts else next(iter(result.forecasts))
    for name, figure in {"forecasts": _forecasts_figure(result, best), "errors": _errors_figure(result)}.items():
        with whole_file(folder / f"{name}.png", "the plot", ForecastError) as unfinished:
            figure.savefig(unfinished, format="png", dpi=120)


def _forecasts_figure(result: Backtest, name: str) -> Figure:
    """Plot the last days of one forecaster with its interval, one step and all steps ahead."""
    steps = sorted({1, result.horizon})
    figure = _figure(4.2 * len(steps))
    panels = figure.subplots(len(steps), 1, sharex=True, squeeze=False)[:, 0]
    made, step = result.forecasts[name], result.series.step
    shown = result.origins >= result.origins[-1] - result.series.lag(SHOWN_DAYS * DAY)
    for axes, ahead in zip(panels, steps, strict=True):
        days = (result.origins[shown] + ahead - 1 - result.origins[0]) * step / DAY
        low, high = made.quantiles[shown, ahead - 1, 0], made.quantiles[shown, ahead - 1, -1]
        axes.fill_between(days, low, high, color=LINE, alpha=0.2, lw=0, label=f"{NOMINAL:.0%} interval")
        axes.plot(days, result.actual[shown, ahead - 1], color=INK, lw=0.8, label="actual")
        axes.plot(days, made.point[shown, ahead - 1], color=LINE, lw=1.2, label="forecast")
        axes.set(ylabel="counts per interval", ylim=(0, None), title=f"{ahead * step / HOUR:g} h ahead")
        axes.set_xlabel("days of the test part")
    panels[0].legend(loc="upper left", ncols=3, frameon=False)
    figure.suptitle(f"{name}: forecast against actual")
    return figure


def _errors_figure(result: Backtest) -> Figure:
    """Plot the mean absolute error of every forecaster by distance."""
    figure = _figure(5.0)
    axes = figure.subplots()
    hours = np.arange(1, result.horizon + 1) * result.series.step / HOUR
    for place, name in enumerate(result.forecasts):
        style = STYLES[place // 10 % len(STYLES)]
        axes.plot(hours, result.errors_by_step(name), f"o{style}", color=f"C{place % 10}", markersize=3, label=name)
    axes.set(xlabel="hours ahead", ylabel="mean absolute error [counts]", ylim=(0, None))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.set_title(f"Error by distance, {len(result.origins):,} origins")
    return figure


def _figure(height: float) -> Figure:
    figure = Figure(figsize=(11, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
