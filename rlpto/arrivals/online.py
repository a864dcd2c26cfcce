"""From arrivals to forecasts by class, as they happen.

The total is forecast by a method of `forecasting`, and split over the classes by their recent shares: most
classes alone submit too few jobs in ten minutes for a method to learn from.

Time is cut into steps from the start of the workload on. At second t, the counts of the first int(t / step)
steps are known, and forecasts are of the step that has begun and of those that follow it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from rlpto.arrivals.past import CLASSES, WARM_UP_S, Past
from rlpto.core.cluster import ClusterState, Forecast
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import Job
from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.registry import make_forecaster
from rlpto.forecasting.series import DAY, MIN_POINTS, TimeSeries
from rlpto.io.arrays import BoolArray, FloatArray, IntArray

LEVELS = (0.1, 0.9)
"""Quantiles that a forecast gives as low and high."""
DEFAULT_METHOD = "smoothing"
"""Kind of the forecaster that is used where none was fitted."""
SHARE_HALF_LIFE_S = DAY
"""Seconds after which a job counts half in the shares of the classes."""
PRIOR_JOBS = 20.0
"""Jobs' worth of the usual shares that the recent ones start with."""


@dataclass(frozen=True)
class ArrivalTotals:
    """Jobs of all classes in each of the next H steps. mean, low, high: [H], low and high as in `Forecast`."""

    mean: FloatArray
    low: FloatArray
    high: FloatArray


class TotalSource(Protocol):
    """Forecasts of the jobs of all classes together."""

    def update(self, count: float) -> None:
        """Take in the count of the step that has just ended."""

    def predict(self) -> ArrivalTotals | None:
        """What comes next; None while too little is known."""


class ForecastSource(Protocol):
    """Forecasts for one workload."""

    def arrived(self, submit_time: FloatArray, priority: IntArray, gpus: IntArray) -> None:
        """Take in jobs [n] that have been submitted: seconds, classes and GPUs asked for."""

    def forecast(self, known: int) -> Forecast | None:
        """What comes once `known` steps are over, which never fall; None while too little is known."""


class TotalForecaster:
    """A forecaster that is told one count after the other.

    counts: [T] of the past. start: local time of the first of them [s since 1970-01-01].
    fitted: as `rlpto forecast fit` leaves it; it keeps what it has learnt and goes on with this past.
    Without one, a light method is fitted to what is known, and again whenever that has doubled.
    """

    def __init__(
        self, counts: FloatArray, step: float, start: float, horizon: int, fitted: Forecaster | None = None
    ) -> None:
        self._step, self._start, self._horizon = step, start, horizon
        self._fitted = fitted
        self._counts = list(counts)
        self._learnt = 0
        self._model: Forecaster | None = None
        self._begin()

    def update(self, count: float) -> None:
        """Take in the count of the step that has just ended."""
        self._counts.append(count)
        if self._model is None or (self._fitted is None and len(self._counts) >= 2 * self._learnt):
            self._begin()
        else:
            self._model.update(count)

    def predict(self) -> ArrivalTotals | None:
        """What comes next; None before there are enough counts to begin with."""
        if self._model is None:
            return None
        found = self._model.predict(self._horizon, quantiles=LEVELS)
        low, high = found.values.T
        return ArrivalTotals(found.mean, np.minimum(low, found.mean), np.maximum(high, found.mean))

    def _begin(self) -> None:
        """Make the forecaster of all that is known, if that is enough."""
        series = TimeSeries(np.array(self._counts, dtype=np.float64), self._step, self._start)
        if self._fitted is not None and len(series) >= 2:
            self._model = self._fitted.moved(series, min(len(series) - 1, series.lag(WARM_UP_S)))
        elif self._fitted is None and len(series) >= MIN_POINTS:
            self._model = make_forecaster(DEFAULT_METHOD).fit(series)
            self._learnt = len(series)


class KnownTotals:
    """Forecasts of the total that are known already, one for each number of steps that are over."""

    def __init__(self, totals: Sequence[ArrivalTotals | None]) -> None:
        self._totals = totals
        self._known = 0

    def update(self, count: float) -> None:  # noqa: ARG002
        """Go on to the next one."""
        self._known += 1

    def predict(self) -> ArrivalTotals | None:
        """The one for the steps told so far."""
        return self._totals[self._known]


class ClassForecasts:
    """Forecasts by class from arrivals as they happen: those of the total, split by the recent shares of the classes.

    past: of `step` seconds a step, too.
    """

    def __init__(self, total: TotalSource, past: Past, step: float) -> None:
        self._total, self._step = total, step
        self._keep = 0.5 ** (step / SHARE_HALF_LIFE_S)
        ages = np.arange(len(past.jobs), 0, -1) - 1.0
        asked = float(past.gpus.sum() / past.jobs.sum()) if past.jobs.sum() > 0 else 1.0
        self._jobs: FloatArray = PRIOR_JOBS * past.usual + self._keep**ages @ past.jobs
        self._gpus: FloatArray = PRIOR_JOBS * past.usual * asked + self._keep**ages @ past.gpus
        self._bins: dict[int, tuple[FloatArray, FloatArray]] = {}
        self._known = 0
        self._now = self._split()

    def arrived(self, submit_time: FloatArray, priority: IntArray, gpus: IntArray) -> None:
        """Take in jobs [n] that have been submitted: seconds, classes and GPUs asked for."""
        for second, own, asked in zip(submit_time.tolist(), priority.tolist(), gpus.tolist(), strict=True):
            at = int(second / self._step)
            jobs, total = self._bins.setdefault(at, (np.zeros(CLASSES), np.zeros(CLASSES)))
            jobs[own] += 1
            total[own] += asked

    def forecast(self, known: int) -> Forecast | None:
        """What comes once `known` steps are over, from the jobs of these steps alone."""
        if known > self._known:
            for at in range(self._known, known):
                jobs, gpus = self._bins.pop(at, (np.zeros(CLASSES), np.zeros(CLASSES)))
                self._jobs = self._keep * self._jobs + jobs
                self._gpus = self._keep * self._gpus + gpus
                self._total.update(float(jobs.sum()))
            self._known = known
            self._now = self._split()
        return self._now

    def _split(self) -> Forecast | None:
        totals = self._total.predict()
        if totals is None:
            return None
        shares = self._jobs / self._jobs.sum()
        mean, low, high = (np.outer(part, shares) for part in (totals.mean, totals.low, totals.high))
        each = self._gpus[0] / self._jobs[0] if self._jobs[0] > 0 else 0.0
        return Forecast(mean, low, high, demand=float(mean[0, 0] * each))


