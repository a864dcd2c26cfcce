"""What a backtest leaves in a folder."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlpto.forecasting.backtest import backtest
from rlpto.forecasting.hybrid import LABELS
from rlpto.forecasting.naive import Naive, SeasonalNaive
from rlpto.forecasting.report import errors_figure, scalars, write_events, write_report, write_tables
from rlpto.forecasting.series import ForecastError

from .test_backtest import Y, small

NUMBERS = np.random.default_rng(0).poisson(20, 200).astype(float)


def test_tables_hold_what_was_measured(tmp_path: Path) -> None:
    result = small()
    write_tables(result, tmp_path / "run")
    with (tmp_path / "run" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["forecaster"], row["ahead"], float(row["mae"])) for row in rows] == [
        (score.forecaster, score.ahead, score.mae) for score in result.scores()
    ]
    frame = pd.read_csv(tmp_path / "run" / "forecasts.csv", parse_dates=["time"])
    assert list(frame.columns) == ["forecaster", "ahead", "time", "actual", "point", "mean", "q0.1", "q0.5", "q0.9"]
    four = frame[(frame.forecaster == "naive") & (frame.ahead == 4)].set_index("time")
    known = four.actual.dropna()
    np.testing.assert_array_equal(known, Y.loc[known.index])
    np.testing.assert_array_equal(four.point.loc[known.index], Y.shift(4).loc[known.index])


def test_a_report_is_tables_plots_and_events(tmp_path: Path) -> None:
    write_report(small(quantiles=[0.5], windows=1), tmp_path)
    written = {"scores.csv", "forecasts.csv", "forecasts.png", "errors.png", "tensorboard"}
    assert {path.name for path in tmp_path.iterdir()} == written
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_tensorboard_shows_errors_forecasts_and_weights(tmp_path: Path) -> None:
    result = backtest({"naive": Naive(), "day": SeasonalNaive(24)}, NUMBERS, step="1h", horizon=3)
    weights = np.linspace(0, 1, 40)[:, None] * np.ones(len(LABELS))
    # What an earlier run has left is replaced.
    write_events(scalars(result, "day"), {}, tmp_path / "events")
    write_events(scalars(result, "naive", weights), {"errors": errors_figure(result)}, tmp_path / "events")
    events = EventAccumulator(str(tmp_path / "events"), size_guidance={"scalars": 0})
    events.Reload()

    def line(tag: str) -> tuple[list[int], list[float]]:
        found = events.Scalars(tag)
        return [event.step for event in found], [event.value for event in found]

    for name in ("naive", "day"):
        ahead, errors = line(f"mae/{name}")
        assert ahead == [1, 2, 3]
        assert errors == pytest.approx(result.errors_by_step(name).tolist())
    known, actual = line("forecast ahead 1/actual")
    assert known == list(range(160, 200))
    assert actual == pytest.approx(NUMBERS[160:].tolist())
    assert line("forecast ahead 1/point")[1] == pytest.approx(NUMBERS[159:199].tolist())
    low, high = line("forecast ahead 3/q0.1")[1], line("forecast ahead 3/q0.9")[1]
    assert all(a <= b for a, b in zip(low, high, strict=True))
    # The last two origins do not know what came three steps later.
    assert len(line("forecast ahead 3/actual")[0]) == 38
    assert line(f"weight/{LABELS[1]}")[1] == pytest.approx(weights[:, 1].tolist())
    assert line("score/coverage/naive")[1] == pytest.approx([result.score("naive", "", range(3)).coverage])
    assert events.Tags()["images"] == ["errors"]


def test_a_folder_that_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ForecastError, match="file/events: cannot write TensorBoard events there"):
        write_events([], {}, tmp_path / "file" / "events")
