"""Knowledge about jobs: the truth, estimates with errors, or the jobs' own observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlpto.core.jobs import EstimateNoise
from rlpto.knowledge.history import NO_HISTORY, History
from rlpto.knowledge.remaining import RemainingKnowledge
from rlpto.performance.efficiency import BatchPerformance
from rlpto.performance.profiles import BatchPerformanceSource
from rlpto.performance.tables import JobType

FitMethod = Literal["pollux", "bayes"]
UNSEEN_HOURS = 0.25
"""Remaining hours on one GPU that a job seems to have before any of its speed was observed. Otherwise a policy that
defers long jobs would never start it, and never learn its speed. Any short time gives the same schedules."""


class BatchCache:
    """Cache of the performance of batches: a placement recurs often, in every run of an experiment."""

    def __init__(self, source: BatchPerformanceSource) -> None:
        self.source = source
        self._known: dict[tuple[JobType, tuple[int, ...], str], BatchPerformance] = {}

    def __call__(self, job_type: JobType, placement: tuple[int, ...], gpu: str) -> BatchPerformance:
        """Return `BatchPerformanceSource.batch_performance`, cached."""
        key = (job_type, placement, gpu)
        if key not in self._known:
            self._known[key] = self.source.batch_performance(job_type, placement, gpu)
        return self._known[key]


@dataclass(frozen=True)
class EstimateRules:
    """How estimates are formed from the observations of jobs. The defaults follow Pollux's simulator.

    shared: jobs of a type share their observations. method: pollux: `rlpto.knowledge.online_fit`; bayes:
    `rlpto.knowledge.bayes_fit`. noise_slope: exponent of the growth of the gradient noise scale with the batch size,
    until a model has shown another (shared) or for good; with 0 it does not grow, and no slope is learnt. unseen_hours:
    remaining hours of a job without observations, such as UNSEEN_HOURS. Default: such a job seems to train one base
    batch per second and GPU.
    ahead: shared speeds predict the gradients of later epochs, which takes most of the time; only policies that
    simulate forward use them. shown: whether speeds are shown to policies, which only some policies need; jobs choose
    their batch sizes by them in any case.
    """

    shared: bool = False
    method: FitMethod = "pollux"
    noise_slope: float = 0.0
    unseen_hours: float | None = None
    ahead: bool = True
    shown: bool = True


AS_POLLUX = EstimateRules()
"""Rules of Pollux's simulator, on which published figures of Pollux rest."""
NOISE_SLOPE = 0.2
"""Exponent of the noise scale in the batch size, over measured models (docs/notes)."""


@dataclass(frozen=True)
class Knowledge:
    """Knowledge of policies, and of jobs about themselves. Default: the truth.

    noise: errors of policies' estimates, or None. remaining, tail: rule for remaining work, in
    `rlpto.knowledge.remaining.RemainingWork`. performance: true speeds for jobs that, like policies, know only their
    observations. Default: all know the truth. rules: how estimates are formed, with `performance`. history: jobs that
    had finished before.
    """

    noise: EstimateNoise | None = None
    remaining: RemainingKnowledge = "declared"
    tail: float = 1.0
    performance: BatchCache | None = None
    rules: EstimateRules = AS_POLLUX
    history: History = NO_HISTORY


TRUTH = Knowledge()
"""Everything is known exactly."""
