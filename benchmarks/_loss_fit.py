"""Loss against epochs: Optimus's hyperbola (Peng et al., EuroSys 2018, section 3.1), fitted as Coach does.

Two tests check whether losses follow such a curve: residuals must not be more autocorrelated than noise (von Neumann's
ratio, Annals of Mathematical Statistics 12(4), 1941), and a curve fitted to the first two thirds of the losses must
predict the last third.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rlpto.io.arrays import FloatArray


@dataclass(frozen=True)
class LossCurve:
    """l(k) = 1 / (a k + b) + c after k epochs; a, b, c >= 0. c: the limit of the loss."""

    a: float
    b: float
    c: float

    def __call__(self, epochs: ArrayLike) -> FloatArray:
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / (self.a * np.asarray(epochs, dtype=np.float64) + self.b) + self.c)

    def end_epoch(self, target: float) -> float:
        """The first whole epoch, at least 1, whose loss is at most target; infinity if none is."""
        if target <= self.c:
            return math.inf
        beyond = 1.0 / (target - self.c) - self.b
        if beyond <= self.a:
            return 1.0
        return math.inf if self.a == 0 else float(math.ceil(beyond / self.a - 1e-9))


class LossFit(NamedTuple):
    """A curve fitted to losses; reliable: False if the residuals show a trend, which makes predictions wrong."""

    curve: LossCurve
    reliable: bool


def fit_loss(losses: FloatArray) -> LossFit:
    """The curve closest to the losses [K >= 6] after epochs 1..K; each third weighs 4 times the one before.

    First, a loss above the mean of the five before it is lowered to that mean, as in Coach. Reliability is judged by
    fits with equal weights, because weights make the residuals of early epochs autocorrelated even if the curve is
    right.
    """
    losses = _clamped(losses)
    curve = _fit(losses, np.asarray(4.0 ** (3 * np.arange(len(losses)) // len(losses)), dtype=np.float64))
    return LossFit(curve, max(_stickiness(losses), _surprise(losses)) <= _LARGEST_TREND)


_LARGEST_TREND = 1.645
"""Standard deviations that pure noise exceeds once in 20 times in either test: a false alarm costs less than wrong
trust."""
_SMALLEST_RESIDUAL = 1e-3
"""Share of the whole fall of the loss: a curve with smaller residuals is accepted even if they are autocorrelated."""
_SMALLEST_INVERSE = 1e-9
_CLAMP_EPOCHS = 5


def _clamped(losses: FloatArray) -> FloatArray:
    """Losses with sudden rises taken out."""
    losses = losses.copy()
    for k in range(_CLAMP_EPOCHS, len(losses)):
        losses[k] = min(losses[k], losses[k - _CLAMP_EPOCHS : k].mean())
    return losses


def _fit(losses: FloatArray, weights: FloatArray) -> LossCurve:
    """The curve with the least sum of squares of weights [K] x residuals, from several floors to start from."""
    from scipy.optimize import least_squares

    epochs, unit = np.arange(1.0, len(losses) + 1), float(np.abs(losses).max()) or 1.0
    scaled, weights = losses / unit, weights / weights.max()

    def residuals(x: FloatArray) -> FloatArray:
        return np.asarray(weights * (1.0 / np.maximum(x[0] * epochs + x[1], _SMALLEST_INVERSE) + x[2] - scaled))

    def slopes(x: FloatArray) -> FloatArray:
        falls = -weights / np.maximum(x[0] * epochs + x[1], _SMALLEST_INVERSE) ** 2
        return np.stack([falls * epochs, falls, weights], axis=1)

    fits = []
    for share in (0.0, 0.5, 0.9):
        floor = max(share * float(scaled.min()), 0.0)
        inverse = 1.0 / np.maximum(scaled - floor, 1e-3)
        a, b = np.polyfit(epochs, inverse, 1)
        start = [max(a, 1e-3), max(b, 1e-3), floor]
        fits.append(
            least_squares(residuals, start, jac=slopes, bounds=(0.0, np.inf), x_scale="jac", ftol=1e-12, xtol=1e-12)
        )
    a, b, c = (float(value) for value in min(fits, key=lambda fit: float(fit.cost)).x)
    return LossCurve(a / unit, b / unit, c * unit)


def _stickiness(losses: FloatArray) -> float:
    """Standard deviations by which von Neumann's ratio of the residuals is below that of noise; at least 0."""
    count = len(losses)
    residuals = losses - _fit(losses, np.ones(count))(np.arange(1, count + 1))
    spread = float(np.sum((residuals - residuals.mean()) ** 2))
    if math.sqrt(spread / count) <= _SMALLEST_RESIDUAL * float(np.ptp(losses)) or spread == 0.0:
        return 0.0
    ratio = float(np.sum(np.diff(residuals) ** 2)) / spread
    return max(0.0, (2.0 - ratio) / math.sqrt(4.0 * (count - 2) / (count**2 - 1)))


def _surprise(losses: FloatArray) -> float:
    """Standard deviations between the mean of the last third and its prediction from earlier losses; at least 0."""
    known = 2 * len(losses) // 3
    epochs = np.arange(1.0, len(losses) + 1)
    curve = _fit(losses[:known], np.ones(known))
    residuals = losses - curve(epochs)
    noise = math.sqrt(float(np.sum(residuals[:known] ** 2)) / max(known - 3, 1))
    noise = max(noise, _SMALLEST_RESIDUAL * float(np.ptp(losses)))
    falls = -1.0 / np.maximum(curve.a * epochs + curve.b, _SMALLEST_INVERSE) ** 2
    slopes = np.stack([falls * epochs, falls, np.ones(len(losses))], axis=1)
    unit = np.abs(slopes[:known]).max(axis=0)
    slopes = slopes / unit
    covariance = np.linalg.pinv(slopes[:known].T @ slopes[:known])
    ahead = slopes[known:].mean(axis=0)
    error = noise * math.sqrt(1.0 / (len(losses) - known) + float(ahead @ covariance @ ahead))
    return abs(float(residuals[known:].mean())) / error if error > 0 else 0.0
