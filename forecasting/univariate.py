"""The base of members that look at nothing but the counts and the clock."""

from __future__ import annotations

from abc import abstractmethod

from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.series import FloatArray, IntArray, TimeSeries
from rlpto.forecasting.storage import State


class Univariate(Forecaster):
    """A forecaster without covariates. A new one defines `kind`, `settings` and `_points`, and what it learns."""

    @abstractmethod
    def _points(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        """[N, H] point forecasts in counts, 0 or more, for N origins (1 to T), from series.values[:origin] only."""

    def _learn(self, series: TimeSeries) -> None:
        """Learn from [T] counts."""

    def _advance(self, values: FloatArray) -> None:
        """Take in [n] new counts; the history already ends with them."""

    def _state(self) -> State:
        return State()

    def _restore(self, state: State) -> None:
        pass

    def _fit(self, series: TimeSeries, covariates: FloatArray | None) -> None:  # noqa: ARG002
        self._learn(series)

    def _update(self, values: FloatArray, covariates: FloatArray | None) -> None:  # noqa: ARG002
        self._advance(values)

    def _forecasts(
        self,
        series: TimeSeries,
        origins: IntArray,
        horizon: int,
        covariates: FloatArray | None,  # noqa: ARG002
    ) -> FloatArray:
        return self._points(series, origins, horizon)
