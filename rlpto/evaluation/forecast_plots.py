"""Plots of an evaluation's forecasts: predicted and actual arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rlpto.core.cluster import Forecast
from rlpto.core.jobs import Job
from rlpto.core.rewards import HOUR
from rlpto.evaluation.plots import INK, Plot, new_figure
from rlpto.io.arrays import FloatArray

LINE = "#2f6db5"


@dataclass(frozen=True)
class ForecastHistory:
    """The forecasts of one window, of jobs of all classes.

    step: [s]. mean, low, high: [T, H], row t forecast after t steps, NaN without a forecast.
    actual: [T, H] arrivals, NaN for steps that the window does not hold in full.
    """

    window: str
    step: float
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    actual: FloatArray


def forecast_history(
    window: str, step: float, forecasts: Sequence[Forecast | None], jobs: Sequence[Job]
) -> ForecastHistory:
    """`forecasts`, made after 0, 1, ... T - 1 steps, next to the jobs of a window that lasts T - 1 steps."""
    reach = max((len(forecast.mean) for forecast in forecasts if forecast is not None), default=1)
    parts = np.full((3, len(forecasts), reach), np.nan)
    for at, forecast in enumerate(forecasts):
        if forecast is not None:
            parts[:, at] = [part.sum(axis=1) for part in (forecast.mean, forecast.low, forecast.high)]
    steps = len(forecasts) - 1
    submitted = np.array([int(job.submit_time / step) for job in jobs], dtype=np.int64)
    counts = np.bincount(submitted, minlength=steps)[:steps].astype(np.float64)
    padded = np.concatenate([counts, np.full(reach + 1, np.nan)])
    actual = padded[np.arange(len(forecasts))[:, None] + np.arange(reach)]
    return ForecastHistory(window, step, parts[0], parts[1], parts[2], actual)


def forecast_plots(histories: Sequence[ForecastHistory], mode: str) -> list[Plot]:
    """Forecast against actual in the middle window, and the error by distance over all; none without windows."""
    if not histories:
        return []
    oracle = " The forecast is perfect, an oracle." if mode == "perfect" else ""
    middle = histories[len(histories) // 2]
    return [
        Plot(
            "forecast",
            "Arrivals, forecast and actual",
            f"Jobs of all classes in each step of window {middle.window}, as forecast when the step began; shaded: "
            f"10 % to 90 %.{oracle}",
            _against_actual(middle),
        ),
        Plot(
            "forecast_error",
            "Error of the forecast by distance",
            f"Mean absolute error of the forecast number of jobs in a step, over {len(histories)} windows.{oracle}",
            _errors(histories),
        ),
    ]


def errors_by_step(histories: Sequence[ForecastHistory]) -> FloatArray:
    """[H] mean absolute error of the mean of each step ahead, over all windows; NaN where nothing was forecast."""
    errors = pd.DataFrame(np.concatenate([np.abs(history.mean - history.actual) for history in histories]))
    return errors.mean().to_numpy()


def _against_actual(history: ForecastHistory) -> Figure:
    figure, axes = new_figure(width=9, height=3.6)
    hours = np.arange(len(history.mean)) * history.step / HOUR
    axes.fill_between(hours, history.low[:, 0], history.high[:, 0], step="post", color=LINE, alpha=0.2, lw=0)
    axes.step(hours, history.actual[:, 0], where="post", color=INK, lw=0.8, label="actual")
    axes.step(hours, history.mean[:, 0], where="post", color=LINE, lw=1.2, label="forecast")
    axes.set(xlabel="hours", ylabel=f"jobs per {history.step / 60:g} min", ylim=(0, None))
    axes.legend(loc="upper right", frameon=False)
    return figure


def _errors(histories: Sequence[ForecastHistory]) -> Figure:
    figure, axes = new_figure(width=9, height=3.6)
    errors = errors_by_step(histories)
    minutes = np.arange(1, len(errors) + 1) * histories[0].step / 60
    axes.plot(minutes, errors, "o-", color=LINE)
    axes.set(xlabel="minutes ahead, to the end of the step", ylabel="mean absolute error [jobs]", ylim=(0, None))
    return figure
