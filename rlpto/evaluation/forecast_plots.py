"""The plot of an evaluation's forecasts: predicted and actual arrivals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from rlpto.core.cluster import Forecast
from rlpto.core.jobs import Job
from rlpto.core.rewards import HOUR
from rlpto.evaluation.plots import INK, Plot, new_figure
from rlpto.io.arrays import FloatArray

LINE = "#2f6db5"


def forecast_plot(window: str, step: float, forecasts: Sequence[Forecast | None], jobs: Sequence[Job]) -> Plot:
    """Forecast of each step when it began, and what came, of a window that lasts T - 1 steps of `step` seconds.

    forecasts: made after 0, 1, ... T - 1 steps; None: there was none.
    """
    ahead = np.full((3, len(forecasts)), np.nan)
    for at, forecast in enumerate(forecasts):
        if forecast is not None:
            ahead[:, at] = [part[0].sum() for part in (forecast.mean, forecast.low, forecast.high)]
    return Plot(
        "forecast",
        "Arrivals, forecast and actual",
        f"Jobs of all classes in each step of window {window}, as forecast when the step began; shaded: 10 % to 90 %.",
        _drawn(step, ahead, arrivals(step, len(forecasts), jobs)),
    )


def arrivals(step: float, steps: int, jobs: Sequence[Job]) -> FloatArray:
    """[steps] jobs submitted in each step; NaN in the last, which the window does not hold."""
    submitted = np.array([int(job.submit_time / step) for job in jobs], dtype=np.int64)
    counts = np.bincount(submitted, minlength=steps)[: steps - 1]
    return np.append(counts.astype(np.float64), np.nan)


def _drawn(step: float, ahead: FloatArray, actual: FloatArray) -> Figure:
    figure, axes = new_figure(width=9, height=3.6)
    mean, low, high = ahead
    hours = np.arange(len(mean)) * step / HOUR
    axes.fill_between(hours, low, high, step="post", color=LINE, alpha=0.2, lw=0)
    axes.step(hours, actual, where="post", color=INK, lw=0.8, label="actual")
    axes.step(hours, mean, where="post", color=LINE, lw=1.2, label="forecast")
    axes.set(xlabel="hours", ylabel=f"jobs per {step / 60:g} min", ylim=(0, None))
    axes.legend(loc="upper right", frameon=False)
    return figure
