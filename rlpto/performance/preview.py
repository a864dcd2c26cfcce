"""Cost of a training: time and GPU-hours by metric and number of GPUs, from profiles alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ConfigError
from rlpto.performance.compile import compile_tables
from rlpto.performance.metrics import METRICS, MetricName, UtilityBand
from rlpto.performance.profiles import ProfileSource
from rlpto.performance.tables import JobType, SpeedTables, elapsed_from_rates

HOUR_S = 3600.0
MOST_GPUS = 4096
"""Largest number of GPUs accepted."""
_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?")


@dataclass(frozen=True)
class TrainingEstimate:
    """A whole training of a model that adapts its batch size, alone on packed GPUs, without rescales.

    gpus, nodes: held all the time. hours, gpu_hours: time and cost of the training. utility: per GPU, the speed-up over
    one GPU by the metric's score divided by the GPUs. within_band: whether utility lies between the metric's bounds.
    chosen: True for the number of GPUs, among those asked for, that an allocator within the bounds gives to the only
    job of an idle cluster.
    """

    model: str
    metric: str
    gpus: int
    nodes: int
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
    """Predictions by metric and number of GPUs, in the order given. band: for all metrics; None: each one's own.

    Raises ProfileError if the model is unknown.
    """
    types = [JobType(model, None, metric) for metric in metrics]
    tables = compile_tables(profiles, types, max(gpus), gpus_per_node)
    found = []
    for kind, metric in enumerate(metrics):
        bounds = band or METRICS[metric].band
        seconds = _training_seconds(tables, kind, tables.rates, gpus_per_node)
        told = _training_seconds(tables, kind, tables.shown_rates, gpus_per_node)
        utility = told[1] / told[1:] / np.arange(1, len(told))
        best = chosen_gpus(utility, gpus, bounds)
        found += [
            TrainingEstimate(
                model=model,
                metric=metric,
                gpus=count,
                nodes=-(-count // gpus_per_node),
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
    """The entry of `gpus` that a band asks for, see `UtilityBand.gpus`. utility: [K] of 1 to K GPUs."""
    asked = np.full((1, len(utility)), -np.inf)
    at = np.array(gpus) - 1
    asked[0, at] = utility[at]
    return int(band.gpus(asked)[0])


def _training_seconds(tables: SpeedTables, kind: int, rates: FloatArray, gpus_per_node: int) -> FloatArray:
    """[K + 1] seconds of a whole training of a type at packed rates [R, P]; infinity without GPUs."""
    elapsed = elapsed_from_rates(rates[tables.packed_rows(gpus_per_node)[kind]])
    return np.asarray(elapsed[:, tables.epochs[kind]])


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
