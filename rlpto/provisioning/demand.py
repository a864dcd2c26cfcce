"""Demand for GPUs by the minute, as averages over the last minutes and as a forecast of the next ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from rlpto.core.cluster import ClusterShape
from rlpto.core.jobs import Job
from rlpto.core.renting import TICK_S
from rlpto.forecasting.minute_averages import HALF_LIVES, averages
from rlpto.forecasting.series import DAY, MONDAY
from rlpto.io.arrays import FloatArray, IntArray

if TYPE_CHECKING:  # it imports torch
    from rlpto.forecasting.demand import DemandForecaster

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels of the quantiles of a forecast."""
ByMinute = Callable[[int, float], tuple[FloatArray, FloatArray]]
"""Returns [G, 2, A] averages and [G, F] forecast, given the number of completed minutes and a boot time [s]."""


@dataclass(frozen=True)
class KnownDemand:
    """A `ByMinute` of a whole workload. averages: [T + 1, G, 2, A]. forecast: [T + 1, G, F]. Minutes after the last
    repeat its values."""

    averages: FloatArray
    forecast: FloatArray

    def __call__(self, minute: int, boot: float) -> tuple[FloatArray, FloatArray]:  # noqa: ARG002
        """Averages and forecast after `minute` minutes. The forecast was made for its boot time."""
        at = min(minute, len(self.averages) - 1)
        return self.averages[at], self.forecast[at]


@dataclass(frozen=True)
class Demand:
    """Jobs and requested GPUs of one workload, by minute from its start on, for every group of rented nodes.

    counts: [G, T, 2]. day_before: [G, D, 2] counts of the last day before second 0, by minute.
    start: local time of second 0 [s since 1970-01-01].
    """

    counts: FloatArray
    day_before: FloatArray
    start: float = MONDAY

    def averages(self) -> FloatArray:
        """[T + 1, G, 2, A] averages after 0, 1, ... T minutes, each from earlier counts only."""
        counts = np.concatenate([self.day_before, self.counts], axis=1)
        groups, minutes, columns = counts.shape
        flat = np.swapaxes(counts, 0, 1).reshape(minutes, -1)
        found, _ = averages(flat, np.zeros(flat.shape[1] * len(HALF_LIVES)))
        by_minute = np.moveaxis(found.reshape(minutes, len(HALF_LIVES), groups, columns), 1, -1)
        return by_minute[self.day_before.shape[1] - 1 :]

    def by_minute(self, forecast: FloatArray | None = None) -> KnownDemand:
        """Return the whole demand by the minute. forecast: array from `forecasts`. Default: no forecast."""
        averages = self.averages()
        return KnownDemand(averages, np.zeros((*averages.shape[:2], 0)) if forecast is None else forecast)

    def forecasts(self, forecaster: DemandForecaster, boot: float) -> FloatArray:
        """[T + 1, G, 1 + LEVELS] mean and quantiles of the GPUs requested in about the next `boot` seconds, after 0, 1,
        ... T minutes. Sums over all jobs stand in the first group; the other groups have zeros."""
        total, day = np.concatenate([self.day_before, self.counts], axis=1).sum(axis=0), self.day_before.shape[1]
        said = forecaster.batch(total, self.start - day * TICK_S, LEVELS)
        nearest = int(np.argmin([abs(minutes - boot / TICK_S) for minutes in forecaster.horizons]))
        found = np.zeros((len(said.mean) - day, len(self.counts), 1 + len(LEVELS)))
        found[:, 0, 0], found[:, 0, 1:] = said.mean[day:, nearest, 1], said.quantiles[day:, nearest, 1]
        return found


def arriving(arrived: Callable[[int, int], FloatArray], start: float, forecaster: DemandForecaster | None) -> ByMinute:
    """Return demand by the minute as jobs arrive, from the counts of the last day.

    arrived: returns counts [G, T, 2] of the minutes from its first argument up to its second; both may be below 0.
    start: `Demand.start`.
    """

    @lru_cache(maxsize=1)
    def at(minute: int, boot: float) -> tuple[FloatArray, FloatArray]:
        day = arrived(minute - int(DAY / TICK_S), minute)
        seen = Demand(day[:, :0], day, start + minute * TICK_S)
        said = np.zeros((1, len(day), 0)) if forecaster is None else seen.forecasts(forecaster, boot)
        return seen.averages()[-1], said[-1]

    return at


def demand_of(
    jobs: Sequence[Job], minutes: int, shape: ClusterShape, before: tuple[FloatArray, IntArray], start: float
) -> Demand:
    """Demand of a workload for the groups of rented nodes of a cluster, over `minutes` from its start on.

    before: jobs submitted in the day before, as seconds before the start, and GPUs. start: `Demand.start`. A job counts
    to the first group with a GPU type that it may use, if any; jobs of the day before count to the first group.
    """
    gpu_types = [shape[int(group[0])].gpu for group in shape.rented_groups]
    permitted = ((at for at, gpu in enumerate(gpu_types) if not job.gpu_types or gpu in job.gpu_types) for job in jobs)
    group = np.array([next(groups, -1) for groups in permitted], np.int64)
    submit, gpus = np.array([job.submit_time for job in jobs]), np.array([job.requested_gpus for job in jobs])
    seconds, asked = before
    day = int(DAY / TICK_S)
    history = minute_counts(DAY - seconds, asked, np.zeros(len(asked), np.int64), len(gpu_types), day)
    return Demand(minute_counts(submit, gpus, group, len(gpu_types), minutes), history, start)


def minute_counts(submit_time: FloatArray, gpus: IntArray, group: IntArray, groups: int, minutes: int) -> FloatArray:
    """[G, T, 2] jobs and GPUs by minute from jobs [M]. group: [M]. Jobs of group -1 or after the last minute are left
    out."""
    counts, minute = np.zeros((groups, minutes, 2)), (submit_time / TICK_S).astype(np.int64)
    kept = (minute < minutes) & (group >= 0)
    where = group[kept], minute[kept]
    np.add.at(counts[..., 0], where, 1.0)
    np.add.at(counts[..., 1], where, gpus[kept])
    return counts
