"""The gradient noise scale, measured while a job trains.

Estimators of Pollux (Qiao et al., OSDI 2021, section 3 and appendix): the squared norm of a gradient over b samples is
|G|^2 + tr(S)/b in expectation, for the true gradient G and the covariance S of one sample's gradient. The norms of the
workers' own gradients and of their mean are two equations for the two unknowns. A single worker uses two successive
gradients in place of two workers' gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Estimate = tuple[float, float]
"""|G|^2 and tr(S); either may come out negative in a single step."""

SMOOTHING = 0.999
"""Weight that an estimate keeps per step."""

MEASURE_EVERY_STEPS = 8
"""Steps from one measurement to the next, enough to keep its cost well below the noise of step times."""


def estimate(local: float, mean: float, local_inverse: float, inverse: float) -> Estimate:
    """Unbiased estimates from the gradients of one step.

    local: mean over workers of |g_i|^2. mean: |sum of g_i b_i / B|^2. local_inverse: mean over workers of 1/b_i.
    inverse: 1/B. b_i: samples of worker i; B: of all.
    """
    trace = (local - mean) / (local_inverse - inverse)
    return mean - trace * inverse, trace


@dataclass
class NoiseMeter:
    """Running means of both estimates, with the weight gathered so far (they start at 0 without bias)."""

    square: float = 0.0
    trace: float = 0.0
    weight: float = 0.0

    def add(self, found: Estimate) -> None:
        """Add estimates, which stand for all steps until the next ones. Non-finite estimates are ignored."""
        square, trace = found
        if not (math.isfinite(square) and math.isfinite(trace)):
            return
        keep = SMOOTHING**MEASURE_EVERY_STEPS
        self.square = keep * self.square + (1 - keep) * square
        self.trace = keep * self.trace + (1 - keep) * trace
        self.weight = keep * self.weight + (1 - keep)

    @property
    def noise_scale(self) -> float:
        """tr(S) / |G|^2 in samples; NaN before the first estimate, infinite if no signal is left."""
        if self.weight == 0.0:
            return math.nan
        if self.square <= 0.0:
            return math.inf
        return max(self.trace, 0.0) / self.square

    def gain(self, scale: float, batch_size: int) -> float:
        """Worth of a step with `scale` times `batch_size` samples, in steps of `batch_size`: 1 (all signal) to `scale`.

        Without an estimate a larger batch counts as one step, a smaller one as its share of samples.
        """
        noise = self.noise_scale
        if scale == 1.0:
            return 1.0
        if math.isnan(noise):
            return min(scale, 1.0)
        if math.isinf(noise):
            return scale
        return (noise + batch_size) / (noise / scale + batch_size)
