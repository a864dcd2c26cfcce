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
from rlpto.experiments.window_traces import WindowTraces
from rlpto.forecasting.series import ForecastError
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ConfigError
from rlpto.provisioning.control import NodeGroups
from rlpto.provisioning.demand import Demand, demand_of, minute_counts

if TYPE_CHECKING:  # it imports torch
    from rlpto.forecasting.demand import DemandForecaster

LEAST_S = 90_000.0
"""Shortest demand on which a forecaster can be trained [s]: a day, and more than its longest horizon."""


class WindowDemand:
    """The demand of the windows of an experiment. shape: nodes of its cluster, some of them rented."""

    def __init__(self, config: Config, traces: WindowTraces, shape: ClusterShape) -> None:
        self._config, self._traces, self._shape = config, traces, shape
        self._factor = config.ray.arrivals
        self._fitted: dict[tuple[float, float], DemandForecaster] = {}

    def of(self, window: str, jobs: Sequence[Job]) -> Demand:
        """Return the GPUs that a window's jobs request by the minute, and the requests of the day before."""
        cut, traces = self._traces.by_name[window].window, self._traces
        minutes = math.ceil((cut.end - cut.start) * self._factor / TICK_S)
        return demand_of(jobs, minutes, self._shape, traces.day_before(cut, self._factor), traces.local_start(cut))

    def forecasts(self, window: str, demand: Demand) -> FloatArray:
        """Return forecasts of a window's demand, from `Demand.forecasts`. Raises the errors of `forecaster`.

        A training window is forecast by a network trained on the other half of the training time, if that is long
        enough. Constants and agents tuned on forecasts of the network's own training days would trust it too much.
        """
        cut, boot = self._traces.by_name[window].window, float(NodeGroups(self._shape).boot[0])
        if cut.split != "train" or self._config.forecast.demand is not None:
            return demand.forecasts(self.forecaster, boot)
        end = self._traces.learnt_demand()[2]
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
            return self._fit(0.0, self._traces.learnt_demand()[2])
        try:
            return load_demand(path)
        except ForecastError as wrong:
            raise ConfigError(f"forecast.demand: {wrong}") from None

    def _fit(self, begin: float, end: float) -> DemandForecaster:
        """Fit a forecaster on the jobs submitted from `begin` to `end` [s of the trace], once."""
        from rlpto.forecasting.demand import DemandForecaster

        if (begin, end) not in self._fitted:
            submit, gpus, _, start = self._traces.learnt_demand()
            there = (submit >= begin) & (submit < end)
            seconds, group = (submit[there] - begin) * self._factor, np.zeros(int(there.sum()), np.int64)
            minutes = int((end - begin) * self._factor / TICK_S)
            counts = minute_counts(seconds, gpus[there], group, 1, minutes)[0]
            self._fitted[begin, end] = DemandForecaster(seed=self._config.seed).fit(counts, start + begin)
        return self._fitted[begin, end]
