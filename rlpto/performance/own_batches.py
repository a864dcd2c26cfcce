"""The batch sizes that a job compares when it chooses its own, and the true speed of each on a placement.

Rules of the Pollux simulator (Qiao et al., OSDI 2021, artifact) for its own policy: a job chooses the batch of its next
steps by its own fit of the throughput and by the gradient noise it measured last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.performance.efficiency import CANDIDATES, BatchLimits, BatchSplit, feasible, split_batch
from rlpto.performance.tables import ONE_KIND, JobType

_ROUNDING = 1e-8
"""Tolerance within which a share counts as a whole number."""


class OwnBatches(NamedTuple):
    """Batches to choose from with `gpus` GPUs, by ascending size; arrays [C].

    local, accumulation: as in `BatchSplit`, as the job compares them. usable: within the limits of the model.
    taken: the local batch it then computes, cut so that the total stays within the largest batch.
    """

    gpus: int
    local: IntArray
    accumulation: IntArray
    usable: BoolArray
    taken: IntArray

    @property
    def weighed(self) -> IntArray:
        """[C] samples of a step, as the job compares it."""
        return self.gpus * self.local * (self.accumulation + 1)

    @property
    def total(self) -> IntArray:
        """[C] samples of a step, as the job runs it."""
        return self.gpus * self.taken * (self.accumulation + 1)


def own_batches(batch: int | None, gpus: int, limits: BatchLimits) -> OwnBatches:
    """The choices of a job that chooses its own batch (None), or of one with a fixed batch.

    Totals are geometric from the least that `gpus` GPUs compute to the largest batch.
    """
    if batch is not None:
        split = split_batch(np.array([batch]), np.array([gpus]), limits)
        return OwnBatches(gpus, split.local, split.accumulation, np.ones(1, dtype=np.bool_), split.local)
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
    return OwnBatches(gpus, local, accumulation, usable, taken)


@dataclass(frozen=True)
class BatchFacts:
    """True step times and rates of each of C batches on one placement; P epochs.

    step, sync: [C] seconds of a step without accumulation, and of its synchronisation. grad_sqr, grad_var: [C, P]
    gradient statistics in every epoch. rates: [C, P] epochs per second.
    """

    batches: OwnBatches
    step: FloatArray
    sync: FloatArray
    grad_sqr: FloatArray
    grad_var: FloatArray
    rates: FloatArray


class BatchFactsSource(Protocol):
    """Profiles that provide the true speed of batches."""

    def batch_facts(self, job_type: JobType, placement: tuple[int, ...], gpu: str = ONE_KIND) -> BatchFacts:
        """Facts of a type's batches on GPUs of the kind `gpu`, placed like `placement` (GPUs per node)."""

    def limits(self, model: str, gpu: str = ONE_KIND) -> BatchLimits:
        """Limits of a model's batch size on a kind of GPU."""

    def one_gpu_throughput(self, model: str, gpu: str) -> float:
        """Samples/s of one GPU of a kind at its largest local batch."""

    def epoch_samples(self, model: str) -> FloatArray:
        """[P] samples at the base batch equivalent to each epoch's progress."""


def gained(sqr: FloatArray, var: FloatArray, scale: FloatArray) -> FloatArray:
    """Progress of a step of `scale` base batches, in steps of one: (var + sqr) / (var / scale + sqr)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = (var + sqr) / (var / scale + sqr)
    return np.asarray(np.where(np.isfinite(gain) & (gain > 0), gain, scale))
