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
def progress_after(rates: FloatArray, elapsed: FloatArray, row: int, progress: float, seconds: float) -> float:
    """Epochs done after training `seconds` more (of the row's own clock) from `progress`."""
    last = rates.shape[1] - 1
    epoch = min(int(progress), last)
    until = elapsed[row, epoch] + (progress - epoch) / rates[row, epoch] + seconds
    while epoch < last and elapsed[row, epoch + 1] <= until:
        epoch += 1
    # Rounding must never take work back.
    return float(max(progress, epoch + (until - elapsed[row, epoch]) * rates[row, epoch]))


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
def accuracy_at(curve: FloatArray, epochs: int, progress: float) -> float:
    """Accuracy after `progress` epochs on a curve [P + 1] known at whole epochs up to `epochs`."""
    at = min(progress, float(epochs))
    low = min(int(at), epochs - 1)
    return float(curve[low] + (at - low) * (curve[low + 1] - curve[low]))
