"""Forecasts of the jobs and GPUs that arrive in the next minutes, used to decide how many nodes to rent.

Most minutes are empty and bursts are heavy-tailed, so the forecast is a distribution of the sum over the next minutes:
a negative binomial by `demand_network.py`, whose levels are then corrected by their coverage on the fitted series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from scipy.stats import nbinom

from rlpto.forecasting.base import LARGEST_GROWTH, SPREAD_LEVELS, checked_levels
from rlpto.forecasting.demand_network import (
    INPUTS,
    LARGEST_INPUT,
    MINUTE,
    SMALLEST_MEAN,
    blank_network,
    describe,
    distributions,
    quantiles,
    train,
)
from rlpto.forecasting.gru import one_thread
from rlpto.forecasting.minute_averages import HALF_LIVES
from rlpto.forecasting.series import LATEST_SECONDS, MOST_POINTS, ForecastError, checked_integer
from rlpto.forecasting.storage import State, read_state, write_state
from rlpto.io.arrays import FloatArray

HORIZONS = (5, 10, 15)
"""Minutes ahead over which arrivals are added up."""

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99)
"""Default levels of the quantiles."""

DAY_MINUTES = 1440
LARGEST_DEMAND, LARGEST_SUM = 1e9, 1e4
"""Largest count of a minute, and largest sum in units. A unit is more than one job or GPU if sums would exceed this."""

COLUMNS = ("jobs", "GPUs")


@dataclass(frozen=True)
class DemandForecast:
    """Forecast of the arrivals in the next minutes, for H horizons.

    mean: [..., H, 2] jobs and GPUs, minimises squared error. levels: [Q] of the quantiles, ascending.
    quantiles: [..., H, 2, Q] jobs and GPUs.
    """

    mean: FloatArray
    levels: FloatArray
    quantiles: FloatArray


class DemandForecaster:
    """Forecast the sums of jobs and GPUs over the next minutes from the counts of past minutes.

    Call `fit` or `load_demand`; then `batch` for all moments of a series, or `begin`, `update` and `predict` online,
    with the same results. Means and quantiles are at most LARGEST_GROWTH times the largest sum of the fitted series.

    seed: seed of weights and training. horizons: minutes ahead over which arrivals are added up, ascending.
    """

    def __init__(self, seed: int = 0, horizons: Sequence[int] = HORIZONS) -> None:
        self.seed = checked_integer("seed", seed, 0, 2**63 - 1)
        self.horizons = tuple(checked_integer("horizon", minutes, 1, DAY_MINUTES) for minutes in horizons)
        if not self.horizons or list(self.horizons) != sorted(set(self.horizons)):
            raise ForecastError(f"horizons {list(self.horizons)}: expected minutes in ascending order")
        sums = 2 * len(self.horizons)
        self._network = blank_network(sums, self.seed).double()
        self._centre, self._scale = np.zeros(INPUTS), np.ones(INPUTS)
        self._base, self._most = np.zeros(sums), np.zeros(sums)  # log of the mean, and the bound [units]
        self._unit = np.ones(sums)  # jobs or GPUs
        self._held = np.tile(SPREAD_LEVELS, (sums, 1))  # level of the distribution for each of SPREAD_LEVELS
        self._fitted = False
        self._averages, self._state = np.zeros(2 * len(HALF_LIVES)), None
        self._outputs: FloatArray | None = None  # [2, sums] mean and shape after the newest minute
        self._now = 0.0

    def fit(self, counts: FloatArray, start: float) -> Self:
        """Train on counts [T, 2] of jobs and GPUs by minute. start: local time of minute 0 [s since 1970-01-01].

        Raises ForecastError for broken counts, and for less than a day of counts.
        """
        taken = _checked(counts, start)
        if len(taken) < DAY_MINUTES + self.horizons[-1]:
            expected = f"at least {DAY_MINUTES + self.horizons[-1]:,}, a day and the longest horizon"
            raise ForecastError(f"demand of {len(taken):,} minutes: expected {expected}")
        sums = demand_ahead(taken, self.horizons).reshape(len(taken) + 1, -1)[: len(taken) + 1 - self.horizons[-1]]
        self._unit = np.maximum(sums.max(axis=0) / LARGEST_SUM, 1.0)
        sums = sums / self._unit
        self._base, self._most = np.log(sums.mean(axis=0) + SMALLEST_MEAN), LARGEST_GROWTH * sums.max(axis=0)
        known = np.concatenate([np.zeros((1, 2)), taken])
        seen, _ = describe(known, start, np.zeros(2 * len(HALF_LIVES)))
        self._centre, self._scale = seen.mean(axis=0), np.maximum(seen.std(axis=0), 1e-3)
        network = blank_network(len(self._base), self.seed)
        train(network, self._inputs(seen)[: len(sums)], sums, self._base, self.seed)
        if not all(torch.isfinite(weight).all() for weight in network.parameters()):
            raise ForecastError("demand: weights are no longer finite, expected counts that a network can learn")
        self._network, self._fitted, self._outputs = network.double(), True, None
        mean, shape = self._read(taken, start)[0][:, : len(sums)]
        self._held = self._levels_held(mean, shape, sums)
        return self

    def batch(self, counts: FloatArray, start: float, levels: Sequence[float] | FloatArray = LEVELS) -> DemandForecast:
        """Return forecasts [T + 1, H, 2] for counts [T, 2]; row t uses only counts[:t]. Nothing is fitted again."""
        wanted = checked_levels(levels)
        return self._forecast(self._read(_checked(counts, start), start)[0], wanted)

    def begin(self, counts: FloatArray, start: float) -> Self:
        """Start online forecasts after a history [T, 2], which may be empty, that began at `start`."""
        taken = _checked(counts, start)
        outputs, self._averages, self._state = self._read(taken, start)
        self._outputs, self._now = outputs[:, -1], start + MINUTE * len(taken)
        return self

    def update(self, counts_of_a_minute: FloatArray) -> None:
        """Take in the counts [2] of the minute that has passed."""
        self._begun()
        taken = _checked([counts_of_a_minute], self._now)
        self._now += MINUTE
        outputs, self._averages, self._state = self._advance(taken, self._now, self._averages, self._state)
        self._outputs = outputs[:, -1]

    def predict(self, levels: Sequence[float] | FloatArray = LEVELS) -> DemandForecast:
        """Return the forecast [H, 2] of the minutes after the counts taken in so far."""
        found = self._forecast(self._begun()[:, None], checked_levels(levels))
        return DemandForecast(found.mean[0], found.levels, found.quantiles[0])

    def save(self, path: str | Path) -> None:
        """Write the learnt state as one file, without history. Raises ForecastError."""
        if not self._fitted:
            raise ForecastError("DemandForecaster: nothing fitted yet, call fit first")
        arrays: dict[str, Any] = {name: getattr(self, f"_{name}") for name in _shapes(self)}
        weights = {f"weights.{name}": weight.numpy() for name, weight in self._network.state_dict().items()}
        settings = {"seed": self.seed, "horizons": list(self.horizons)}
        write_state(Path(path), type(self).__name__, State(settings, arrays | weights))

    def _restore(self, state: State) -> None:
        for name, (shape, low, high) in _shapes(self).items():
            array = state.array(name, shape)
            if not ((array >= low) & (array <= high)).all():
                raise ForecastError(f"{name}: expected numbers, {low:g} to {high:g}")
            setattr(self, f"_{name}", array)
        if (np.diff(self._held) < 0).any():
            raise ForecastError("held: expected ascending levels")
        blank = self._network.state_dict()
        weights = {name: state.array(f"weights.{name}", tuple(own.shape), 1e6) for name, own in blank.items()}
        self._network.load_state_dict({name: torch.tensor(weight) for name, weight in weights.items()})
        self._fitted = True

    def _begun(self) -> FloatArray:
        """Return the newest means and shapes [2, J]."""
        if self._outputs is None:
            raise ForecastError("DemandForecaster: no history yet, call begin first")
        return self._outputs

    def _inputs(self, seen: FloatArray) -> FloatArray:
        return np.clip((seen - self._centre) / self._scale, -LARGEST_INPUT, LARGEST_INPUT)

    def _read(self, counts: FloatArray, start: float) -> tuple[FloatArray, FloatArray, Any]:
        """Return means and shapes [2, T + 1, J] at all moments of a series, and averages and state at its end."""
        if not self._fitted:
            raise ForecastError("DemandForecaster: nothing fitted yet, call fit first")
        known = np.concatenate([np.zeros((1, 2)), counts])
        return self._advance(known, start, np.zeros(2 * len(HALF_LIVES)), None)

    def _advance(
        self, counts: FloatArray, first: float, memory: FloatArray, state: torch.Tensor | None
    ) -> tuple[FloatArray, FloatArray, Any]:
        """Return means and shapes [2, N, J] after each minute [N, 2], and the last averages and state.

        first: local time of the end of the first of these minutes [s].
        """
        seen, kept = describe(counts, first, memory)
        fed = torch.tensor(self._inputs(seen))
        with torch.inference_mode(), one_thread():
            outputs, last = self._network(fed[None], state)
            found = distributions(outputs[0], torch.tensor(self._base), torch.tensor(self._most))
        return np.stack([part.numpy() for part in found]), kept, last

    def _forecast(self, outputs: FloatArray, levels: FloatArray) -> DemandForecast:
        """Return forecasts [N, H, 2] from means and shapes [2, N, J]."""
        mean, shape = outputs
        # Beyond the outermost measured levels, interpolate linearly to 0 and 1.
        known = np.concatenate([[0.0], SPREAD_LEVELS, [1.0]])
        asked = np.array([np.interp(levels, known, np.concatenate([[0.0], held, [1.0]])) for held in self._held])
        found = quantiles(mean, shape, np.minimum(asked, 1 - 1e-9), self._most) * self._unit[:, None]
        sizes = (len(mean), len(self.horizons), 2)
        return DemandForecast((mean * self._unit).reshape(sizes), levels, found.reshape(*sizes, len(levels)))

    def _levels_held(self, mean: FloatArray, shape: FloatArray, sums: FloatArray) -> FloatArray:
        """Return the levels [J, SPREAD_LEVELS] of the distributions [T, J] below which these shares of sums [T, J] lay.

        A sum counts as a random level between the probabilities of a smaller sum and of a sum up to it.
        """
        share = shape / (shape + mean)
        counts = np.floor(sums)
        below, chance = nbinom.cdf(counts - 1, shape, share), nbinom.pmf(counts, shape, share)
        lying = below + np.random.default_rng(self.seed).random(sums.shape) * chance
        return np.asarray(np.clip(np.quantile(lying, SPREAD_LEVELS, axis=0).T, 0.0, 1.0))


def load_demand(path: str | Path) -> DemandForecaster:
    """Read a forecaster written by `save` and check every value. Raises ForecastError, naming the file."""
    kind, state = read_state(Path(path))
    expected = "DemandForecaster, as `rlpto forecast fit --demand` writes it"
    if kind != DemandForecaster.__name__:
        raise ForecastError(f"{path}: forecaster {kind!r}: expected {expected}")
    try:
        forecaster = DemandForecaster(**state.values)
        forecaster._restore(state)
    except ForecastError as wrong:
        raise ForecastError(f"{path}: {wrong}, in a saved DemandForecaster") from None
    except (KeyError, TypeError, ValueError, IndexError) as wrong:
        raise ForecastError(f"{path}: broken, expected a saved {expected} ({wrong})") from None
    return forecaster


def demand_ahead(counts: FloatArray, horizons: Sequence[int]) -> FloatArray:
    """Return sums [T + 1, H, 2] of counts [T, 2] over the minutes after each moment; NaN beyond the end."""
    total = np.concatenate([np.zeros((1, 2)), np.cumsum(counts, axis=0)])
    sums = np.full((len(total), len(horizons), 2), np.nan)
    for place, minutes in enumerate(horizons):
        sums[: max(len(total) - minutes, 0), place] = total[minutes:] - total[:-minutes]
    return sums


def _shapes(forecaster: DemandForecaster) -> dict[str, tuple[tuple[int, ...], float, float]]:
    """Return shape and bounds of every learnt array except the weights."""
    sums = 2 * len(forecaster.horizons)
    return {
        "centre": ((INPUTS,), -100.0, 100.0),
        "scale": ((INPUTS,), 1e-3, 100.0),
        "base": ((sums,), -50.0, 50.0),
        "most": ((sums,), 0.0, LARGEST_GROWTH * LARGEST_SUM * (1 + 1e-9)),
        "unit": ((sums,), 1.0, LARGEST_DEMAND * DAY_MINUTES),
        "held": ((sums, len(SPREAD_LEVELS)), 0.0, 1.0),
    }


def _checked(counts: Any, start: float) -> FloatArray:
    """Return counts [T, 2] as floats. Raises ForecastError, naming the minute."""
    try:
        taken, first = np.asarray(counts, dtype=np.float64), float(start)
    except (TypeError, ValueError, OverflowError):
        raise ForecastError(f"demand: expected numbers [minutes, 2] and a start in seconds, not {start!r}") from None
    if taken.shape[:1] == (0,):  # a list without minutes has one dimension
        taken = np.zeros((0, 2))
    if taken.ndim != 2 or taken.shape[1] != 2 or len(taken) > MOST_POINTS:
        raise ForecastError(f"demand of shape {taken.shape}: expected jobs and GPUs of at most {MOST_POINTS:,} minutes")
    if not abs(first) <= LATEST_SECONDS:
        raise ForecastError(f"start {first:g} s: expected seconds since 1970-01-01, within 3,000 years of it")
    bad = ~((taken >= 0) & (taken <= LARGEST_DEMAND))
    if bad.any():
        minute, column = np.argwhere(bad)[0]
        said = f"{COLUMNS[column]} {taken[minute, column]:g} in minute {minute}"
        raise ForecastError(f"{said}: expected a count, 0 to {LARGEST_DEMAND:g}")
    return taken
