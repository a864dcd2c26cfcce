import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from rlpto.io.errors import TraceError
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
