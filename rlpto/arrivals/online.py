"""From arrivals to forecasts by class, as they happen.

The total is forecast by a method of `rlpto.forecasting` and split over the classes by their recent shares: most classes
alone submit too few jobs in ten minutes for a method to learn from.

Time is cut into steps from the start of the workload on. At second t, the counts of the first int(t / step) steps are
known, and forecasts are of the step that has begun and of those that follow it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlpto.arrivals.past import CLASSES, WARM_UP_S, Past
from rlpto.core.cluster import ClusterState, Forecast
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


class TotalForecaster:
    """Forecasts of the jobs of all classes together, from one count after the other.

    past: in steps of `step` seconds. horizon: H. fitted: as `rlpto forecast fit` leaves it; a copy continues with this
    past. Without one, a light method is fitted to the known counts, and again whenever their number has doubled.
    """

    def __init__(self, past: Past, step: float, horizon: int, fitted: Forecaster | None = None) -> None:
        self._counts = np.rint(past.jobs.sum(axis=1)).tolist()
        self._step, self._horizon = step, horizon
        self._start = past.start - len(self._counts) * step
        self._fitted = fitted
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
    """Forecasts of the total that were computed before, one for each number of steps that are over."""

    def __init__(self, totals: Sequence[ArrivalTotals | None]) -> None:
        self._totals = totals
        self._known = 0

    def update(self, count: float) -> None:  # noqa: ARG002
        """Proceed to the next one."""
        self._known += 1

    def predict(self) -> ArrivalTotals | None:
        """The one after the steps so far."""
        return self._totals[self._known]


class ClassForecasts:
    """Forecasts by class: those of the total, split by the recent shares of the classes.

    past: in steps of `step` seconds.
    """

    def __init__(self, total: TotalForecaster | KnownTotals, past: Past, step: float) -> None:
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
        """What follows `known` steps, which never fall, from the jobs of these steps alone; None while too little is
        known."""
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


@dataclass
class StateForecaster:
    """Passes arrivals in a cluster to a source, and adds its forecast to the states that policies see.

    source: of one workload; each run needs its own. step: its steps [s]. most: GPUs that may be held back. last: no
    forecast is made once more steps are over: that nothing is submitted after a window is no pattern to learn.
    """

    source: ClassForecasts | PerfectForecasts
    step: float
    most: int
    last: int
    _seen: BoolArray = field(default_factory=lambda: np.zeros(64, dtype=np.bool_), repr=False)

    def __call__(self, state: ClusterState) -> ClusterState:
        """The same state with its forecast, and with GPUs to hold back. No job comes and goes between two states."""
        jobs, last = state.jobs, int(state.jobs.index.max(initial=-1))
        if last >= len(self._seen):
            self._seen = np.concatenate([self._seen, np.zeros(last + 1, dtype=np.bool_)])
        new = ~self._seen[jobs.index]
        if new.any():
            self._seen[jobs.index] = True
            self.source.arrived(jobs.submit_time[new], jobs.priority[new], jobs.requested_gpus[new])
        forecast = self.source.forecast(min(int(state.time / self.step), self.last))
        return replace(state, forecast=forecast, reserved=reserved_gpus(forecast, self.most))


def reserved_gpus(forecast: Forecast | None, most: int) -> int:
    """GPUs to hold back for the jobs of class high that are expected in the step that has begun."""
    return 0 if forecast is None else min(most, math.ceil(forecast.demand))


def window_forecasts(
    source: ClassForecasts | PerfectForecasts, jobs: Sequence[Job], step: float, last: int
) -> list[Forecast | None]:
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


def total_forecasts(
    total: TotalForecaster, submit_time: FloatArray, step: float, last: int
) -> list[ArrivalTotals | None]:
    """What `total` predicts once 0, 1, ... `last` steps are over, of jobs [M] submitted at these seconds."""
    counts = np.bincount((submit_time / step).astype(np.int64), minlength=last + 1)
    found = [total.predict()]
    for count in counts[:last].tolist():
        total.update(float(count))
        found.append(total.predict())
    return found
