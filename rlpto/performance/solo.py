"""How long a job takes alone: times on packed placements, straight from the speed tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlpto.arrays import FloatArray, IntArray
from rlpto.performance.tables import SpeedTables


def packed_row(tables: SpeedTables, type_index: ArrayLike, gpus: ArrayLike, gpus_per_node: int) -> IntArray:
    """Rows of `gpus` GPUs on as few nodes as possible, by (nodes, GPUs); shapes broadcast."""
    type_index, gpus = np.asarray(type_index, dtype=np.int64), np.asarray(gpus, dtype=np.int64)
    nodes = np.clip(-(-gpus // gpus_per_node), 1, tables.row.shape[1])
    row: IntArray = tables.row[type_index, nodes - 1, gpus].astype(np.int64)
    return row


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
    last. Shapes broadcast. Infinity with no GPUs and work left.
    """
    row = packed_row(tables, type_index, gpus, gpus_per_node)
    end = _seconds_at(tables, row, epochs)
    start = _seconds_at(tables, row, progress)
    with np.errstate(invalid="ignore"):
        seconds = (end - start) / np.asarray(scale, dtype=np.float64)
    stopped = row == 0
    left = np.asarray(epochs, dtype=np.float64) > np.asarray(progress, dtype=np.float64)
    return np.asarray(np.where(stopped, np.where(left, np.inf, 0.0), np.maximum(seconds, 0.0)))


def fastest_gpus(
    tables: SpeedTables,
    type_index: IntArray,
    scale: FloatArray,
    epochs: FloatArray,
    max_gpus: IntArray,
    gpus_per_node: int,
) -> tuple[IntArray, FloatArray]:
    """GPUs from 1 to max_gpus [n] on which each job finishes first alone, fewest of equals, and its seconds; [n] each.

    The seconds are a lower bound of the job's completion time if its GPUs never change.
    """
    best = np.ones(len(type_index), dtype=np.int64)
    seconds = np.full(len(type_index), np.inf)
    for gpus in range(1, int(max_gpus.max(initial=0)) + 1):
        allowed = np.flatnonzero(max_gpus >= gpus)
        alone = seconds_to_finish(tables, type_index[allowed], scale[allowed], epochs[allowed], gpus, gpus_per_node)
        faster = alone < seconds[allowed]
        best[allowed[faster]] = gpus
        seconds[allowed[faster]] = alone[faster]
    return best, seconds


def _seconds_at(tables: SpeedTables, row: IntArray, progress: ArrayLike) -> FloatArray:
    """Seconds from epoch 0 to `progress` at the rates of `row`: linear within an epoch, the last one going on."""
    progress = np.asarray(progress, dtype=np.float64)
    epoch = np.minimum(progress.astype(np.int64), tables.rates.shape[1] - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(tables.elapsed[row, epoch] + (progress - epoch) / tables.rates[row, epoch])
