"""A GRU on log1p counts relative to a recent level, with the calendar and daily and weekly lags."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from rlpto.forecasting.base import Batch, Forecaster, targets
from rlpto.forecasting.errors import ForecastError, checked_integer
from rlpto.forecasting.features import (
    CALENDAR,
    MOST_LEARNT,
    RECENT,
    TARGETS,
    VALIDATION,
    Features,
    describe,
    layout_of,
)
from rlpto.forecasting.intervals import at_levels, median
from rlpto.forecasting.network import (
    QUANTILES,
    Examples,
    GruSettings,
    QuantileGRU,
    blank_network,
    quantiles,
    run,
    train,
)
from rlpto.forecasting.series import TimeSeries
from rlpto.forecasting.storage import State
from rlpto.io.arrays import FloatArray, IntArray

MOST_UNITS, MOST_UPDATES = 1024, 1_000_000

_TARGETS = TARGETS + CALENDAR + 1
"""Columns of a step ahead; the last, the level relative to itself, is 0 and teaches nothing, but without it other
weights would be drawn than those whose results docs/forecasting.md shows."""


class GruForecaster(Forecaster):
    """Quantiles of the next steps from a GRU (Cho et al. 2014), all horizons at once, trained on pinball loss.

    It sees everything relative to the level of the origin, in units of the typical distance from that level [log1p].
    Trained on the first 85 % of a series, stopped early by its last 15 %. Steps beyond `horizon` are forecast like
    the last one learnt, at their own time of day and week. The same seed gives the same forecasts.

    seed: of weights and of the order of training. horizon: steps ahead learnt. hidden: units. updates: most updates
    of the weights.
    """

    kind: ClassVar[str] = "gru"

    def __init__(self, seed: int = 0, horizon: int = 12, hidden: int = 24, updates: int = 400) -> None:
        super().__init__()
        self.seed = checked_integer("seed", seed, 0, 2**63 - 1)
        self.horizon = checked_integer("horizon", horizon, 1, MOST_LEARNT)
        self.hidden = checked_integer("hidden", hidden, 1, MOST_UNITS)
        self.updates = checked_integer("updates", updates, 1, MOST_UPDATES)
        self._network: QuantileGRU | None = None
        self._scale = 1.0
        self._memory = torch.empty(0)  # recurrent state after the history
        self._read = torch.empty(0)  # [1, hidden + inputs] what the decoder is given there

    def _blank(self) -> tuple[QuantileGRU, GruSettings]:
        settings = GruSettings(hidden=self.hidden, updates=self.updates)
        return blank_network(RECENT + CALENDAR, _TARGETS, settings, self.seed), settings

    def _fit(self, series: TimeSeries) -> None:
        origins = np.arange(1, len(series))
        seen = describe(layout_of(series, self.horizon), series, origins, self.horizon)
        truth = np.log1p(targets(series.values, origins, self.horizon)) - seen.level[:, None]
        validation = len(series) - round(VALIDATION * len(series))
        self._scale = max(float(np.nanmean(np.abs(truth[:validation]))), 1e-3)
        network, settings = self._blank()
        examples = Examples(self._inputs(seen), self._targets(seen), truth / self._scale)
        train(network, examples, validation - 1, settings, self.seed)
        self._network = network
        every = describe(layout_of(series, self.horizon), series, np.arange(1, len(series) + 1), 1)
        read, self._memory = run(network, self._inputs(every))
        self._read = read[-1:]

    def _inputs(self, seen: Features) -> FloatArray:
        """[N, inputs] inputs of the recurrent part."""
        return np.concatenate([seen.recent / self._scale, seen.calendar], axis=1)

    def _targets(self, seen: Features) -> FloatArray:
        """[N, H, _TARGETS] what is known of each step ahead."""
        relative, distance = seen.targets[..., :-1] / self._scale, seen.targets[..., -1:]
        return np.concatenate([relative, distance, seen.ahead, np.zeros_like(distance)], axis=2)

    def _trained(self) -> QuantileGRU:
        if self._network is None:
            raise ForecastError(f"{self.kind}: nothing fitted yet, call fit first")
        return self._network

    def log_quantiles(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        """[N, H, Q] quantiles at network.QUANTILES in log1p for N origins of a series."""
        if not len(origins):
            return np.empty((0, horizon, len(QUANTILES)))
        layout, every = layout_of(series, self.horizon), np.arange(1, int(origins.max()) + 1)
        read, _ = run(self._trained(), self._inputs(describe(layout, series, every, 1)))
        return self._decoded(read[origins - 1], describe(layout, series, origins, horizon))

    def log_quantiles_now(self, seen: Features) -> FloatArray:
        """[1, H, Q] the same at the end of the history, from its features `seen`."""
        return self._decoded(self._read, seen)

    def _decoded(self, read: torch.Tensor, seen: Features) -> FloatArray:
        found = quantiles(self._trained(), read, self._targets(seen))
        return np.maximum(found * self._scale + seen.level[:, None, None], 0.0)

    def _points(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        return median(self.log_quantiles(series, origins, horizon))

    def _batch(self, series: TimeSeries, origins: IntArray, horizon: int, levels: FloatArray) -> Batch:
        return _batch_of(self.log_quantiles(series, origins, horizon), levels)

    def _update(self, new: TimeSeries) -> None:
        history = self._observed()
        origins = np.arange(len(history) - len(new), len(history)) + 1
        for origin in origins:
            seen = describe(layout_of(history, self.horizon), history, np.array([origin]), 1)
            self._read, self._memory = run(self._trained(), self._inputs(seen), self._memory)

    def _predict(self, horizon: int, levels: FloatArray) -> Batch:
        history = self._observed()
        seen = describe(layout_of(history, self.horizon), history, np.array([len(history)]), horizon)
        return _batch_of(self.log_quantiles_now(seen), levels)

    def _state(self) -> State:
        weights = {f"weights.{name}": weight.numpy() for name, weight in self._trained().state_dict().items()}
        return State({"scale": self._scale}, weights | {"memory": self._memory.numpy(), "read": self._read.numpy()})

    def _restore(self, state: State) -> None:
        self._scale = state.number("scale", 1e-3, 100.0)
        network, _ = self._blank()
        blank = network.state_dict()
        shapes = {f"weights.{name}": tuple(weight.shape) for name, weight in blank.items()}
        shapes |= {"memory": (1, 1, self.hidden), "read": (1, self.hidden + RECENT + CALENDAR)}
        found = {}
        for name, shape in shapes.items():
            found[name] = torch.tensor(state.array(name, shape, dtype=np.float32))
        network.load_state_dict({name: found[f"weights.{name}"] for name in blank})
        self._network, self._memory, self._read = network, found["memory"], found["read"]


def _batch_of(log_quantiles: FloatArray, levels: FloatArray) -> Batch:
    point = median(log_quantiles)
    return Batch(point, point, at_levels(log_quantiles, levels))
