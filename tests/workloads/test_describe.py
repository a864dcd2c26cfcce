import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from rlpto.io.errors import TraceError
from rlpto.workloads.describe import figures, summary, tables
from rlpto.workloads.trace import make_trace

HOUR = 3600.0


def test_figures() -> None:
    """Of a job every hour from Tuesday 0:30, and a second one in every hour from 9 to 10 on Wednesdays."""
    hours = np.arange(14 * 24)
    submit = np.concatenate([hours, hours[(hours % 168) == 24 + 9] + 0.1]) * HOUR
    duration, gpus = np.resize([1800.0, 5400.0], len(submit)), np.resize([8, 1, 1, 1], len(submit))
    columns = {"submit_time": submit, "duration": duration, "gpus": gpus, "group": np.resize(["a", "b"], len(submit))}
    trace = make_trace(columns, "two weeks", origin=pd.Timestamp("2017-10-03 00:30:00"))
    gpu_hours = float((trace.gpus * trace.duration).sum()) / HOUR
    assert summary(trace, 10).keys() == summary(trace.take(np.arange(1)), 10).keys()
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


def test_traces_with_little_in_them() -> None:
    lone = make_trace({"name": ["a"], "submit_time": [5.0]}, source="lone")
    found = figures(lone, capacity=4)
    assert (found["jobs"], found["span"], found["unknown durations"]) == ("1", "0 s", "1")
    assert found["jobs per hour"] == found["GPU-hours per day"] == "unknown"
    assert found.keys().isdisjoint(("hour of week", "load on 4 GPUs"))
    console = Console(width=100, record=True)
    console.print(tables(lone))
    assert "Durations" not in console.export_text()
    unknown = [label for label, text in summary(lone, capacity=4).items() if text == "unknown"]
    assert unknown == ["median", "mean", "top 1 %", "load on 4 GPUs"]
    with pytest.raises(TraceError, match="no jobs to describe"):
        tables(lone.slice(6.0, 7.0))
