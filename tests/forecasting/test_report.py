"""What a backtest leaves in a folder."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd

from rlpto.forecasting.report import write_report, write_tables

from .test_backtest import Y, small


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


def test_a_report_is_tables_and_plots(tmp_path: Path) -> None:
    write_report(small(start=399), tmp_path)
    written = {"scores.csv", "forecasts.csv", "forecasts.png", "errors.png"}
    assert {path.name for path in tmp_path.iterdir()} == written
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
