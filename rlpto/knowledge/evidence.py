"""Evidence of jobs' speeds and gradient noise: observed steps and gradients of simulated and real jobs in one form."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlpto.io.errors import ProfileError
from rlpto.performance.tables import ANY_GPU
from rlpto.performance.throughput import StepMeasurements

SPEED_CHANGE, NOISE_CHANGE = 0.05, 0.2
"""Relative changes of a speed and of the noise scale that require a new fit."""


class Step(NamedTuple):
    """The observed steps of one size, without accumulation.

    nodes, gpus: nodes spanned, and GPUs in total. local_batch: samples per GPU. seconds: mean time of a step. sync:
    seconds of it spent waiting for synchronisation. Default: not known. servers: parameter servers; 0 if GPUs average
    gradients among themselves. gpu_type: name of the GPU type. steps: number of observed steps.
    """

    nodes: int
    gpus: int
    local_batch: float
    seconds: float
    sync: float = math.nan
    servers: int = 0
    gpu_type: str = ANY_GPU
    steps: int = 1

    @property
    def samples_per_second(self) -> float:
        """Samples per second of all GPUs."""
        return self.gpus * self.local_batch / self.seconds

    @property
    def size(self) -> tuple[str, int, int, int]:
        """GPU type, GPUs, nodes and servers."""
        return self.gpu_type, self.gpus, self.nodes, self.servers


class Statistics(NamedTuple):
    """Squared norm and variance of a gradient, and the batch at which they were observed, in base batches."""

    sqr: float
    var: float
    scale: float = 1.0

    def at_base(self, slope: float) -> tuple[float, float]:
        """Statistics expected at the base batch, if the variance grows with the batch to the power `slope`."""
        return self.sqr, self.var * self.scale**-slope


@dataclass(frozen=True)
class Evidence:
    """Newest step of every size, by size, and the newest noise scale [samples]; NaN if it is not known."""

    steps: tuple[Step, ...] = ()
    noise_scale: float = math.nan

    def updated(self, newer: Evidence) -> Evidence:
        """Return the evidence after newer evidence."""
        sizes = {step.size: step for step in (*self.steps, *newer.steps)}
        noise = self.noise_scale if math.isnan(newer.noise_scale) else newer.noise_scale
        return Evidence(tuple(sizes[size] for size in sorted(sizes)), noise)


def same_speeds(old: Iterable[Step], new: Iterable[Step]) -> bool:
    """True if the same sizes have about the same speeds."""
    before, after = ({step.size: step.samples_per_second for step in steps} for steps in (old, new))
    return before.keys() == after.keys() and all(nearly(before[key], after[key], SPEED_CHANGE) for key in after)


def nearly(old: float, new: float, tolerance: float) -> bool:
    """True if a number has changed by at most a share `tolerance`; False if the old one was not known."""
    return abs(new - old) <= tolerance * abs(old)


def by_gpu_type(steps: Iterable[Step]) -> dict[str, tuple[Step, ...]]:
    """Group steps by GPU type; the type with most steps comes first."""
    found: dict[str, tuple[Step, ...]] = {}
    for step in steps:
        found[step.gpu_type] = (*found.get(step.gpu_type, ()), step)
    return dict(sorted(found.items(), key=lambda item: -sum(step.steps for step in item[1])))


def columns(steps: Iterable[Step]) -> StepMeasurements:
    """Return the steps as columns."""
    rows = [step[:5] for step in steps]
    return StepMeasurements(*np.array(rows, dtype=np.float64).reshape(-1, 5).T)


def with_sync(name: str, rows: StepMeasurements) -> StepMeasurements:
    """Fill in the time of synchronisation of whole steps, by the step of one GPU. name: model's name, for errors.

    With a batch per GPU, it is the time in excess of one GPU's step. With one batch for all, only one GPU's step shows
    the computing time. Raises ProfileError if one GPU was not measured.
    """
    alone, batches = rows.step_time[rows.replicas == 1], np.unique(rows.local_batch)
    if not len(alone):
        raise ProfileError(f"{name}: the speed of one worker was not measured")
    beyond = np.maximum(rows.step_time - alone[0], 0.0) if len(batches) == 1 else rows.step_time
    sync = np.where(rows.replicas > 1, beyond, 0.0)
    return StepMeasurements(rows.nodes, rows.replicas, rows.local_batch, rows.step_time, sync)
