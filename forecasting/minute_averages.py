"""Averages of counts by the minute. Imports no torch, because they are also needed without forecasts."""

from __future__ import annotations

import numpy as np

from rlpto.io.arrays import FloatArray

HALF_LIVES = (2, 5, 15, 60, 240)
"""Half-lives of the averages [min]."""


def averages(counts: FloatArray, memory: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return averages [T, A x C] of counts [T, C] for every half-life in turn, and the last memory [A x C]."""
    keep = np.repeat([0.5 ** (1 / half_life) for half_life in HALF_LIVES], counts.shape[1])
    new, found = np.tile(counts, len(HALF_LIVES)) * (1 - keep), np.empty((len(counts), len(memory)))
    for minute, own in enumerate(new):
        found[minute] = own + memory
        memory = keep * found[minute]
    return found, memory
