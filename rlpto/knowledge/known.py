"""What is known of jobs: the truth, estimates with errors, or what jobs observe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlpto.core.jobs import EstimateNoise
from rlpto.knowledge.remaining import RemainingKnowledge
from rlpto.performance.efficiency import BatchPerformance
from rlpto.performance.profiles import BatchPerformanceSource
from rlpto.performance.tables import JobType

FitMethod = Literal["pollux", "bayes"]
UNSEEN_HOURS = 0.25
"""Hours on one GPU that a job looks as if it had left while nothing of its speed was observed: a policy that puts long
jobs off would never start it otherwise, and never learn its speed. Any short time gives the same schedules."""


class BatchCache:
    """Performance of batches, kept: a placement comes back often, in every run of an experiment."""

    def __init__(self, source: BatchPerformanceSource) -> None:
        self.source = source
        self._known: dict[tuple[JobType, tuple[int, ...], str], BatchPerformance] = {}

    def __call__(self, job_type: JobType, placement: tuple[int, ...], gpu: str) -> BatchPerformance:
        """See `BatchPerformanceSource.batch_performance`."""
        key = (job_type, placement, gpu)
        if key not in self._known:
            self._known[key] = self.source.batch_performance(job_type, placement, gpu)
        return self._known[key]


@dataclass(frozen=True)
class BeliefRules:
    """How the observations of jobs become beliefs; without arguments as in Pollux's simulator.

    shared: jobs of a type share what they observe. method: pollux: `rlpto.knowledge.online_fit`; bayes:
    `rlpto.knowledge.bayes_fit`. noise_slope: how the gradient noise scale grows with the batch size, as an exponent,
    until a model has shown otherwise (shared) or for good; 0: it does not, and no slope is learnt. unseen_hours: see
    UNSEEN_HOURS; None: a job that nothing was observed of looks as if it trained one base batch per second and GPU.
    ahead: shared speeds foresee the gradients of later epochs, which takes most of the time; only policies that
    simulate forward look at them. shown: whether the speeds are shown at all, which only some policies look at; jobs
    choose their batch sizes by them in any case.
    """

    shared: bool = False
    method: FitMethod = "pollux"
    noise_slope: float = 0.0
    unseen_hours: float | None = None
    ahead: bool = True
    shown: bool = True


AS_POLLUX = BeliefRules()
"""As in Pollux's simulator, which published figures of Pollux rest on."""
NOISE_SLOPE = 0.2
"""Exponent of the noise scale in the batch size, over measured models; see docs/notes."""


@dataclass(frozen=True)
class Knowledge:
    """What policies know, and what jobs know of themselves; without arguments the truth.

    noise: errors of what policies believe, or None. remaining, tail: what they believe of remaining work, see
    `rlpto.knowledge.remaining.RemainingWork`. beliefs: true speeds that jobs choose from, where they know only what
    they observe, as policies do; None: all know the truth. rules: with beliefs, how they are formed.
    """

    noise: EstimateNoise | None = None
    remaining: RemainingKnowledge = "declared"
    tail: float = 1.0
    beliefs: BatchCache | None = None
    rules: BeliefRules = AS_POLLUX


TRUTH = Knowledge()
"""Everything is known as it is."""
