"""A GRU on log1p counts relative to a recent level, with the calendar and daily and weekly lags.

The GRU reads the series once; a small decoder turns its state and known features of each target step into quantiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor, nn

from rlpto.forecasting.base import Batch, Forecaster, targets
from rlpto.forecasting.features import CALENDAR, MOST_LEARNT, RECENT, TARGETS, VALIDATION, Features, describe
from rlpto.forecasting.series import TimeSeries, checked_integer
from rlpto.forecasting.storage import State
from rlpto.io.arrays import FloatArray, IntArray

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""Levels of the learnt quantiles."""
MEDIAN = QUANTILES.index(0.5)

LEAST_SPREAD = 0.05
"""Least distance of quantiles from the median in log1p. Intervals are multiples of the distance and must be able to
grow."""

MASSES = np.diff(np.concatenate([[0.0], (np.array(QUANTILES[1:]) + np.array(QUANTILES[:-1])) / 2, [1.0]]))
"""[Q] probability mass represented by each learnt quantile."""

MOST_UNITS, MOST_UPDATES = 1024, 1_000_000

CHUNK, WARMUP, BATCH = 72, 36, 16
"""Origins per training sequence, warm-up steps read before a sequence's first origin, sequences per update."""

CHECK_UPDATES, STOP_CHECKS = 20, 5
"""Updates between checks of the validation loss, and checks without improvement before stopping."""

RATE, DECAY, DROPOUT = 4e-3, 1e-3, 0.1
"""Adam's highest learning rate, weight decay, and share of the decoder's units dropped in training."""

_INPUTS = RECENT + CALENDAR

_TARGETS = TARGETS + CALENDAR + 1
"""Columns of a step ahead. The last, the level relative to itself, is always 0; it is kept because without it other
weights would be drawn than for the results in docs/forecasting.md."""


