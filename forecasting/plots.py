"""Plots of a backtest: forecast against actual with its interval, error by distance, weights over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rlpto.forecasting.backtest import Backtest
from rlpto.forecasting.errors import ForecastError
from rlpto.forecasting.series import DAY, HOUR
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.files import whole_file

SHOWN_DAYS = 7.0
"""Days at the end of a backtest that are drawn."""

STYLES = ("-", "--", ":", "-.")
INK, LINE = "#1f2933", "#2f6db5"


def write_png(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file, whole or not at all. Raises ForecastError."""
    with whole_file(path, "the plot", ForecastError) as unfinished:
        figure.savefig(unfinished, format="png", dpi=120)


def forecasts_figure(result: Backtest, name: str) -> Figure:
    """The last days of one forecaster with its interval, one step and all steps ahead. Raises ForecastError."""
    if name not in result.forecasts:
        raise ForecastError(f"forecaster {name!r}: expected one of {', '.join(result.forecasts)}")
    steps = sorted({1, result.horizon})
    figure = _figure(4.2 * len(steps))
    panels = figure.subplots(len(steps), 1, sharex=True, squeeze=False)[:, 0]
    for axes, ahead in zip(panels, steps, strict=True):
        _draw_forecasts(axes, result, name, ahead)
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


def weights_figure(result: Backtest, weights: FloatArray, labels: Sequence[str]) -> Figure:
    """The weight of each part of a combination at every origin.

    weights: [N, E], summing to 1 over E parts. labels: E names.
    """
    figure = _figure(5.0)
    axes = figure.subplots()
    days = _days(result, result.origins)
    colours = [f"C{place % 10}" for place in range(len(labels))]
    for place, layer in enumerate(axes.stackplot(days, weights.T, labels=labels, colors=colours)):
        # Beyond ten parts colours repeat, and a hatch distinguishes them.
        layer.set_hatch(("", "///", "...", "xx")[place // 10 % 4])
    axes.set(
        xlabel="days of the test part", ylabel="weight", ylim=(0, 1), xlim=(days[0], max(days[-1], days[0] + 1e-3))
    )
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, reverse=True)
    axes.set_title("Weights of the parts, one step ahead")
    return figure


def _draw_forecasts(axes: Axes, result: Backtest, name: str, ahead: int) -> None:
    made = result.forecasts[name]
    shown = result.origins >= result.origins[-1] - result.series.lag(SHOWN_DAYS * DAY)
    days = _days(result, result.origins[shown] + ahead - 1)
    if len(result.levels) > 1:
        low, high = made.quantiles[shown, ahead - 1, 0], made.quantiles[shown, ahead - 1, -1]
        axes.fill_between(days, low, high, color=LINE, alpha=0.2, lw=0, label=f"{result.nominal:.0%} interval")
    axes.plot(days, result.actual[shown, ahead - 1], color=INK, lw=0.8, label="actual")
    axes.plot(days, made.point[shown, ahead - 1], color=LINE, lw=1.2, label="forecast")
    hours = ahead * result.series.step / HOUR
    axes.set(ylabel="counts per interval", ylim=(0, None), title=f"{hours:g} h ahead")
    axes.set_xlabel("days of the test part")


def _days(result: Backtest, places: IntArray) -> FloatArray:
    """Places in the series as days since the first origin."""
    days: FloatArray = (places - result.origins[0]).astype(np.float64) * result.series.step / DAY
    return days


def _figure(height: float) -> Figure:
    figure = Figure(figsize=(11, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
