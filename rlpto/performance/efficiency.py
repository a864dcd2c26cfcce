"""Statistical efficiency from the gradient noise scale, and how a job chooses its batch size.

Formulas: McCandlish et al. 2018 for the noise scale; Pollux (Qiao et al., OSDI 2021, sections 3.1 and
3.3) for efficiency, accumulation and the choice of the batch size that maximises goodput, or another score of
`rlpto.performance.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field

from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.performance.throughput import ThroughputLaw

CANDIDATES = 50
"""Batch sizes that an adaptive job compares for each number of GPUs."""
LARGEST_BATCH = 10**9
"""Samples; larger numbers would overflow 64 bits."""


@dataclass(frozen=True)
class BatchLimits:
    """Limits of a model's batch size, in samples.

    base: total batch size at which efficiency is 1. largest: largest total batch size.
    min_local, max_local: samples one GPU computes at once.
    largest_chosen: largest total batch size that a scheduler may choose; 0: it may not choose; None: `largest`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

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
    """How a total batch is spread over GPUs and time; int64 arrays of one shape.

    gpus: replicas. local: samples one GPU computes at once (the atomic batch). accumulation: how many
    such computations precede the synchronised one.
    """

    gpus: IntArray
    local: IntArray
    accumulation: IntArray

    @property
    def total(self) -> IntArray:
        """Samples in one optimiser step."""
        return self.gpus * self.local * (self.accumulation + 1)


def efficiency(noise_scale: ArrayLike, batch: ArrayLike, base: float) -> FloatArray:
    """Progress per sample relative to the base batch: (phi + M0) / (phi + M), 1 at the base batch M0."""
    noise_scale, batch = np.asarray(noise_scale, dtype=np.float64), np.asarray(batch, dtype=np.float64)
    return np.asarray((noise_scale + base) / (noise_scale + batch))


def split_batch(
    batch: ArrayLike, gpus: ArrayLike, limits: BatchLimits, *, accumulate_alone: bool = False
) -> BatchSplit:
    """Spread a total batch size over GPUs; shapes broadcast.

    Each GPU gets its share rounded up, in as many equal computations as max_local requires; the total
    is capped at the largest batch. One GPU alone computes at least twice when the batch exceeds the
    base (two gradients are needed to see their noise), or always with `accumulate_alone`, provided
    that halves are not below min_local.
    The local batch may come out below min_local: see `feasible`.
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
    """Largest number of GPUs, up to `max_gpus`, over which the batch (None: the largest) can be spread.

    0 if the batch is smaller than the least that one GPU computes.
    """
    gpus = np.arange(1, max_gpus + 1)
    total = limits.largest if batch is None else batch
    usable = np.flatnonzero(feasible(split_batch(total, gpus, limits), limits) & (total >= gpus * limits.min_local))
    return int(usable[-1]) + 1 if len(usable) else 0


def candidate_batches(gpus: IntArray, limits: BatchLimits) -> IntArray:
    """[K, CANDIDATES] total batch sizes an adaptive job considers with `gpus` [K] GPUs.

    Geometric from the base batch (or the least that the GPUs compute) to the largest.
    """
    start = np.minimum(np.maximum(limits.base, gpus * limits.min_local), limits.largest)
    steps = np.linspace(0.0, 1.0, CANDIDATES)
    grid = start[:, None] * (limits.largest / start[:, None]) ** steps
    return np.rint(grid).astype(np.int64)


def splits(batch: int | None, gpus: IntArray, limits: BatchLimits) -> BatchSplit:
    """[K, C] ways to split the batch over `gpus` [K]: one if it is fixed, else those of the candidates."""
    batches = candidate_batches(gpus, limits) if batch is None else np.array([[batch]])
    return split_batch(batches, gpus[:, None], limits)


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
    """[spans, max_gpus, epochs] rates of a job on k GPUs with a total batch; None: the batch with the largest score.

    noise_scale: [epochs] in samples. exponent: of the efficiency in the score, see `metrics.JobMetric`. Entry
    [s, k - 1] is for k GPUs on s + 1 nodes; NaN if the batch cannot be spread over k GPUs.
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


def _ceil_div(numerator: IntArray, denominator: IntArray | np.int64) -> IntArray:
    return -(-numerator // denominator)
