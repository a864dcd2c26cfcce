"""Score forecasts of demand by minute, and simpler methods, on the end of a series."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rlpto.forecasting.arma import fit_arima
from rlpto.forecasting.demand import COLUMNS, HORIZONS, DemandForecaster, demand_ahead
from rlpto.forecasting.demand_network import describe
from rlpto.forecasting.minute_averages import HALF_LIVES
from rlpto.forecasting.series import ForecastError
from rlpto.io.arrays import FloatArray

TRAIN = 0.7
"""Share of a series used for fitting; the rest is scored."""

LEVELS = (0.1, 0.8, 0.9, 0.95)
"""Levels of the forecast quantiles. 0.1 and 0.9 bound the 80 % interval; pinball loss is measured above 0.1."""

GROUPS = 20
"""Groups of similar forecasts from which simple methods take their quantiles."""

ARIMA_MINUTES = 20_000
"""Newest minutes of the fitted part from which an ARIMA is estimated."""


def backtest_demand(counts: FloatArray, start: float, seed: int = 0) -> pd.DataFrame:
    """Fit every method to the first part of counts [T, 2] by minute and score it on the rest, without fitting again.

    Columns: method, of (jobs or GPUs), minutes; explained: share of the variance around the mean of the fitted part;
    pinball_80, ...: quantile loss relative to the constant quantile of the fitted part; covered, covered_above_0: share
    of all sums, and of sums above 0, within the 80 % interval. NaN if a figure is undefined.

    Raises ForecastError.
    """
    points, rows = int(TRAIN * len(counts)), []
    forecaster = DemandForecaster(seed).fit(counts[:points], start)
    fitted, scored = slice(0, points + 1 - HORIZONS[-1]), slice(points, len(counts) + 1 - HORIZONS[-1])
    sums, found = demand_ahead(counts, HORIZONS), forecaster.batch(counts, start, LEVELS)
    if not (sums[scored] >= 0).any():
        raise ForecastError(f"demand of {len(counts):,} minutes: expected more, to score the end of it")
    known = np.concatenate([np.zeros((1, 2)), counts])
    seen, _ = describe(known, start, np.zeros(2 * len(HALF_LIVES)))
    averaged = np.expm1(seen[:, : 2 * len(HALF_LIVES)])
    for column, of in enumerate(COLUMNS):
        expected = _arima(np.log1p(counts[:, column]), points)
        for place, minutes in enumerate(HORIZONS):
            truth, own = sums[:, place, column], found.mean[:, place, column]
            inputs = {f"average {life} min": averaged[:, [2 * i + column]] for i, life in enumerate(HALF_LIVES)}
            inputs["regression"] = np.concatenate([averaged, np.sqrt(averaged)], axis=1)
            inputs["arima"] = expected[:, [minutes - 1]] ** [1, 2]
            means = {name: _regressed(columns, truth, fitted) for name, columns in inputs.items()}
            means["trees"] = _trees(seen, truth, fitted)
            means |= {f"demand + {name}": (own + means[name]) / 2 for name in ("arima", "regression")}
            made = {name: (mean, _similar(mean, truth, fitted)) for name, mean in means.items()}
            made["demand"] = own, found.quantiles[:, place, column]
            for name, (mean, quantiles) in made.items():
                figures = _score(truth[fitted], truth[scored], mean[scored], quantiles[scored])
                rows.append({"method": name, "of": of, "minutes": minutes, **figures})
    return pd.DataFrame(rows)


def _score(before: FloatArray, came: FloatArray, mean: FloatArray, quantiles: FloatArray) -> dict[str, float]:
    """Score means [N] and quantiles [N, LEVELS] of sums [N], given the fitted sums."""
    spread, errors = np.square(came - before.mean()).sum(), np.square(came - mean).sum()
    figures = {"explained": float(1 - errors / spread) if spread > 0 else np.nan}
    for place, level in enumerate(LEVELS[1:], 1):
        losses = [
            np.maximum(level * (came - asked), (level - 1) * (came - asked)).mean()
            for asked in (quantiles[:, place], np.quantile(before, level))
        ]
        figures[f"pinball_{100 * level:.0f}"] = float(losses[0] / losses[1]) if losses[1] > 0 else np.nan
    inside = (came >= quantiles[:, 0]) & (came <= quantiles[:, LEVELS.index(0.9)])
    above = float(inside[came > 0].mean()) if (came > 0).any() else np.nan
    return figures | {"covered": float(inside.mean()), "covered_above_0": above}


def _similar(mean: FloatArray, truth: FloatArray, fitted: slice) -> FloatArray:
    """Return quantiles [N, LEVELS] of the fitted sums that followed similar means, in GROUPS equal groups."""
    edges = np.unique(np.quantile(mean[fitted], np.arange(1, GROUPS) / GROUPS))
    group = np.searchsorted(edges, mean)
    table = np.quantile(truth[fitted], LEVELS) * np.ones((len(edges) + 1, 1))
    for one in np.unique(group[fitted]):
        table[one] = np.quantile(truth[fitted][group[fitted] == one], LEVELS)
    return np.asarray(table[group])


def _regressed(columns: FloatArray, truth: FloatArray, fitted: slice) -> FloatArray:
    """Return means [N] by least squares, slightly shrunk, on columns [N, C]."""
    inputs = (columns - columns[fitted].mean(axis=0)) / (columns[fitted].std(axis=0) + 1e-9)
    chosen, level = inputs[fitted], truth[fitted].mean()
    shrunk = chosen.T @ chosen + 0.01 * len(chosen) * np.eye(chosen.shape[1])
    weights = np.linalg.solve(shrunk, chosen.T @ (truth[fitted] - level))
    return np.asarray(np.maximum(level + inputs @ weights, 0.0))


def _arima(z: FloatArray, points: int) -> FloatArray:
    """Return the sums [T + 1, minutes] over the next minutes forecast by an ARIMA that is fitted before `points`."""
    model = fit_arima(z[max(0, points - ARIMA_MINUTES) : points], 0, refined=0)
    return np.cumsum(model.forecasts(z, np.arange(len(z) + 1), HORIZONS[-1]), axis=1)


def _trees(columns: FloatArray, truth: FloatArray, fitted: slice) -> FloatArray:
    """Return means [N] by boosted trees with the likelihood of Poisson counts."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    settings: dict[str, Any] = {"learning_rate": 0.04, "max_iter": 150, "max_leaf_nodes": 8, "min_samples_leaf": 200}
    model = HistGradientBoostingRegressor(loss="poisson", l2_regularization=1.0, random_state=0, **settings)
    if not truth[fitted].any():
        return np.zeros(len(truth))
    with threadpool_limits(limits=1, user_api="openmp"):
        return np.asarray(model.fit(columns[fitted], truth[fitted]).predict(columns))
