"""Forecasts in the report."""

from __future__ import annotations

import numpy as np
import pytest

from rlpto.core.cluster import Forecast
from rlpto.evaluation.forecast_plots import errors_by_step, forecast_history, forecast_plots
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.tables import frame, results, warnings

from ..builders import job


def expecting(*counts: float) -> Forecast:
    """A forecast of these numbers of jobs of one class in the next steps."""
    mean = np.array([[count, 0.0, 0.0] for count in counts])
    return Forecast(mean, mean - 1, mean + 1)


def test_forecasts_stand_beside_what_came_in_the_steps_they_are_of() -> None:
    jobs = [job(i, submit=submit) for i, submit in enumerate([0.0, 5.0, 12.0, 35.0])]  # 2, 1, 0 and 1 in 10 s each
    history = forecast_history(
        "w", 10.0, [None, expecting(3, 0), expecting(0, 4), expecting(1, 1), expecting(9, 9)], jobs
    )
    np.testing.assert_array_equal(history.actual, [[2, 1], [1, 0], [0, 1], [1, np.nan], [np.nan, np.nan]])
    assert errors_by_step([history]).tolist() == pytest.approx([(2 + 0 + 0) / 3, (0 + 3) / 2])


def test_there_is_a_plot_of_both_and_an_oracle_is_called_one() -> None:
    history = forecast_history("w", 10.0, [expecting(1, 1), expecting(2, 2)], [job(0)])
    plots = forecast_plots([history], "perfect")
    assert [plot.name for plot in plots] == ["forecast", "forecast_error"]
    assert all("oracle" in plot.caption for plot in plots)
    assert forecast_plots([], "on") == []


def test_results_name_the_forecast_and_an_oracle_is_warned_of(finished: list[FinishedCell]) -> None:
    off, perfect = (results(finished, "noisy", forecast=mode) for mode in ("off", "perfect"))
    assert "forecast" not in off.cells.columns
    assert set(perfect.cells["forecast"]) == {"perfect"}
    assert perfect.known == "knowledge: noisy; forecast: perfect (an oracle)"
    assert [note for note in warnings(perfect) if "oracle" in note]
    assert not [note for note in warnings(off) if "oracle" in note]
    assert frame(finished, "noisy").equals(off.cells)
