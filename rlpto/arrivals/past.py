"""What came before a workload, and fitted forecasters to put on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.registry import load
from rlpto.forecasting.series import DAY, MONDAY, ForecastError
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ConfigError

CLASSES = len(PRIORITY_CLASSES)
HISTORY_S = 28 * DAY
"""Seconds before a workload's start that a forecaster looks back on."""
WARM_UP_S = DAY
"""A fitted forecaster takes in the last seconds of that count by count, which brings its state up to date."""


@dataclass(frozen=True)
class Past:
    """What was submitted before a workload begins, in steps that end where it begins.

    jobs: [T, CLASSES]; those of unknown class count in shares. usual: [CLASSES] shares of the classes where nothing is
    known. start: local time at which the workload begins [s since 1970-01-01].
    """

    jobs: FloatArray
    usual: FloatArray
    start: float = MONDAY


def past_of(
    submit_time: FloatArray, priority: IntArray, begins: float, step: float, usual: FloatArray, start: float
) -> Past:
    """What M recorded jobs say of the time before second `begins`; those from then on are not looked at.

    submit_time: [M] seconds, ascending from 0. priority: [M] classes, -1 unknown. usual, start: as in `Past`.
    """
    steps = int(min(begins, HISTORY_S) / step)
    earliest = begins - steps * step
    kept = (submit_time >= earliest) & (submit_time < begins)
    at = np.minimum(((submit_time[kept] - earliest) / step).astype(np.int64), max(steps - 1, 0))
    known = priority[kept] >= 0
    classes = np.where(known[:, None], np.eye(CLASSES)[np.maximum(priority[kept], 0)], usual)
    jobs = np.zeros((steps, CLASSES))
    if steps:
        np.add.at(jobs, at, classes)
    return Past(jobs, usual, start)


def load_model(path: Path, step: float) -> Forecaster:
    """A fitted forecaster. Raises ConfigError if the file is missing, broken, or of another step [s]."""
    try:
        model = load(path)
    except ForecastError as wrong:
        raise ConfigError(f"forecast.model: {wrong}") from None
    fitted = float(model.state().values["step"])
    if not math.isclose(fitted, step):
        raise ConfigError(f"forecast.every: {step:g} s, expected the {fitted:g} s that {path} was fitted with")
    return model
