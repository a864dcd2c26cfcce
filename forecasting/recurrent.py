"""A trained network together with what it needs to read a series: the body of the GRU members."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rlpto.forecasting.base import targets
from rlpto.forecasting.errors import ForecastError
from rlpto.forecasting.features import CALENDAR, SHORT_LAGS, Features, Layout, describe, layout_of
from rlpto.forecasting.linear import VALIDATION
from rlpto.forecasting.network import (
    Examples,
    NetworkSettings,
    QuantileGRU,
    blank_network,
    quantiles,
    run,
    train,
)
from rlpto.forecasting.series import FloatArray, IntArray, TimeSeries
from rlpto.forecasting.storage import State

_INPUTS = SHORT_LAGS + 4 + CALENDAR
_TARGETS = 5 + CALENDAR


@dataclass(frozen=True)
class View:
    """How a network sees a series: everything relative to the level of the origin, in units of `scale`.

    horizon: steps ahead learnt, later ones are described like the last; scale: typical distance from the level
    [log1p]; innovations: whether the network is also fed the error of the first expert's last one-step forecast;
    experts: how many there are (0: the level itself is the only one).
    """

    horizon: int
    scale: float
    innovations: bool
    experts: int

    def blank(self, settings: NetworkSettings, seed: int) -> QuantileGRU:
        """An untrained network of the right shape."""
        return blank_network(_INPUTS + self.innovations, _TARGETS, max(self.experts, 1), settings, seed)

    def inputs(self, seen: Features, errors: FloatArray) -> FloatArray:
        """[N, inputs] what the recurrent part reads."""
        columns = [seen.recent, errors[:, None]] if self.innovations else [seen.recent]
        return np.concatenate([np.concatenate(columns, axis=1) / self.scale, seen.calendar], axis=1)

    def targets(self, seen: Features) -> FloatArray:
        """[N, H, targets] what is known of each step ahead."""
        relative, distance = seen.targets[..., :-1] / self.scale, seen.targets[..., -1:]
        return np.concatenate([relative, distance, seen.ahead], axis=2)

    def around(self, seen: Features, experts: FloatArray) -> FloatArray:
        """[N, H, max(K, 1)] the experts' forecasts, given as [N, H, K] in log1p."""
        if not self.experts:
            return np.zeros((*seen.targets.shape[:2], 1))
        return (experts - seen.level[:, None, None]) / self.scale


@dataclass(frozen=True)
class Recurrent:
    """A network on log1p counts relative to a recent level, around experts' forecasts."""

    network: QuantileGRU
    settings: NetworkSettings
    view: View

    @classmethod
    def fit(
        cls,
        series: TimeSeries,
        experts: FloatArray,
        horizon: int,
        innovations: bool,
        settings: NetworkSettings,
        seed: int,
    ) -> Recurrent:
        """Train on [T] counts and experts' forecasts [T - 1, horizon, K] in log1p at origins 1 to T - 1.

        The last 15 % of the series stop the training early.
        """
        origins = np.arange(1, len(series))
        seen = describe(layout_of(series, horizon), series, origins, horizon)
        truth = np.log1p(targets(series.values, origins, horizon)) - seen.level[:, None]
        validation = len(series) - round(VALIDATION * len(series))
        scale = max(float(np.nanmean(np.abs(truth[:validation]))), 1e-3)
        view = View(horizon, scale, innovations, experts.shape[2])
        errors = one_step_errors(series, origins, experts)
        examples = Examples(view.inputs(seen, errors), view.targets(seen), view.around(seen, experts), truth / scale)
        network = view.blank(settings, seed)
        train(network, examples, validation - 1, settings, seed)
        return cls(network, settings, view)

    def layout(self, series: TimeSeries) -> Layout:
        """Lags that the features of a series must have."""
        return layout_of(series, self.view.horizon)

    def read(self, seen: Features, errors: FloatArray, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """States [N, ...] after reading N consecutive origins from `state` (None: at rest), and what to go on from.

        errors: [N] of the first expert's one-step forecasts, as `one_step_errors` gives them.
        """
        return run(self.network, self.view.inputs(seen, errors), state)

    def log_quantiles(self, states: torch.Tensor, seen: Features, experts: FloatArray) -> FloatArray:
        """[N, H, Q] quantiles at network.QUANTILES in log1p, from experts [N, H, K] in log1p."""
        found = quantiles(self.network, states, self.view.targets(seen), self.view.around(seen, experts))
        return np.maximum(found * self.view.scale + seen.level[:, None, None], 0.0)

    def state(self) -> State:
        """What `restored` needs."""
        weights = {name: weight.numpy() for name, weight in self.network.state_dict().items()}
        return State({"settings": vars(self.settings), "view": vars(self.view)}, weights)

    @classmethod
    def restored(cls, state: State) -> Recurrent:
        """The network of which `state` was taken. Raises ForecastError if the weights do not fit together."""
        settings, view = NetworkSettings(**state.values["settings"]), View(**state.values["view"])
        network = view.blank(settings, 0)
        try:
            network.load_state_dict({name: torch.tensor(weight) for name, weight in state.arrays.items()})
        except RuntimeError as wrong:
            raise ForecastError(f"weights of a network do not fit: {str(wrong).splitlines()[0]}") from None
        return cls(network, settings, view)


def one_step_errors(series: TimeSeries, origins: IntArray, experts: FloatArray) -> FloatArray:
    """[N] errors in log1p, known at consecutive origins, of the first expert's forecast of the newest value.

    experts: [N, H, K] in log1p at those origins. The first origin's is 0: what was forecast before is not given.
    """
    if not experts.shape[2]:
        return np.zeros(len(origins))
    newest = np.log1p(series.values[origins - 1])
    return np.concatenate([[0.0], newest[1:] - experts[:-1, 0, 0]])
