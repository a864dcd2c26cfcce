"""Jobs whose batch size follows a schedule: one for every epoch, and steps per second measured at each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlpto.core.job_table import JobTable
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.performance.tables import JobType, SpeedTables, elapsed_from_rates


@dataclass(frozen=True)
class ScheduledModel:
    """A training on `gpus` GPUs and no other number. batches: batch size of every epoch [P]. steps_per_s: by batch."""

    samples: int
    batches: IntArray
    steps_per_s: Mapping[int, float]
    gpus: int = 1
    rescale_delay: float = 0.0

    @property
    def seconds(self) -> FloatArray:
        """Return the duration of every epoch [P]; its last batch may be smaller."""
        return np.array([-(-self.samples // size) / self.steps_per_s[size] for size in self.batches.tolist()])


@dataclass(frozen=True, kw_only=True)
class ScheduledTables(SpeedTables):
    """Speed tables that also hold the batch size of every type in every epoch [T, P, samples]."""

    batches: IntArray


def compile_scheduled(models: Mapping[str, ScheduledModel], max_gpus: int) -> ScheduledTables:
    """Compile speed tables with one type for each of the models, on any nodes. The accuracy of all stays 0."""
    given, most = list(models.values()), max(len(one.batches) for one in models.values())
    held = [np.minimum(np.arange(most), len(one.batches) - 1) for one in given]  # later epochs repeat the last
    rates = np.stack([np.zeros(most), *(1 / one.seconds[epochs] for one, epochs in zip(given, held, strict=True))])
    gpus, number = np.array([[one.gpus] for one in given]), np.arange(max_gpus + 1)
    return ScheduledTables(
        types=tuple(JobType(name) for name in models),
        rates=rates,
        elapsed=elapsed_from_rates(rates),
        row=np.where(number > 0, np.arange(1, len(rates))[:, None], 0)[:, None].astype(np.int32),
        accuracy=np.zeros((len(given), most + 1)),
        epochs=np.array([len(one.batches) for one in given]),
        samples=np.array([float(one.samples) for one in given]),
        rescale_delay=np.array([one.rescale_delay for one in given]),
        exact_keys=np.zeros(0, dtype=np.int64),
        exact_rows=np.zeros(0, dtype=np.int32),
        floor_size=np.where(number >= gpus, gpus, 0),
        batches=np.stack([one.batches[epochs] for one, epochs in zip(given, held, strict=True)]),
    )


def present_batch(jobs: JobTable) -> FloatArray:
    """Return the total batch size of each job in its present epoch [n, samples]; NaN if the job chooses it itself."""
    known = jobs.estimates()
    if isinstance(known.tables, ScheduledTables):
        return known.tables.batches[known.type_index, jobs.epoch].astype(np.float64)
    return known.tables.fixed_batch[known.type_index]
