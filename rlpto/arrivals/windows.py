"""Forecasts for the windows of an experiment: online for a run, and all at once for training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlpto.arrivals.online import (
    ArrivalTotals,
    ClassForecasts,
    KnownTotals,
    PerfectForecasts,
    StateForecaster,
    TotalForecaster,
    total_forecasts,
    window_forecasts,
)
from rlpto.arrivals.past import Past, load_model
from rlpto.arrivals.settings import ForecastSettings
from rlpto.core.cluster import Forecast
from rlpto.core.jobs import Job
from rlpto.io.arrays import FloatArray
from rlpto.workloads.windows import Window


class WindowForecasts:
    """Forecasts for windows, in modes on and perfect. Raises ConfigError if the model cannot be used.

    capacity: GPUs of the cluster. past: what came before a window, in steps of the settings.
    """

    def __init__(self, settings: ForecastSettings, capacity: int, past: Callable[[Window], Past]) -> None:
        self.settings, self.step = settings, settings.step
        self.most_reserved = int(settings.reserve.share * capacity)
        self._past = past
        wanted = settings.model if settings.mode == "on" else None
        self._model = None if wanted is None else load_model(wanted, self.step)
        self._totals: dict[tuple[str, bytes], list[ArrivalTotals | None]] = {}

    def for_run(self, window: Window, jobs: Sequence[Job]) -> StateForecaster:
        """For one run on a window: forecasts from what arrives in it. jobs: of the window, for mode perfect alone."""
        if self.settings.mode == "perfect":
            source: PerfectForecasts | ClassForecasts = PerfectForecasts(jobs, self.step, self.settings.horizon)
        else:
            past = self._past(window)
            source = ClassForecasts(self._total(past), past, self.step)
        return StateForecaster(source, self.step, self.most_reserved, self._last(window))

    def known(self, window: Window, jobs: Sequence[Job]) -> list[Forecast | None]:
        """All forecasts of a window, after 0, 1, ... steps: those that `for_run` gives while its jobs arrive.

        The totals, the expensive part, are computed once for each window, whatever the classes of its jobs.
        """
        if self.settings.mode == "perfect":
            return window_forecasts(self.for_run(window, jobs).source, jobs, self.step, self._last(window))
        past = self._past(window)
        submit_time: FloatArray = np.array([job.submit_time for job in jobs], dtype=np.float64)
        key = (window.name, submit_time.tobytes())
        if key not in self._totals:
            self._totals[key] = total_forecasts(self._total(past), submit_time, self.step, self._last(window))
        source = ClassForecasts(KnownTotals(self._totals[key]), past, self.step)
        return window_forecasts(source, jobs, self.step, self._last(window))

    def _total(self, past: Past) -> TotalForecaster:
        return TotalForecaster(past, self.step, self.settings.horizon, self._model)

    def _last(self, window: Window) -> int:
        """Steps that are over at the end of a window."""
        return int((window.end - window.start) / self.step)
