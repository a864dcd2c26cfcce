"""How good forecasts of demand by minute are on the end of a series, beside simpler methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlpto.forecasting.arma import fit_arima
from rlpto.forecasting.demand import COLUMNS, HORIZONS, MINUTE, DemandForecaster, demand_ahead
from rlpto.forecasting.demand_network import HALF_LIVES, averages
from rlpto.forecasting.series import DAY, WEEK, ForecastError, fourier
from rlpto.io.arrays import FloatArray

TRAIN = 0.7
"""Share of a series that is fitted; the rest is scored."""

JUDGED = (0.8, 0.9, 0.95)
"""Levels whose pinball loss is measured."""

LEVELS = (0.1, *JUDGED)
"""Levels that are forecast; the first and the third bound the 80 % interval."""

GROUPS = 20
"""Groups of similar forecasts from which simple methods take their quantiles."""

ARIMA_MINUTES = 20_000
"""Newest minutes of the fitted part from which an ARIMA is estimated."""


@dataclass(frozen=True)
class DemandScore:
    """How good a method was for jobs or GPUs over some minutes.

    explained: share of the variance around the mean of the fitted part that the means explain. pinball_80, ...: mean
    quantile loss relative to the constant quantile of the fitted part; NaN if that has none. covered, covered_above_0:
    share of the sums, and of sums above 0, within the 80 % interval.
    """

    method: str
    of: str
    minutes: int
    explained: float
    pinball_80: float
    pinball_90: float
    pinball_95: float
    covered: float
    covered_above_0: float


class Case(NamedTuple):
    """A series to forecast: counts [T, 2], its start, sums [T + 1, J] that followed, and the rows to fit and to score.

    averaged: [T + 1, A] averages known at each moment. times: [T + 1] local time [s].
    """

    counts: FloatArray
    start: float
    sums: FloatArray
    averaged: FloatArray
    times: FloatArray
    fitted: slice
    scored: slice
    points: int
    seed: int


def backtest_demand(
    counts: FloatArray, start: float, seed: int = 0, on_done: Callable[[str], None] | None = None
) -> list[DemandScore]:
    """Fit every method to the first part of counts [T, 2] by minute and score it on the rest.

    Nothing is fitted again. on_done: called with the name of each method that is done. Raises ForecastError.
    """
    points, longest = int(TRAIN * len(counts)), HORIZONS[-1]
    forecaster = DemandForecaster(seed).fit(counts[:points], start)
    if len(counts) - points < 2 * longest:
        raise ForecastError(f"demand of {len(counts):,} minutes: expected some to score")
    known = np.concatenate([np.zeros((1, 2)), counts])
    case = Case(
        counts=counts,
        start=start,
        sums=demand_ahead(counts, HORIZONS).reshape(len(known), -1),
        averaged=averages(known, np.zeros(2 * len(HALF_LIVES)))[0],
        times=start + MINUTE * np.arange(len(known)),
        fitted=slice(0, points + 1 - longest),
        scored=slice(points, len(known) - longest),
        points=points,
        seed=seed,
    )
    found = forecaster.batch(counts, start, LEVELS)
    own = found.mean.reshape(len(known), -1)
    means = {f"average {minutes} min": _of_average(case, place) for place, minutes in enumerate(HALF_LIVES)}
    for name, method in (("regression", _regression), ("arima", _arima), ("trees", _trees)):
        means[name] = method(case)
        if on_done is not None:
            on_done(name)
    means["demand + arima"] = (own + means["arima"]) / 2
    means["demand + regression"] = (own + means["regression"]) / 2
    scores = [score for name, mean in means.items() for score in _scores(case, name, mean, _similar(case, mean))]
    return scores + _scores(case, "demand", own, found.quantiles.reshape(*own.shape, len(LEVELS)))


def _scores(case: Case, name: str, means: FloatArray, quantiles: FloatArray) -> list[DemandScore]:
    """Score means [T + 1, J] and quantiles [T + 1, J, LEVELS], first of jobs, then of GPUs."""
    scores = []
    for place in sorted(range(case.sums.shape[1]), key=lambda place: place % 2):
        before, came = case.sums[case.fitted, place], case.sums[case.scored, place]
        spread = float(np.square(came - before.mean()).sum())
        errors = float(np.square(came - means[case.scored, place]).sum())
        asked = quantiles[case.scored, place]
        constant = [_pinball(np.quantile(before, level), came, level) for level in JUDGED]
        losses = [
            _pinball(asked[:, LEVELS.index(level)], came, level) / least if least > 0 else np.nan
            for level, least in zip(JUDGED, constant, strict=True)
        ]
        inside = (came >= asked[:, 0]) & (came <= asked[:, LEVELS.index(0.9)])
        above = float(inside[came > 0].mean()) if (came > 0).any() else np.nan
        explained = 1 - errors / spread if spread > 0 else np.nan
        what, minutes = COLUMNS[place % 2], HORIZONS[place // 2]
        scores.append(DemandScore(name, what, minutes, explained, *losses, float(inside.mean()), above))
    return scores


def _pinball(quantile: FloatArray | np.float64, came: FloatArray, level: float) -> float:
    error = came - quantile
    return float(np.maximum(level * error, (level - 1) * error).mean())


def _similar(case: Case, means: FloatArray) -> FloatArray:
    """Return quantiles [T + 1, J, LEVELS] of the fitted sums that followed similar means, in GROUPS equal groups."""
    found = np.empty((*means.shape, len(LEVELS)))
    for place in range(means.shape[1]):
        fitted, sums = means[case.fitted, place], case.sums[case.fitted, place]
        edges = np.unique(np.quantile(fitted, np.arange(1, GROUPS) / GROUPS))
        group = np.searchsorted(edges, means[:, place])
        table = np.quantile(sums, LEVELS) * np.ones((len(edges) + 1, 1))
        for one in np.unique(group[case.fitted]):
            table[one] = np.quantile(sums[group[case.fitted] == one], LEVELS)
        found[:, place] = table[group]
    return found


def _least_squares(case: Case, columns: FloatArray, place: int) -> FloatArray:
    """Return the means [T + 1] of one sum by a regression with a little shrinkage on columns [T + 1, C]."""
    fitted = columns[case.fitted]
    centre, scale = fitted.mean(axis=0), fitted.std(axis=0) + 1e-9
    inputs, wanted = (columns - centre) / scale, case.sums[case.fitted, place]
    chosen = inputs[case.fitted]
    shrunk = chosen.T @ chosen + 0.01 * len(chosen) * np.eye(chosen.shape[1])
    weights = np.linalg.solve(shrunk, chosen.T @ (wanted - wanted.mean()))
    return np.asarray(np.maximum(wanted.mean() + inputs @ weights, 0.0))


def _of_average(case: Case, half_life: int) -> FloatArray:
    columns = [case.averaged[:, [2 * half_life + place % 2]] for place in range(case.sums.shape[1])]
    return np.stack([_least_squares(case, column, place) for place, column in enumerate(columns)], axis=1)


def _regression(case: Case) -> FloatArray:
    """Regress on all averages and their square roots."""
    columns = np.concatenate([case.averaged, np.sqrt(case.averaged)], axis=1)
    return np.stack([_least_squares(case, columns, place) for place in range(case.sums.shape[1])], axis=1)


def _arima(case: Case) -> FloatArray:
    """Regress on the sum that an ARIMA of log1p counts forecasts, and its square."""
    found, origins = np.empty_like(case.sums), np.arange(len(case.sums))
    for column in range(2):
        z = np.log1p(case.counts[:, column])
        model = fit_arima(z[max(0, case.points - ARIMA_MINUTES) : case.points], 0, refined=0)
        ahead = np.cumsum(model.forecasts(z, origins, HORIZONS[-1]), axis=1)
        for place, minutes in enumerate(HORIZONS):
            total = ahead[:, minutes - 1]
            found[:, 2 * place + column] = _least_squares(case, np.stack([total, total**2], axis=1), 2 * place + column)
    return found


def _trees(case: Case) -> FloatArray:
    """Boosted trees with the likelihood of Poisson counts on all averages and the calendar."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    columns = np.concatenate([case.averaged, fourier(case.times, DAY, 1), fourier(case.times, WEEK, 1)], axis=1)
    found = np.zeros_like(case.sums)
    for place in range(case.sums.shape[1]):
        wanted = case.sums[case.fitted, place]
        if not wanted.any():
            continue
        model = HistGradientBoostingRegressor(
            loss="poisson",
            learning_rate=0.04,
            max_iter=150,
            max_leaf_nodes=8,
            min_samples_leaf=200,
            l2_regularization=1.0,
            random_state=case.seed % 2**32,
        )
        with threadpool_limits(limits=1, user_api="openmp"):
            model.fit(columns[case.fitted], wanted)
            found[:, place] = model.predict(columns)
    return found
