from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from rlpto.forecasting.series import MONDAY, local_seconds
from rlpto.io.errors import TraceError
from rlpto.workloads.arrival_counts import CountingOptions, arrivals_per_interval, read_series
from rlpto.workloads.describe import figures, summary, tables
from rlpto.workloads.trace import Trace, make_trace

HOUR, DAY = 3600.0, 86_400.0


def two_weeks() -> Trace:
    """A job every hour from Tuesday 0:30, and a second one in every hour from 9 to 10 on Wednesdays."""
    hours = np.arange(14 * 24)
    extra = hours[(hours % 168) == 24 + 9]
    submit = np.concatenate([hours, extra + 0.1]) * HOUR
    return make_trace(
        {
            "name": [f"j{i}" for i in range(len(submit))],
            "submit_time": submit,
            "duration": np.where(np.arange(len(submit)) % 2 == 0, 1800.0, 5400.0),
            "gpus": np.where(np.arange(len(submit)) % 4 == 0, 8, 1),
            "group": ["a", "b"] * (len(submit) // 2),
        },
        source="two weeks",
        origin=pd.Timestamp("2017-10-03 00:30:00"),
    )


def test_figures() -> None:
    trace = two_weeks()
    gpu_hours = float((trace.gpus * trace.duration).sum()) / HOUR
    assert figures(trace, capacity=10) == {
        "jobs": "338",
        "begin (local)": "2017-10-03 00:30:00",
        "span": "14.0 d",
        "jobs per hour": f"{338 / 335:.2f}",
        "hour of week": "1.0 to 2.0 jobs",
        "GPU-hours": f"{gpu_hours:,.0f}",
        "GPU-hours per day": f"{gpu_hours / 335 * 24:,.0f}",
        "users, groups, models": "0, 2, 0",
        "load on 10 GPUs": f"{gpu_hours / (10 * 335):.2f} (durations cut at 24.0 h)",
    }


def shown(trace: Trace, capacity: int | None = None) -> str:
    console = Console(width=100, record=True)
    console.print(tables(trace, capacity))
    return console.export_text()


def test_tables_show_the_figures() -> None:
    text = shown(two_weeks(), 10)
    for part in ("338", "two weeks", "2017-10-03 00:30:00", "253", "74.85%", "85", "25.15%", "load on 10 GPUs"):
        assert part in text
    durations = dict(line.split("│")[1:3] for line in text.split("Durations")[1].splitlines() if "│" in line)
    by_level = {level.strip(): duration.strip() for level, duration in durations.items()}
    assert (by_level["1%"], by_level["99%"], by_level["mean"]) == ("30 min", "90 min", "60 min")


def test_traces_with_little_in_them() -> None:
    lone = make_trace({"name": ["a"], "submit_time": [5.0]}, source="lone")
    found = figures(lone, capacity=4)
    assert (found["jobs"], found["span"], found["unknown durations"]) == ("1", "0 s", "1")
    assert found.keys().isdisjoint(("hour of week", "load on 4 GPUs"))
    assert "Durations" not in shown(lone)
    assert summary(lone, capacity=4).keys() == summary(two_weeks(), capacity=4).keys()
    assert [label for label, text in summary(lone, capacity=4).items() if text == "unknown"] == [
        "median",
        "mean",
        "top 1 %",
        "load on 4 GPUs",
    ]
    with pytest.raises(TraceError, match="no jobs to describe"):
        tables(lone.slice(6.0, 7.0))


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
