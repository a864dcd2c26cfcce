"""Forecast arrivals by class as jobs arrive.

The total is forecast by a method of `rlpto.forecasting` and split over the classes by their recent shares: most classes
alone submit too few jobs in ten minutes for a method to learn from.

Time is cut into steps from the start of the workload on. At second t, the counts of the first int(t / step) steps are
known, and forecasts are of the step that has begun and of the steps that follow it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlpto.arrivals.sampled import CLASSES, PathMemory, sample_paths
from rlpto.arrivals.settings import ForecastSettings
from rlpto.core.cluster import ClusterState, Forecast
from rlpto.core.jobs import Job
from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.registry import load, make_forecaster
from rlpto.forecasting.series import DAY, MIN_POINTS, MONDAY, ForecastError, TimeSeries
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.errors import ConfigError

LEVELS = (0.1, 0.9)
"""Levels of the quantiles that a forecast gives as low and high."""
DEFAULT_METHOD = "smoothing"
"""Name of the method that is used if no forecaster was fitted."""
SHARE_HALF_LIFE_S = DAY
"""Seconds after which a job counts half in the shares of the classes."""
PRIOR_JOBS = 20.0
"""Weight, in jobs, of the usual shares of the classes at the start."""
HISTORY_S = 28 * DAY
"""Seconds before a workload's start that a forecaster uses."""
WARM_UP_S = DAY
"""Seconds at the end of the past that a fitted forecaster processes count by count, to update its state."""


@dataclass(frozen=True)
class Past:
    """Jobs submitted before a workload begins, in steps that end at its begin.

    jobs: [T, CLASSES]; jobs of unknown class count in shares. usual: [CLASSES] shares of the classes if nothing is
    known. start: local time at which the workload begins [s since 1970-01-01].
    """

    jobs: FloatArray
    usual: FloatArray
    start: float = MONDAY


