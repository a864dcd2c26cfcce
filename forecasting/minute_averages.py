"""Averages of counts by the minute. Imports no torch, because they are also needed without forecasts."""

from __future__ import annotations

import numpy as np

from rlpto.io.arrays import FloatArray
from rlpto.io.compiled import njit

HALF_LIVES = (2, 5, 15, 60, 240)
"""Half-lives of the averages [min]."""


def averages(counts: FloatArray, memory: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return averages [T, A x C] of counts [T, C] for every half-life in turn, and the last memory [A x C]."""
    keep = np.repeat([0.5 ** (1 / half_life) for half_life in HALF_LIVES], counts.shape[1])
    found, memory = np.tile(counts, len(HALF_LIVES)) * (1 - keep), memory.copy()
    _add_memory(found, keep, memory)
    return found, memory


@njit()
def _add_memory(found: FloatArray, keep: FloatArray, memory: FloatArray) -> None:
    """Add to each row of found [T, D] the memory [D] of the rows before, which is updated in place."""
    for minute in range(len(found)):
        for column in range(len(memory)):
            found[minute, column] += memory[column]
            memory[column] = keep[column] * found[minute, column]
