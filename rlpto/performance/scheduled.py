"""Jobs whose batch size changes by itself: a batch size for every epoch, and steps per second measured at each.

Two rules that set it: Accordion (Agarwal et al., MLSys 2021) trains with the batch it was submitted with in critical
regimes and with the largest otherwise; by the gradient noise scale (McCandlish et al., arXiv:1812.06162) it doubles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ProfileError
from rlpto.performance.efficiency import BatchLimits
from rlpto.performance.profiles import ModelLimits, TypeTables, unknown_model
from rlpto.performance.tables import ONE_KIND, JobType


@dataclass(frozen=True)
class ScheduledModel:
    """A training whose batch size changes at epochs that are known.

    samples: in one epoch. batches: [P] total batch size in every epoch. steps_per_s: by batch size, on `gpus` GPUs, the
    only number that it runs on. rescale_delay [s].
    """

    samples: int
    batches: IntArray
    steps_per_s: Mapping[int, float]
    gpus: int = 1
    rescale_delay: float = 0.0

    @property
    def seconds(self) -> FloatArray:
        """[P] that every epoch takes; its last step may be part of a batch. Raises ProfileError for unknown speeds."""
        if unknown := sorted({int(size) for size in self.batches if not self.steps_per_s.get(int(size), 0.0) > 0}):
            raise ProfileError(f"no steps/s at batch size {unknown[0]}; known: {sorted(self.steps_per_s)}")
        steps = -(-self.samples // self.batches)
        return np.asarray(steps / np.array([self.steps_per_s[int(size)] for size in self.batches]))


@dataclass(frozen=True)
class ScheduledProfiles:
    """Such trainings by name, as a source of speed tables. They know no accuracy: it stays 0."""

    given: Mapping[str, ScheduledModel]

    @property
    def models(self) -> tuple[str, ...]:
        """Names, sorted."""
        return tuple(sorted(self.given))

    def facts(self, model: str) -> ModelLimits:
        """See `ProfileSource`."""
        if model not in self.given:
            raise unknown_model(model, self.models)
        one = self.given[model]
        sizes = [int(size) for size in one.batches]
        limits = BatchLimits(base=min(sizes), largest=max(sizes), min_local=1, max_local=max(sizes))
        return ModelLimits(one.samples, len(sizes), limits, one.rescale_delay)

    def type_tables(self, job_type: JobType, max_gpus: int, gpus_per_node: int, gpu: str = ONE_KIND) -> TypeTables:  # noqa: ARG002
        """See `ProfileSource`: speeds are those of its number of GPUs, on any nodes of any kind."""
        facts, one = self.facts(job_type.model), self.given[job_type.model]
        allowed = np.where(np.arange(max_gpus + 1) >= one.gpus, one.gpus, 0)
        rates, row = 1 / one.seconds[None], np.zeros((1, max_gpus), dtype=np.int32)
        return TypeTables(facts, rates, row, {}, np.zeros(facts.epochs + 1), fit=allowed, batches=one.batches)


def by_accordion(first: int, largest: int, epochs: int, critical: Collection[int]) -> IntArray:
    """[P] batch sizes: the first in critical epochs, else the largest."""
    return np.array([first if epoch in critical else largest for epoch in range(epochs)])


def by_noise_scale(first: int, largest: int, epochs: int, doubles_at: Sequence[int]) -> IntArray:
    """[P] batch sizes, doubled from each epoch of `doubles_at` on, up to the largest."""
    times = np.searchsorted(np.array(doubles_at, dtype=np.int64), np.arange(epochs), side="right")
    return np.minimum(first * 2**times, max(first, largest))
