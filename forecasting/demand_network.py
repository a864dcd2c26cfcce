"""A GRU over minutes whose head gives negative binomial distributions of the demand in the next minutes.

Its inputs are logarithms of the newest minute's counts and of their averages with several half-lives, and the time of
day and week. A linear part and a recurrent part see the same inputs; their sum is the logarithm of the mean. The
likelihood of counts makes the mean robust: a burst is weighted by its log probability, not by its square.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rlpto.forecasting.gru import one_thread
from rlpto.forecasting.minute_averages import HALF_LIVES, averages
from rlpto.forecasting.series import DAY, WEEK, fourier
from rlpto.io.arrays import FloatArray
from rlpto.io.compiled import njit

MINUTE = 60.0

INPUTS = 2 * len(HALF_LIVES) + 6
"""Inputs of a minute: averages and newest counts of jobs and GPUs, sine and cosine of the day and the week."""

HIDDEN = 24
"""Units of the GRU and of the layer behind it."""

SMALLEST_MEAN, LARGEST_SHAPE, SMALLEST_SHAPE = 1e-6, 90.0, 1e-3
"""Bounds of the distributions. A mean of 20,000 with the largest shape still has a probability of 0 above 1e-300."""

LARGEST_INPUT = 6.0
"""Inputs are clipped to this many standard deviations."""

STREAMS, CHUNK = 48, 60
"""Most parts of a series that are trained in parallel, and minutes through which the gradient flows back."""

PASSES, LEAST_UPDATES, MOST_UPDATES = 24, 200, 720
"""Passes over the series, and bounds on the updates: 50 days take 600 updates, 10 to 20 CPU-seconds."""

RATE, DECAY, DROPOUT = 3e-3, 1.0, 0.1
"""Adam's highest learning rate, weight decay, and share of the head's units dropped in training. With a decay of 0.03
the explained share of Philly varied by 0.02 with the seed."""


class DemandNetwork(nn.Module):
    """Map inputs [B, T, INPUTS] to log means relative to the base and log shapes [B, T, 2 J] of J sums."""

    def __init__(self, sums: int) -> None:
        super().__init__()
        self.cell = nn.GRU(INPUTS, HIDDEN, batch_first=True)
        self.mix = nn.Linear(HIDDEN + INPUTS, HIDDEN)
        self.drop = nn.Dropout(DROPOUT)
        self.out = nn.Linear(HIDDEN, 2 * sums)
        self.linear = nn.Linear(INPUTS, 2 * sums)
        # The untrained network forecasts the base.
        for part in (*self.out.parameters(), *self.linear.parameters()):
            nn.init.zeros_(part)

    def forward(self, inputs: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return outputs, and the last recurrent state."""
        states, last = self.cell(inputs, state)
        mixed = torch.tanh(self.mix(torch.cat([states, inputs], dim=-1)))
        return self.out(self.drop(mixed)) + self.linear(inputs), last


def blank_network(sums: int, seed: int) -> DemandNetwork:
    """Return the untrained network without changing the state of torch's random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DemandNetwork(sums).eval()


def distributions(outputs: Tensor, base: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Return means, at most `most` [J], and shapes of J sums from outputs [..., 2 J]; base [J]: log of usual means."""
    relative, shape = outputs.chunk(2, dim=-1)
    mean = torch.exp(torch.clamp(base + relative, np.log(SMALLEST_MEAN))).clamp(max=most)
    return mean, torch.exp(shape.clamp(np.log(SMALLEST_SHAPE) + 1, np.log(LARGEST_SHAPE) + 1) - 1)


def train(network: DemandNetwork, inputs: FloatArray, sums: FloatArray, base: FloatArray, seed: int) -> None:
    """Train on inputs [T, INPUTS] and the sums [T, J] that followed, by truncated backpropagation.

    The series is cut into parts that are read in parallel; each keeps its state from chunk to chunk. The same seed
    gives the same weights.
    """
    streams = int(np.clip(len(inputs) // (4 * CHUNK), 1, STREAMS))
    length = len(inputs) // (streams * CHUNK) * CHUNK
    fed, truth = (
        torch.tensor(part[len(part) - streams * length :].reshape(streams, length, -1), dtype=torch.float32)
        for part in (inputs, sums)
    )
    centre, most = torch.tensor(base, dtype=torch.float32), torch.full((len(base),), torch.inf)
    updates = int(np.clip(PASSES * (length // CHUNK), LEAST_UPDATES, MOST_UPDATES))
    optimiser = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=updates)
    network.train()
    state: Tensor | None = None
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(seed)
        for update in range(updates):
            first = update * CHUNK % length
            outputs, last = network(fed[:, first : first + CHUNK], state if first else None)
            state = last.detach()
            loss = -log_likelihood(*distributions(outputs, centre, most), truth[:, first : first + CHUNK]).mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    network.eval()


def log_likelihood(mean: Tensor, shape: Tensor, counts: Tensor) -> Tensor:
    """Return the log probability of counts under negative binomials, up to a term that depends only on counts."""
    total = torch.log(shape + mean)
    ways = torch.lgamma(counts + shape) - torch.lgamma(shape)
    return ways + shape * (torch.log(shape) - total) + counts * (torch.log(mean) - total)


def describe(counts: FloatArray, first: float, memory: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return inputs [T, INPUTS] at the ends of minutes with counts [T, 2], and the last memory [A] of averages. first:
    local time of the first end [s]."""
    averaged, kept = averages(counts, memory)
    times: FloatArray = first + MINUTE * np.arange(len(counts), dtype=np.float64)
    calendar = np.concatenate([fourier(times, DAY, 1), fourier(times, WEEK, 1)], axis=1)
    return np.concatenate([np.log1p(15 * averaged), np.log1p(counts), calendar], axis=1), kept


@njit()
def quantiles(mean: FloatArray, shape: FloatArray, levels: FloatArray, most: FloatArray) -> FloatArray:
    """Return quantiles [N, J, Q] of negative binomials [N, J] at ascending levels [J, Q], at most `most` [J]."""
    found = np.empty((*mean.shape, levels.shape[1]))
    for row in range(mean.shape[0]):
        for column in range(mean.shape[1]):
            size, share = shape[row, column], mean[row, column] / (mean[row, column] + shape[row, column])
            mass = np.exp(size * np.log1p(-share))
            below, count = mass, 0.0
            for place in range(levels.shape[1]):
                while below < levels[column, place] and count < most[column]:
                    mass *= (count + size) / (count + 1) * share
                    count += 1
                    below += mass
                found[row, column, place] = min(count, most[column])
    return found
