"""Duration of a job that runs alone: times on packed placements, directly from the speed tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.performance.tables import NO_GPUS, SpeedTables


def seconds_to_finish(
    tables: SpeedTables,
    type_index: ArrayLike,
    scale: ArrayLike,
    epochs: ArrayLike,
    gpus: ArrayLike,
    gpus_per_node: int,
    progress: ArrayLike = 0.0,
) -> FloatArray:
    """Seconds from `progress` to `epochs` epochs on a packed placement, without queueing or rescales.

    type_index, gpus: whole numbers; scale: factor on the rates (samples of the profile / of the
    job); epochs, progress: may lie within an epoch or beyond the measured ones, which repeat the
    last. Shapes broadcast. Infinity without GPUs if work is left.
    """
    rows = tables.packed_rows(gpus_per_node)
    row = rows[np.asarray(type_index, dtype=np.int64), np.asarray(gpus, dtype=np.int64)]
    return _seconds(tables, row, scale, epochs, progress)


def requested_seconds(
    tables: SpeedTables,
    type_index: IntArray,
    scale: FloatArray,
    epochs: FloatArray,
    gpus: IntArray,
    gpus_per_node: int,
) -> FloatArray:
    """`seconds_to_finish` [n] of whole jobs on the kind of GPU that is best for each."""
    on_kinds = [
        seconds_to_finish(tables, types, scale, epochs, gpus, gpus_per_node) for types in tables.by_kind[type_index].T
    ]
    return np.asarray(np.min(on_kinds, axis=0))


def _seconds(
    tables: SpeedTables, row: IntArray, scale: ArrayLike, epochs: ArrayLike, progress: ArrayLike
) -> FloatArray:
    """Seconds from `progress` to `epochs` at the rates of `row` times `scale`; shapes broadcast."""
    with np.errstate(invalid="ignore"):
        moving = (_seconds_at(tables, row, epochs) - _seconds_at(tables, row, progress)) / np.asarray(scale)
    left = np.asarray(epochs) > np.asarray(progress)
    return np.asarray(np.where(row == NO_GPUS, np.where(left, np.inf, 0.0), np.maximum(moving, 0.0)))


def _seconds_at(tables: SpeedTables, row: IntArray, progress: ArrayLike) -> FloatArray:
    """Seconds from epoch 0 to `progress` at the rates of `row`: linear within an epoch; the last epoch repeats."""
    progress = np.asarray(progress, dtype=np.float64)
    epoch = np.minimum(progress.astype(np.int64), tables.rates.shape[1] - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(tables.elapsed[row, epoch] + (progress - epoch) / tables.rates[row, epoch])


def alone_bound(
    tables: SpeedTables, type_index: IntArray, scale: FloatArray, epochs: FloatArray, max_gpus: IntArray
) -> FloatArray:
    """Lower bound [n], in seconds and without delays, of a job's duration under any schedule.

    In every epoch the job runs at the best rate over all numbers of GPUs up to its max_gpus [n], all kinds, all numbers
    of nodes and all measured placements. A run whose epoch ends are rounded to a resolution may beat
    the bound by half of that resolution per epoch.
    """
    seconds = np.zeros(len(type_index))
    for kind in np.unique(type_index):
        of_kind = np.flatnonzero(type_index == kind)
        caps, which = np.unique(max_gpus[of_kind], return_inverse=True)
        best = np.max([tables.best_rates(int(variant))[caps] for variant in tables.by_kind[kind]], axis=0)
        elapsed = np.zeros((len(caps), best.shape[1] + 1))
        np.cumsum(1.0 / best, axis=1, out=elapsed[:, 1:])
        epoch = np.minimum(epochs[of_kind].astype(np.int64), best.shape[1] - 1)
        part = (epochs[of_kind] - epoch) / best[which, epoch]
        seconds[of_kind] = (elapsed[which, epoch] + part) / scale[of_kind]
    return seconds
