"""Forecasts of demand for training windows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.forecasting import demand_network
from rlpto.workloads.trace import make_trace, write_trace

DAYS = 7


def of_trace(folder: Path, name: str, gpus_of_a_day: dict[int, int], *changes: str) -> Experiment:
    """Seven days with a job every 20 minutes, of one GPU but on the days that are named; the first are for training."""
    minutes = np.arange(0, DAYS * 1440, 20)
    gpus = [gpus_of_a_day.get(int(minute // 1440), 1) for minute in minutes]
    columns = {"submit_time": 60.0 * minutes, "duration": np.full(len(minutes), 600.0), "gpus": np.array(gpus)}
    write_trace(make_trace(columns, origin=pd.Timestamp("2020-04-01"), source="seven days"), folder / name)
    return Experiment(load_config("rented", [f"workload.path={folder / name}", "provision=forecast", *changes]))


@pytest.mark.slow
def test_a_training_window_is_forecast_by_what_was_learnt_on_the_other_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand_network, "MOST_UPDATES", 20)  # what was fitted counts here, not how well
    plain = of_trace(tmp_path, "plain.parquet", {})
    early = of_trace(tmp_path, "early.parquet", {0: 8})
    windows = plain.windows("train")
    assert len(windows) >= 4
    for window, same in ((windows[0], True), (windows[-1], False)):
        demand = plain.demand.of(window, plain.jobs(window, 0))
        said = [experiment.demand.forecasts(window, demand) for experiment in (plain, early)]
        assert np.array_equal(*said) == same, "it has seen its own days" if same else "it has seen nothing"
