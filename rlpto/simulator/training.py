"""How one job gets on: compiled functions of its speed row. Pure, no cluster in sight."""

from __future__ import annotations

import numpy as np
from numba import njit

from rlpto.arrays import FloatArray


@njit(cache=True, inline="always")
def work_seconds(rates: FloatArray, elapsed: FloatArray, row: int, progress: float) -> float:
    """Seconds the row's curve takes from epoch 0 to `progress` epochs."""
    last = rates.shape[1] - 1
    epoch = min(int(progress), last)
    return float(elapsed[row, epoch] + (progress - epoch) / rates[row, epoch])


@njit(cache=True, inline="always")
def progress_at(rates: FloatArray, elapsed: FloatArray, row: int, epoch: int, clock: float) -> float:
    """Epochs done when the row's curve has run for `clock` seconds; `epoch`: one that had begun by then."""
    last = rates.shape[1] - 1
    epoch = min(epoch, last)  # later ones are not in the tables: they repeat the last
    while epoch < last and elapsed[row, epoch + 1] <= clock:
        epoch += 1
    return float(epoch + (clock - elapsed[row, epoch]) * rates[row, epoch])


@njit(cache=True)
def progress_in_steps(
    rates: FloatArray, row: int, scale: float, progress: float, target: float, seconds: float, resolution: float
) -> tuple[float, float]:
    """Epochs done after `seconds` when epoch ends are rounded to `resolution` seconds, and seconds unused.

    An epoch that would end within the time left ends at the nearest multiple of the resolution from
    where its time began (half to even); the unused time is that after the last epoch.
    """
    last = rates.shape[1] - 1
    while seconds > 0.0 and progress < target:
        epoch = int(progress)
        rate = rates[row, min(epoch, last)] * scale
        boundary = min(epoch + 1.0, target)
        if progress + rate * seconds < boundary:
            return progress + rate * seconds, 0.0
        taken = np.rint((boundary - progress) / rate / resolution) * resolution
        seconds = max(0.0, seconds - taken)
        progress = boundary
    return progress, seconds


@njit(cache=True, inline="always")
def accuracy_at(curves: FloatArray, kind: int, epochs: int, progress: float) -> float:
    """Accuracy of type `kind` after `progress` epochs; curves [T, P + 1] at whole epochs, known up to `epochs`."""
    at = min(progress, float(epochs))
    low = min(int(at), epochs - 1)
    return float(curves[kind, low] + (at - low) * (curves[kind, low + 1] - curves[kind, low]))
