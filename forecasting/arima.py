"""ARIMA members: on raw counts, on log1p counts, and with Fourier terms of the day and the week.

They are fitted on the newest FITTED_POINTS points. Afterwards their parameters are fixed, and new counts are filtered.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from rlpto.forecasting.arma import MAX_ORDER, Arima, aicc_of, fit_arima, is_stable, needs_difference
from rlpto.forecasting.base import Batch, Forecaster
from rlpto.forecasting.series import DAY, LARGEST_COUNT, WEEK, ForecastError, TimeSeries, fourier
from rlpto.forecasting.storage import State
from rlpto.io.arrays import FloatArray, IntArray

FITTED_POINTS = 4000
"""Orders and parameters are fitted on this many of the newest points."""

LARGEST_LOG = 30.0
"""Upper limit of forecasts in log1p, which keeps counts finite."""

DAY_HARMONICS = (0, 1, 2, 3, 4, 6)
WEEK_HARMONICS = (0, 1, 2, 3, 4, 6)
"""Numbers of harmonics of the day, and of the week, to choose from; the seventh of the week is the first of the day."""

SEASONS_NEEDED = 2.0
"""A period gets harmonics if the series covers it at least this many times."""

HALF_TOLERANCE = 1.1
"""Harmonics fitted on the older half of a series are dropped if they raise the squared errors in its newer half by more
than this factor. Noise in coefficients from half the points raises errors by up to 6 % on real series."""

ALTERNATIONS = 3
"""Rounds in which harmonics and ARIMA orders are fitted in turn."""


class ArimaForecaster(Forecaster):
    """An ARIMA on transformed counts. A subclass defines the transform and how it is fitted."""

    def __init__(self) -> None:
        super().__init__()
        self._model = Arima()
        self._z = np.empty(0)  # the transformed history

    @abstractmethod
    def _estimate(self, series: TimeSeries) -> Arima:
        """Estimate orders and parameters from the newest points of the fitted series."""

    def _transformed(self, series: TimeSeries) -> FloatArray:
        """Return the transformed values [T] to which the ARIMA is fitted."""
        return np.log1p(series.values)

    def _counts(self, z: FloatArray, times: FloatArray) -> FloatArray:  # noqa: ARG002
        """Return counts from forecasts [N, H] of the transform for local times [N, H] [s]."""
        return np.maximum(np.expm1(np.minimum(z, LARGEST_LOG)), 0.0)

    def _fit(self, series: TimeSeries) -> None:
        self._model = self._estimate(series.tail(FITTED_POINTS))
        self._look_back_on(series)

    def _update(self, new: TimeSeries) -> None:
        self._z = np.concatenate([self._z, self._transformed(new)])

    def _points(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        expected = self._model.forecasts(self._transformed(series), origins, horizon)
        return self._counts(expected, series.times(origins[:, None] + np.arange(horizon)))

    def _predict(self, horizon: int, levels: FloatArray) -> Batch:
        now = np.array([len(self._z)])
        times = self._observed().times(now[:, None] + np.arange(horizon))
        return self._around(self._counts(self._model.forecasts(self._z, now, horizon), times), levels)

    def _state(self) -> State:
        model = self._model
        arrays = {"ar": np.array(model.ar), "ma": np.array(model.ma)}
        return State({"difference": model.difference, "mean": model.mean}, arrays)

    def _restore(self, state: State) -> None:
        ar, ma = state.array("ar", (None,)), state.array("ma", (None,))
        # A fit never gives unstable or too long polynomials, whose forecasts would diverge.
        if max(len(ar), len(ma)) > MAX_ORDER or not (is_stable(ar, -1.0) and is_stable(ma, 1.0)):
            raise ForecastError(f"coefficients {ar.tolist()} and {ma.tolist()}: expected at most {MAX_ORDER}, stable")
        mean = state.number("mean", -LARGEST_COUNT, LARGEST_COUNT)
        self._model = Arima(tuple(ar.tolist()), tuple(ma.tolist()), mean, state.integer("difference", 0, 1))
        self._look_back_on(self._observed())

    def _look_back_on(self, history: TimeSeries) -> None:
        super()._look_back_on(history)
        self._z = self._transformed(history)


class RawArima(ArimaForecaster):
    """ARIMA(p, d, q) on raw counts, with d = 1 if a test rejects a constant level, else with a mean."""

    def _transformed(self, series: TimeSeries) -> FloatArray:
        return series.values

    def _counts(self, z: FloatArray, times: FloatArray) -> FloatArray:  # noqa: ARG002
        return np.clip(z, 0.0, np.expm1(LARGEST_LOG))

    def _estimate(self, series: TimeSeries) -> Arima:
        return fit_arima(series.values, int(needs_difference(series.values)))


class LogArima(ArimaForecaster):
    """ARIMA(p, 1, q) on log1p counts, whose level may drift without limit."""

    def _estimate(self, series: TimeSeries) -> Arima:
        return fit_arima(np.log1p(series.values), 1)


class FourierArima(ArimaForecaster):
    """Regression of log1p counts on harmonics of the day and the week, with ARIMA(p, 1, q) errors.

    Regression and ARIMA are fitted in turn (Cochrane & Orcutt, JASA 1949): the ARIMA's filter is applied to counts and
    harmonics, least squares on the result gives the coefficients, and the ARIMA is fitted again on the rest. The number
    of harmonics minimises AICc; harmonics are dropped if HALF_TOLERANCE rejects them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._harmonics = (0, 0)
        self._coefficients = np.empty(0)

    def _estimate(self, series: TimeSeries) -> Arima:
        z = np.log1p(series.values)
        allowed, left = _allowed_harmonics(series), z
        for _ in range(ALTERNATIONS):
            model = fit_arima(left, 1, refined=0)
            self._harmonics, self._coefficients = _fit_harmonics(z, series.times(), model, allowed)
            left = self._transformed(series)
        return fit_arima(left, 1)

    def _transformed(self, series: TimeSeries) -> FloatArray:
        return np.log1p(series.values) - self._seasonal(series.times())

    def _counts(self, z: FloatArray, times: FloatArray) -> FloatArray:
        return super()._counts(z + self._seasonal(times.ravel()).reshape(times.shape), times)

    def _seasonal(self, times: FloatArray) -> FloatArray:
        """Return the calendar's part [T] of the series, in log1p."""
        return np.asarray(_design(times, *self._harmonics) @ self._coefficients)

    def _state(self) -> State:
        state = super()._state()
        state.values["daily"], state.values["weekly"] = self._harmonics
        state.arrays["coefficients"] = self._coefficients
        return state

    def _restore(self, state: State) -> None:
        daily, weekly = (state.integer(name, 0, max(DAY_HARMONICS + WEEK_HARMONICS)) for name in ("daily", "weekly"))
        self._harmonics = (daily, weekly)
        self._coefficients = state.array("coefficients", (2 * (daily + weekly),))
        super()._restore(state)


