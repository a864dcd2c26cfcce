"""From arrivals to forecasts by class, as they happen.

The total is forecast by a method of `rlpto.forecasting` and split over the classes by their recent shares: most classes
alone submit too few jobs in ten minutes for a method to learn from.

Time is cut into steps from the start of the workload on. At second t, the counts of the first int(t / step) steps are
known, and forecasts are of the step that has begun and of those that follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlpto.arrivals.past import CLASSES, WARM_UP_S, Past, load_model
from rlpto.arrivals.sampled import PathMemory, sample_paths
from rlpto.arrivals.settings import ForecastSettings
from rlpto.core.cluster import ClusterState, Forecast
from rlpto.core.jobs import Job
from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.registry import make_forecaster
from rlpto.forecasting.series import DAY, MIN_POINTS, TimeSeries
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.workloads.windows import Window

LEVELS = (0.1, 0.9)
"""Quantiles that a forecast gives as low and high."""
DEFAULT_METHOD = "smoothing"
"""Kind of the forecaster that is used where none was fitted."""
SHARE_HALF_LIFE_S = DAY
"""Seconds after which a job counts half in the shares of the classes."""
PRIOR_JOBS = 20.0
"""Jobs' worth of the usual shares that the recent ones start with."""
REPLAYED_STEPS = 200
"""Steps at the end of the past that are forecast one by one, so that errors are known from the start."""


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


class ClassForecasts:
    """Forecasts by class: those of the total, split by the recent shares of the classes.

    past: in steps of `step` seconds. memory: takes every forecast and what came, for samples around the forecasts.
    """

    def __init__(self, total: TotalForecaster, past: Past, step: float, memory: PathMemory | None = None) -> None:
        self._total, self._step, self._memory = total, step, memory
        self._keep = 0.5 ** (step / SHARE_HALF_LIFE_S)
        ages = np.arange(len(past.jobs), 0, -1) - 1.0
        self._jobs: FloatArray = PRIOR_JOBS * past.usual + self._keep**ages @ past.jobs
        self._bins: dict[int, FloatArray] = {}
        self._known = 0
        self._now = self._split()

    def arrived(self, submit_time: FloatArray, priority: IntArray) -> None:
        """Take in jobs [n] that have been submitted: seconds and classes."""
        for second, own in zip(submit_time.tolist(), priority.tolist(), strict=True):
            self._bins.setdefault(int(second / self._step), np.zeros(CLASSES))[own] += 1

    def forecast(self, known: int) -> Forecast | None:
        """What follows `known` steps, which never fall, from the jobs of these steps alone; None while too little is
        known."""
        for at in range(self._known, known):
            jobs = self._bins.pop(at, np.zeros(CLASSES))
            if self._memory is not None:
                self._memory.add(self._split(), jobs)
            self._jobs = self._keep * self._jobs + jobs
            self._total.update(float(jobs.sum()))
        if known > self._known:
            self._known, self._now = known, self._split()
        return self._now

    def paths(self, known: int, count: int, rng: np.random.Generator) -> IntArray | None:
        """[count, H, CLASSES] joint samples of the jobs in the steps that follow; None while too little is known."""
        forecast = self.forecast(known)
        if forecast is None or self._memory is None:
            return None
        return sample_paths(forecast.mean, *self._memory.paths(), count, rng)

    def _split(self) -> Forecast | None:
        totals = self._total.predict()
        if totals is None:
            return None
        shares = self._jobs / self._jobs.sum()
        mean, low, high = (np.outer(part, shares) for part in (totals.mean, totals.low, totals.high))
        return Forecast(mean, low, high)


def sampling_forecasts(past: Past, step: float, horizon: int, fitted: Forecaster | None = None) -> ClassForecasts:
    """Forecasts that can be sampled around from the start: the end of the past is forecast from what was before it.

    The arguments are those of `TotalForecaster`. Jobs of the past are made whole: classes are drawn where unknown.
    """
    memory, steps = PathMemory(horizon, CLASSES), min(REPLAYED_STEPS, len(past.jobs) // 2)
    if steps:
        first, rng = len(past.jobs) - steps, np.random.default_rng(0)
        before = replace(past, jobs=past.jobs[:first], start=past.start - steps * step)
        source = ClassForecasts(TotalForecaster(before, step, horizon, fitted), before, step, memory)
        for at in range(steps):
            jobs = np.floor(past.jobs[first + at])
            # Jobs of unknown class count in shares; whole ones are made of what the shares add up to.
            missing = round(float(past.jobs[first + at].sum() - jobs.sum()))
            jobs += rng.multinomial(missing, past.usual / past.usual.sum())
            own = np.repeat(np.arange(CLASSES), jobs.astype(np.int64))
            source.arrived(np.full(len(own), (at + 0.5) * step), own)
        source.forecast(steps)
    return ClassForecasts(TotalForecaster(past, step, horizon, fitted), past, step, memory)


@dataclass
class StateForecaster:
    """Passes arrivals in a cluster to a source, and adds its forecast to the states that policies see.

    source: of one workload; each run needs its own. step: its steps [s]. last: no forecast is made once more steps are
    over: that nothing is submitted after a window is no pattern to learn.
    """

    source: ClassForecasts
    step: float
    last: int
    _seen: BoolArray = field(default_factory=lambda: np.zeros(64, dtype=np.bool_), repr=False)

    def __call__(self, state: ClusterState) -> ClusterState:
        """The same state with its forecast. No job comes and goes between two states."""
        jobs, last = state.jobs, int(state.jobs.index.max(initial=-1))
        if last >= len(self._seen):
            self._seen = np.concatenate([self._seen, np.zeros(last + 1, dtype=np.bool_)])
        new = ~self._seen[jobs.index]
        if new.any():
            self._seen[jobs.index] = True
            self.source.arrived(jobs.submit_time[new], jobs.priority[new])
        return replace(state, forecast=self.source.forecast(min(int(state.time / self.step), self.last)))


def window_forecasts(source: ClassForecasts, jobs: Sequence[Job], last: int) -> list[Forecast | None]:
    """What `source` forecasts once 0, 1, ... `last` steps are over, each from the jobs of the steps before."""
    own = np.array([job.priority for job in jobs], dtype=np.int64)
    source.arrived(np.array([job.submit_time for job in jobs]), own)
    return [source.forecast(known) for known in range(last + 1)]


class WindowForecasts:
    """Forecasts for windows. Raises ConfigError if the model cannot be used.

    past: what came before a window, in steps of the settings.
    """

    def __init__(self, settings: ForecastSettings, past: Callable[[Window], Past]) -> None:
        self.settings, self.step = settings, settings.step
        self._past = past
        self._model = None if settings.model is None else load_model(settings.model, self.step)

    def for_run(self, window: Window) -> StateForecaster:
        """For one run on a window: forecasts from what arrives in it."""
        return StateForecaster(self._source(window), self.step, self._last(window))

    def known(self, window: Window, jobs: Sequence[Job]) -> list[Forecast | None]:
        """All forecasts of a window, after 0, 1, ... steps: those that `for_run` gives while its jobs arrive."""
        return window_forecasts(self._source(window), jobs, self._last(window))

    def _source(self, window: Window) -> ClassForecasts:
        past = self._past(window)
        return ClassForecasts(TotalForecaster(past, self.step, self.settings.horizon, self._model), past, self.step)

    def _last(self, window: Window) -> int:
        """Steps that are over at the end of a window."""
        return int((window.end - window.start) / self.step)
