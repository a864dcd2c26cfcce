"""A trained network together with what it needs to read a series: the body of the GRU members."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from forecasting.base import targets
from forecasting.errors import ForecastError
from forecasting.features import CALENDAR, Features, Layout, describe, layout_of
from forecasting.linear import VALIDATION
from forecasting.network import (
    Examples,
    NetworkSettings,
    QuantileGRU,
    quantiles,
    run,
    train,
)
from forecasting.series import FloatArray, IntArray, TimeSeries
from forecasting.storage import State

_INPUTS = 5 + CALENDAR
_TARGETS = 5 + CALENDAR


@dataclass(frozen=True)
class Recurrent:
    """A network on log1p counts relative to a recent level, around experts' forecasts.

    horizon: steps ahead learnt, later ones are forecast like the last; scale: typical distance from the level
    [log1p]; innovations: whether the network is also fed the error of the first expert's last one-step forecast;
    experts: how many there are (0: the level itself is the only one).
    """

    network: QuantileGRU
    settings: NetworkSettings
    horizon: int
    scale: float
    innovations: bool
    experts: int

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
        distance = np.abs(truth[:validation])
        scale = max(float(np.nanmean(distance)), 1e-3)
        blank = QuantileGRU(_INPUTS + innovations, _TARGETS, max(experts.shape[2], 1), settings)
        draft = cls(blank, settings, horizon, scale, innovations, experts.shape[2])
        errors = one_step_errors(series, origins, experts)
        examples = Examples(
            draft._inputs(seen, errors), draft._targets(seen), draft._relative(seen, experts), truth / scale
        )
        network = train(examples, validation - 1, settings, seed)
        return cls(network, settings, horizon, scale, innovations, experts.shape[2])

    def layout(self, series: TimeSeries) -> Layout:
        """Lags that the features of a series must have."""
        return layout_of(series, self.horizon)

    def read(self, seen: Features, errors: FloatArray, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """States [N, hidden] after reading N consecutive origins from `state` (None: at rest), and the last one.

        errors: [N] of the first expert's one-step forecasts, as `one_step_errors` gives them.
        """
        return run(self.network, self._inputs(seen, errors), state)

    def log_quantiles(self, states: torch.Tensor, seen: Features, experts: FloatArray) -> FloatArray:
        """[N, H, Q] quantiles at network.QUANTILES in log1p, from experts [N, H, K] in log1p."""
        found = quantiles(self.network, states, self._targets(seen), self._relative(seen, experts))
        return np.maximum(found * self.scale + seen.level[:, None, None], 0.0)

    def _inputs(self, seen: Features, errors: FloatArray) -> FloatArray:
        newest, before = seen.recent[:, 0], seen.recent[:, 1]
        columns = [newest, newest - before, *seen.recent[:, -4:-3].T, *seen.recent[:, -2:].T]
        if self.innovations:
            columns.append(errors)
        return np.concatenate([np.stack(columns, axis=1) / self.scale, seen.calendar], axis=1)

    def _targets(self, seen: Features) -> FloatArray:
        relative, distance = seen.targets[..., :-1] / self.scale, seen.targets[..., -1:]
        return np.concatenate([relative, distance, seen.ahead], axis=2)

    def _relative(self, seen: Features, experts: FloatArray) -> FloatArray:
        if not self.experts:
            return np.zeros((*seen.targets.shape[:2], 1))
        return (experts - seen.level[:, None, None]) / self.scale

    def state(self) -> State:
        """What `restored` needs."""
        state = State(
            {
                "settings": vars(self.settings),
                "horizon": self.horizon,
                "scale": self.scale,
                "innovations": self.innovations,
                "experts": self.experts,
            }
        )
        state.arrays.update({name: weight.numpy() for name, weight in self.network.state_dict().items()})
        return state

    @classmethod
    def restored(cls, state: State) -> Recurrent:
        """The network of which `state` was taken. Raises ForecastError if the weights do not fit together."""
        values = state.values
        settings = NetworkSettings(**values["settings"])
        network = QuantileGRU(_INPUTS + values["innovations"], _TARGETS, max(values["experts"], 1), settings)
        try:
            network.load_state_dict({name: torch.tensor(weight) for name, weight in state.arrays.items()})
        except RuntimeError as wrong:
            raise ForecastError(f"weights of a network do not fit: {str(wrong).splitlines()[0]}") from None
        network.eval()
        rest = (values["horizon"], values["scale"], values["innovations"], values["experts"])
        return cls(network, settings, *rest)


def one_step_errors(series: TimeSeries, origins: IntArray, experts: FloatArray) -> FloatArray:
    """[N] errors in log1p, known at consecutive origins, of the first expert's forecast of the newest value.

    experts: [N, H, K] in log1p at those origins. The first origin's is 0: what was forecast before is not given.
    """
    if not experts.shape[2]:
        return np.zeros(len(origins))
    newest = np.log1p(series.values[origins - 1])
    return np.concatenate([[0.0], newest[1:] - experts[:-1, 0, 0]])
