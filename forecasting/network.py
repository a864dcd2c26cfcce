"""The recurrent network under the GRU: one pass over a series, quantiles of the coming steps at each origin.

A GRU reads the series once; a small decoder turns its state and what is known of each target step (calendar, daily
and weekly lags) into quantiles of log1p counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rlpto.io.arrays import FloatArray, IntArray

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
MEDIAN = QUANTILES.index(0.5)


@dataclass(frozen=True)
class GruSettings:
    """Size and training of a network.

    hidden: units of the GRU and of the decoder; chunk: origins per training sequence; warmup: steps that a sequence
    is read before its first origin counts; batch: sequences per update; updates: most updates; check: updates between
    looks at the validation loss; stop_checks: looks without improvement before stopping; rate: Adam's highest learning
    rate; decay: weight decay; dropout: share of the decoder's units dropped in training.
    """

    hidden: int = 24
    chunk: int = 72
    warmup: int = 36
    batch: int = 16
    updates: int = 400
    check: int = 20
    stop_checks: int = 5
    rate: float = 4e-3
    decay: float = 1e-3
    dropout: float = 0.1


class QuantileGRU(nn.Module):
    """A GRU over inputs [B, T, inputs]; a decoder to quantiles [B, T, H, len(QUANTILES)]."""

    def __init__(self, inputs: int, targets: int, settings: GruSettings) -> None:
        super().__init__()
        self.cell = nn.GRU(inputs, settings.hidden, batch_first=True)
        self.from_state = nn.Linear(settings.hidden + inputs, settings.hidden)
        self.from_target = nn.Linear(targets, settings.hidden, bias=False)
        self.drop = nn.Dropout(settings.dropout)
        self.out = nn.Linear(settings.hidden, len(QUANTILES))
        # The untrained network forecasts the recent level with a spread of about one scale.
        nn.init.normal_(self.out.weight, std=0.01)
        nn.init.zeros_(self.out.bias)

    def encode(self, inputs: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """States [B, T, hidden + inputs] at each step of inputs [B, T, inputs], and the last one to go on from.

        The newest inputs are concatenated to the recurrent state, so the network need not learn to remember them.
        """
        states, last = self.cell(inputs, state)
        return torch.cat([states, inputs], dim=-1), last

    def decode(self, states: Tensor, targets: Tensor) -> Tensor:
        """Quantiles [..., H, Q] from states [..., hidden + inputs] and targets [..., H, G]."""
        mixed = torch.relu(self.from_state(states).unsqueeze(-2) + self.from_target(targets))
        offsets = self.out(self.drop(mixed))
        centre = offsets[..., MEDIAN].unsqueeze(-1)
        gaps = nn.functional.softplus(offsets - 1.0)
        below = centre - gaps[..., :MEDIAN].flip(-1).cumsum(-1).flip(-1)
        above = centre + gaps[..., MEDIAN + 1 :].cumsum(-1)
        return torch.cat([below, centre, above], dim=-1)


@dataclass(frozen=True)
class Examples:
    """Consecutive origins: inputs [N, I], targets [N, H, G], truth [N, H] (NaN: not known).

    All in units of the scale of the series, relative to the level of their origin.
    """

    inputs: FloatArray
    targets: FloatArray
    truth: FloatArray


def pinball(quantiles: Tensor, truth: Tensor) -> Tensor:
    """Mean pinball loss of quantiles [..., Q] against truth [...], unknown targets left out (Koenker, Bassett 1978)."""
    known = ~torch.isnan(truth)
    levels = torch.tensor(QUANTILES, dtype=quantiles.dtype)
    error = truth[known].unsqueeze(-1) - quantiles[known]
    return torch.maximum(levels * error, (levels - 1) * error).sum() / max(error.numel(), 1)


def blank_network(inputs: int, targets: int, settings: GruSettings, seed: int) -> QuantileGRU:
    """An untrained network, in evaluation mode; torch's own random numbers are left as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return QuantileGRU(inputs, targets, settings).eval()


def train(network: QuantileGRU, examples: Examples, validation: int, settings: GruSettings, seed: int) -> None:
    """Train on the examples before index `validation`, stopped early by the loss on those from there on.

    Examples whose targets reach into the validation part are left out. The same seed gives the same weights.
    """
    data = [torch.tensor(part, dtype=torch.float32) for part in vars(examples).values()]
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(seed)
        _optimise(network, data, validation, settings, np.random.default_rng(seed))
    network.eval()


@contextmanager
def one_thread() -> Iterator[None]:
    """Restrict torch to one thread: in networks this small, synchronising more threads takes ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _optimise(
    network: QuantileGRU, data: list[Tensor], validation: int, settings: GruSettings, rng: np.random.Generator
) -> None:
    optimiser = torch.optim.AdamW(network.parameters(), lr=settings.rate, weight_decay=settings.decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.updates, eta_min=settings.rate / 20)
    best, best_loss, waited = _weights(network), _validation_loss(network, data, validation, settings), 0
    training = max(validation - data[2].shape[1], 1)  # their targets end before the validation part begins
    last = training - settings.chunk
    for update in range(1, settings.updates + 1):
        network.train()
        starts = rng.integers(0, max(last, 0) + 1, settings.batch)
        loss = _chunk_loss(network, data, starts, settings.chunk, settings.warmup, training)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if update % settings.check:
            continue
        reached = _validation_loss(network, data, validation, settings)
        waited = waited + 1 if reached >= best_loss else 0
        if reached < best_loss:
            best, best_loss = _weights(network), reached
        if waited >= settings.stop_checks:
            break
    network.load_state_dict(best)


def _weights(network: QuantileGRU) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _chunk_loss(
    network: QuantileGRU, data: list[Tensor], starts: IntArray, chunk: int, warmup: int, end: int
) -> Tensor:
    """Loss of the sequences of `chunk` origins at each start, each read from `warmup` steps before (0 before time)."""
    inputs, targets, truth = data
    reading = torch.as_tensor(starts)[:, None] + torch.arange(-warmup, chunk)
    fed = inputs[reading.clamp(0, end - 1)] * (reading >= 0).unsqueeze(-1)
    states = network.encode(fed)[0][:, warmup:]
    counted = reading[:, warmup:]
    inside = counted.clamp(max=end - 1)
    aim = torch.where((counted < end).unsqueeze(-1), truth[inside], torch.nan)
    return pinball(network.decode(states, targets[inside]), aim)


def _validation_loss(network: QuantileGRU, data: list[Tensor], validation: int, settings: GruSettings) -> float:
    network.eval()
    end = len(data[0])
    starts = np.arange(validation, end, settings.chunk)
    with torch.no_grad():
        return float(_chunk_loss(network, data, starts, settings.chunk, settings.warmup, end))


def run(network: QuantileGRU, inputs: FloatArray, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """States [T, hidden + I] after each of inputs [T, I], from `state` (None: at rest), and the state to go on from."""
    with torch.no_grad():
        states, last = network.encode(torch.tensor(inputs, dtype=torch.float32)[None], state)
    return states[0], last


def quantiles(network: QuantileGRU, states: Tensor, targets: FloatArray) -> FloatArray:
    """Quantiles [N, H, Q] at N origins with states [N, hidden + inputs] and targets [N, H, G]."""
    found = np.empty((*targets.shape[:2], len(QUANTILES)))
    with torch.no_grad():
        for start in range(0, len(targets), 4096):
            part = slice(start, start + 4096)
            found[part] = network.decode(states[part], torch.tensor(targets[part], dtype=torch.float32)).numpy()
    return found
