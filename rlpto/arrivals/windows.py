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
    TotalSource,
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
        wanted = settings.mode == "on" and settings.model is not None
        self._model = load_model(settings.model, self.step) if wanted and settings.model is not None else None
        self._totals: dict[tuple[str, bytes], list[ArrivalTotals | None]] = {}

    def for_run(self, window: Window, jobs: Sequence[Job]) -> StateForecaster:
        """For one run on a window: forecasts from what arrives in it. jobs: of the window, for mode perfect alone."""
        if self.settings.mode == "perfect":
            source: PerfectForecasts | ClassForecasts = PerfectForecasts(jobs, self.step, self.settings.horizon)
        else:
            source = self.by_class(self._past(window))
        return StateForecaster(source, self.step, self.most_reserved, self._last(window))

    def by_class(self, past: Past) -> ClassForecasts:
        """Forecasts that go on from a past, from what arrives."""
        return ClassForecasts(self._total(past), past, self.step)

    def known(self, window: Window, jobs: Sequence[Job]) -> list[Forecast | None]:
        """All forecasts of a window, after 0, 1, ... steps: those that `for_run` gives while its jobs arrive.

        The totals, the expensive part, are computed once for each window, whatever the classes of its jobs.
        """
        if self.settings.mode == "perfect":
            return window_forecasts(self.for_run(window, jobs).source, jobs, self.step, self._last(window))
        past = self._past(window)
        source = ClassForecasts(KnownTotals(self.totals(window, jobs)), past, self.step)
        return window_forecasts(source, jobs, self.step, self._last(window))

    def totals(self, window: Window, jobs: Sequence[Job]) -> list[ArrivalTotals | None]:
        """Forecasts of the jobs of all classes, after 0, 1, ... steps."""
        submit_time: FloatArray = np.array([job.submit_time for job in jobs], dtype=np.float64)
        key = (window.name, submit_time.tobytes())
        if key not in self._totals:
            total = self._total(self._past(window))
            self._totals[key] = total_forecasts(total, submit_time, self.step, self._last(window))
        return self._totals[key]

    def _total(self, past: Past) -> TotalSource:
        counts = np.rint(past.jobs.sum(axis=1))
        begins = past.start - len(counts) * self.step
        return TotalForecaster(counts, self.step, begins, self.settings.horizon, self._model)

    def _last(self, window: Window) -> int:
        """Steps that are over at the end of a window."""
        return int((window.end - window.start) / self.step)
