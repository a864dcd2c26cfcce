"""Estimates of a job from its own observations: a fit of its steps, and the batch size chosen by this fit and by the
last observed gradient noise.

The rules are Pollux's (Qiao et al., OSDI 2021, section 4.1 and its artifact). Nothing here depends on a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.knowledge.bayes_fit import BayesFit, fill_log_speeds, fit_with_prior
from rlpto.knowledge.evidence import Step, columns
from rlpto.knowledge.online_fit import fit_observed
from rlpto.knowledge.prior import LEVEL_SIGMA, ThroughputPrior, law_at, reference_batch
from rlpto.performance.efficiency import BatchCandidates, BatchLimits, batch_candidates
from rlpto.performance.fitted import SPANS
from rlpto.performance.throughput import StepMeasurements, ThroughputParams


class ChoiceRule(NamedTuple):
    """How a job compares batch sizes.

    exponent: exponent of the efficiency in the score, `rlpto.performance.metrics.JobMetric.exponent`. slope: slope of
    the logarithm of the noise scale over the logarithm of the batch. above: a batch in use stays unless another has
    over `above` times its score.
    """

    exponent: float = 1.0
    slope: float = 0.0
    above: float = 1.0


class Score(NamedTuple):
    """Scores of a job on one node and on several, with 1 to `most` GPUs: arrays [SPANS, most].

    best: largest score of a batch size, in samples per second converted to the base batch. sigma: standard deviation of
    the logarithm of the estimated speed.
    """

    best: FloatArray
    sigma: FloatArray


@dataclass
class ThroughputFit:
    """Steps that one job, or all jobs of a model, have observed, and the fit to them.

    limits: limits of the batch size. batch: the fixed batch size, or None. most: largest number of GPUs in tables.
    exponent: `ChoiceRule.exponent`. prior: prior of the law. Default: Pollux's fit, which has none. unit: for a model
    that runs only on multiples of a number of GPUs, this number, which the law counts as one GPU on one node: the prior
    from other such models describes scaling from the smallest size, not from a single GPU. sizes: number of different
    GPU counts with observed steps.
    """

    limits: BatchLimits
    batch: int | None
    most: int
    exponent: float = 1.0
    prior: ThroughputPrior | None = None
    unit: int = 1
    steps: dict[tuple[int, int, float], Step] = field(default_factory=dict)
    sizes: int = 0
    params: ThroughputParams | None = None
    _candidates: dict[int, BatchCandidates] = field(default_factory=dict)
    _table: tuple[FloatArray, FloatArray] | None = None
    _throughput: dict[tuple[int, int], FloatArray] = field(default_factory=dict)
    _growth: tuple[float, FloatArray] | None = None
    _bayes: BayesFit | None = None

    def observe(self, step: Step) -> bool:
        """Record a step. Returns False and keeps the earlier step if there is one of its nodes, GPUs and batch."""
        if (key := step[:3]) in self.steps:
            return False
        self.steps[key] = step
        self.sizes = len({gpus for _, gpus, _ in self.steps})
        return True

    def fit(self) -> None:
        """Fit all observed steps."""
        seen = columns(self.steps.values())
        sizes = self._in_units(seen.nodes, seen.replicas)
        rows = StepMeasurements(*sizes, self.unit * seen.local_batch, seen.step_time, seen.sync_time)
        if self.prior is None:
            self.params = fit_observed(rows)
        else:
            last = None if self._bayes is None else self._bayes.point
            self._bayes = fit_with_prior(rows, self.prior, self._reference, last)
            self.params = law_at(self._bayes.point, self._reference)
        self._table = self._growth = None
        self._throughput.clear()

    @property
    def _reference(self) -> float:
        """Samples of the batch to which the law's first coordinate refers."""
        return reference_batch(self.limits, self.unit)

    def _in_units(self, nodes: ArrayLike, gpus: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Numbers of nodes and GPUs in the units of the law."""
        units = np.maximum(np.asarray(gpus, dtype=np.float64) // self.unit, 1.0)
        return np.where((units > 1.0) | (self.unit == 1), np.asarray(nodes, dtype=np.float64), 1.0), units

    def candidates(self, gpus: int) -> BatchCandidates:
        """Return the candidate batches with this number of GPUs."""
        if gpus not in self._candidates:
            self._candidates[gpus] = batch_candidates(self.batch, gpus, self.limits)
        return self._candidates[gpus]

    def throughput(self, nodes: int, gpus: int) -> FloatArray:
        """[C] estimated samples per second of the candidate batches; 0 for a batch beyond a limit. Needs `fit`."""
        assert self.params is not None
        if (nodes, gpus) not in self._throughput:
            found = self.candidates(gpus)
            seconds = self.params.step_time(*self._in_units(nodes, gpus), self.unit * found.local, found.accumulation)
            seconds = seconds * max(self.unit / gpus, 1.0)
            self._throughput[nodes, gpus] = np.where(found.usable, found.weighed / seconds, 0.0)
        return self._throughput[nodes, gpus]

    def score(self, sqr: float, var: float, slope: float = 0.0) -> Score:
        """Return the scores that policies see, with 1 to `most` GPUs on one node and on several. If the exponent of the
        efficiency is not 1, scores are scaled such that the score of one GPU is its goodput.

        sqr, var: gradient statistics at the base batch. slope: `ChoiceRule.slope`. Before the first fit, every GPU of
        the job is assumed to process one base batch per second.
        """
        if self.params is None:
            best = np.tile(self.limits.base * np.arange(1.0, self.most + 1), (SPANS, 1))
            return Score(best, np.full(best.shape, LEVEL_SIGMA))
        if self._table is None:
            self._table = self._tabulate()
        speed, sigma = self._table
        if self._growth is None or self._growth[0] != slope:
            self._growth = slope, self._scales**slope
        score = Score(np.empty(speed.shape[:2]), np.empty(speed.shape[:2]))
        alone = fill_score(speed, sigma, self._scales, self._growth[1], sqr, var, self.exponent, score)
        if self.exponent != 1:
            goodput = speed[0, 0, alone] * efficiency_seen(sqr, var, self._scales[0, alone], slope)
            score.best[:] *= goodput / score.best[0, 0]
        return score

    def _tabulate(self) -> tuple[FloatArray, FloatArray]:
        """[SPANS, most, C] samples per second of all candidates with 1 to `most` GPUs, and standard deviation of its
        logarithm (0 for Pollux's fit)."""
        assert self.params is not None
        sizes = [self.candidates(gpus) for gpus in range(1, self.most + 1)]
        self._scales = np.stack([size.weighed for size in sizes]) / self.limits.base
        units = np.arange(1, self.most + 1) // self.unit
        local, accumulation = (np.stack(part) for part in zip(*(size[1:3] for size in sizes), strict=True))
        local, accumulation = self.unit * local[self.unit - 1 :: self.unit], accumulation[self.unit - 1 :: self.unit]
        usable = np.stack([size.usable for size in sizes])
        if self._bayes is None:
            nodes, gpus = np.arange(1, SPANS + 1)[:, None, None], np.arange(1, len(local) + 1)[:, None]
            seconds = self.params.step_time(nodes, gpus, local, accumulation)
            sigma = np.zeros(seconds.shape)
        else:
            log_seconds, sigma = np.empty((SPANS, *local.shape)), np.empty((SPANS, *local.shape))
            fill_log_speeds(*self._bayes, self._reference, local, accumulation, log_seconds, sigma)
            seconds = np.exp(log_seconds)
        seconds, sigma = (values[:, np.maximum(units, 1) - 1] for values in (seconds, sigma))
        if self.unit > 1:  # as in `SizeTable`: below the smallest size, speed is proportional to GPUs
            seconds *= np.maximum(self.unit / np.arange(1.0, self.most + 1), 1.0)[:, None]
        return np.where(usable, self._scales * self.limits.base / seconds, 0.0), sigma


@njit(error_model="numpy")
def fill_score(
    throughput: FloatArray,
    sigma: FloatArray,
    scales: FloatArray,
    growth: FloatArray,
    sqr: float,
    var: float,
    exponent: float,
    out: Score,
) -> int:
    """Fill out with the largest score over the candidates of throughput [S, K, C] samples/s, and with its sigma.

    sigma: [S, K, C]. scales: [K, C] sizes in base batches. growth: [K, C] factor on the variance `var` of the base
    batch. exponent: `ChoiceRule.exponent`. Returns the candidate that is best on one GPU.
    """
    alone, useful = 0, np.empty(scales.shape[1])
    for gpus in range(scales.shape[0]):
        for at in range(scales.shape[1]):  # a separate loop, to vectorise the divisions
            useful[at] = efficiency_at(sqr, var * growth[gpus, at], scales[gpus, at])
        if exponent != 1.0:
            for at in range(scales.shape[1]):
                useful[at] **= exponent
        for span in range(throughput.shape[0]):
            best, which = 0.0, 0
            for at in range(scales.shape[1]):
                score = throughput[span, gpus, at] * useful[at]
                if score > best:
                    best, which = score, at
            out.best[span, gpus], out.sigma[span, gpus] = best, sigma[span, gpus, which]
            if span + gpus == 0:
                alone = which
    return alone


@njit(error_model="numpy")
def efficiency_seen(sqr: float, var: float, scale: float, slope: float) -> float:
    """Progress per sample of a batch of `scale` base batches. With invalid statistics a step counts as one base batch.

    sqr, var: gradient statistics at the base batch; the variance is assumed to grow with scale ** slope.
    """
    return efficiency_at(sqr, var * scale**slope, scale)


@njit(error_model="numpy")
def efficiency_at(sqr: float, var: float, scale: float) -> float:
    """Return `efficiency_seen`, given the variance `var` at this batch instead of the base batch."""
    below = var / scale + sqr
    return float((var + sqr) / below / scale if below > 0.0 else 1.0 / scale)


@njit(error_model="numpy", inline="always")
def powers(scales: FloatArray, exponent: float) -> FloatArray:
    """[C] powers of scales [C]."""
    found = np.empty(len(scales))
    for at in range(len(scales)):
        found[at] = scales[at] ** exponent
    return found


@njit(error_model="numpy")
def choose(
    throughput: FloatArray, scales: FloatArray, growth: FloatArray, sqr: float, var: float, rule: ChoiceRule, held: int
) -> int:
    """Return the candidate with the largest score, the first of equals, unless `held` stays by `rule.above`.

    throughput, scales: [C]. growth: [C] factor on the variance `var` of the base batch. held: candidate in use, or -1.
    """
    best, most, present = 0, -1.0, 0.0
    for at in range(len(throughput)):
        useful = efficiency_at(sqr, var * growth[at], scales[at])
        score = throughput[at] * (useful if rule.exponent == 1.0 else useful**rule.exponent)
        if score > most:
            best, most = at, score
        if at == held:
            present = score
    return best if held < 0 or most > rule.above * present else held


@njit(error_model="numpy")
def follow_choices(
    throughput: FloatArray,
    scales: FloatArray,
    grad_sqr: FloatArray,
    grad_var: FloatArray,
    rates: FloatArray,
    epoch: int,
    first: int,
    rule: ChoiceRule,
    out_rates: FloatArray,
    out_choices: IntArray,
) -> None:
    """Fill out_choices [P] with a job's batch choice in each epoch, and out_rates [P] with its true speed.

    Before `epoch` the choice is `first`. throughput, scales: [C] estimates; if throughput is empty, `first` stays.
    grad_sqr, grad_var, rates: [C, P] truth.
    In each epoch the job observes the statistics of its batch, and chooses by them in the next.
    """
    choice = first
    growth, decline = powers(scales, rule.slope), powers(scales, -rule.slope)
    for at in range(epoch):  # assigned one by one, as slices take seconds to compile
        out_rates[at], out_choices[at] = rates[first, at], first
    for at in range(epoch, rates.shape[1]):
        out_rates[at], out_choices[at] = rates[choice, at], choice
        if len(throughput):
            sqr, var = grad_sqr[choice, at], grad_var[choice, at] * decline[choice]
            choice = choose(throughput, scales, growth, sqr, var, rule, choice)
