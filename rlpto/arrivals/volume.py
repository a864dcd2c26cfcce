"""Arrivals and task volume of a service: forecasts from the jobs in the database, month after month."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from time import localtime

import numpy as np

from rlpto.arrivals.online import ClassForecasts, Past, load_model
from rlpto.arrivals.sampled import CLASSES, Futures, PathMemory, sample_arrivals
from rlpto.arrivals.settings import ForecastSettings
from rlpto.core.cluster import Forecast
from rlpto.core.jobs import Job
from rlpto.io.arrays import IntArray
from rlpto.performance.solo import seconds_to_finish
from rlpto.performance.tables import SpeedTables
from rlpto.store.status import VolumeRow

FUTURES = 19
"""Number of futures sampled for an interval: between the 2nd and the 18th of them a 20th falls with 80 %."""
REACH_S, MOST_REACH_STEPS = 86_400.0, 1000
"""Seconds, and most steps, that futures cover. Beyond the horizon they continue with more samples of it."""
DONORS = 500
"""Number of newest jobs that sampled jobs copy."""
MOST_STEPS = 1000
"""Most past steps that `rows` returns at once."""
MEAN_KEEP = 0.95
"""Weight of the old mean when a new job's GPU time enters the mean GPU time of a job."""


class VolumeForecast:
    """Forecasts of arrivals by class and of task volume.

    settings: mode on. began: second 0 of the session [s of `time.time`]. since: second of the session from which on all
    arrivals are known; 0 for a new service. Raises ConfigError if the model cannot be used.
    """

    def __init__(self, settings: ForecastSettings, began: float, seed: int, since: float = 0.0) -> None:
        memory = PathMemory(settings.horizon, CLASSES)
        self._step, self._seed, self._began = settings.step, seed, began
        self._first = self._last = self._over = math.ceil(since / settings.step)
        first = began + self._first * settings.step
        # Models know the hours of the local clock.
        past = Past(np.zeros((0, CLASSES)), np.full(CLASSES, 1 / CLASSES), first + localtime(first).tm_gmtoff)
        self._source = ClassForecasts(past, settings.step, settings.horizon, load_model(settings), memory)
        self._mean_service: float | None = None
        self._donors: deque[Job] = deque(maxlen=DONORS)
        self._seen: dict[int, float] = {}
        self._said: dict[int, tuple[float | None, float | None, float | None]] = {}
        self._shown: tuple[int, float | None] | None = None

    def arrived(self, jobs: Sequence[Job], tables: SpeedTables, gpus_per_node: int) -> None:
        """Add submitted jobs, in order. tables: contain their types."""
        jobs = [job for job in jobs if job.submit_time >= self._first * self._step]
        if not jobs:
            return
        # A job whose program had to be checked is known late: it counts in the present step.
        submit = np.maximum([job.submit_time for job in jobs], self._last * self._step) - self._first * self._step
        self._source.arrived(submit, np.array([job.priority for job in jobs], dtype=np.int64))
        self._donors.extend(jobs)
        own, gpus = [tables.type_index(job.type) for job in jobs], np.array([job.requested_gpus for job in jobs])
        scale = tables.samples[own] / [job.data_size for job in jobs]
        seconds = seconds_to_finish(tables, own, scale, [job.epochs for job in jobs], gpus, gpus_per_node)
        for job, service in zip(jobs, (gpus * seconds).tolist(), strict=True):
            kept = self._mean_service
            self._mean_service = service if kept is None else MEAN_KEEP * kept + (1 - MEAN_KEEP) * service
            step = max(int(job.submit_time / self._step), self._over)
            self._seen[step] = self._seen.get(step, 0.0) + service

    def __call__(self, time: float) -> Forecast | None:
        """Return the forecast at a second of the session."""
        return self._source.forecast(self._known(time) - self._first)

    def _known(self, time: float) -> int:
        """Number of completed steps of the session."""
        self._last = max(self._last, int(time / self._step))
        return self._last

    def futures(self, time: float, salt: int = 0) -> Futures | None:
        """Sample jobs that may be submitted after a second, like the newest ones. None while too little is known.

        salt: another number gives other futures.
        """
        known = self._known(time)
        counts = self._counts(known, np.random.default_rng([self._seed, known, 0, salt]))
        if counts is None or not self._donors:
            return None
        rng = np.random.default_rng([self._seed, known, 1, salt])
        donors = tuple(self._donors)
        return Futures(donors, sample_arrivals(counts, known * self._step, self._step, time, donors, rng))

    def _counts(self, known: int, rng: np.random.Generator) -> IntArray | None:
        """[FUTURES, H, CLASSES] jobs in the next steps; beyond the horizon, more samples of it follow."""
        found: list[IntArray] = []
        steps, reach = 0, min(REACH_S / self._step, MOST_REACH_STEPS)
        while not found or steps < reach:
            counts = self._source.paths(known - self._first, FUTURES, rng)
            if counts is None:
                return None
            found.append(counts)
            steps += counts.shape[1]
        return np.concatenate(found, axis=1)

    def rows(self, time: float) -> list[VolumeRow]:
        """Task volume by step at second `time` of the session, observed for completed steps and forecast for later
        ones; empty if nothing has changed."""
        known, rows = self._known(time), []
        if self._shown == (known, self._mean_service):
            return []
        self._shown = known, self._mean_service
        for step in range(max(self._over, known - MOST_STEPS), known):
            said = self._said.pop(step, (None, None, None))
            rows.append(VolumeRow(self._began + step * self._step, self._seen.pop(step, 0.0), *said))
        self._over = max(self._over, known)
        forecast = self._source.forecast(known - self._first)
        if forecast is None or self._mean_service is None:
            return rows
        parts = [
            (part.sum(axis=1) * self._mean_service).tolist() for part in (forecast.mean, forecast.low, forecast.high)
        ]
        self._said = dict(enumerate(zip(*parts, strict=True), known))
        return rows + [VolumeRow(self._began + step * self._step, None, *said) for step, said in self._said.items()]