def _design(times: FloatArray, daily: int, weekly: int) -> FloatArray:
    """Return harmonics [T, 2 (daily + weekly)] at local times [s]."""
    return np.concatenate([fourier(times, DAY, daily), fourier(times, WEEK, weekly)], axis=1)


def _allowed_harmonics(series: TimeSeries) -> list[tuple[int, int]]:
    """Return the pairs of numbers of harmonics for which the series is long enough and its step short enough."""
    span = len(series) * series.step

    def allowed(period: float, numbers: tuple[int, ...]) -> list[int]:
        fastest = int((period / series.step - 1) // 2) if span >= SEASONS_NEEDED * period else 0
        return [number for number in numbers if number <= max(fastest, 0)]

    pairs = [(d, w) for d in allowed(DAY, DAY_HARMONICS) for w in allowed(WEEK, WEEK_HARMONICS)]
    # Each coefficient needs some points.
    return [(d, w) for d, w in pairs if 20 * (d + w) <= len(series)]


def _fit_harmonics(
    z: FloatArray, times: FloatArray, model: Arima, allowed: list[tuple[int, int]]
) -> tuple[tuple[int, int], FloatArray]:
    """Return the numbers of daily and weekly harmonics with the least AICc given the ARIMA, and their coefficients."""
    daily, weekly = max(d for d, _ in allowed), max(w for _, w in allowed)
    columns = _design(times, daily, weekly)
    skipped = model.difference
    plain = model.residuals(z)[skipped:]
    # The residuals of z include the model's mean; harmonics have no mean.
    centred = Arima(model.ar, model.ma, difference=model.difference)
    filtered = np.array([centred.residuals(column)[skipped:] for column in columns.T]).T.reshape(len(plain), -1)

    def chosen(pair: tuple[int, int]) -> FloatArray:
        day, week = pair
        places = [*range(day), *range(daily, daily + day)]
        places += [2 * daily + i for i in (*range(week), *range(weekly, weekly + week))]
        return filtered[:, places]

    def score(pair: tuple[int, int]) -> float:
        inputs = chosen(pair)
        return aicc_of(plain - inputs @ _least_squares(inputs, plain), model.parameters + inputs.shape[1])

    best = min(allowed, key=score)
    # A trend in the older half looks like part of a slow wave, which the newer half does not follow.
    inputs, half = chosen(best), len(plain) // 2
    newer = plain[half:] - inputs[half:] @ _least_squares(inputs[:half], plain[:half])
    if np.square(newer).sum() > HALF_TOLERANCE * np.square(plain[half:]).sum():
        return (0, 0), np.empty(0)
    return best, _least_squares(inputs, plain)


def _least_squares(inputs: FloatArray, wanted: FloatArray) -> FloatArray:
    """Return the coefficients [K] with the least squared error for inputs [T, K]."""
    return np.asarray(np.linalg.lstsq(inputs, wanted, rcond=None)[0]) if inputs.size else np.zeros(inputs.shape[1])
