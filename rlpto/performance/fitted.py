"""Compile speed tables from fitted profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rlpto.io.arrays import FloatArray
from rlpto.performance.efficiency import (
    BatchLimits,
    BatchPerformance,
    Choice,
    batch_candidates,
    choose_batch,
    gained,
)
from rlpto.performance.metrics import METRICS
from rlpto.performance.parameter_server import ServerParams
from rlpto.performance.profiles import ModelLimits, Profile, TypeTables, most_gpus, unknown_model
from rlpto.performance.size_table import SizeTable
from rlpto.performance.tables import ANY_GPU, JobType

SPANS = 2
"""Numbers of nodes that the throughput model distinguishes: one, and several."""


@dataclass(frozen=True)
class FittedProfiles:
    """Profiles by model name, as a source of speed tables.

    served: default number of parameter servers by model, for models whose law has no servers.
    """

    profiles: Mapping[str, Profile]
    served: Mapping[str, int] = field(default_factory=dict)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models, sorted."""
        return tuple(sorted(self.profiles))

    def profile(self, model: str) -> Profile:
        """Return the profile of a model. Raises ProfileError if it is unknown."""
        if model not in self.profiles:
            raise unknown_model(model, self.models)
        return self.profiles[model]

    def facts(self, model: str) -> ModelLimits:
        """Return the size and limits of a model. Raises ProfileError if it is unknown."""
        profile = self.profile(model)
        law = profile.throughput
        servers = (law.servers, law.most_servers) if isinstance(law, ServerParams) else (self.served.get(model, 0),) * 2
        return ModelLimits(profile.samples, profile.epochs, profile.batch, profile.rescale_delay, *servers)

    def type_tables(self, job_type: JobType, max_gpus: int, gpus_per_node: int, gpu: str = ANY_GPU) -> TypeTables:
        """Compile one job type on one GPU type; `choices_by_size` defines the rates. Raises ProfileError if the model
        is unknown, has no speeds on that GPU type, or the job type's batch size is outside its limits."""
        profile = self.profile(job_type.model).on(gpu)
        if job_type.servers is not None and isinstance(profile.throughput, ServerParams):
            profile = replace(profile, throughput=replace(profile.throughput, servers=job_type.servers))
        found, held = choices_by_size(profile, job_type, max_gpus), np.arange(max_gpus + 1)
        rates, score = ((part / profile.samples).reshape(SPANS * max_gpus, -1) for part in found[:2])
        row = np.arange(SPANS * max_gpus, dtype=np.int32).reshape(SPANS, max_gpus)
        row[1, 0] = row[0, 0]  # one GPU never spans two nodes
        row[0, gpus_per_node:] = row[1, gpus_per_node:]  # and more GPUs than gpus_per_node never fit on one
        floor_size = None
        if isinstance(profile.throughput, SizeTable):
            runs = self.profile(job_type.model).fits(gpu)
            floor_size = profile.throughput.floor_size(max_gpus) if runs else np.zeros_like(held)
            # GPUs beyond an allowed size idle, so policies see no gain in them; `Queue.admit` allocates none.
            row = row[:, np.maximum(np.where(floor_size > 0, floor_size, held)[1:], 1) - 1]
        return TypeTables(
            facts=self.facts(job_type.model),
            rates=rates,
            row=row,
            exact={},
            accuracy=np.maximum.accumulate(profile.accuracy(np.arange(profile.epochs + 1))),
            score=None if METRICS[job_type.metric].exponent == 1 else score,
            floor_size=floor_size,
        )

    def batch_performance(self, job_type: JobType, placement: tuple[int, ...], gpu: str = ANY_GPU) -> BatchPerformance:
        """Implement `BatchPerformanceSource`."""
        profile = self.profile(job_type.model).on(gpu)
        batches = batch_candidates(job_type.batch_size, sum(placement), profile.batch.with_chosen())
        size = (len(placement), batches.gpus, batches.taken)
        step = profile.throughput.step_time(*size)
        computing = profile.throughput.step_time(*size, 1) - step
        noise = profile.noise(np.arange(profile.epochs))
        sqr = np.ones((len(batches.taken), profile.epochs))
        var = np.broadcast_to(noise / profile.batch.base, sqr.shape)
        seconds = step + computing * batches.accumulation
        gain = gained(sqr, var, (batches.total / profile.batch.base)[:, None])
        rates = gain * profile.batch.base / seconds[:, None] / profile.samples
        return BatchPerformance(batches, step, np.maximum(step - computing, 0.0), sqr, var, rates)

    def limits(self, model: str, gpu: str = ANY_GPU) -> BatchLimits:
        """Implement `BatchPerformanceSource`."""
        return self.profile(model).on(gpu).batch.with_chosen()

    def one_gpu_throughput(self, model: str, gpu: str) -> float:
        """Implement `BatchPerformanceSource`."""
        profile = self.profile(model).on(gpu)
        return float(profile.batch.max_local / profile.throughput.step_time(1, 1, profile.batch.max_local))

    def epoch_samples(self, model: str) -> FloatArray:
        """Implement `BatchPerformanceSource`."""
        return np.full(self.profile(model).epochs, self.profile(model).samples)

    def choosing(self, largest: Mapping[str, int]) -> FittedProfiles:
        """Return the same profiles with bounds, by model, on a scheduler's choice of batch sizes; 0 allows no
        choice."""
        chosen = dict(self.profiles)
        for name, most in largest.items():
            profile = self.profile(name)
            chosen[name] = replace(profile, batch=replace(profile.batch, largest_chosen=most))
        return replace(self, profiles=chosen)


def choices_by_size(profile: Profile, job_type: JobType, max_gpus: int) -> Choice:
    """[2, max_gpus, epochs] rates of a job of a type on k + 1 GPUs, on one node and on several. GPUs idle if the batch
    cannot be spread over them. Raises ProfileError if the batch size is outside the profile's limits."""
    batch_size = job_type.batch_size
    limits = profile.batch if batch_size is None else profile.batch.with_chosen()
    most = most_gpus(job_type, limits, max_gpus)
    noise_scale = profile.noise(np.arange(profile.epochs))
    exponent = METRICS[job_type.metric].exponent
    found = choose_batch(profile.throughput, noise_scale, limits, SPANS, most, batch_size, exponent)
    held = np.minimum(np.arange(max_gpus), most - 1)
    return Choice(*(hold_sizes(part)[:, held] for part in found))


def hold_sizes(by_size: FloatArray) -> FloatArray:
    """Fill NaN along axis 1 (GPUs) with the entry of the next smaller size, else of the next larger."""
    usable = np.isfinite(by_size).reshape(*by_size.shape[:2], -1).all(axis=2)
    sizes = np.arange(by_size.shape[1])
    smaller = np.maximum.accumulate(np.where(usable, sizes, -1), axis=1)
    first = np.argmax(usable, axis=1)
    source = np.where(smaller < 0, first[:, None], smaller)
    return by_size[np.arange(by_size.shape[0])[:, None], source]
