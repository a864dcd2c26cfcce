"""What `python benchmarks/forecasting.py --series` takes and refuses."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import _forecasting_cases as cases  # noqa: E402

from rlpto.forecasting.series import ForecastError, TimeSeries  # noqa: E402


def written(tmp_path: Path, hours: int = 300, **columns: object) -> Path:
    stamps = pd.date_range("2024-01-01", periods=hours, freq="h")
    table = pd.DataFrame({"when": stamps, "jobs": np.arange(hours) % 5} | columns)
    table.to_csv(tmp_path / "counts.csv", index=False)
    return tmp_path / "counts.csv"


def test_counts_and_arrivals_are_counted_in_intervals(tmp_path: Path) -> None:
    path = written(tmp_path)
    hourly = cases.given(path, "when", "jobs", "1h")
    np.testing.assert_array_equal(hourly.series.values, np.arange(300) % 5)
    assert (hourly.test, hourly.series.step) == (240, 3600)
    # A shuffled file is the same series, and hours without a row count 0.
    rows = pd.read_csv(path).drop(index=[7]).sample(frac=1, random_state=0)
    rows.to_csv(path, index=False)
    again = cases.given(path, "when", "jobs", "1h").series.values
    np.testing.assert_array_equal(again, np.where(np.arange(300) == 7, 0, np.arange(300) % 5))
    arrivals = cases.given(path, "when", None, "2h").series.values
    np.testing.assert_array_equal(arrivals, np.where(np.arange(150) == 3, 1, 2))


@pytest.mark.parametrize(
    ("line", "value", "every", "said"),
    [
        ("2024-01-01 01:00:00,many", "jobs", "1h", "counts.csv:3: jobs many, expected a count"),
        ("2024-01-01 01:00:00,", "jobs", "1h", "counts.csv:3: jobs nan, expected a count"),
        ("2024-01-01 01:00:00,-1", "jobs", "1h", "counts.csv:3: jobs -1, expected a count"),
        ("soon,1", "jobs", "1h", "counts.csv:3: when soon, expected a time"),
        ("2024-01-01 01:00:00,1", "jobs", "10min", "a row every 3600 s, expected --every to be at least that"),
        ("2024-01-01 01:00:00,1", "gpus", "1h", "no column 'gpus', there are when, jobs"),
    ],
)
def test_rows_that_cannot_be_counted_end_the_program_with_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, value: str, every: str, said: str
) -> None:
    path = written(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[3:]]))
    with pytest.raises(SystemExit) as ended:
        cases.given(path, "when", value, every)
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_an_empty_file_and_a_short_series_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(SystemExit):
        cases.given(tmp_path / "empty.csv", "when", "jobs", "1h")
    with pytest.raises(ForecastError, match="expected at least 100"):
        cases.given(written(tmp_path, 60), "when", "jobs", "1h")


def test_without_any_error_nobody_is_behind() -> None:
    flat = cases.split("flat", TimeSeries(np.full(200, 3.0), 3600.0))
    # Nothing to scale by: MASE is the mean absolute error.
    assert flat.mase(np.full((40, cases.HORIZON), 4.0)) == (1.0, 1.0)
    assert cases.ratio(0.0, 0.0) == 1
    assert cases.ratio(0.1, 0.0) == math.inf
    assert cases.ratio(1.5, 1.0) == 1.5


@pytest.mark.parametrize("name", cases.SYNTHETIC)
def test_synthetic_series_are_counts_and_the_same_each_time(name: str) -> None:
    values = cases.synthetic(name)
    assert values.shape == (cases.HOURS,)
    assert (values >= 0).all()
    np.testing.assert_array_equal(values, cases.synthetic(name))
