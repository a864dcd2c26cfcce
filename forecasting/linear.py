"""A direct linear forecaster: log1p counts relative to a recent level, regressed on lags and the calendar."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from rlpto.forecasting.base import Forecaster, spread_quantiles, targets
from rlpto.forecasting.features import Features, Layout, describe, layout_of
from rlpto.forecasting.series import FloatArray, IntArray, TimeSeries
from rlpto.forecasting.storage import State

VALIDATION = 0.15
"""Share of a fitted series that is held out: 12 % of a series of which the last 20 % are not fitted."""


class LinearForecaster(Forecaster):
    """Least absolute deviations on lags and calendar, one regression per step ahead (direct forecasting).

    A small ridge keeps collinear lags apart. Absolute errors by iteratively reweighted least squares
    (Schlossmacher 1973). Origins inside the fitted series are forecast by a fit to its first 85 % only, so that
    errors on its last 15 % are those of unseen data; later origins by a fit to all of it. Covariates enter with their
    newest values, those of the interval before the first one forecast.

    horizon: steps ahead with a regression of their own; later steps share the last one's. ridge: penalty relative
    to the number of points. passes: reweighted fits.
    """

    kind: ClassVar[str] = "linear"
    uses_covariates: ClassVar[bool] = True

    def __init__(self, horizon: int = 12, ridge: float = 1e-3, passes: int = 6) -> None:
        super().__init__()
        self.horizon, self.ridge, self.passes = horizon, ridge, passes
        self._early = self._full = np.empty((0, 0))
        self._centre = self._scale = np.empty(0)
        self._fitted = (0, 0.0)

    def settings(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        return {"horizon": self.horizon, "ridge": self.ridge, "passes": self.passes}

    def _fit(self, series: TimeSeries, covariates: FloatArray | None) -> None:
        self._fitted = (len(series), series.start)
        given = np.empty((len(series), 0)) if covariates is None else covariates
        deviation = given.std(axis=0)
        self._centre, self._scale = given.mean(axis=0), np.where(deviation > 0, deviation, 1.0)
        origins = np.arange(1, len(series))
        seen = describe(layout_of(series, self.horizon), series, origins, self.horizon)
        truth = np.log1p(targets(series.values, origins, self.horizon)) - seen.level[:, None]
        held_out = len(series) - round(VALIDATION * len(series))
        newest = self._newest(origins, covariates)
        self._early = self._regress(seen, newest, truth, origins, held_out)
        self._full = self._regress(seen, newest, truth, origins, len(series))

    def _regress(
        self, seen: Features, newest: FloatArray, truth: FloatArray, origins: IntArray, end: int
    ) -> FloatArray:
        """[H, columns] coefficients of targets that lie before `end`."""
        found = []
        for step in range(self.horizon):
            # Where the first values are one's only past, lags stand for nothing yet.
            known = (origins + step < end) & (origins >= min(end // 4, 2 * seen.recent.shape[1]))
            columns = _columns(seen, newest, step)[known]
            found.append(_least_absolute(columns, truth[known, step], self.ridge, self.passes))
        return np.stack(found)

    def _newest(self, origins: IntArray, covariates: FloatArray | None) -> FloatArray:
        """[N, K] newest covariates known at N origins, in deviations from their mean."""
        if covariates is None:
            return np.empty((len(origins), 0))
        newest: FloatArray = (covariates[origins - 1] - self._centre) / self._scale
        return newest

    def _forecasts(
        self,
        series: TimeSeries,
        origins: IntArray,
        horizon: int,
        covariates: FloatArray | None,
    ) -> FloatArray:
        seen = describe(self.layout(series), series, origins, horizon)
        return self.from_features(seen, series.start, origins, covariates)

    def layout(self, series: TimeSeries) -> Layout:
        """Lags that the features of a series must have."""
        return layout_of(series, self.horizon)

    def from_features(
        self, seen: Features, start: float, origins: IntArray, covariates: FloatArray | None
    ) -> FloatArray:
        """[N, H] point forecasts from the features of N origins of a series that starts at `start`.

        covariates: [T, K] of that series, if the fitted one had some.
        """
        newest = self._newest(origins, covariates)
        points, fitted_start = self._fitted
        inside = (origins < points) & (start == fitted_start)
        horizon = seen.targets.shape[1]
        found = np.empty((len(origins), horizon))
        for step in range(horizon):
            columns, own = _columns(seen, newest, step), min(step, self.horizon - 1)
            found[:, step] = np.where(inside, columns @ self._early[own], columns @ self._full[own])
        return np.expm1(np.maximum(found + seen.level[:, None], 0.0))

    def _predict(self, horizon: int, levels: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        history, covariates = self._observed()
        point = self._forecasts(history, np.array([len(history)]), horizon, covariates)
        return point[0], point[0], spread_quantiles(point, self._fitted_spread(), levels)[0]

    def _state(self) -> State:
        points, start = self._fitted
        arrays = {"early": self._early, "full": self._full, "centre": self._centre, "scale": self._scale}
        return State({"points": points, "start": start}, arrays)

    def _restore(self, state: State) -> None:
        self._early, self._full = state.arrays["early"], state.arrays["full"]
        self._centre, self._scale = state.arrays["centre"], state.arrays["scale"]
        self._fitted = (int(state.values["points"]), float(state.values["start"]))


def _columns(seen: Features, newest: FloatArray, step: int) -> FloatArray:
    """[N, columns] what the regression of one step ahead sees."""
    constant = np.ones((len(seen.level), 1))
    known = [constant, seen.recent[:, :-2], seen.targets[:, step, :-1], seen.ahead[:, step], newest]
    return np.concatenate(known, axis=1)


def _least_absolute(columns: FloatArray, truth: FloatArray, ridge: float, passes: int) -> FloatArray:
    """[columns] coefficients of least absolute error, all but the first shrunk to 0; 0 without a single point."""
    penalty = ridge * max(len(truth), 1) * np.eye(columns.shape[1])
    penalty[0, 0] *= 1e-3
    weights: FloatArray = np.ones(len(truth))
    coefficients: FloatArray = np.zeros(columns.shape[1])
    for _ in range(passes):
        scaled = columns * weights[:, None]
        gram = scaled.T @ columns + penalty * max(float(weights.mean()) if len(weights) else 1.0, 1e-12)
        coefficients = np.asarray(np.linalg.solve(gram, scaled.T @ truth), dtype=np.float64)
        error = np.abs(truth - columns @ coefficients)
        smallest = 0.05 * (float(error.mean()) if len(error) else 0.0) + 1e-9
        weights = 1.0 / np.maximum(error, smallest)
    return coefficients
