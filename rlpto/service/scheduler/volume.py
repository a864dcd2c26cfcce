"""What is forecast of arrivals in a service: from the jobs that the books have given, month after month."""

from __future__ import annotations

import numpy as np

from rlpto.cluster import ClusterState, Forecast, Future
from rlpto.futures import FUTURES
from rlpto.jobs import Job
from rlpto.performance.tables import SpeedTables
from rlpto.service.books.status import VolumeRow
from rlpto.task_volume.futures import sample_futures
from rlpto.task_volume.online import ClassForecasts, TotalForecaster, reserved_gpus
from rlpto.task_volume.past import CLASSES, Past, load_model
from rlpto.task_volume.paths import ForecastPaths
from rlpto.task_volume.settings import ForecastSettings

MOST_STEPS = 1000
"""Steps that are over of which is told at once."""
MEAN_KEEP = 0.95
"""Share of the mean GPU time of a job that the next job leaves of it."""


class VolumeForecast:
    """Forecasts of arrivals by class and of task volume. settings: mode on. began: local time [s since 1970-01-01] of
    second 0. most: GPUs that may be held back. Raises ConfigError for a model of no use."""

    def __init__(self, settings: ForecastSettings, capacity: int, began: float, seed: int) -> None:
        model = load_model(settings.model, settings.step) if settings.model is not None else None
        self._step, self._seed = settings.step, seed
        self._most = int(settings.reserve.share * capacity)

        def made(past: Past) -> ClassForecasts:
            counts = np.rint(past.jobs.sum(axis=1))
            begins = past.start - len(counts) * settings.step
            return ClassForecasts(
                TotalForecaster(counts, settings.step, begins, settings.horizon, model), past, settings.step
            )

        none = np.zeros((0, CLASSES))
        self._paths = ForecastPaths(made, Past(none, none, np.full(CLASSES, 1 / CLASSES), began), settings.step,
                                    settings.horizon)  # fmt: skip
        self._source = made(Past(none, none, np.full(CLASSES, 1 / CLASSES), began))
        self._mean_service: float | None = None
        self._seen: dict[int, float] = {}
        self._said: dict[int, tuple[float | None, float | None, float | None]] = {}
        self._over = 0

    def arrived(self, jobs: list[Job], tables: SpeedTables, gpus_per_node: int) -> None:
        """Take in jobs that have just been submitted."""
        if not jobs:
            return
        submit = np.array([job.submit_time for job in jobs])
        own = np.array([job.priority for job in jobs], dtype=np.int64)
        asked = np.array([job.requested_gpus for job in jobs], dtype=np.int64)
        for source in (self._source, self._paths):
            source.arrived(submit, own, asked)
        rows = tables.packed_rows(gpus_per_node)
        for job in jobs:
            kind = tables.type_index(job.type)
            rate = float(tables.rates[rows[kind, job.requested_gpus], 0])
            service = job.requested_gpus * job.epochs / rate
            kept = self._mean_service
            self._mean_service = service if kept is None else MEAN_KEEP * kept + (1 - MEAN_KEEP) * service
            step = int(job.submit_time / self._step)
            self._seen[step] = self._seen.get(step, 0.0) + service

    def __call__(self, state: ClusterState) -> tuple[Forecast | None, int]:
        """What is forecast at a state, and the GPUs to hold back."""
        forecast = self._source.forecast(int(state.time / self._step))
        return forecast, reserved_gpus(forecast, self._most)

    def futures(self, state: ClusterState) -> tuple[Future, ...]:
        """Jobs that may arrive after a state, like those that are there; none while too little is known."""
        known = int(state.time / self._step)
        counts = self._paths.paths(known, FUTURES, np.random.default_rng([self._seed, known, 0]))
        if counts is None:
            return ()
        rng = np.random.default_rng([self._seed, known, 1])
        return sample_futures(counts, known * self._step, self._step, np.sort(state.jobs.index), state, rng)

    def rows(self, time: float, began: float) -> list[VolumeRow]:
        """Task volume by step: of the last one that is over, and as forecast for those that follow, at `time` [s]."""
        known, rows = int(time / self._step), []
        for step in range(max(self._over, known - MOST_STEPS), known):
            said = self._said.pop(step, (None, None, None))
            rows.append(VolumeRow(began + step * self._step, self._seen.pop(step, 0.0), *said))
        self._over = known
        forecast = self._source.forecast(known)
        if forecast is None or self._mean_service is None:
            return rows
        parts = [
            (part.sum(axis=1) * self._mean_service).tolist() for part in (forecast.mean, forecast.low, forecast.high)
        ]
        self._said = dict(enumerate(zip(*parts, strict=True), known))
        return rows + [VolumeRow(began + step * self._step, None, *said) for step, said in self._said.items()]
