"""Jobs whose batch size follows a schedule: one batch size per epoch, with measured steps per second at each size.

Two rules set the schedule. Accordion (Agarwal et al., MLSys 2021) trains with the first batch size in critical regimes,
else with the largest. The rule by gradient noise scale (McCandlish et al., arXiv:1812.06162) doubles the batch size.
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
    """A training with scheduled batch sizes. samples: samples in one epoch. batches: [P] batch size in every epoch.

    rescale_delay: seconds. steps_per_s: steps per second by batch size on `gpus` GPUs; it runs on no other number.
    """

    samples: int
    batches: IntArray
    steps_per_s: Mapping[int, float]
    gpus: int = 1
    rescale_delay: float = 0.0

    @property
    def seconds(self) -> FloatArray:
        """[P] seconds of every epoch; its last batch may be smaller. Raises ProfileError without a batch's speed."""
        sizes = self.batches.tolist()
        if unknown := sorted({size for size in sizes if not self.steps_per_s.get(size, 0.0) > 0}):
            raise ProfileError(f"no steps/s at batch size {unknown[0]}; known: {sorted(self.steps_per_s)}")
        return np.array([-(-self.samples // size) / self.steps_per_s[size] for size in sizes])


@dataclass(frozen=True)
class ScheduledProfiles:
    """Trainings with scheduled batch sizes, by name, as a `ProfileSource`. Their accuracy stays 0."""

    given: Mapping[str, ScheduledModel]

    @property
    def models(self) -> tuple[str, ...]:
        """Names, sorted."""
        return tuple(sorted(self.given))

    def facts(self, model: str) -> ModelLimits:
        """Return the size and limits of a model. Raises ProfileError if it is unknown."""
        if model not in self.given:
            raise unknown_model(model, self.models)
        one = self.given[model]
        least, most = int(one.batches.min()), int(one.batches.max())
        return ModelLimits(one.samples, len(one.batches), BatchLimits(least, most, 1, most), one.rescale_delay)

    def type_tables(self, job_type: JobType, max_gpus: int, gpus_per_node: int, gpu: str = ONE_KIND) -> TypeTables:  # noqa: ARG002
        """Compile speeds on the model's number of GPUs, on any nodes and any GPU type."""
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
