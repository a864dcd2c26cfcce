from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.forecasting.series import MONDAY, local_seconds
from rlpto.io.errors import TraceError
from rlpto.workloads.arrival_counts import CountingOptions, arrivals_per_interval, read_series
from rlpto.workloads.trace import Trace, make_trace


def trace(times: list[float], gpus: list[int] | None = None, origin: str | None = None) -> Trace:
    columns = {"submit_time": np.array(times), "gpus": np.array(gpus or [1] * len(times))}
    return make_trace(columns, origin=None if origin is None else pd.Timestamp(origin), source="some jobs")


def test_jobs_and_gpus_are_counted_in_intervals_of_the_clock() -> None:
    jobs = trace([0.0, 300.0, 1500.0, 1799.0, 1800.0], [1, 2, 4, 8, 1], "2020-04-01 10:25")
    found = arrivals_per_interval(jobs, 600)
    assert found.start == local_seconds("2020-04-01 10:20")
    # 10:25 | 10:30 | nothing from 10:40 on | 10:50 and a second before 10:55, 10:55
    assert found.values.tolist() == [1, 1, 0, 3]
    assert arrivals_per_interval(jobs, 600, "gpus").values.tolist() == [1, 2, 0, 13]


def test_a_start_leaves_out_what_came_before() -> None:
    jobs = trace([0.0, 7200.0, 90_000.0], origin="2020-04-01 23:00")
    found = arrivals_per_interval(jobs, 3600, start=pd.Timestamp("2020-04-02"))
    assert found.start == local_seconds("2020-04-02 01:00")
    assert found.values.sum() == 2
    with pytest.raises(TraceError, match="some jobs: no jobs from 2020-05-01"):
        arrivals_per_interval(jobs, 3600, start=pd.Timestamp("2020-05-01"))
    with pytest.raises(TraceError, match="some jobs: local times unknown"):
        arrivals_per_interval(trace([0.0]), 3600, start=pd.Timestamp("2020-04-02"))
    assert arrivals_per_interval(trace([4000.0]), 3600).start == MONDAY + 3600.0


@pytest.mark.parametrize("zone", ["UTC", "Etc/GMT-1", "Europe/Berlin"])
def test_counts_are_read_by_the_clock_or_in_utc_where_that_is_changed(tmp_path: Path, zone: str) -> None:
    times = pd.date_range("2020-03-27", periods=96, freq="1h", tz=zone)
    pd.DataFrame({"time": [time.isoformat() for time in times], "n": range(96)}).to_csv(tmp_path / "n.csv", index=False)
    counting = CountingOptions("1h", start=pd.Timestamp("2020-03-28"), value="n")
    found = read_series(tmp_path / "n.csv", counting)
    assert found.start == local_seconds("2020-03-28")
    assert found.values.tolist() == list(range(25 if zone == "Europe/Berlin" else 24, 96))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.sampled_from([60.0, 600.0, 3600.0, 86400.0]))
@settings(max_examples=50)
def test_no_job_is_lost_and_ends_are_not_empty(times: list[float], step: float) -> None:
    counts = arrivals_per_interval(trace(sorted(times)), step).values
    assert counts.sum() == len(times)
    assert counts[0] > 0
    assert counts[-1] > 0
