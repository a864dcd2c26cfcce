"""Gradient noise, statistical efficiency, and the batch sizes that jobs may choose and do choose.

Formulas: McCandlish et al. 2018 for the noise scale; Pollux (Qiao et al., OSDI 2021, sections 3.1 and 3.3) for
efficiency, accumulation and the choice of the batch size that maximises goodput, or another score of
`rlpto.performance.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field

from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.errors import ProfileError
from rlpto.performance.throughput import ThroughputLaw

CANDIDATES = 50
"""Batch sizes that an adaptive job compares for each number of GPUs."""
LARGEST_BATCH = 10**9
"""Largest batch size in samples; larger numbers would overflow 64 bits."""
MAX_KNOTS = 10
"""Largest number of knots of a fitted noise curve."""
_ROUNDING = 1e-8
"""Tolerance within which a share counts as a whole number."""


@dataclass(frozen=True)
class NoiseCurve:
    """Noise scale in samples, its logarithm linear in the epoch between knots and constant beyond.

    epochs: ascending knots. noise_scale: value at each, in samples (base batch * variance / squared norm).
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    epochs: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)]
    noise_scale: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]

    def __post_init__(self) -> None:
        if len(self.epochs) != len(self.noise_scale):
            raise ValueError(f"{len(self.epochs)} epochs but {len(self.noise_scale)} values of noise_scale")
        if any(b <= a for a, b in zip(self.epochs, self.epochs[1:], strict=False)):
            raise ValueError("epochs must ascend")

    def __call__(self, epoch: ArrayLike) -> FloatArray:
        """Noise scale in samples during epoch `epoch`; any shape."""
        log_scale = np.interp(np.asarray(epoch, dtype=np.float64), self.epochs, np.log(self.noise_scale))
        return np.asarray(np.exp(log_scale))


def fit_noise(grad_sqr: FloatArray, grad_var: FloatArray, base_batch: int) -> tuple[NoiseCurve, float]:
    """Fit a curve through the median over runs; return it and the root mean square of its log error over all runs.

    grad_sqr, grad_var: [runs, epochs]. Estimates that are not positive carry no information and are left out. Knots are
    added one at a time where they help most. Raises ProfileError if an epoch has no usable estimate.
    """
    usable = (grad_sqr > 0) & (grad_var > 0)
    if not usable.any(axis=0).all():
        raise ProfileError(f"epoch {int(np.argmin(usable.any(axis=0)))} has no positive gradient statistics")
    log_scale = np.full(grad_sqr.shape, np.nan)
    log_scale[usable] = np.log(base_batch * grad_var[usable] / grad_sqr[usable])
    target = np.nanmedian(log_scale, axis=0)
    last = len(target) - 1
    knots, values, _ = _fit_knots([0, last] if last else [0], target)
    while len(knots) < min(MAX_KNOTS, len(target)):
        others = [epoch for epoch in range(last) if epoch not in knots]
        tried = [_fit_knots(sorted([*knots, epoch]), target) for epoch in others]
        knots, values, _ = min(tried, key=lambda fit: fit[2])
    curve = NoiseCurve(tuple(float(knot) for knot in knots), tuple(float(value) for value in np.exp(values)))
    residual = (np.log(curve(np.arange(len(target)))) - log_scale)[usable]
    return curve, float(np.sqrt(np.mean(residual**2)))


def efficiency(noise_scale: ArrayLike, batch: ArrayLike, base: float) -> FloatArray:
    """Progress per sample relative to the base batch: (phi + M0) / (phi + M), 1 at the base batch M0."""
    noise_scale, batch = np.asarray(noise_scale, dtype=np.float64), np.asarray(batch, dtype=np.float64)
    return np.asarray((noise_scale + base) / (noise_scale + batch))


