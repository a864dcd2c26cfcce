"""What a backtest leaves in a folder: tables and plots."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rlpto.forecasting.backtest import LEVELS, NOMINAL, Backtest
from rlpto.forecasting.series import DAY, HOUR, ForecastError
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.files import whole_file

SHOWN_DAYS = 7.0
"""Days at the end of a backtest that are drawn."""

STYLES = ("-", "--", ":", "-.")
INK, LINE = "#1f2933", "#2f6db5"


def write_report(result: Backtest, folder: Path) -> None:
    """Write scores.csv, forecasts.csv and plots into a folder. Raises ForecastError.

    The combination is drawn if it is among the forecasters; else the first one.
    """
    best = "hybrid" if "hybrid" in result.forecasts else next(iter(result.forecasts))
    figures = {"forecasts": forecasts_figure(result, best), "errors": errors_figure(result)}
    write_tables(result, folder)
    for name, figure in figures.items():
        with whole_file(folder / f"{name}.png", "the plot", ForecastError) as unfinished:
            figure.savefig(unfinished, format="png", dpi=120)


def write_tables(result: Backtest, folder: Path) -> None:
    """Write scores.csv, a line per forecaster and distance, and forecasts.csv, a line per forecaster, origin and
    distance of one step and all steps. Raises ForecastError."""
    forecasts = []
    for name, made in result.forecasts.items():
        for ahead in sorted({1, result.horizon}):
            times = result.series.index(0, len(result.series) + result.horizon)[result.origins + ahead - 1]
            figures = {"actual": result.actual, "point": made.point, "mean": made.mean}
            figures |= {f"q{level:g}": made.quantiles[..., place] for place, level in enumerate(LEVELS)}
            columns = {column: figure[:, ahead - 1] for column, figure in figures.items()}
            forecasts.append(pd.DataFrame({"forecaster": name, "ahead": ahead, "time": times.map(str), **columns}))
    tables = {"scores": pd.DataFrame([asdict(score) for score in result.scores()]), "forecasts": pd.concat(forecasts)}
    for what, table in tables.items():
        with whole_file(folder / f"{what}.csv", what, ForecastError) as unfinished:
            table.to_csv(unfinished, index=False, na_rep="nan", lineterminator="\n")


def forecasts_figure(result: Backtest, name: str) -> Figure:
    """The last days of one forecaster with its interval, one step and all steps ahead."""
    steps = sorted({1, result.horizon})
    figure = _figure(4.2 * len(steps))
    panels = figure.subplots(len(steps), 1, sharex=True, squeeze=False)[:, 0]
    made = result.forecasts[name]
    shown = result.origins >= result.origins[-1] - result.series.lag(SHOWN_DAYS * DAY)
    for axes, ahead in zip(panels, steps, strict=True):
        days = _days(result, result.origins[shown] + ahead - 1)
        low, high = made.quantiles[shown, ahead - 1, 0], made.quantiles[shown, ahead - 1, -1]
        axes.fill_between(days, low, high, color=LINE, alpha=0.2, lw=0, label=f"{NOMINAL:.0%} interval")
        axes.plot(days, result.actual[shown, ahead - 1], color=INK, lw=0.8, label="actual")
        axes.plot(days, made.point[shown, ahead - 1], color=LINE, lw=1.2, label="forecast")
        hours = ahead * result.series.step / HOUR
        axes.set(ylabel="counts per interval", ylim=(0, None), title=f"{hours:g} h ahead")
        axes.set_xlabel("days of the test part")
    panels[0].legend(loc="upper left", ncols=3, frameon=False)
    figure.suptitle(f"{name}: forecast against actual")
    return figure


def errors_figure(result: Backtest) -> Figure:
    """The mean absolute error of every forecaster by distance."""
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


def _days(result: Backtest, places: IntArray) -> FloatArray:
    """Places in the series as days since the first origin."""
    days: FloatArray = (places - result.origins[0]).astype(np.float64) * result.series.step / DAY
    return days


def _figure(height: float) -> Figure:
    figure = Figure(figsize=(11, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