class GruForecaster(Forecaster):
    """Quantiles of the next steps from a GRU (Cho et al. 2014), all horizons at once, trained on pinball loss.

    Inputs are relative to the level of the origin, in units of the typical distance from this level [log1p].
    The network is trained on the first 85 % of a series, with early stopping on its last 15 %. Steps beyond `horizon`
    are forecast like the last learnt step, at their own time of day and week. The same seed gives the same forecasts.

    seed: seed of weights and of the order of training. horizon: steps ahead learnt. hidden: units. updates: most
    updates of the weights.
    """

    _network: QuantileGRU

    def __init__(self, seed: int = 0, horizon: int = 12, hidden: int = 24, updates: int = 400) -> None:
        super().__init__()
        self.seed = checked_integer("seed", seed, 0, 2**63 - 1)
        self.horizon = checked_integer("horizon", horizon, 1, MOST_LEARNT)
        self.hidden = checked_integer("hidden", hidden, 1, MOST_UNITS)
        self.updates = checked_integer("updates", updates, 1, MOST_UPDATES)
        self._scale = 1.0
        self._memory = torch.empty(0)  # recurrent state after the history
        self._read = torch.empty(0)  # [1, hidden + inputs] the decoder's input there

    def _blank(self) -> QuantileGRU:
        """Return the untrained network without changing the state of torch's random numbers."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return QuantileGRU(self.hidden).eval()

    def _fit(self, series: TimeSeries) -> None:
        origins = np.arange(1, len(series))
        seen = describe(series, origins, self.horizon, self.horizon)
        truth = np.log1p(targets(series.values, origins, self.horizon)) - seen.level[:, None]
        validation = len(series) - round(VALIDATION * len(series))
        self._scale = max(float(np.nanmean(np.abs(truth[:validation]))), 1e-3)
        self._network = network = self._blank()
        examples = [self._inputs(seen), self._targets(seen), truth / self._scale]
        train(network, examples, validation - 1, self.updates, self.seed)
        every = np.arange(1, len(series) + 1)
        read, self._memory = run(network, self._inputs(describe(series, every, 1, self.horizon)))
        self._read = read[-1:]

    def _inputs(self, seen: Features) -> FloatArray:
        """Return the inputs [N, inputs] of the recurrent part."""
        return np.concatenate([seen.recent / self._scale, seen.calendar], axis=1)

    def _targets(self, seen: Features) -> FloatArray:
        """Return the known features [N, H, _TARGETS] of each step ahead."""
        relative, distance = seen.targets[..., :-1] / self._scale, seen.targets[..., -1:]
        return np.concatenate([relative, distance, seen.ahead, np.zeros_like(distance)], axis=2)

    def log_quantiles(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        """Return quantiles [N, H, Q] at QUANTILES in log1p for N origins of a series."""
        every = np.arange(1, int(origins.max()) + 1)
        read, _ = run(self._network, self._inputs(describe(series, every, 1, self.horizon)))
        return self._decoded(read[origins - 1], describe(series, origins, horizon, self.horizon))

    def log_quantiles_now(self, horizon: int) -> FloatArray:
        """Return `log_quantiles` [1, H, Q] at the end of the history."""
        history = self._observed()
        return self._decoded(self._read, describe(history, np.array([len(history)]), horizon, self.horizon))

    def _decoded(self, read: Tensor, seen: Features) -> FloatArray:
        """Return quantiles [N, H, Q] in log1p at N origins with states [N, hidden + inputs]."""
        targets = self._targets(seen)
        found = np.empty((*targets.shape[:2], len(QUANTILES)))
        with torch.no_grad():
            for start in range(0, len(targets), 4096):
                part = slice(start, start + 4096)
                aim = torch.tensor(targets[part], dtype=torch.float32)
                found[part] = self._network.decode(read[part], aim).numpy()
        return np.maximum(found * self._scale + seen.level[:, None, None], 0.0)

    def _batch(self, series: TimeSeries, origins: IntArray, horizon: int, levels: FloatArray) -> Batch:
        return batch_of(self.log_quantiles(series, origins, horizon), levels)

    def _update(self, new: TimeSeries) -> None:
        history = self._observed()
        origins = np.arange(len(history) - len(new), len(history)) + 1
        for origin in origins:
            seen = describe(history, np.array([origin]), 1, self.horizon)
            self._read, self._memory = run(self._network, self._inputs(seen), self._memory)

    def _predict(self, horizon: int, levels: FloatArray) -> Batch:
        return batch_of(self.log_quantiles_now(horizon), levels)

    def _state(self) -> State:
        weights = {f"weights.{name}": weight.numpy() for name, weight in self._network.state_dict().items()}
        return State({"scale": self._scale}, weights | {"memory": self._memory.numpy(), "read": self._read.numpy()})

    def _restore(self, state: State) -> None:
        self._scale = state.number("scale", 1e-3, 100.0)
        network = self._blank()
        blank = network.state_dict()
        shapes = {f"weights.{name}": tuple(weight.shape) for name, weight in blank.items()}
        shapes |= {"memory": (1, 1, self.hidden), "read": (1, self.hidden + _INPUTS)}
        found = {name: torch.tensor(state.array(name, own, dtype=np.float32)) for name, own in shapes.items()}
        network.load_state_dict({name: found[f"weights.{name}"] for name in blank})
        self._network, self._memory, self._read = network, found["memory"], found["read"]


class QuantileGRU(nn.Module):
    """A GRU over inputs [B, T, inputs]; a decoder to quantiles [B, T, H, len(QUANTILES)]."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRU(_INPUTS, hidden, batch_first=True)
        self.from_state = nn.Linear(hidden + _INPUTS, hidden)
        self.from_target = nn.Linear(_TARGETS, hidden, bias=False)
        self.drop = nn.Dropout(DROPOUT)
        self.out = nn.Linear(hidden, len(QUANTILES))
        # The untrained network forecasts the recent level with a spread of about one scale.
        nn.init.normal_(self.out.weight, std=0.01)
        nn.init.zeros_(self.out.bias)

    def encode(self, inputs: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return states [B, T, hidden + inputs] at each step of inputs [B, T, inputs], and the last recurrent state.
        The newest inputs are concatenated to the recurrent state, so the network need not learn to remember them."""
        states, last = self.cell(inputs, state)
        return torch.cat([states, inputs], dim=-1), last

    def decode(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return quantiles [..., H, Q] from states [..., hidden + inputs] and targets [..., H, G]."""
        mixed = torch.relu(self.from_state(states).unsqueeze(-2) + self.from_target(targets))
        offsets = self.out(self.drop(mixed))
        centre = offsets[..., MEDIAN].unsqueeze(-1)
        gaps = nn.functional.softplus(offsets - 1.0)
        below = centre - gaps[..., :MEDIAN].flip(-1).cumsum(-1).flip(-1)
        above = centre + gaps[..., MEDIAN + 1 :].cumsum(-1)
        return torch.cat([below, centre, above], dim=-1)


def pinball(quantiles: Tensor, truth: Tensor) -> Tensor:
    """Return the mean pinball loss of quantiles [..., Q] against known truth [...] (Koenker, Bassett 1978)."""
    known = ~torch.isnan(truth)
    levels = torch.tensor(QUANTILES, dtype=quantiles.dtype)
    error = truth[known].unsqueeze(-1) - quantiles[known]
    return torch.maximum(levels * error, (levels - 1) * error).sum() / max(error.numel(), 1)


def train(network: QuantileGRU, examples: list[FloatArray], validation: int, updates: int, seed: int) -> None:
    """Train on the origins before index `validation`, with early stopping by the loss on the later origins.

    examples: inputs [N, I], targets [N, H, G] and truth [N, H] (NaN if unknown) of consecutive origins, in units of the
    scale of the series, relative to the level of their origin. Origins whose targets reach into the validation part are
    left out. updates: most updates. The same seed gives the same weights.
    """
    data, rng = [torch.tensor(part, dtype=torch.float32) for part in examples], np.random.default_rng(seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates, eta_min=RATE / 20)
    training = max(validation - data[2].shape[1], 1)  # their targets end before the validation part begins
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(seed)
        best, best_loss, waited = deepcopy(network.state_dict()), _validation_loss(network, data, validation), 0
        for update in range(1, updates + 1):
            network.train()
            starts = rng.integers(0, max(training - CHUNK, 0) + 1, BATCH)
            loss = _chunk_loss(network, data, starts, training)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            if update % CHECK_UPDATES:
                continue
            reached = _validation_loss(network, data, validation)
            waited = waited + 1 if reached >= best_loss else 0
            if reached < best_loss:
                best, best_loss = deepcopy(network.state_dict()), reached
            if waited >= STOP_CHECKS:
                break
    network.load_state_dict(best)
    network.eval()


@contextmanager
def one_thread() -> Iterator[None]:
    """Restrict torch to one thread. In networks this small, synchronising several threads takes ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _chunk_loss(network: QuantileGRU, data: list[Tensor], starts: IntArray, end: int) -> Tensor:
    """Return the loss of the sequences of CHUNK origins at each start, each read from WARMUP steps before. Inputs
    before the series are 0."""
    inputs, targets, truth = data
    reading = torch.as_tensor(starts)[:, None] + torch.arange(-WARMUP, CHUNK)
    fed = inputs[reading.clamp(0, end - 1)] * (reading >= 0).unsqueeze(-1)
    states = network.encode(fed)[0][:, WARMUP:]
    counted = reading[:, WARMUP:]
    inside = counted.clamp(max=end - 1)
    aim = torch.where((counted < end).unsqueeze(-1), truth[inside], torch.nan)
    return pinball(network.decode(states, targets[inside]), aim)


def _validation_loss(network: QuantileGRU, data: list[Tensor], validation: int) -> float:
    network.eval()
    end = len(data[0])
    starts = np.arange(validation, end, CHUNK)
    with torch.no_grad():
        return float(_chunk_loss(network, data, starts, end))


def run(network: QuantileGRU, inputs: FloatArray, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return states [T, hidden + I] after each of inputs [T, I], and the last recurrent state. state: start of the
    recurrence. Default: at rest."""
    with torch.no_grad():
        states, last = network.encode(torch.tensor(inputs, dtype=torch.float32)[None], state)
    return states[0], last


def spread_of(log_quantiles: FloatArray) -> FloatArray:
    """Return the distances [..., Q] from the median in log1p, at least LEAST_SPREAD, but 0 at the median itself."""
    spread: FloatArray = np.maximum(np.abs(log_quantiles - log_quantiles[..., MEDIAN : MEDIAN + 1]), LEAST_SPREAD)
    spread[..., MEDIAN] = 0.0
    return spread


def mean_of(log_quantiles: FloatArray) -> FloatArray:
    """Return the mean count [...] of distributions given by quantiles [..., Q] in log1p."""
    return np.asarray(np.expm1(log_quantiles) @ MASSES)


def at_levels(log_quantiles: FloatArray, levels: FloatArray) -> FloatArray:
    """Return quantiles [..., L] in counts at any levels, from quantiles [..., Q] at QUANTILES in log1p. Between and
    beyond QUANTILES they lie on straight lines against the normal quantile."""
    known, wanted = ndtri(np.array(QUANTILES)), ndtri(levels)
    right = np.clip(np.searchsorted(known, wanted), 1, len(known) - 1)
    share = (wanted - known[right - 1]) / (known[right] - known[right - 1])
    low, high = log_quantiles[..., right - 1], log_quantiles[..., right]
    # Beyond the outermost levels the line can reach far, so it must not decrease there.
    return np.asarray(np.expm1(np.clip(low + share * (high - low), 0.0, 50.0)))


def batch_of(log_quantiles: FloatArray, levels: FloatArray) -> Batch:
    """Return forecasts from quantiles [N, H, Q] in log1p; the median serves as the mean too."""
    median: FloatArray = np.expm1(log_quantiles[..., MEDIAN])
    return Batch(median, median, at_levels(log_quantiles, levels))
