"""Demand of each window's jobs by the minute, and forecasts of the demand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rlpto.core.cluster import ClusterShape
from rlpto.core.jobs import Job
from rlpto.core.renting import TICK_S
from rlpto.experiments.config import Config
from rlpto.experiments.workload import DAY, WindowedWorkload
from rlpto.forecasting.series import ForecastError
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ConfigError
from rlpto.provisioning.control import NodeGroups
from rlpto.provisioning.demand import Demand, demand_of, minute_counts
from rlpto.workloads.windows import Window

if TYPE_CHECKING:  # it imports torch
    from rlpto.forecasting.demand import DemandForecaster

LEAST_S = 90_000.0
"""Shortest demand on which a forecaster can be trained [s]: a day, and more than its longest horizon."""


class WindowDemand:
    """The demand of the windows of an experiment. shape: nodes of its cluster, some of them rented."""

    def __init__(self, config: Config, workload: WindowedWorkload, shape: ClusterShape) -> None:
        self._config, self._workload, self._shape = config, workload, shape
        self._factor = config.ray.arrivals
        self._fitted: dict[tuple[float, float], DemandForecaster] = {}

    def of(self, window: str, jobs: Sequence[Job]) -> Demand:
        """Return the GPUs that a window's jobs request by the minute, and the requests of the day before."""
        cut = self._workload.windows[window]
        minutes = math.ceil((cut.end - cut.start) * self._factor / TICK_S)
        return demand_of(jobs, minutes, self._shape, self._day_before(cut), self._workload.local_start(cut))

    def _day_before(self, window: Window) -> tuple[FloatArray, IntArray]:
        """Return the jobs submitted in the day before a window: seconds before the window's start, and GPUs. There are
        none if each file is a window."""
        if not self._workload.is_cut or window.start == 0:
            return np.zeros(0), np.zeros(0, dtype=np.int64)
        trace = self._workload.scaled[0]
        first, last = np.searchsorted(trace.submit_time, (window.start - DAY / self._factor, window.start))
        return (window.start - trace.submit_time[first:last]) * self._factor, trace.gpus[first:last]

    def forecasts(self, window: str, demand: Demand) -> FloatArray:
        """Return forecasts of a window's demand, from `Demand.forecasts`. Raises the errors of `forecaster`.

        A training window is forecast by a network trained on the other half of the training time, if that is long
        enough. Constants and agents tuned on forecasts of the network's own training days would trust it too much.
        """
        cut, boot = self._workload.windows[window], float(NodeGroups(self._shape).boot[0])
        if cut.split != "train" or self._config.forecast.demand is not None:
            return demand.forecasts(self.forecaster, boot)
        end = self.learnt()[2]
        half = end / 2
        if half * self._factor < LEAST_S:
            return demand.forecasts(self.forecaster, boot)
        return demand.forecasts(self._fit(half, end) if cut.start < half else self._fit(0.0, half), boot)

    @cached_property
    def forecaster(self) -> DemandForecaster:
        """Forecaster of demand by the minute: read from `forecast.demand`, else fitted on all jobs before the first
        validation window. Raises ConfigError for an unusable file, ForecastError for less than a day of demand."""
        from rlpto.forecasting.demand import load_demand

        if (path := self._config.forecast.demand) is None:
            return self._fit(0.0, self.learnt()[2])
        try:
            return load_demand(path)
        except ForecastError as wrong:
            raise ConfigError(f"forecast.demand: {wrong}") from None

    def learnt(self) -> tuple[FloatArray, IntArray, float, float]:
        """Return the jobs of the trace before its first validation or test window: submit times [s], and GPUs; then the
        start of that window [s], and the local time of second 0. Raises ConfigError if each file is a window."""
        workload = self._workload
        later = [window.start for window in workload.windows.values() if window.split != "train"]
        first = next(iter(workload.windows.values()))
        if not workload.is_cut or not min(later, default=first.end):
            raise ConfigError(
                f"{workload.description}: no demand before the test windows to fit a forecast on; expected "
                "forecast.demand, a file of `rlpto forecast fit --demand`"
            )
        trace, span, _ = workload.scaled
        end = min(later, default=span)
        upto = int(np.searchsorted(trace.submit_time, end))
        return trace.submit_time[:upto], trace.gpus[:upto], end, workload.local_start(first) - first.start

    def _fit(self, begin: float, end: float) -> DemandForecaster:
        """Fit a forecaster on the jobs submitted from `begin` to `end` [s of the trace], once."""
        from rlpto.forecasting.demand import DemandForecaster

        if (begin, end) not in self._fitted:
            submit, gpus, _, start = self.learnt()
            there = (submit >= begin) & (submit < end)
            seconds, group = (submit[there] - begin) * self._factor, np.zeros(int(there.sum()), np.int64)
            minutes = int((end - begin) * self._factor / TICK_S)
            counts = minute_counts(seconds, gpus[there], group, 1, minutes)[0]
            self._fitted[begin, end] = DemandForecaster(seed=self._config.seed).fit(counts, start + begin)
        return self._fitted[begin, end]
