from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlpto.forecasting import load
from rlpto.workloads.trace import make_trace, write_trace


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace of ten days with more jobs at noon, from a Wednesday on, and its counts per half hour as CSV."""
    rng = np.random.default_rng(0)
    hours = np.arange(240)
    counts = rng.poisson(6 * np.exp(np.sin(2 * np.pi * (hours - 6) / 24)))
    times = np.sort(np.repeat(hours * 3600.0, counts) + rng.uniform(0, 3600, counts.sum()))
    groups = np.where(np.arange(len(times)) % 3 == 0, "a", "b")
    columns = {"submit_time": times, "gpus": np.full(len(times), 2), "group": groups}
    write_trace(make_trace(columns, origin=pd.Timestamp("2020-04-01"), source="ten days"), tmp_path / "jobs.parquet")
    halves = np.bincount((times // 1800).astype(int), minlength=480)
    stamps = pd.date_range("2020-04-01", periods=480, freq="30min")
    pd.DataFrame({"when": stamps, "jobs": halves}).to_csv(tmp_path / "counts.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    return tmp_path


def test_backtest_prints_a_table_and_writes_results(rlpto, folder: Path) -> None:
    answer = rlpto("forecast", "backtest", "jobs.parquet", "--methods", "naive,season_24h", "--horizon", 3)
    assert answer.code == 0, answer
    assert "MASE 1-3" in answer.out
    assert "48 origins" in answer.out
    run = folder / "runs" / "forecast-jobs"
    written = {"scores.csv", "forecasts.csv", "forecasts.png", "errors.png"}
    assert {path.name for path in run.iterdir()} == written
    scores = pd.read_csv(run / "scores.csv")
    assert scores.forecaster.unique().tolist() == ["naive", "season_24h"]
    for figure in scores[scores.ahead == "1"].mase:
        assert f"{figure:.3f}" in answer.out
    assert "jobs.parquet: jobs per 1h" in answer.out
    pd.read_csv("counts.csv").rename(columns={"jobs": "starts"}).to_csv("starts.csv", index=False)
    counts = ("starts.csv", "--value", "starts", "--time", "when", "--methods", "naive")
    assert "starts.csv: starts per 1h" in rlpto("forecast", "backtest", *counts).out


def test_fit_writes_a_forecaster_that_goes_on_where_the_trace_ends(rlpto, folder: Path) -> None:
    answer = rlpto(
        "forecast", "fit", "jobs.parquet", "--every", "1h", "--method", "arima_log", "-o", "f/log.safetensors"
    )
    assert "f/log.safetensors: arima_log fitted to 240 intervals of 1h" in answer.out
    (folder / "file").write_text("")
    fit = ("forecast", "fit", "jobs.parquet", "--method", "naive")
    rlpto(*fit, "-o", "file/f").assert_refused("file/f: cannot write the forecaster there")
    forecaster = load(folder / "f/log.safetensors")
    found = forecaster.predict(2, [0.1, 0.9])
    assert found.start == pd.Timestamp("2020-04-11 00:00").timestamp()
    assert forecaster.update(5).predict(1).point[0] > 0


COUNTS = ("counts.csv", "--value", "jobs", "--time", "when", "--methods", "naive")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("jobs.parquet", "--methods", "prophet"), ("method 'prophet'", "arima_log")),
        (("jobs.parquet", "--every", "soon"), ("--every: step 'soon'",)),
        (("jobs.parquet", "--every", "1D", "--methods", "naive"), ("jobs.parquet: series of 8",)),
        (("nothing.parquet",), ("nothing.parquet: no such trace",)),
        (("counts.csv", "--value", "jobs"), ("counts.csv:1: column time missing", "time,jobs")),
        ((*COUNTS, "--every", "45min"), ("counts.csv: a row every 1800 s",)),
    ],
)
def test_bad_input_is_one_clear_line(rlpto, folder: Path, words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    rlpto("forecast", "backtest", *words).assert_refused(*parts)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2020-04-01 00:30:00,many", "counts.csv:3: jobs 'many', expected a number"),
        ("yesterday,4", "counts.csv:3: when 'yesterday', expected a date"),
        ("2020-04-01 00:00:00,4", "counts.csv: timestamp 2020-04-01 00:00:00: expected 2020-04-01 00:30:00"),
        ("2020-04-01 00:30:00,-4", "counts.csv:3: jobs '-4', expected a number, 0 or more"),
    ],
)
def test_a_bad_row_of_counts_is_named(rlpto, folder: Path, row: str, said: str) -> None:
    lines = (folder / "counts.csv").read_text().splitlines()
    (folder / "counts.csv").write_text("\n".join([*lines[:2], row, *lines[3:]]))
    rlpto("forecast", "backtest", *COUNTS).assert_refused(said)


def test_a_model_that_ends_early_knows_nothing_of_what_comes_after(rlpto, folder: Path) -> None:
    naive = ("--every", "1h", "--method", "naive", "-o", "f")
    counts = ("counts.csv", "--value", "jobs", "--time", "when")
    whole = np.array(pd.read_csv(folder / "counts.csv").jobs.to_numpy().reshape(-1, 2).sum(axis=1))
    for source in (("jobs.parquet",), counts):
        for end, points in (("2020-04-08", 168), ("80%", 191), ("train", 167), ("100%", 239), ("2020-06-01", 240)):
            answer = rlpto("forecast", "fit", *source, "--end", end, *naive)
            assert answer.code == 0, answer
            assert f"{points} intervals of 1h, up to 2020-04-" in answer.out
            history = load(folder / "f").state().arrays["history"]
            np.testing.assert_array_equal(history, whole[:points])
    for source, end, said in (
        (("jobs.parquet",), "soon", "--end 'soon': expected a day such as"),
        (("jobs.parquet",), "120%", "--end '120%'"),
        (("jobs.parquet",), "2020-03-01", "jobs.parquet: nothing before --end"),
        (counts, "2020-03-01", "counts.csv: nothing before --end"),
    ):
        rlpto("forecast", "fit", *source, "--end", end, *naive).assert_refused(said)
    columns = {"submit_time": np.arange(200) * 3600.0, "gpus": np.ones(200, dtype=int)}
    write_trace(make_trace(columns, source="no clock"), folder / "clockless.csv")
    rlpto("forecast", "fit", "clockless.csv", "--end", "50%", *naive)
    np.testing.assert_array_equal(load(folder / "f").state().arrays["history"], np.ones(99))
    rlpto("forecast", "fit", "clockless.csv", "--end", "2020-04-08", *naive).assert_refused("local times unknown")


@pytest.mark.slow
def test_demand_by_minute_is_scored_and_fitted(rlpto, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlpto.forecasting import demand_network
    from rlpto.forecasting.demand import load_demand

    monkeypatch.setattr(demand_network, "LEAST_UPDATES", 2)
    monkeypatch.setattr(demand_network, "MOST_UPDATES", 2)
    answer = rlpto("forecast", "backtest", "jobs.parquet", "--demand", "--start", "2020-04-04")
    assert answer.code == 0, answer
    assert "GPUs in the next minutes" in answer.out
    scores = pd.read_csv(folder / "runs" / "forecast-jobs" / "demand.csv")
    assert len(scores) == 11 * 2 * 3
    assert set(scores.of) == {"jobs", "GPUs"}
    own = scores[(scores.method == "demand") & (scores.of == "jobs") & (scores.minutes == 5)]
    assert f"{own.explained.item():.3f}" in answer.out
    fit = ("forecast", "fit", "jobs.parquet", "--demand", "--end", "train", "-o")
    (folder / "file").write_text("")
    rlpto(*fit, "file/f").assert_refused("rlpto: error: file/f: cannot write the forecaster there")
    answer = rlpto(*fit, "f/demand.safetensors")
    assert "f/demand.safetensors: demand fitted to 10,0" in answer.out
    history = np.array([[1.0, 2.0]] * 30)
    found = (
        load_demand(folder / "f/demand.safetensors").begin(history, pd.Timestamp("2020-04-08").timestamp()).predict()
    )
    assert found.mean.shape == (3, 2)
    assert (found.mean > 0).all()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("jobs.parquet", "--demand", "--every", "10min"), ("--every: expected no such option with --demand",)),
        (("counts.csv", "--demand", "--value", "jobs"), ("--value: expected no such option with --demand",)),
        (("jobs.parquet", "--start", "2020-04-04"), ("--start: expected it only with --demand",)),
        (("jobs.parquet", "--demand", "--start", "soon"), ("--start 'soon': expected a day such as 2017-12-01",)),
        (("jobs.parquet", "--demand", "--start", "2020-05-01"), ("jobs.parquet: nothing between --start 2020-05-01",)),
        (("jobs.parquet", "--demand", "--start", "2020-04-10"), ("jobs.parquet: demand of", "expected at least 1,455")),
        (("counts.csv", "--demand"), ("counts.csv",)),
        (("nothing.parquet", "--demand"), ("nothing.parquet: no such trace",)),
    ],
)
def test_bad_input_for_demand_is_one_clear_line(
    rlpto, folder: Path, words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    rlpto("forecast", "backtest", *words).assert_refused(*parts)
    rlpto("forecast", "fit", *words, "-o", "f").assert_refused()
    assert not (folder / "runs").exists()
    assert not (folder / "f").exists()
