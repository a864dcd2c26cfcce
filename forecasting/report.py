"""What a backtest leaves in a folder: tables, plots and TensorBoard events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch.utils.tensorboard.writer import SummaryWriter

from rlpto.forecasting.backtest import Backtest
from rlpto.forecasting.hybrid import LABELS, HybridForecaster
from rlpto.forecasting.series import DAY, HOUR, ForecastError
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.files import whole_file

SHOWN_DAYS = 7.0
"""Days at the end of a backtest that are drawn."""

EVENTS = "events.out.tfevents.*"
"""Files that TensorBoard reads."""

STYLES = ("-", "--", ":", "-.")
INK, LINE = "#1f2933", "#2f6db5"


@dataclass(frozen=True)
class Weights:
    """Weights [N, E] of the E parts of a combination at N origins, with their names; they sum to 1."""

    values: FloatArray
    labels: Sequence[str]


def write_report(result: Backtest, folder: Path) -> None:
    """Write scores.csv, forecasts.csv, plots and TensorBoard events into a folder. Raises ForecastError.

    The combination is drawn if it is among the forecasters, with its weights one step ahead; else the first one.
    """
    hybrid, weights = result.fitted.get("hybrid"), None
    if isinstance(hybrid, HybridForecaster):
        weights = Weights(hybrid.weights(result.series, result.origins)[:, 0], LABELS)
    best = "hybrid" if "hybrid" in result.forecasts else next(iter(result.forecasts))
    write_tables(result, folder)
    write_png(forecasts_figure(result, best), folder / "forecasts.png")
    write_png(errors_figure(result), folder / "errors.png")
    if weights is not None:
        write_png(weights_figure(result, weights), folder / "weights.png")
    write_events(result, best, folder / "tensorboard", weights)


def write_tables(result: Backtest, folder: Path) -> None:
    """Write scores.csv, a line per forecaster and distance, and forecasts.csv, a line per forecaster, origin and
    distance of one step and all steps. Raises ForecastError."""
    forecasts = []
    for name, made in result.forecasts.items():
        for ahead in sorted({1, result.horizon}):
            times = result.series.index(0, len(result.series) + result.horizon)[result.origins + ahead - 1]
            figures = {"actual": result.actual, "point": made.point, "mean": made.mean}
            figures |= {f"q{level:g}": made.quantiles[..., place] for place, level in enumerate(result.levels)}
            columns = {column: figure[:, ahead - 1] for column, figure in figures.items()}
            forecasts.append(pd.DataFrame({"forecaster": name, "ahead": ahead, "time": times.map(str), **columns}))
    tables = {"scores": pd.DataFrame([asdict(score) for score in result.scores()]), "forecasts": pd.concat(forecasts)}
    for what, table in tables.items():
        with whole_file(folder / f"{what}.csv", what, ForecastError) as unfinished:
            table.to_csv(unfinished, index=False, na_rep="nan", lineterminator="\n")


def write_events(result: Backtest, best: str, folder: Path, weights: Weights | None = None) -> None:
    """Write TensorBoard events of a backtest into a folder; existing ones are replaced.

    best: the forecaster that is drawn, whose parts have the weights.
    Tags: `mae/NAME` [counts] by steps ahead; `score/FIGURE/NAME` of the mean over all steps; `forecast ahead A/...`
    actual, point and outermost quantiles [counts] by the number of points known; `weight/LABEL` by the same; figures.

    Raises ForecastError if that fails.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(EVENTS):
            old.unlink()
        with SummaryWriter(log_dir=str(folder)) as writer:
            _write_scores(writer, result)
            _write_forecasts(writer, result, best)
            writer.add_figure("forecast against actual", forecasts_figure(result, best))
            writer.add_figure("error by distance", errors_figure(result))
            if weights is not None:
                for place, label in enumerate(weights.labels):
                    for known, share in zip(result.origins.tolist(), weights.values[:, place].tolist(), strict=True):
                        writer.add_scalar(f"weight/{label}", share, known)
                writer.add_figure("weights of the parts", weights_figure(result, weights))
    except OSError as refused:
        reason = (refused.strerror or str(refused)).lower()
        raise ForecastError(f"{folder}: cannot write TensorBoard events there: {reason}") from None


def _write_scores(writer: SummaryWriter, result: Backtest) -> None:
    for name in result.forecasts:
        for ahead, error in enumerate(result.errors_by_step(name).tolist(), 1):
            writer.add_scalar(f"mae/{name}", error, ahead)
        score = result.score(name, "all", range(result.horizon))
        for figure in ("mase", "rmse", "r2", "coverage", "pinball"):
            value = getattr(score, figure)
            if not math.isnan(value):
                writer.add_scalar(f"score/{figure}/{name}", value, result.horizon)


def _write_forecasts(writer: SummaryWriter, result: Backtest, best: str) -> None:
    made = result.forecasts[best]
    for ahead in sorted({1, result.horizon}):
        lines = {"actual": result.actual[:, ahead - 1], "point": made.point[:, ahead - 1]}
        if len(result.levels) > 1:
            for place in (0, -1):
                lines[f"q{result.levels[place]:g}"] = made.quantiles[:, ahead - 1, place]
        for line, counts in lines.items():
            for known, count in zip(result.origins.tolist(), counts.tolist(), strict=True):
                if not math.isnan(count):
                    writer.add_scalar(f"forecast ahead {ahead}/{line}", count, known)


def write_png(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file, whole or not at all. Raises ForecastError."""
    with whole_file(path, "the plot", ForecastError) as unfinished:
        figure.savefig(unfinished, format="png", dpi=120)


def forecasts_figure(result: Backtest, name: str) -> Figure:
    """The last days of one forecaster with its interval, one step and all steps ahead."""
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


def weights_figure(result: Backtest, weights: Weights) -> Figure:
    """The weight of each part of a combination at every origin."""
    figure = _figure(5.0)
    axes = figure.subplots()
    days = _days(result, result.origins)
    colours = [f"C{place % 10}" for place in range(len(weights.labels))]
    for place, layer in enumerate(axes.stackplot(days, weights.values.T, labels=weights.labels, colors=colours)):
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