class PerfectForecasts:
    """The arrivals that will come: an oracle, to find out what a forecast could be worth at best."""

    def __init__(self, jobs: Sequence[Job], step: float, horizon: int) -> None:
        at = np.array([int(job.submit_time / step) for job in jobs], dtype=np.int64)
        steps = int(at.max(initial=-1)) + 1
        own = np.array([job.priority for job in jobs], dtype=np.int64)
        asked = np.array([job.requested_gpus for job in jobs], dtype=np.float64)
        self._horizon = horizon
        self._counts = np.bincount(at * CLASSES + own, minlength=steps * CLASSES).reshape(-1, CLASSES).astype(float)
        self._high = np.bincount(at, weights=np.where(own == 0, asked, 0.0), minlength=steps)

    def arrived(self, submit_time: FloatArray, priority: IntArray, gpus: IntArray) -> None:
        """There is nothing to learn."""

    def forecast(self, known: int) -> Forecast:
        """The counts of the steps that follow; zeros once all jobs have arrived."""
        counts = np.zeros((self._horizon, CLASSES))
        coming = self._counts[known : known + self._horizon]
        counts[: len(coming)] = coming
        demand = float(self._high[known]) if known < len(self._high) else 0.0
        return Forecast(counts, counts, counts, demand)


class Newcomers:
    """Tells which jobs were not there before, from all states that are decided on: none comes and goes between two."""

    def __init__(self) -> None:
        self._seen: BoolArray = np.zeros(64, dtype=np.bool_)

    def among(self, jobs: JobTable) -> BoolArray:
        """[n] True for jobs that are there for the first time; they are known from now on."""
        last = int(jobs.index.max(initial=-1))
        if last >= len(self._seen):
            self._seen = np.concatenate([self._seen, np.zeros(last + 1, dtype=np.bool_)])
        new = ~self._seen[jobs.index]
        self._seen[jobs.index] = True
        return new

    @property
    def seen(self) -> IntArray:
        """Numbers of all jobs so far, ascending."""
        return np.flatnonzero(self._seen)


@dataclass
class StateForecaster:
    """Tells a source what arrives in a cluster, and adds its forecast to the states that policies see.

    source: of one workload; each run needs its own. step: its steps [s]. most: GPUs that may be held back.
    last: no forecast is made once more steps than this are over: a window ends, and nothing is submitted any
    more, which is no pattern to learn; None: a workload without an end.
    """

    source: ForecastSource
    step: float
    most: int = 0
    last: int | None = None
    _newcomers: Newcomers = field(default_factory=Newcomers, repr=False)

    def __call__(self, state: ClusterState) -> ClusterState:
        """The same state with what is forecast, and with GPUs to hold back."""
        jobs, new = state.jobs, self._newcomers.among(state.jobs)
        if new.any():
            self.source.arrived(jobs.submit_time[new], jobs.priority[new], jobs.requested_gpus[new])
        known = int(state.time / self.step)
        forecast = self.source.forecast(known if self.last is None else min(known, self.last))
        return replace(state, forecast=forecast, reserved=reserved_gpus(forecast, self.most))


def reserved_gpus(forecast: Forecast | None, most: int) -> int:
    """GPUs to hold back for the jobs of class high that are expected in the step that has begun."""
    return 0 if forecast is None else min(most, math.ceil(forecast.demand))


def window_forecasts(source: ForecastSource, jobs: Sequence[Job], step: float, last: int) -> list[Forecast | None]:
    """What `source` forecasts once 0, 1, ... `last` steps are over, each from the jobs [M] of the steps before."""
    at = np.array([int(job.submit_time / step) for job in jobs], dtype=np.int64)
    submit = np.array([job.submit_time for job in jobs])
    own = np.array([job.priority for job in jobs], dtype=np.int64)
    asked = np.array([job.requested_gpus for job in jobs], dtype=np.int64)
    found = []
    for known in range(last + 1):
        new = at == known - 1
        source.arrived(submit[new], own[new], asked[new])
        found.append(source.forecast(known))
    return found


def total_forecasts(total: TotalSource, submit_time: FloatArray, step: float, last: int) -> list[ArrivalTotals | None]:
    """What `total` predicts once 0, 1, ... `last` steps are over, of jobs [M] submitted at these seconds."""
    counts = np.bincount((submit_time / step).astype(np.int64), minlength=last + 1)
    found = [total.predict()]
    for count in counts[:last].tolist():
        total.update(float(count))
        found.append(total.predict())
    return found
