"""Quantiles that are learnt: their spread, their mean, and quantiles between them."""

from __future__ import annotations

import numpy as np

from rlpto.io.arrays import FloatArray

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""Levels that are learnt."""
MEDIAN = QUANTILES.index(0.5)

LEAST_SPREAD = 0.05
"""Least distance of quantiles from the median in log1p: intervals are scaled by it and must be able to grow."""

MASSES = np.diff(np.concatenate([[0.0], (np.array(QUANTILES[1:]) + np.array(QUANTILES[:-1])) / 2, [1.0]]))
"""[Q] probability that each of the learnt quantiles stands for."""


def spread_of(log_quantiles: FloatArray) -> FloatArray:
    """[..., Q] distances from the median in log1p, at least LEAST_SPREAD, 0 at the median itself."""
    spread: FloatArray = np.maximum(np.abs(log_quantiles - log_quantiles[..., MEDIAN : MEDIAN + 1]), LEAST_SPREAD)
    spread[..., MEDIAN] = 0.0
    return spread


def mean_of(log_quantiles: FloatArray) -> FloatArray:
    """[...] mean count of the distributions of [..., Q] quantiles in log1p."""
    means: FloatArray = np.expm1(log_quantiles) @ MASSES
    return means


def at_levels(log_quantiles: FloatArray, levels: FloatArray) -> FloatArray:
    """[..., L] quantiles in counts at any levels, from [..., Q] at QUANTILES in log1p.

    Between and beyond those levels on straight lines against the normal quantile.
    """
    from scipy.special import ndtri

    known, wanted = ndtri(np.array(QUANTILES)), ndtri(levels)
    right = np.clip(np.searchsorted(known, wanted), 1, len(known) - 1)
    share = (wanted - known[right - 1]) / (known[right] - known[right - 1])
    low, high = log_quantiles[..., right - 1], log_quantiles[..., right]
    # Beyond the outermost levels the line can reach far, so it must not decrease there.
    counts: FloatArray = np.expm1(np.clip(low + share * (high - low), 0.0, 50.0))
    return counts


def median(log_quantiles: FloatArray) -> FloatArray:
    """[...] the median in counts from [..., Q] quantiles in log1p."""
    counts: FloatArray = np.expm1(log_quantiles[..., MEDIAN])
    return counts
