from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlpto.forecasting.series import MONDAY, local_seconds
from rlpto.io.errors import ConfigError
from rlpto.workloads.arrival_counts import arrivals_per_interval, read_series
from rlpto.workloads.trace import Trace, make_trace


def trace(times: list[float], origin: str | None = None) -> Trace:
    columns = {"submit_time": np.array(times), "gpus": np.ones(len(times), dtype=int)}
    return make_trace(columns, origin=None if origin is None else pd.Timestamp(origin), source="some jobs")


def test_jobs_are_counted_in_intervals_of_the_clock() -> None:
    jobs = trace([0.0, 300.0, 1500.0, 1799.0, 1800.0], "2020-04-01 10:25")
    found = arrivals_per_interval(jobs, 600)
    assert found.start == local_seconds("2020-04-01 10:20")
    # 10:25 | 10:30 | nothing from 10:40 on | 10:50 and a second before 10:55, 10:55
    assert found.values.tolist() == [1, 1, 0, 3]
    assert arrivals_per_interval(trace([4000.0]), 3600).start == MONDAY + 3600.0


@pytest.mark.parametrize("zone", ["UTC", "Etc/GMT-1", "Europe/Berlin"])
def test_counts_are_read_by_the_clock_or_in_utc_where_that_is_changed(tmp_path: Path, zone: str) -> None:
    times = pd.date_range("2020-03-27", periods=96, freq="1h", tz=zone)
    pd.DataFrame({"time": [time.isoformat() for time in times], "n": range(96)}).to_csv(tmp_path / "n.csv", index=False)
    found = read_series(tmp_path / "n.csv", "1h", value="n")
    # In Berlin the clock is an hour ahead, and changes within these days.
    assert found.start == local_seconds("2020-03-26 23:00" if zone == "Europe/Berlin" else "2020-03-27")
    assert found.values.tolist() == list(range(96))


def test_one_row_of_counts_is_as_long_as_asked(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("time,n\n2020-04-01,3\n")
    found = read_series(tmp_path / "n.csv", "1h", value="n")
    assert (found.values.tolist(), found.step) == ([3.0], 3600.0)
    with pytest.raises(ConfigError, match=r"--end '0001-01-01': expected a day in the years 1678 to 2261"):
        read_series(tmp_path / "n.csv", "1h", "0001-01-01", value="n")
