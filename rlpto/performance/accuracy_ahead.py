"""How steeply the accuracy of a job type rises from each epoch on: the best stretch ahead, not the next step alone."""

from __future__ import annotations

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.compiled import kernel, njit

STEEPEST = 1000.0
"""Slope where accuracy is gained without any work."""


@njit()
def accuracy_ahead(accuracy: FloatArray, epochs: IntArray, known_remaining: FloatArray) -> FloatArray:
    """[T, P] largest share of a type's accuracy gained per share of the work left, over any stretch from an epoch on.

    A type that gains all its accuracy at a constant pace has 1 at its first epoch. The value is the slope of the first
    edge of the upper concave hull over the curve ahead, as in the index of chained jobs (Sidney, Operations Research
    23, 1975): the hull skips a plateau if the gain behind it is large enough. 0 if nothing more is gained.

    accuracy: [T, P + 1], known for epochs [T]. known_remaining: [T, P + 1] work left, or empty to count epochs.
    """
    ahead = np.zeros((accuracy.shape[0], accuracy.shape[1] - 1))
    chain = np.empty(accuracy.shape[1], dtype=np.int64)  # vertices of the hull to the right, nearest last
    for kind in range(len(ahead)):
        last = min(epochs[kind], accuracy.shape[1] - 1)
        in_all = accuracy[kind, last] - accuracy[kind, 0]
        if not in_all > 0.0:
            continue
        chain[0], size = last, 1
        for epoch in range(last - 1, -1, -1):
            steepest = _slope(accuracy, known_remaining, kind, epoch, chain[size - 1])
            while size > 1:
                beyond = _slope(accuracy, known_remaining, kind, epoch, chain[size - 2])
                if beyond <= steepest:
                    break
                steepest = beyond
                size -= 1
            left = known_remaining[kind, epoch] if known_remaining.size else float(last - epoch)
            ahead[kind, epoch] = min(max(steepest, 0.0) * left / in_all, STEEPEST)
            chain[size] = epoch
            size += 1
    return ahead


@kernel(error_model="numpy")
def _slope(accuracy: FloatArray, known_remaining: FloatArray, kind: int, start: int, end: int) -> float:
    """Accuracy gained per unit of work from the beginning of one epoch to that of another."""
    gained = accuracy[kind, end] - accuracy[kind, start]
    if not known_remaining.size:
        return float(gained / (end - start))
    work = known_remaining[kind, start] - known_remaining[kind, end]
    if work > 0.0:
        return float(gained / work)
    return np.inf if gained > 0.0 else 0.0
