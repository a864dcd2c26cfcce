from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from rlpto.errors import TraceError
from rlpto.workloads.describe import describe, hour_of_week_profile, plot_arrivals, readable_time, tables
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
    figures = describe(two_weeks(), capacity=10)
    assert figures.jobs == 338
    assert figures.begin == "2017-10-03 00:30:00"
    assert figures.span == (14 * 24 - 1) * HOUR
    assert figures.jobs_per_hour == pytest.approx(338 / 335)
    assert figures.gpus == {1: 253, 8: 85}
    assert figures.durations[0] == 1800.0
    assert figures.durations[-1] == 5400.0
    assert figures.mean_duration == pytest.approx(3600.0)
    trace = two_weeks()
    gpu_hours = float((trace.gpus * trace.duration).sum()) / HOUR
    assert figures.gpu_hours == pytest.approx(gpu_hours)
    assert figures.load == pytest.approx(gpu_hours / (10 * 335))
    assert (figures.users, figures.groups, figures.models) == (0, 2, 0)
    assert (figures.quietest, figures.busiest) == (1.0, 2.0)


def test_the_profile_of_the_week_starts_on_monday() -> None:
    profile = hour_of_week_profile(two_weeks())
    assert profile.argmax() == 48 + 9
    assert (profile > 1).sum() == 1
    partial = hour_of_week_profile(two_weeks().slice(0, 12 * HOUR))
    assert np.isfinite(partial).sum() == 12
    assert np.isfinite(partial[24:36]).all()


def test_tables_show_the_figures() -> None:
    console = Console(width=100, record=True)
    console.print(tables(describe(two_weeks(), capacity=10)))
    text = console.export_text()
    for part in ("338", "two weeks", "2017-10-03 00:30:00", "25.15%", "1.5 h", "30.0 min", "load on 10 GPUs"):
        assert part in text


def test_traces_with_little_in_them() -> None:
    lone = make_trace({"name": ["a"], "submit_time": [5.0]}, source="lone")
    figures = describe(lone, capacity=4)
    assert (figures.jobs, figures.span, figures.unknown_durations, figures.load) == (1, 0.0, 1, None)
    assert figures.durations == ()
    Console(record=True, quiet=True).print(tables(figures))
    with pytest.raises(TraceError, match="no jobs to describe"):
        describe(lone.slice(6.0, 7.0))


@pytest.mark.parametrize("name", ["two weeks", "lone"])
def test_a_plot_is_written_whole_and_alone(tmp_path, name) -> None:
    lone = make_trace({"name": ["a"], "submit_time": [5.0]}, source="lone")
    path = tmp_path / "plots" / "arrivals.png"
    plot_arrivals(two_weeks() if name == "two weeks" else lone, path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [file.name for file in path.parent.iterdir()] == ["arrivals.png"]


def test_a_plot_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot write the plot"):
        plot_arrivals(two_weeks(), tmp_path / "file" / "arrivals.png")


def test_readable_times() -> None:
    assert [readable_time(s) for s in (0.4, 45, 750, 11_520, 354_240)] == ["0 s", "45 s", "12.5 min", "3.2 h", "4.1 d"]
