"""Forecasts in the report."""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import Forecast
from rlpto.evaluation.forecast_plots import arrivals, forecast_plot
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.tables import frame, results

from ..builders import job


def expecting(*counts: float) -> Forecast:
    """A forecast of these numbers of jobs of one class in the next steps."""
    mean = np.array([[count, 0.0, 0.0] for count in counts])
    return Forecast(mean, mean - 1, mean + 1)


def test_forecasts_are_drawn_with_what_came_in_the_steps_they_are_of() -> None:
    jobs = [job(i, submit=submit) for i, submit in enumerate([0.0, 5.0, 12.0, 35.0])]
    np.testing.assert_array_equal(arrivals(10.0, 5, jobs), [2, 1, 0, 1, np.nan])
    plot = forecast_plot("w", 10.0, [None, expecting(3, 0), expecting(0, 4), expecting(1, 1), expecting(9, 9)], jobs)
    actual, mean = (line.get_ydata() for line in plot.figure.axes[0].get_lines())
    np.testing.assert_array_equal(actual, [2, 1, 0, 1, np.nan])
    np.testing.assert_array_equal(mean, [np.nan, 3, 0, 1, 9])


def test_results_name_the_forecast(finished: list[FinishedCell]) -> None:
    off, on = (results(finished, "noisy", forecast=mode) for mode in ("off", "on"))
    assert "forecast" not in off.cells.columns
    assert set(on.cells["forecast"]) == {"on"}
    assert on.known == "knowledge: noisy; forecast: on"
    assert frame(finished, "noisy").equals(off.cells)
