"""A backtest as TensorBoard shows it: scores, error by distance, forecast against actual, weights over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from torch.utils.tensorboard.writer import SummaryWriter

from rlpto.forecasting.backtest import Backtest
from rlpto.forecasting.errors import ForecastError
from rlpto.forecasting.plots import errors_figure, forecasts_figure, weights_figure
from rlpto.io.arrays import FloatArray

EVENTS = "events.out.tfevents.*"
"""Files that TensorBoard reads."""


def write_events(
    result: Backtest, best: str, folder: Path, weights: FloatArray | None = None, labels: Sequence[str] = ()
) -> None:
    """Write TensorBoard events of a backtest into a folder; existing ones are replaced.

    best: the forecaster that is drawn. weights: [N, E] of its E parts at the N origins, with their labels.
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
                for place, label in enumerate(labels):
                    for known, share in zip(result.origins.tolist(), weights[:, place].tolist(), strict=True):
                        writer.add_scalar(f"weight/{label}", share, known)
                writer.add_figure("weights of the parts", weights_figure(result, weights, labels))
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
