from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlpto.forecasting.backtest import Backtest, backtest, write_report
from rlpto.forecasting.naive import Naive, SeasonalNaive
from rlpto.forecasting.series import ForecastError, TimeSeries, as_series

RNG = np.random.default_rng(0)
Y = pd.Series(
    RNG.poisson(20 * np.exp(np.sin(2 * np.pi * np.arange(400) / 24))).astype(float),
    index=pd.date_range("2020-04-01", periods=400, freq="1h"),
)


def small(start: int = 320, horizon: int = 4) -> Backtest:
    return backtest({"naive": Naive(), "day": SeasonalNaive(24)}, as_series(Y), horizon, start)


def test_every_origin_from_the_start_on_is_scored() -> None:
    result = small()
    assert result.origins.tolist() == list(range(320, 400))
    assert result.actual.shape == (80, 4)
    # The last origins know fewer targets.
    assert np.isnan(result.actual).sum() == 1 + 2 + 3
    assert result.actual[0].tolist() == Y.iloc[320:324].tolist()
    np.testing.assert_array_equal(result.forecasts["naive"].point[:, 0], Y.iloc[319:399])


def test_figures_are_those_of_their_definitions() -> None:
    y = Y.to_numpy()
    result = small()
    score = result.score("naive", "1", [0])
    errors = y[320:] - y[319:-1]
    assert score.mae == pytest.approx(np.abs(errors).mean())
    assert score.rmse == pytest.approx(math.sqrt(np.square(errors).mean()))
    assert score.mase == pytest.approx(np.abs(errors).mean() / np.abs(y[24:320] - y[:296]).mean())
    assert score.r2 == pytest.approx(1 - np.square(errors).sum() / np.square(y[320:] - y[320:].mean()).sum())
    low, mid, high = result.forecasts["naive"].quantiles[:, 0].T
    assert score.coverage == pytest.approx(np.mean([a <= b <= c for a, b, c in zip(low, y[320:], high, strict=True)]))
    losses = [
        np.where(y[320:] > q, t * (y[320:] - q), (1 - t) * (q - y[320:]))
        for q, t in zip((low, mid, high), (0.1, 0.5, 0.9), strict=True)
    ]
    assert score.pinball == pytest.approx(np.mean(losses))
    ahead = {(score.forecaster, score.ahead): score.mae for score in result.scores()}
    assert set(ahead) == {(name, steps) for name in ("naive", "day") for steps in ("1", "4", "1-4")}
    assert ahead["naive", "1-4"] == pytest.approx(result.errors_by_step("naive").mean())


def test_perfect_and_constant_series_have_the_figures_that_make_sense() -> None:
    repeated = TimeSeries(np.tile(np.arange(24.0), 20), 3600.0)
    perfect = backtest({"day": SeasonalNaive(24)}, repeated, 12, 384).score("day", "1", [0])
    assert (perfect.mae, perfect.rmse, perfect.r2, perfect.coverage) == (0, 0, 1, 1)
    assert math.isnan(perfect.mase)  # the seasonal naive has no error to scale by
    flat = backtest({"naive": Naive()}, TimeSeries(np.full(200, 3.0), 3600.0), 12, 160).score("naive", "1", [0])
    assert (flat.mae, flat.coverage, flat.pinball) == (0, 1, 0)
    assert all(map(math.isnan, (flat.r2, flat.mase)))
    # Steps beyond the series leave the means to the others.
    result = backtest({"naive": Naive()}, TimeSeries(np.arange(12.0), 3600.0), 12, 10)
    assert result.score("naive", "1-12", range(12)).mae == 1.5  # 1 one step ahead, 2 two steps ahead


def test_the_start_chooses_origins() -> None:
    assert small(start=399).actual[0, 0] == Y.iloc[399]
    for options, message in (
        ({"start": 0}, "start 0: expected 1 to 399"),
        ({"start": 400}, "start 400"),
        ({"start": 5}, "5 points: expected at least 10"),
        ({"horizon": 10**6}, r"80 origins, 1000000 steps: expected 5e\+07 forecasts at most"),
    ):
        with pytest.raises(ForecastError, match=message):
            small(**options)
    with pytest.raises(ForecastError, match="series of 1 points: expected 2 or more"):
        backtest({"naive": Naive()}, TimeSeries(np.ones(1), 3600.0), 1, 0)


def test_tables_hold_what_was_measured(tmp_path: Path) -> None:
    result = small()
    write_report(result, tmp_path / "run")
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
