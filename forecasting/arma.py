"""ARIMA with fixed parameters: residuals, forecasts, and a filter that advances a value at a time.

The residuals are those of the innovations recursion from a start at rest, to which the Kalman
filter of an invertible model converges (Brockwell & Davis, Time Series: Theory and Methods,
section 5.3): a linear filter, so that a series of any length costs one pass, and a new value a
handful of products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from scipy.signal import lfilter

from rlpto.io.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Arima:
    """phi(B) ((1 - B)^d z - mean) = theta(B) e.

    ar, ma: coefficients; phi(B) = 1 - ar[0] B - ..., theta(B) = 1 + ma[0] B + ...
    mean: of the differenced series. difference: d.
    """

    ar: tuple[float, ...] = ()
    ma: tuple[float, ...] = ()
    mean: float = 0.0
    difference: int = 0

    @property
    def name(self) -> str:
        """`ARIMA(p,d,q)`."""
        return f"ARIMA({len(self.ar)},{self.difference},{len(self.ma)})"

    @property
    def parameters(self) -> int:
        """Number of estimated parameters, the variance included."""
        return len(self.ar) + len(self.ma) + (self.mean != 0) + 1

    @cached_property
    def differencing(self) -> FloatArray:
        """Coefficients of (1 - B)^d, lag 0 first."""
        polynomial = np.ones(1)
        for _ in range(self.difference):
            polynomial = np.convolve(polynomial, [1.0, -1.0])
        return polynomial

    @cached_property
    def autoregression(self) -> FloatArray:
        """Coefficients of phi(B), lag 0 first."""
        return np.array([1.0, *(-c for c in self.ar)])

    @cached_property
    def moving_average(self) -> FloatArray:
        """Coefficients of theta(B), lag 0 first."""
        return np.array([1.0, *self.ma])

    @cached_property
    def value_lags(self) -> FloatArray:
        """Coefficients of past z in its next value, by lag; that of lag 0 is not used."""
        lags: FloatArray = -np.convolve(self.differencing, self.autoregression)
        return lags

    @cached_property
    def memory(self) -> int:
        """How many past values a forecast needs."""
        return max(len(self.value_lags), len(self.moving_average), 2) - 1

    @cached_property
    def constant(self) -> float:
        """What the mean adds to the next value of z."""
        return self.mean * float(self.autoregression.sum())

    def rest(self, z: FloatArray) -> float:
        """Value assumed before the start of the series: its mean if it has one, else its first value."""
        return self.mean if self.difference == 0 else (float(z[0]) if len(z) else 0.0)

    def residuals(self, z: FloatArray) -> FloatArray:
        """[T] errors one step ahead; 0 while differencing has too few values."""
        return Filter(self).extend(z)

    def forecasts(self, z: FloatArray, errors: FloatArray, origins: IntArray, horizon: int) -> FloatArray:
        """[N, H] expected values after each origin, from z[:origin] and its [T] residuals."""
        lags = self.value_lags, self.moving_average
        found: FloatArray = _expected(z, errors, origins, horizon, *lags, self.constant, self.rest(z))
        return found


class Filter:
    """Takes in a series in pieces and forecasts from its end. The numbers do not depend on the pieces' lengths."""

    def __init__(self, model: Arima) -> None:
        self.model = model
        self._seen = 0
        # A denominator of two terms keeps scipy from convolving instead, which rounds otherwise.
        self._denominator = _at_least_two(model.moving_average)
        self._differences = np.zeros(max(len(model.differencing), 2) - 1)
        self._arma = np.zeros(max(len(model.autoregression), len(self._denominator)) - 1)
        self._values = np.empty(0)
        self._errors = np.empty(0)

    def extend(self, z: FloatArray) -> FloatArray:
        """Take in [n] values; returns their residuals."""
        model = self.model
        if not len(z):
            return np.zeros(0)
        changes, self._differences = lfilter(model.differencing, [1.0, 0.0], z, zi=self._differences)
        skipped = min(max(model.difference - self._seen, 0), len(z))
        errors = np.zeros(len(z))
        if skipped < len(z):  # scipy loses the state where there is nothing to filter
            late = changes[skipped:] - model.mean
            errors[skipped:], self._arma = lfilter(model.autoregression, self._denominator, late, zi=self._arma)
        self._seen += len(z)
        self._values = np.concatenate([self._values, z])[-model.memory :]
        self._errors = np.concatenate([self._errors, errors])[-model.memory :]
        return errors

    def forecast(self, horizon: int) -> FloatArray:
        """[H] expected values after the last one."""
        found = self.model.forecasts(self._values, self._errors, np.array([len(self._values)]), horizon)
        following: FloatArray = found[0]
        return following


@njit(cache=True)
def _expected(
    z: FloatArray,
    errors: FloatArray,
    origins: IntArray,
    horizon: int,
    value_lags: FloatArray,
    error_lags: FloatArray,
    constant: float,
    rest: float,
) -> FloatArray:
    """See `Arima.forecasts`. rest: the value before the first one."""
    expected = np.empty((len(origins), horizon))
    for i, origin in enumerate(origins):
        for step in range(horizon):
            value = constant
            for lag in range(1, len(value_lags)):
                if value_lags[lag]:
                    place = origin + step - lag
                    past = expected[i, step - lag] if step >= lag else z[place] if place >= 0 else rest
                    value += value_lags[lag] * past
            for lag in range(step + 1, len(error_lags)):
                place = origin + step - lag
                value += error_lags[lag] * (errors[place] if place >= 0 else 0.0)
            expected[i, step] = value
    return expected


def _at_least_two(polynomial: FloatArray) -> FloatArray:
    return polynomial if len(polynomial) > 1 else np.append(polynomial, 0.0)
