"""Joint samples of the counts of arrivals by class: from a forecaster and its past errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rlpto.arrivals.online import ForecastSource
from rlpto.arrivals.past import CLASSES, Past
from rlpto.forecasting.paths import PathMemory, sample_paths
from rlpto.io.arrays import FloatArray, IntArray

REPLAYED_STEPS = 200
"""Steps at the end of the past that are forecast one by one, so that errors are known from the start."""


class ForecastPaths:
    """Samples around the forecasts of a source by class, with errors that hang together as its past ones did.

    made: gives a new source for a past. past: in steps of `step` [s]. horizon: H, steps ahead that it forecasts.
    """

    def __init__(self, made: Callable[[Past], ForecastSource], past: Past, step: float, horizon: int) -> None:
        self._step, self._known = step, 0
        self._memory = PathMemory(horizon, CLASSES)
        self._bins: dict[int, FloatArray] = {}
        self._replay(made, past)
        self._source = made(past)
        self._mean = self._said(0)

    def arrived(self, submit_time: FloatArray, priority: IntArray, gpus: IntArray) -> None:
        """Take in jobs [n] that have been submitted."""
        self._source.arrived(submit_time, priority, gpus)
        for second, own in zip(submit_time.tolist(), priority.tolist(), strict=True):
            self._bins.setdefault(int(second / self._step), np.zeros(CLASSES))[own] += 1

    def mean(self, known: int) -> FloatArray | None:
        """[H, CLASSES] the forecast that paths are sampled around; None while too little is known."""
        for over in range(self._known, known):
            self._memory.came(self._mean, self._bins.pop(over, np.zeros(CLASSES)))
            self._mean = self._said(over + 1)
        self._known = max(self._known, known)
        return self._mean

    def paths(self, known: int, count: int, rng: np.random.Generator) -> IntArray | None:
        """[count, H, CLASSES] jobs in the steps that follow."""
        mean = self.mean(known)
        return None if mean is None else sample_paths(mean, *self._memory.paths(), count, rng)

    def _said(self, known: int) -> FloatArray | None:
        forecast = self._source.forecast(known)
        return None if forecast is None else forecast.mean

    def _replay(self, made: Callable[[Past], ForecastSource], past: Past) -> None:
        """Forecast the end of the past from what was before it, with whole jobs: classes are drawn where unknown."""
        steps = min(REPLAYED_STEPS, len(past.jobs) // 2)
        if not steps:
            return
        first = len(past.jobs) - steps
        source = made(
            replace(past, jobs=past.jobs[:first], gpus=past.gpus[:first], start=past.start - steps * self._step)
        )
        jobs, rng = np.floor(past.jobs[first:]), np.random.default_rng(0)
        for at in range(steps):
            # Jobs of unknown class count in shares; whole ones are made of what the shares add up to.
            missing = round(float(past.jobs[first + at].sum() - jobs[at].sum()))
            jobs[at] += rng.multinomial(missing, past.usual / past.usual.sum())
            forecast = source.forecast(at)
            self._memory.came(None if forecast is None else forecast.mean, jobs[at])
            count = jobs[at].astype(np.int64)
            own = np.repeat(np.arange(CLASSES), count)
            asked = past.gpus[first + at].sum() / max(past.jobs[first + at].sum(), 1.0)
            source.arrived(
                np.full(len(own), (at + 0.5) * self._step), own, np.full(len(own), round(asked), dtype=np.int64)
            )
