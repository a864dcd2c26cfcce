"""A GRU on log1p counts relative to a recent level, with the calendar and daily and weekly lags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from rlpto.forecasting.base import Batch, Forecaster
from rlpto.forecasting.errors import ForecastError
from rlpto.forecasting.features import describe
from rlpto.forecasting.intervals import at_levels, median
from rlpto.forecasting.network import QUANTILES, NetworkSettings
from rlpto.forecasting.recurrent import Recurrent, one_step_errors
from rlpto.forecasting.registry import make_forecaster
from rlpto.forecasting.series import FloatArray, IntArray, TimeSeries
from rlpto.forecasting.storage import State

Experts = tuple[tuple[str, Mapping[str, Any]], ...]
"""Kinds and settings of forecasters."""


class GruForecaster(Forecaster):
    """Quantiles of the next steps from a GRU (Cho et al. 2014), all horizons at once, trained on pinball loss.

    Trained on the first 85 % of a series, stopped early by its last 15 %. Steps beyond `horizon` are forecast like
    the last one learnt, at their own time of day and week. The same seed gives the same forecasts.

    seed: of weights and of the order of training. horizon: steps ahead learnt. hidden: units. updates: most updates
    of the weights.
    """

    kind: ClassVar[str] = "gru"

    experts: ClassVar[Experts] = ()
    """Forecasters around whose forecasts the network works."""

    innovations: ClassVar[bool] = False
    """Whether the network reads the one-step errors of the first of them."""

    def __init__(self, seed: int = 0, horizon: int = 12, hidden: int = 24, updates: int = 400) -> None:
        super().__init__()
        for name, value in (("horizon", horizon), ("hidden", hidden), ("updates", updates)):
            if value < 1:
                raise ForecastError(f"{name} {value!r}: expected an integer, 1 or more")
        self.seed, self.horizon, self.hidden, self.updates = seed, horizon, hidden, updates
        self._experts: list[Forecaster] = []
        self._body: Recurrent | None = None
        self._state_now: torch.Tensor | None = None
        self._read_now: torch.Tensor | None = None
        self._expected = 0.0

    def settings(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        return {"seed": self.seed, "horizon": self.horizon, "hidden": self.hidden, "updates": self.updates}

    def _fit(self, series: TimeSeries, covariates: FloatArray | None) -> None:  # noqa: ARG002
        self._experts = [make_forecaster(kind, **settings).fit(series) for kind, settings in self.experts]
        known = self._experts_log(series, np.arange(1, len(series)), self.horizon)
        network = NetworkSettings(hidden=self.hidden, updates=self.updates)
        self._body = Recurrent.fit(series, known, self.horizon, self.innovations, network, self.seed)
        read, self._state_now = self._read(series, np.arange(1, len(series) + 1))
        self._read_now = read[-1:]
        self._expect()

    def _fitted(self) -> Recurrent:
        if self._body is None:
            raise ForecastError(f"{self.kind}: nothing fitted yet, call fit first")
        return self._body

    def _experts_log(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        """[N, H, K] forecasts of the experts in log1p."""
        found = [np.log1p(expert.forecasts(series, origins, horizon)) for expert in self._experts]
        return np.stack(found, axis=2) if found else np.empty((len(origins), horizon, 0))

    def _read(self, series: TimeSeries, every: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        """States after reading a series from its beginning up to each origin."""
        body = self._fitted()
        first = self._experts[:1] if self.innovations else []
        known = [np.log1p(expert.forecasts(series, every, 1)) for expert in first]
        errors = one_step_errors(series, every, np.stack(known, axis=2) if known else np.empty((len(every), 1, 0)))
        return body.read(describe(body.layout(series), series, every, 1), errors, None)

    def _log_quantiles(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        """[N, H, Q] quantiles in log1p."""
        body = self._fitted()
        if not len(origins):
            return np.empty((0, horizon, len(QUANTILES)))
        states, _ = self._read(series, np.arange(1, origins.max() + 1))
        seen = describe(body.layout(series), series, origins, horizon)
        return body.log_quantiles(states[origins - 1], seen, self._experts_log(series, origins, horizon))

    def _forecasts(
        self,
        series: TimeSeries,
        origins: IntArray,
        horizon: int,
        covariates: FloatArray | None,  # noqa: ARG002
    ) -> FloatArray:
        return median(self._log_quantiles(series, origins, horizon))

    def _quantile_forecasts(
        self,
        series: TimeSeries,
        origins: IntArray,
        horizon: int,
        levels: FloatArray,
        covariates: FloatArray | None,  # noqa: ARG002
    ) -> FloatArray:
        return at_levels(self._log_quantiles(series, origins, horizon), levels)

    def _batch_forecasts(
        self,
        series: TimeSeries,
        origins: IntArray,
        horizon: int,
        levels: FloatArray,
        covariates: FloatArray | None,  # noqa: ARG002
    ) -> Batch:
        found = self._log_quantiles(series, origins, horizon)
        return Batch(median(found), median(found), at_levels(found, levels))

    def _expect(self) -> None:
        """Note what the first expert expects next: its error will be read with the next value."""
        if self.innovations:
            self._expected = float(np.log1p(self._experts[0].predict(1).point[0]))

    def _update(self, values: FloatArray, covariates: FloatArray | None) -> None:  # noqa: ARG002
        body = self._fitted()
        history, _ = self._observed()
        for place in range(len(history) - len(values), len(history)):
            series = history.head(place + 1)
            error = np.log1p(series.values[-1:]) - self._expected if self.innovations else np.zeros(1)
            seen = describe(body.layout(series), series, np.array([place + 1]), 1)
            self._read_now, self._state_now = body.read(seen, error, self._state_now)
            for expert in self._experts:
                expert.update(series.values[-1:])
            self._expect()

    def _predict(self, horizon: int, levels: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        body = self._fitted()
        history, _ = self._observed()
        assert self._read_now is not None
        seen = describe(body.layout(history), history, np.array([len(history)]), horizon)
        known = [np.log1p(expert.predict(horizon).point) for expert in self._experts]
        experts = np.stack(known, axis=1)[None] if known else np.empty((1, horizon, 0))
        found = body.log_quantiles(self._read_now, seen, experts)[0]
        point = median(found)
        return point, point, at_levels(found, levels) if len(levels) else np.empty((horizon, 0))

    def _state(self) -> State:
        assert self._state_now is not None
        assert self._read_now is not None
        now = {"state": self._state_now.numpy(), "read": self._read_now.numpy()}
        state = State({"expected": self._expected}, now)
        state.nested("network", self._fitted().state())
        for place, expert in enumerate(self._experts):
            state.nested(f"expert{place}", expert.state())
        return state

    def _restore(self, state: State) -> None:
        self._body = Recurrent.restored(state.part("network"))
        self._state_now = torch.tensor(state.arrays["state"])
        self._read_now = torch.tensor(state.arrays["read"])
        self._expected = float(state.values["expected"])
        self._experts = [
            type(make_forecaster(kind, **settings)).from_state(state.part(f"expert{place}"), f"expert {kind}")
            for place, (kind, settings) in enumerate(self.experts)
        ]
