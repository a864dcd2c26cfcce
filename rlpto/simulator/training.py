"""How one job progresses: compiled functions of its speed row. Pure, no cluster in sight."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlpto.io.arrays import FloatArray
from rlpto.io.compiled import kernel


@kernel(inline="always")
def work_seconds(rates: FloatArray, elapsed: FloatArray, row: int, progress: float) -> float:
    """Seconds the row's curve takes from epoch 0 to `progress` epochs."""
    last = rates.shape[1] - 1
    epoch = min(int(progress), last)
    return float(elapsed[row, epoch] + (progress - epoch) / rates[row, epoch])


@kernel(inline="always")
def last_epoch(elapsed: FloatArray, row: int, epoch: int, epochs: int, clock: float) -> int:
    """The epoch that the row's curve is in after `clock` seconds; `epoch`: one that had begun by then.

    epochs: how many the tables hold; later ones repeat the last.
    """
    epoch = min(epoch, epochs - 1)
    while epoch < epochs - 1 and elapsed[row, epoch + 1] <= clock:
        epoch += 1
    return epoch


@kernel(inline="always")
def enter_epoch(
    job: Any, rates: FloatArray, elapsed: FloatArray, curves: FloatArray, measured: int, epoch: int
) -> None:
    """Read from the tables what holds for a JOB record while its clock is in `epoch`.

    curves: accuracy [T, P + 1], known for `measured` epochs of the job's type and flat from there on.
    """
    row = job.row
    job.epoch = epoch
    job.epoch_start = elapsed[row, epoch]
    job.epoch_end = elapsed[row, epoch + 1]
    job.rate = rates[row, epoch]
    past_tables = epoch == rates.shape[1] - 1 and job.clock >= job.epoch_end
    if past_tables:
        job.epoch_end = np.inf
    if epoch < measured and not past_tables:
        job.slope = curves[job.type_index, epoch + 1] - curves[job.type_index, epoch]
    else:
        job.slope = 0.0


@kernel()
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
