"""ARIMA models: orders by AICc, parameters from statsmodels, residuals and forecasts from a linear filter.

Residuals come from the innovations recursion with values and errors of zero before the series. The Kalman filter of an
invertible model converges to it (Brockwell & Davis, Time Series: Theory and Methods, section 5.3). One pass of scipy's
filter gives the residuals of a whole series, and these give the forecasts from every origin; statsmodels forecasts from
one origin at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.signal import lfilter
from statsmodels.tsa.arima.estimators.hannan_rissanen import hannan_rissanen
from statsmodels.tsa.statespace.sarimax import SARIMAX
from statsmodels.tsa.stattools import kpss

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.compiled import njit

MAX_ORDER = 3
"""Largest p, and largest q; MAX_TERMS is the largest p + q."""
MAX_TERMS = 4
SHORT_SERIES_POINTS = 100
"""A series with fewer points gets p and q of at most 1."""
LIKELIHOOD_FITS = 3
"""Default number of candidates to fit by maximum likelihood: those with the least AICc after regression."""
LIKELIHOOD_ITERATIONS = 60
"""Most iterations of the maximum-likelihood fit; a fit that needs more has not converged."""
LARGEST_INVERSE_ROOT = 0.99
"""Largest modulus of an inverse root. The effect of zero initial values then fades within a few hundred steps."""
KPSS_CRITICAL = 0.463
"""Critical value of the test for a constant level, at 5 %."""
CONSTANT_SPREAD = 1e-9
"""Range of values below which a series is constant."""


@dataclass(frozen=True)
class Arima:
    """The model phi(B) ((1 - B)^d z - mean) = theta(B) e.

    ar, ma: coefficients; phi(B) = 1 - ar[0] B - ..., theta(B) = 1 + ma[0] B + ...
    mean: mean of the differenced series. difference: d, 0 or 1.
    """

    ar: tuple[float, ...] = ()
    ma: tuple[float, ...] = ()
    mean: float = 0.0
    difference: int = 0

    @property
    def parameters(self) -> int:
        """Number of estimated parameters, the variance included."""
        return len(self.ar) + len(self.ma) + (self.mean != 0) + 1

    @cached_property
    def autoregression(self) -> FloatArray:
        """Coefficients of phi(B), lag 0 first."""
        return np.array([1.0, *(-c for c in self.ar)])

    def residuals(self, z: FloatArray) -> FloatArray:
        """Return the errors [T] of one-step forecasts of z [T]; 0 for the first values, which differencing uses up."""
        errors = np.zeros(len(z))
        changes = np.diff(z, self.difference) - self.mean
        if len(changes):
            # A denominator of two terms keeps scipy from convolving instead, which rounds differently.
            errors[self.difference :] = lfilter(self.autoregression, [1.0, *self.ma, 0.0], changes)
        return errors

    def forecasts(self, z: FloatArray, origins: IntArray, horizon: int) -> FloatArray:
        """Return the expected values [N, H] after each origin, from z[:origin]."""
        value_lags: FloatArray = -np.convolve([1.0, -1.0] if self.difference else [1.0], self.autoregression)
        constant = self.mean * float(self.autoregression.sum())
        rest = float(z[0]) if self.difference and len(z) else self.mean
        found: FloatArray = _expected(
            z, self.residuals(z), origins, horizon, value_lags, np.array([1.0, *self.ma]), constant, rest
        )
        return found


@njit()
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
    """Return the result of `Arima.forecasts`. value_lags, error_lags: coefficients by lag; the first, for lag 0, is
    unused. constant: contribution of the mean. rest: value assumed before the series: the mean or, if differenced, the
    first value."""
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


def fit_arima(z: FloatArray, difference: int, refined: int = LIKELIHOOD_FITS) -> Arima:
    """Fit ARIMA(p, d, q) to z [T] for a given d, and return the fit with the least AICc. It has a mean only if d = 0.

    Candidates within the bounds are estimated by the regressions of Hannan and Rissanen (Biometrika
    1982) and ranked; the best are fitted by maximum likelihood in statsmodels, starting from these estimates. If a fit
    warns or fails, the candidate keeps its estimates. A constant series gets no terms.

    refined: number of candidates fitted by likelihood; with 0, only the regressions are used.
    """
    w = np.diff(z, difference)
    mean = float(w.mean()) if difference == 0 else 0.0
    rest = Arima(mean=mean, difference=difference)
    if float(np.ptp(w)) < CONSTANT_SPREAD:
        return rest
    top = MAX_ORDER if len(w) >= SHORT_SERIES_POINTS else 1
    orders = [(p, q) for p in range(top + 1) for q in range(top + 1) if p + q <= MAX_TERMS]
    starts = [replace(rest, ar=ar, ma=ma) for ar, ma in (_regressed(w - mean, p, q) for p, q in orders)]
    best = sorted(starts, key=lambda model: aicc(model, z))
    return min((_refined(model, z) for model in best[:refined]), key=lambda model: aicc(model, z), default=best[0])


def needs_difference(z: FloatArray) -> bool:
    """Return whether [T] values have no constant level, at 5 %, by the KPSS test (Kwiatkowski, Phillips, Schmidt and
    Shin)."""
    if float(np.ptp(z)) < CONSTANT_SPREAD:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about p-values, which are not used
        return bool(kpss(z, nlags="legacy")[0] > KPSS_CRITICAL)


def aicc(model: Arima, z: FloatArray) -> float:
    """Return the AICc of a model on z [T]; the first values, which differencing uses up, do not count."""
    return aicc_of(model.residuals(z)[model.difference :], model.parameters)


def aicc_of(errors: FloatArray, parameters: int) -> float:
    """Return the corrected Akaike criterion (Hurvich & Tsai, Biometrika 1989) of [T] Gaussian one-step errors."""
    count = len(errors)
    if count <= parameters + 1:
        return float("inf")
    penalty = 2.0 * parameters * count / (count - parameters - 1)
    return count * float(np.log(max(np.square(errors).mean(), CONSTANT_SPREAD**2))) + penalty


def stable(coefficients: Iterable[float], sign: float) -> tuple[float, ...]:
    """Return the coefficients of 1 + sign (c[0] B + c[1] B^2 + ...) with its roots moved outside the unit circle."""
    taken = tuple(float(c) for c in coefficients)
    if not taken:
        return taken
    # The roots of the reversed polynomial are the reciprocal roots of the polynomial: they must be small.
    largest = float(np.abs(np.roots([1.0, *(sign * c for c in taken)])).max())
    if largest <= LARGEST_INVERSE_ROOT:
        return taken
    return tuple(c * (LARGEST_INVERSE_ROOT / largest) ** (i + 1) for i, c in enumerate(taken))


def is_stable(coefficients: FloatArray, sign: float) -> bool:
    """Return whether `stable` would leave the coefficients unchanged, up to rounding."""
    return np.allclose(stable(coefficients, sign), coefficients, rtol=1e-6, atol=0)


def _regressed(w: FloatArray, p: int, q: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Estimate AR and MA coefficients by regression on lagged values and errors; zeros if there are too few values."""
    if p == q == 0:
        return (), ()
    try:
        found = hannan_rissanen(w, ar_order=p, ma_order=q, demean=False)[0]
    except (ValueError, np.linalg.LinAlgError):
        return (0.0,) * p, (0.0,) * q
    ar, ma = np.asarray(found.ar_params), np.asarray(found.ma_params)
    if not (np.isfinite(ar).all() and np.isfinite(ma).all()):
        return (0.0,) * p, (0.0,) * q
    return stable(ar, -1.0), stable(ma, 1.0)


def _refined(start: Arima, z: FloatArray) -> Arima:
    """Fit by maximum likelihood from the coefficients of `start`; return `start` itself if the fit warns or fails."""
    if not start.ar and not start.ma:
        return start
    w = np.diff(z, start.difference) - start.mean
    p, q = len(start.ar), len(start.ma)
    model = SARIMAX(w, order=(p, 0, q), concentrate_scale=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = model.fit([*start.ar, *start.ma], maxiter=LIKELIHOOD_ITERATIONS, disp=0, cov_type="none")
        except (Warning, ValueError, np.linalg.LinAlgError):
            return start
    found: FloatArray = np.asarray(result.params, dtype=np.float64)
    if not np.isfinite(found).all():
        return start
    return replace(start, ar=stable(found[:p], -1.0), ma=stable(found[p:], 1.0))
