"""A job that trains alone: its duration on packed placements from the speed tables, and the cost of training by metric
and number of GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ConfigError
from rlpto.performance.compile import compile_tables
from rlpto.performance.metrics import METRICS, MetricName, UtilityBand
from rlpto.performance.profiles import ProfileSource
from rlpto.performance.tables import NO_GPUS, JobType, SpeedTables, elapsed_from_rates

HOUR_S = 3600.0
MOST_GPUS = 4096
"""Largest number of GPUs accepted."""
_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?")


def seconds_to_finish(
    tables: SpeedTables,
    type_index: ArrayLike,
    scale: ArrayLike,
    epochs: ArrayLike,
    gpus: ArrayLike,
    gpus_per_node: int,
) -> FloatArray:
    """Seconds of `epochs` epochs on a packed placement, without queueing or rescales.

    type_index, gpus: whole numbers; scale: factor on the rates (samples of the profile / of the job); epochs: may lie
    within an epoch or beyond the measured ones, which repeat the last. Shapes broadcast. Infinity without GPUs if there
    is work.
    """
    rows = tables.packed_rows(gpus_per_node)
    row = rows[np.asarray(type_index, dtype=np.int64), np.asarray(gpus, dtype=np.int64)]
    work = np.asarray(epochs, dtype=np.float64)
    epoch = np.minimum(work.astype(np.int64), tables.rates.shape[1] - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        moving = (tables.elapsed[row, epoch] + (work - epoch) / tables.rates[row, epoch]) / np.asarray(scale)
    return np.asarray(np.where(row == NO_GPUS, np.where(work > 0, np.inf, 0.0), moving))


def requested_seconds(
    tables: SpeedTables,
    type_index: IntArray,
    scale: FloatArray,
    epochs: FloatArray,
    gpus: IntArray,
    gpus_per_node: int,
) -> FloatArray:
    """`seconds_to_finish` [n] of whole jobs on the fastest GPU type for each."""
    on_each = [
        seconds_to_finish(tables, own, scale, epochs, gpus, gpus_per_node) for own in tables.by_gpu_type[type_index].T
    ]
    return np.asarray(np.min(on_each, axis=0))


def alone_bound(
    tables: SpeedTables, type_index: IntArray, scale: FloatArray, epochs: FloatArray, max_gpus: IntArray
) -> FloatArray:
    """Lower bound [n], in seconds and without delays, of a job's duration under any schedule.

    In every epoch the job runs at the best rate over all numbers of GPUs up to its max_gpus [n], all GPU types, batch
    sizes and servers that a scheduler may choose, all numbers of nodes and all measured placements. A run whose epoch
    ends are rounded to a resolution may beat the bound by half of that resolution per epoch. So may jobs that choose
    their batch sizes by fits of their own and by another metric than goodput.
    """
    seconds = np.zeros(len(type_index))
    for job_type in np.unique(type_index):
        of_type = np.flatnonzero(type_index == job_type)
        caps, which = np.unique(max_gpus[of_type], return_inverse=True)
        variants = np.flatnonzero(tables.own == tables.own[job_type])
        best = np.max([tables.best_rates(int(variant))[caps] for variant in variants], axis=0)
        elapsed = elapsed_from_rates(best)
        epoch = np.minimum(epochs[of_type].astype(np.int64), best.shape[1] - 1)
        part = (epochs[of_type] - epoch) / best[which, epoch]
        seconds[of_type] = (elapsed[which, epoch] + part) / scale[of_type]
    return seconds


@dataclass(frozen=True)
class TrainingEstimate:
    """A whole training of a model that adapts its batch size, alone on packed GPUs, without rescales.

    gpus: held all the time. hours, gpu_hours: time and cost of the training. utility: speed-up over one GPU by the
    metric's score, divided by the GPUs. within_band: whether utility lies between the metric's bounds.
    chosen: True for the number in the list of GPUs that an allocator within the bounds gives to the only job of an idle
    cluster.
    """

    model: str
    metric: str
    gpus: int
    hours: float
    gpu_hours: float
    utility: float
    within_band: bool
    chosen: bool


def predict_training(
    profiles: ProfileSource,
    model: str,
    gpus: Sequence[int],
    metrics: Sequence[MetricName],
    gpus_per_node: int = 4,
    band: UtilityBand | None = None,
) -> list[TrainingEstimate]:
    """Predict trainings by metric and number of GPUs, in the order given, on the sizes on which the model runs. band:
    for all metrics. Default: each has its own.

    Raises ProfileError if the model is unknown, and ConfigError if it runs on none of these numbers of GPUs.
    """
    types = [JobType(model, None, metric) for metric in metrics]
    tables = compile_tables(profiles, types, max(gpus), gpus_per_node)
    if tables.floor_size.size:
        most, runs_on = max(gpus), [size for size in np.unique(tables.floor_size[0]).tolist() if size]
        gpus = [count for count in gpus if count in runs_on]
        if not gpus:
            expected = ", ".join(map(str, runs_on)) if runs_on else f"more than {most}"
            raise ConfigError(f"{model} runs on none of these numbers of GPUs, expected {expected}")
    found = []
    for job_type, metric in enumerate(metrics):
        bounds = band or METRICS[metric].band
        seconds = _training_seconds(tables, job_type, tables.rates, gpus_per_node)
        shown = _training_seconds(tables, job_type, tables.shown_rates, gpus_per_node)
        utility = shown[1] / shown[1:] / np.arange(1, len(shown))
        best = chosen_gpus(utility, gpus, bounds)
        found += [
            TrainingEstimate(
                model=model,
                metric=metric,
                gpus=count,
                hours=float(seconds[count]) / HOUR_S,
                gpu_hours=float(seconds[count]) * count / HOUR_S,
                utility=float(utility[count - 1]),
                within_band=bounds.holds(float(utility[count - 1])),
                chosen=count == best,
            )
            for count in gpus
        ]
    return found


def chosen_gpus(utility: FloatArray, gpus: Sequence[int], band: UtilityBand) -> int:
    """Return the entry of `gpus` that a band asks for, by `UtilityBand.gpus`. utility: [K] of 1 to K GPUs."""
    asked = np.full((1, len(utility)), -np.inf)
    at = np.array(gpus) - 1
    asked[0, at] = utility[at]
    return int(band.gpus(asked)[0])


def _training_seconds(tables: SpeedTables, job_type: int, rates: FloatArray, gpus_per_node: int) -> FloatArray:
    """[K + 1] seconds of a whole training of a type at packed rates [R, P]; infinity without GPUs."""
    elapsed = elapsed_from_rates(rates[tables.packed_rows(gpus_per_node)[job_type]])
    return np.asarray(elapsed[:, tables.epochs[job_type]])


def parse_gpus(text: str) -> list[int]:
    """Numbers of GPUs, ascending, from `1..16`, `8` or a list of both with commas. Raises ConfigError."""
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= MOST_GPUS:
            raise ConfigError(
                f"--gpus {text[:60]}: expected numbers from 1 to {MOST_GPUS:,} and ascending ranges of them, "
                "such as 1..16 or 1,2,4..8"
            )
        found.update(range(first, last + 1))
    return sorted(found)