def gained(sqr: FloatArray, var: FloatArray, scale: FloatArray) -> FloatArray:
    """Progress of a step of `scale` base batches, in steps of one base batch: (var + sqr) / (var / scale + sqr)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = (var + sqr) / (var / scale + sqr)
    return np.asarray(np.where(np.isfinite(gain) & (gain > 0), gain, scale))


@dataclass(frozen=True)
class BatchLimits:
    """Limits of a model's batch size, in samples.

    base: total batch size at which efficiency is 1. largest: largest total batch size.
    min_local, max_local: samples one GPU computes at once.
    largest_chosen: largest total batch size that a scheduler may choose; with 0 it may not choose. Default: `largest`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    base: Annotated[int, Field(ge=1, le=LARGEST_BATCH)]
    largest: Annotated[int, Field(ge=1, le=LARGEST_BATCH)]
    min_local: Annotated[int, Field(ge=1, le=LARGEST_BATCH)]
    max_local: Annotated[int, Field(ge=1, le=LARGEST_BATCH)]
    largest_chosen: Annotated[int, Field(ge=0, le=LARGEST_BATCH)] | None = None

    def choices(self) -> list[int]:
        """Batch sizes that a scheduler may choose: the base, its doublings and the largest, in ascending order."""
        most = self.largest if self.largest_chosen is None else self.largest_chosen
        doubled = {self.base * 2**i for i in range((most // self.base).bit_length())}
        return sorted(doubled | {most}) if doubled else []

    def with_chosen(self) -> BatchLimits:
        """The limits of all possible batches, whether chosen by jobs or by a scheduler."""
        return replace(self, largest=max(self.largest, self.largest_chosen or 0))


class BatchSplit(NamedTuple):
    """Division of a total batch over GPUs and time; int64 arrays of one shape.

    gpus: replicas. local: samples one GPU computes at once (the atomic batch). accumulation: number of such
    computations before the synchronised one.
    """

    gpus: IntArray
    local: IntArray
    accumulation: IntArray

    @property
    def total(self) -> IntArray:
        """Samples in one optimiser step."""
        return self.gpus * self.local * (self.accumulation + 1)


def split_batch(
    batch: ArrayLike, gpus: ArrayLike, limits: BatchLimits, *, accumulate_alone: bool = False
) -> BatchSplit:
    """Spread a total batch size over GPUs; shapes broadcast.

    Each GPU gets its share rounded up, in as many equal computations as max_local requires; the total is capped at the
    largest batch. One GPU alone computes at least twice when the batch exceeds the base (two gradients are needed to
    see their noise), or always with `accumulate_alone`, provided that halves are not below min_local. The local batch
    may come out below min_local, which `feasible` detects.
    """
    batch, gpus = np.broadcast_arrays(np.asarray(batch, dtype=np.int64), np.asarray(gpus, dtype=np.int64))
    share = _ceil_div(batch, gpus)
    accumulation = _ceil_div(share, np.int64(limits.max_local)) - 1
    alone = (gpus == 1) & (accumulate_alone | (batch > limits.base)) & (batch >= 2 * limits.min_local)
    accumulation = np.where(alone, np.maximum(accumulation, 1), accumulation)
    cap = limits.largest // (gpus * (accumulation + 1))
    local = np.minimum(_ceil_div(share, accumulation + 1), cap)
    return BatchSplit(gpus.copy(), local, accumulation)


def feasible(split: BatchSplit, limits: BatchLimits) -> BoolArray:
    """True where the local batch lies within the model's limits."""
    return np.asarray((split.local >= limits.min_local) & (split.local <= limits.max_local))


def useful_gpus(batch: int | None, max_gpus: int, limits: BatchLimits) -> int:
    """Largest number of GPUs, up to `max_gpus`, over which the batch (if None, the largest batch) can be spread.

    0 if the batch is smaller than the smallest local batch of one GPU.
    """
    gpus = np.arange(1, max_gpus + 1)
    total = limits.largest if batch is None else batch
    usable = np.flatnonzero(feasible(split_batch(total, gpus, limits), limits) & (total >= gpus * limits.min_local))
    return int(usable[-1]) + 1 if len(usable) else 0


def splits(batch: int | None, gpus: IntArray, limits: BatchLimits) -> BatchSplit:
    """[K, C] ways to split a batch over `gpus` [K]: C = 1 for a fixed batch, else the CANDIDATES of a job that adapts
    it, geometric from the base batch (or the least that the GPUs compute) to the largest."""
    if batch is not None:
        return split_batch(np.array([[batch]]), gpus[:, None], limits)
    start = np.minimum(np.maximum(limits.base, gpus * limits.min_local), limits.largest)
    grid = start[:, None] * (limits.largest / start[:, None]) ** np.linspace(0.0, 1.0, CANDIDATES)
    return split_batch(np.rint(grid).astype(np.int64), gpus[:, None], limits)


class Choice(NamedTuple):
    """Rates at the batch size that a job chooses; arrays of one shape, NaN where no batch size is possible.

    progress: samples' worth of progress per second (goodput). score: the maximised quantity, samples per second
    weighted by the metric. batch: total samples of a step.
    """

    progress: FloatArray
    score: FloatArray
    batch: FloatArray


def choose_batch(
    law: ThroughputLaw,
    noise_scale: FloatArray,
    limits: BatchLimits,
    spans: int,
    max_gpus: int,
    batch: int | None,
    exponent: float = 1.0,
) -> Choice:
    """[spans, max_gpus, epochs] rates of a job on k GPUs, with a total batch or else the batch with the largest score.

    noise_scale: [epochs] in samples. exponent: exponent of the efficiency in the score (`metrics.JobMetric`). Entry [s,
    k - 1] is for k GPUs on s + 1 nodes; NaN if the batch cannot be spread over k GPUs.
    """
    split = splits(batch, np.arange(1, max_gpus + 1), limits)
    nodes = np.arange(1, spans + 1)[:, None, None]
    per_second = split.total / law.step_time(nodes, split.gpus, split.local, split.accumulation)
    per_second = np.where(feasible(split, limits), per_second, -np.inf)
    # One candidate at a time keeps the largest array at [spans, K, epochs].
    shape = (spans, max_gpus, len(noise_scale))
    best = np.full(shape, -np.inf)
    progress, chosen = np.full(shape, np.nan), np.full(shape, np.nan)
    for candidate in range(per_second.shape[2]):
        total, speed = split.total[:, candidate, None], per_second[:, :, candidate, None]
        useful = efficiency(noise_scale, total, limits.base)
        score = speed * useful**exponent
        better = score > best
        np.copyto(best, score, where=better)
        np.copyto(progress, speed * useful, where=better)
        np.copyto(chosen, total.astype(np.float64), where=better)
    return Choice(progress, np.where(np.isfinite(best), best, np.nan), chosen)


class BatchCandidates(NamedTuple):
    """Batches to choose from with `gpus` GPUs, by ascending size; arrays [C].

    local, accumulation: the split (`BatchSplit`) that the job compares. usable: within the limits of the model. taken:
    the local batch it then computes, cut to keep the total within the largest batch.
    """

    gpus: int
    local: IntArray
    accumulation: IntArray
    usable: BoolArray
    taken: IntArray

    @property
    def weighed(self) -> IntArray:
        """[C] samples of a step that the job compares."""
        return self.gpus * self.local * (self.accumulation + 1)

    @property
    def total(self) -> IntArray:
        """[C] samples of a step that the job runs."""
        return self.gpus * self.taken * (self.accumulation + 1)


def batch_candidates(batch: int | None, gpus: int, limits: BatchLimits) -> BatchCandidates:
    """Return the choices of a job that adapts its batch, or the one fixed batch. Totals are geometric from the least
    that `gpus` GPUs compute to the largest batch."""
    if batch is not None:
        split = split_batch(np.array([batch]), np.array([gpus]), limits)
        return BatchCandidates(gpus, split.local, split.accumulation, np.ones(1, dtype=np.bool_), split.local)
    least = min(max(limits.base, limits.min_local * gpus), limits.largest)
    share = np.geomspace(least, limits.largest, CANDIDATES) / gpus
    accumulation = np.ceil(share / limits.max_local - _ROUNDING).astype(np.int64) - 1
    if gpus == 1:  # two gradients are needed to see their noise
        accumulation = np.where(share > limits.base + _ROUNDING, np.maximum(accumulation, 1), accumulation)
    local = np.ceil(share / (accumulation + 1) - _ROUNDING).astype(np.int64)
    usable = feasible(BatchSplit(np.full(CANDIDATES, gpus), local, accumulation), limits)
    if not usable.any():  # more GPUs than the largest batch can be spread over
        usable[:] = True
    taken = np.maximum(np.minimum(local, limits.largest // (gpus * (accumulation + 1))), 1)
    return BatchCandidates(gpus, local, accumulation, usable, taken)


@dataclass(frozen=True)
class BatchPerformance:
    """True step times and rates of each of C batches on one placement; P epochs.

    step, sync: [C] seconds of a step without accumulation, and of its synchronisation. grad_sqr, grad_var: [C, P]
    gradient statistics in every epoch. rates: [C, P] epochs per second.
    """

    batches: BatchCandidates
    step: FloatArray
    sync: FloatArray
    grad_sqr: FloatArray
    grad_var: FloatArray
    rates: FloatArray


def _ceil_div(numerator: IntArray, denominator: IntArray | np.int64) -> IntArray:
    return -(-numerator // denominator)


def _fit_knots(knots: list[int], target: FloatArray) -> tuple[list[int], FloatArray, float]:
    """Least-squares values at the knots, and the squared error."""
    hats = np.column_stack([np.interp(np.arange(len(target)), knots, unit) for unit in np.eye(len(knots))])
    values: FloatArray = np.linalg.lstsq(hats, target, rcond=None)[0].astype(np.float64)
    return knots, values, float(np.sum((hats @ values - target) ** 2))
