"""Averages of counts by the minute. Imports no torch: they are asked for where nothing is forecast, too."""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

from rlpto.io.arrays import FloatArray

HALF_LIVES = (2, 5, 15, 60, 240)
"""Half-lives of the averages [min]."""


def averages(counts: FloatArray, memory: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return averages [T, A x C] of counts [T, C] for every half-life in turn, and the memory [A x C] to go on from."""
    columns = counts.shape[1]
    found, kept = np.empty((len(counts), columns * len(HALF_LIVES))), memory.copy()
    for place, half_life in enumerate(HALF_LIVES):
        keep, own = 0.5 ** (1 / half_life), slice(columns * place, columns * (place + 1))
        found[:, own], kept[None, own] = lfilter([1 - keep], [1, -keep], counts, axis=0, zi=memory[None, own])
    return found, kept
