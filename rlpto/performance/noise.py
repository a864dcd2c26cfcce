"""The gradient noise scale over training as a handful of knots, and its fit to measured statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field

from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ProfileError

MAX_KNOTS = 10
"""Largest number of knots of a fitted curve."""


@dataclass(frozen=True)
class NoiseCurve:
    """Noise scale in samples, its logarithm linear in the epoch between knots and constant beyond.

    epochs: ascending knots. noise_scale: value at each, in samples (base batch * variance / squared norm).
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    epochs: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)]
    noise_scale: Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], Field(min_length=1)]

    def __post_init__(self) -> None:
        if len(self.epochs) != len(self.noise_scale):
            raise ValueError(f"{len(self.epochs)} epochs but {len(self.noise_scale)} values of noise_scale")
        if any(b <= a for a, b in zip(self.epochs, self.epochs[1:], strict=False)):
            raise ValueError("epochs must ascend")

    def __call__(self, epoch: ArrayLike) -> FloatArray:
        """Noise scale in samples during epoch `epoch`; any shape."""
        log_scale = np.interp(np.asarray(epoch, dtype=np.float64), self.epochs, np.log(self.noise_scale))
        return np.asarray(np.exp(log_scale))


def fit_noise(grad_sqr: FloatArray, grad_var: FloatArray, base_batch: int) -> tuple[NoiseCurve, float]:
    """Curve through the median over runs, and the root mean square of its log error over all runs.

    grad_sqr, grad_var: [runs, epochs]. Estimates that are not positive carry no information and are left out.
    Knots are added one at a time where they help most. Raises ProfileError if an epoch has no
    usable estimate.
    """
    usable = (grad_sqr > 0) & (grad_var > 0)
    if not usable.any(axis=0).all():
        raise ProfileError(f"epoch {int(np.argmin(usable.any(axis=0)))} has no positive gradient statistics")
    log_scale = np.full(grad_sqr.shape, np.nan)
    log_scale[usable] = np.log(base_batch * grad_var[usable] / grad_sqr[usable])
    target = np.nanmedian(log_scale, axis=0)
    last = len(target) - 1
    knots, values, _ = _fit_knots([0, last] if last else [0], target)
    while len(knots) < min(MAX_KNOTS, len(target)):
        others = [epoch for epoch in range(last) if epoch not in knots]
        tried = [_fit_knots(sorted([*knots, epoch]), target) for epoch in others]
        knots, values, _ = min(tried, key=lambda fit: fit[2])
    curve = NoiseCurve(tuple(float(knot) for knot in knots), tuple(float(value) for value in np.exp(values)))
    residual = (np.log(curve(np.arange(len(target)))) - log_scale)[usable]
    return curve, float(np.sqrt(np.mean(residual**2)))


def _fit_knots(knots: list[int], target: FloatArray) -> tuple[list[int], FloatArray, float]:
    """Least-squares values at the knots, and the squared error."""
    hats = np.column_stack([np.interp(np.arange(len(target)), knots, unit) for unit in np.eye(len(knots))])
    values: FloatArray = np.linalg.lstsq(hats, target, rcond=None)[0].astype(np.float64)
    return knots, values, float(np.sum((hats @ values - target) ** 2))
