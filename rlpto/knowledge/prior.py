"""Prior of a model's throughput before any observation: the laws of other models, as one normal distribution.

The law is Pollux's (`rlpto.performance.throughput`), in coordinates in which models of very different step times are
similar: the logarithm of the time t0 to compute the base batch on one GPU, and logarithms of ratios to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ConfigError
from rlpto.performance.efficiency import BatchLimits
from rlpto.performance.profiles import Profile, builtin_profiles
from rlpto.performance.throughput import MAX_GAMMA, ThroughputParams

COORDINATES = 7
"""log t0, logit of the constant part of t0, log (alpha_r / t0), log (beta_r / alpha_r), log (alpha_n / alpha_r),
log (beta_n / alpha_n), log (gamma - LEAST_GAMMA)."""
LEAST_GAMMA = 0.95
_LEAST_ALPHA, _LEAST_BETA = 0.003, 0.0003
"""Lower bounds of synchronisation costs, as shares of t0."""
_SHARE = (0.02, 0.98)
"""Bounds of the constant part of t0."""
_MOST_GAMMA = 5.0
LEVEL_SIGMA = 1.5
"""Standard deviation of log t0: other models say little about a model's step time."""
_SHRINKAGE, _MODEL_SIGMA = 0.4, 0.2
"""Shrinkage of correlations between coordinates, and a standard deviation added to each coordinate: with a handful of
models, the covariance is itself uncertain."""


@dataclass(frozen=True)
class ThroughputPrior:
    """A normal distribution of a law's coordinates: mean [7], precision [7, 7] (inverse covariance)."""

    mean: FloatArray
    precision: FloatArray


@cache
def prior_without(model: str) -> ThroughputPrior:
    """Return the prior from all built-in models except the named one, on all their GPU types. Raises ConfigError
    without two others."""
    profiles = others_than(model, least=2)
    rows = [
        coordinates(speed.throughput, reference_batch(profile.on(gpu_type).batch))
        for profile in profiles
        for gpu_type, speed in profile.gpu_types.items()
        if isinstance(speed.throughput, ThroughputParams)
    ]
    return prior_of(np.array(rows))


def prior_of(sample: FloatArray) -> ThroughputPrior:
    """Return the prior from coordinates [N, 7] of other laws."""
    covariance = (1 - _SHRINKAGE) * np.cov(sample.T, bias=True)
    variance = sample.var(axis=0) + _MODEL_SIGMA**2
    variance[0] = LEVEL_SIGMA**2
    covariance[0, :] = covariance[:, 0] = 0.0
    np.fill_diagonal(covariance, variance)
    return ThroughputPrior(sample.mean(axis=0), np.linalg.inv(covariance).astype(np.float64))


def others_than(model: str, least: int) -> list[Profile]:
    """Return all built-in profiles except the named one. Raises ConfigError if there are fewer than `least`."""
    found = [profile for name, profile in builtin_profiles().items() if name != model]
    if len(found) < least:
        raise ConfigError(
            f"knowledge: estimates of {model} rest on profiles of other models; expected {least} built-in ones "
            f"or more, found {len(found)} (knowledge.fit pollux and knowledge.remaining unknown need none)"
        )
    return found


def reference_batch(limits: BatchLimits, unit: int = 1) -> float:
    """Samples in t0: the base batch, or as much of it as one GPU, or a unit of several, computes at once."""
    return float(min(limits.base, unit * limits.max_local))


def coordinates(law: ThroughputParams, reference: float) -> FloatArray:
    """[7] coordinates of a law; negligible costs count as small ones. reference: `reference_batch`."""
    level = law.alpha_c + law.beta_c * reference
    share = np.clip(law.alpha_c / level, *_SHARE)
    one, several = (max(alpha / level, _LEAST_ALPHA) for alpha in (law.alpha_r, law.alpha_n))
    one_growth, several_growth = (max(beta / level, _LEAST_BETA) for beta in (law.beta_r, law.beta_n))
    return np.array(
        [
            math.log(level),
            math.log(share / (1 - share)),
            math.log(one),
            math.log(one_growth / one),
            math.log(several / one),
            math.log(several_growth / several),
            math.log(min(law.gamma, _MOST_GAMMA) - LEAST_GAMMA),
        ]
    )


def law_at(point: FloatArray, reference: float) -> ThroughputParams:
    """Return the law with these coordinates [7]."""
    level, share = math.exp(point[0]), 1 / (1 + math.exp(-point[1]))
    one = level * math.exp(point[2])
    several = one * math.exp(point[4])
    return ThroughputParams(
        alpha_c=level * share,
        beta_c=level * (1 - share) / reference,
        alpha_n=several,
        beta_n=several * math.exp(point[5]),
        alpha_r=one,
        beta_r=one * math.exp(point[3]),
        gamma=min(max(LEAST_GAMMA + math.exp(point[6]), 1.0), MAX_GAMMA),
    )