def past_of(
    submit_time: FloatArray, priority: IntArray, begins: float, step: float, usual: FloatArray, start: float
) -> Past:
    """Return the past before second `begins` from M recorded jobs; later jobs are ignored.

    submit_time: [M] seconds, ascending from 0. priority: [M] classes, -1 unknown. usual, start: fields of `Past`.
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


def load_model(settings: ForecastSettings) -> Forecaster | None:
    """Load the fitted forecaster of the settings, if they name one. Raises ConfigError if the file is missing, broken,
    or of another step."""
    if settings.model is None:
        return None
    try:
        model = load(settings.model)
    except ForecastError as wrong:
        raise ConfigError(f"forecast.model: {wrong}") from None
    step, fitted = settings.step, float(model.state().values["step"])
    if not math.isclose(fitted, step):
        raise ConfigError(
            f"forecast.every: {step:g} s, expected the {fitted:g} s that {settings.model} was fitted with"
        )
    return model


class ClassForecasts:
    """Forecasts by class: the forecast of the total, split by the recent shares of the classes.

    past: in steps of `step` seconds. horizon: H. fitted: forecaster written by `rlpto forecast fit`; a copy continues
    with this past. Default: a light method is fitted to the known totals, and again whenever their number has doubled.
    memory: collects forecasts and counts, for samples around the forecasts.
    """

    def __init__(
        self, past: Past, step: float, horizon: int, fitted: Forecaster | None = None, memory: PathMemory | None = None
    ) -> None:
        self._step, self._horizon, self._fitted, self._memory = step, horizon, fitted, memory
        self._totals = np.rint(past.jobs.sum(axis=1)).tolist()
        self._start = past.start - len(self._totals) * step
        self._model: Forecaster | None = None
        self._learnt = 0
        self._keep = 0.5 ** (step / SHARE_HALF_LIFE_S)
        ages = np.arange(len(past.jobs), 0, -1) - 1.0
        self._jobs: FloatArray = PRIOR_JOBS * past.usual + self._keep**ages @ past.jobs
        self._bins: dict[int, FloatArray] = {}
        self._known = 0
        self._begin()
        self._now = self._split()

    def arrived(self, submit_time: FloatArray, priority: IntArray) -> None:
        """Add submitted jobs [n]: seconds and classes."""
        for second, own in zip(submit_time.tolist(), priority.tolist(), strict=True):
            self._bins.setdefault(int(second / self._step), np.zeros(CLASSES))[own] += 1

    def forecast(self, known: int) -> Forecast | None:
        """Forecast the steps after the first `known`, a number that never falls, from the jobs of these steps alone.
        None while too little is known."""
        for at in range(self._known, known):
            jobs = self._bins.pop(at, np.zeros(CLASSES))
            if self._memory is not None:
                self._memory.add(self._split(), jobs)
            self._jobs = self._keep * self._jobs + jobs
            self._totals.append(float(jobs.sum()))
            if self._model is None or (self._fitted is None and len(self._totals) >= 2 * self._learnt):
                self._begin()
            else:
                self._model.update(self._totals[-1])
        if known > self._known:
            self._known, self._now = known, self._split()
        return self._now

    def paths(self, known: int, count: int, rng: np.random.Generator) -> IntArray | None:
        """[count, H, CLASSES] joint samples of the jobs in the next steps. None while too little is known."""
        forecast = self.forecast(known)
        if forecast is None or self._memory is None:
            return None
        return sample_paths(forecast.mean, *self._memory.paths(), count, rng)

    def _begin(self) -> None:
        """Create the forecaster from all known totals, if they are enough."""
        series = TimeSeries(np.array(self._totals, dtype=np.float64), self._step, self._start)
        if self._fitted is not None and len(series) >= 2:
            self._model = self._fitted.moved(series, min(len(series) - 1, series.lag(WARM_UP_S)))
        elif self._fitted is None and len(series) >= MIN_POINTS:
            self._model = make_forecaster(DEFAULT_METHOD).fit(series)
            self._learnt = len(series)

    def _split(self) -> Forecast | None:
        if self._model is None:
            return None
        found, shares = self._model.predict(self._horizon, quantiles=LEVELS), self._jobs / self._jobs.sum()
        mean, (low, high) = found.mean, found.values.T
        totals = mean, np.minimum(low, mean), np.maximum(high, mean)
        return Forecast(*(np.outer(total, shares) for total in totals))


class WindowForecasts:
    """Forecasts while the jobs of one window arrive.

    source: forecasts of the window; each run needs its own. step: length of its steps [s]. last: number of steps after
    which forecasts stop changing, because the lack of submissions after a window is no pattern to learn.
    """

    def __init__(self, source: ClassForecasts, step: float, last: int) -> None:
        self._source, self._step, self._last = source, step, last
        self._seen: BoolArray = np.zeros(64, dtype=np.bool_)

    def __call__(self, state: ClusterState) -> ClusterState:
        """Return a state of the cluster with its forecast. Call it for every state: a job that arrives and ends between
        two calls is not counted."""
        jobs, last = state.jobs, int(state.jobs.index.max(initial=-1))
        if last >= len(self._seen):
            self._seen = np.concatenate([self._seen, np.zeros(last + 1, dtype=np.bool_)])
        new = ~self._seen[jobs.index]
        if new.any():
            self._seen[jobs.index] = True
            self._source.arrived(jobs.submit_time[new], jobs.priority[new])
        return replace(state, forecast=self._source.forecast(min(int(state.time / self._step), self._last)))

    def known(self, jobs: Sequence[Job]) -> list[Forecast | None]:
        """Return the forecasts after 0, 1, ... steps, each from the jobs of earlier steps. They are equal to the
        forecasts in the states of a run on these jobs."""
        own = np.array([job.priority for job in jobs], dtype=np.int64)
        self._source.arrived(np.array([job.submit_time for job in jobs]), own)
        return [self._source.forecast(known) for known in range(self._last + 1)]
