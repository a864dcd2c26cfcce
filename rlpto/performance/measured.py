"""Speed tables from interpolated measurements, without any model of throughput.

The rules are those of the simulator in the Pollux artifact (OSDI 2021), to reproduce its results exactly. For a size
that was never measured that simulator stops with an error; `MeasuredModel.size_steps` uses the nearest measured size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
from scipy.spatial import QhullError

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ProfileError
from rlpto.performance.accuracy import metric_of, to_accuracy
from rlpto.performance.efficiency import (
    BatchLimits,
    BatchPerformance,
    BatchSplit,
    batch_candidates,
    feasible,
    gained,
    split_batch,
    splits,
)
from rlpto.performance.measurements import Measurements, measured_gpu_types, read_measurements
from rlpto.performance.metrics import METRICS
from rlpto.performance.profiles import (
    ModelLimits,
    TypeTables,
    builtin_rescale_delay,
    most_gpus,
    unknown_gpu_type,
    unknown_model,
)
from rlpto.performance.tables import ANY_GPU, JobType, packed_groups, smallest_rotation

MAX_SPANS = 16
"""Largest measured number of nodes, which also stands for more nodes."""


class StepTimes(NamedTuple):
    """Seconds of a step without accumulation and of its synchronisation, arrays of one shape."""

    step: FloatArray
    sync: FloatArray

    def with_accumulation(self, accumulation: IntArray) -> FloatArray:
        """Seconds of a step with `accumulation` more computations, unsynchronised."""
        return self.step + (self.step - self.sync) * accumulation


class MeasuredModel:
    """One application's measurements as functions: interpolated times and gradient statistics."""

    def __init__(self, measured: Measurements) -> None:
        self.measured, self.limits, self.epochs = measured, measured.limits, measured.epochs
        self.epoch_progress: FloatArray = np.diff(measured.progress)
        """[epochs] iterations at the base batch size that each epoch takes."""
        if np.any(self.epoch_progress <= 0):
            raise ProfileError(f"{measured.name}: progress in the validation files does not grow with the epoch")
        steps = measured.steps
        self._points: FloatArray = np.column_stack([steps.nodes, steps.replicas, steps.local_batch])
        self._times: FloatArray = np.column_stack([steps.step_time, steps.sync_time])

    @cached_property
    def _linear(self) -> LinearNDInterpolator:
        try:
            return LinearNDInterpolator(self._points, self._times)
        except QhullError:
            raise ProfileError(
                f"{self.measured.name}: the steps in placements and scalability files lie in one plane, expected steps "
                "on one node and on several, with several numbers of GPUs and several local_bsz"
            ) from None

    def exact_steps(self, placement: tuple[int, ...], local_batch: IntArray) -> StepTimes:
        """Step times on a measured placement (smallest rotation), linear in the local batch [N].

        NaN outside the local batches measured there: measurements of an exact placement are not extrapolated.
        """
        rows = self.measured.placements[placement]
        at = np.asarray(local_batch, dtype=np.float64)
        outside = (at < rows.local_batch[0]) | (at > rows.local_batch[-1])
        found = (np.interp(at, rows.local_batch, times) for times in (rows.step_time, rows.sync_time))
        return StepTimes(*(np.where(outside, np.nan, times) for times in found))

    def size_steps(
        self, nodes: IntArray, gpus: IntArray, local_batch: IntArray, *, one_by_one: bool = True
    ) -> StepTimes:
        """Step times by size alone, linear between the measured (nodes, GPUs, local batch); shapes broadcast.

        Nodes count as at most 16. A size outside the convex hull of the measured sizes takes the times of the nearest
        one inside: first GPUs per node are limited to the measured maximum (4 a node), with the same local batch; a
        size still outside takes the nearest measured point, every axis scaled to its range.

        one_by_one: look up every size in a separate call, like the reference. The measured sizes form a grid, so their
        triangulation has flat simplices, and for a size inside one the search decides which diagonal counts (up to 13 %
        seen). Within a call each search starts where the previous one ended, so separate calls can give other results,
        and they are slow for many sizes.
        """
        nodes, gpus, local_batch = np.broadcast_arrays(np.minimum(nodes, MAX_SPANS), gpus, local_batch)
        asked = np.column_stack([nodes.ravel(), gpus.ravel(), local_batch.ravel()]).astype(np.float64)
        asked, where = np.unique(asked, axis=0, return_inverse=True)
        lookups = asked[:, None] if one_by_one else [asked]
        times = np.concatenate([self._linear(points) for points in lookups])
        outside = np.isnan(times).any(axis=1)
        if outside.any():
            times[outside] = self._nearest(asked[outside])
        times = times[where.ravel()]
        return StepTimes(times[:, 0].reshape(nodes.shape), times[:, 1].reshape(nodes.shape))

    def _nearest(self, asked: FloatArray) -> FloatArray:
        """[N, 2] times of the measured sizes nearest to points [N, 3] outside the hull."""
        per_node = float((self._points[:, 1] / self._points[:, 0]).max())
        held = asked.copy()
        held[:, 1] = np.clip(asked[:, 1], asked[:, 0], asked[:, 0] * per_node)
        times: FloatArray = self._linear(held)
        outside = np.isnan(times).any(axis=1)
        if outside.any():
            times[outside] = NearestNDInterpolator(self._points, self._times, rescale=True)(held[outside])
        return times

    def gain(self, batch: IntArray) -> FloatArray:
        """[N, epochs] progress of one step, in base iterations, with total batches [N] in each epoch.

        Gradient statistics can be too noisy to give a gain (the squared norm is not positive). Then noise is assumed
        to dominate: the gain is batch / base batch.
        """
        return gained(*self.statistics(batch), (batch / self.limits.base)[:, None])

    def statistics(self, batch: IntArray) -> tuple[FloatArray, FloatArray]:
        """[N, epochs] squared norm and variance of the gradient with total batches [N]."""
        runs = self.measured.runs
        return self._between(runs["grad_sqr"], batch), self._between(runs["grad_var"], batch)

    def remaining(self, batch: int) -> FloatArray:
        """[epochs + 1] remaining iterations at the start of each epoch, the input of Pollux's Optimus; 1 at the end."""
        iterations = self._between(self.measured.runs["iteration"], np.array([batch]))[0]
        remaining = np.ones(self.epochs + 1)
        remaining[: self.epochs - 1] = iterations[-1] - iterations[:-1]
        return remaining

    def accuracy(self, batch: int | None) -> FloatArray:
        """[epochs + 1] accuracy by epoch, never falling: at that batch size, or the mean over all."""
        metrics = self.measured.runs["metric"]
        metric = metric_of(self.measured.name, metrics)
        by_run = to_accuracy(metric, metrics)
        accuracy = by_run.mean(axis=0) if batch is None else self._between(by_run, np.array([batch]))[0]
        return np.asarray(np.maximum.accumulate(np.concatenate([[metric.untrained], accuracy])))

    def _between(self, by_run: FloatArray, batch: IntArray) -> FloatArray:
        """[N, epochs] values of runs [B, epochs] with total batches [N], linear between the next smaller and larger."""
        batches = self.measured.batches
        high = np.clip(np.searchsorted(batches, batch), 0, len(batches) - 1)
        low = np.where(batches[high] == batch, high, np.maximum(high - 1, 0))
        span = batches[high] - batches[low]
        weight = np.where(span > 0, (batch - batches[low]) / np.maximum(span, 1), 0.0)[:, None]
        return (1 - weight) * by_run[low] + weight * by_run[high]


class MeasuredProfiles:
    """Interpolated measurements of a folder with one sub-folder per application.

    largest_chosen: `BatchLimits.largest_chosen` by model. Files `placements-TYPE.csv` hold measurements on each named
    GPU type; a plain `placements.csv` was measured on one type, which stands for every type.
    """

    def __init__(self, folder: str | Path, largest_chosen: Mapping[str, int] | None = None) -> None:
        self.folder = Path(folder)
        self._largest_chosen = largest_chosen or {}
        self._models: dict[tuple[str, str], MeasuredModel] = {}

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Names of the applications, sorted."""
        return tuple(sorted({path.parent.name for path in self.folder.glob("*/placements*.csv")}))

    def gpu_types(self, name: str) -> tuple[str, ...]:
        """GPU types on which an application was measured, sorted; empty if it was measured on one unnamed type."""
        if name not in self.models:
            raise unknown_model(name, self.models)
        return measured_gpu_types(self.folder / name)

    def model(self, name: str, gpu: str = ANY_GPU) -> MeasuredModel:
        """Return one application on one GPU type, read when first used. Raises ProfileError if it is unknown, broken,
        or was measured on other types."""
        gpu_types = self.gpu_types(name)
        if gpu_types and gpu not in gpu_types:
            raise unknown_gpu_type(name, gpu, gpu_types)
        key = (name, gpu if gpu_types else ANY_GPU)
        if key not in self._models:
            self._models[key] = MeasuredModel(read_measurements(self.folder / name, key[1]))
        return self._models[key]

    def facts(self, model: str) -> ModelLimits:
        """Return the size and limits of a model, the widest over its GPU types. The rescale delay is the built-in
        profile's, or 30 s."""
        models = [self.model(model, gpu) for gpu in self.gpu_types(model) or (ANY_GPU,)]
        limits = replace(
            models[0].limits,
            min_local=min(measured.limits.min_local for measured in models),
            max_local=max(measured.limits.max_local for measured in models),
            largest_chosen=self._largest_chosen.get(model),
        )
        return ModelLimits(models[0].measured.samples, models[0].epochs, limits, builtin_rescale_delay(model))

    def batch_performance(self, job_type: JobType, placement: tuple[int, ...], gpu: str = ANY_GPU) -> BatchPerformance:
        """Implement `BatchPerformanceSource`. A batch not measured on exactly that placement has the time of its
        size.
        """
        model = self.model(job_type.model, gpu)
        batches = batch_candidates(job_type.batch_size, sum(placement), model.limits)
        measured = smallest_rotation(placement)
        if measured in model.measured.placements:
            steps = model.exact_steps(measured, batches.taken)
        else:
            steps = StepTimes(*np.full((2, len(batches.taken)), np.nan))
        by_size = np.flatnonzero(np.isnan(steps.step))
        if len(by_size):
            count = len(by_size)
            found = model.size_steps(
                np.full(count, len(placement)), np.full(count, batches.gpus), batches.taken[by_size]
            )
            steps.step[by_size], steps.sync[by_size] = found.step, found.sync
        sqr, var = model.statistics(batches.total)
        seconds = steps.with_accumulation(batches.accumulation)
        rates = model.gain(batches.total) / seconds[:, None] / model.epoch_progress
        return BatchPerformance(batches, steps.step, steps.sync, sqr, var, rates)

    def limits(self, model: str, gpu: str = ANY_GPU) -> BatchLimits:
        """Implement `BatchPerformanceSource`."""
        return self.model(model, gpu).limits

    def one_gpu_throughput(self, model: str, gpu: str) -> float:
        """Implement `BatchPerformanceSource`."""
        alone = self.model(model, gpu).measured.placements.get((1,))
        if alone is None:
            raise ProfileError(f"{model}: no steps of placement 1 on GPU type {gpu!r}, expected some to compare types")
        return float(alone.local_batch.max() / alone.step_time.max())

    def epoch_samples(self, model: str) -> FloatArray:
        """Implement `BatchPerformanceSource`."""
        measured = self.model(model, next(iter(self.gpu_types(model)), ANY_GPU))  # alike on every GPU type
        return measured.epoch_progress * measured.limits.base

    def choosing(self, largest: Mapping[str, int]) -> MeasuredProfiles:
        """Like `FittedProfiles.choosing`, but sizes beyond the measured ones are unknown."""
        return MeasuredProfiles(self.folder, largest)

    def type_tables(self, job_type: JobType, max_gpus: int, gpus_per_node: int, gpu: str = ANY_GPU) -> TypeTables:
        """Compile one job type for up to 16 nodes spanned, with a row for every measured placement.

        With more GPUs than the batch can be spread over, the speed is that with the most it can use, packed on few
        nodes. Impossible sizes (more nodes than GPUs, more GPUs than the nodes hold) share the row of the nearest
        possible number of nodes.
        Raises ProfileError if the model is unknown or was not measured on GPUs of type `gpu`, or the type's batch size
        is outside its limits.
        """
        model = self.model(job_type.model, gpu)
        batch, most = job_type.batch_size, most_gpus(job_type, model.limits, max_gpus)
        row, nodes, gpus = _size_rows(most, max_gpus, gpus_per_node)
        exponent = METRICS[job_type.metric].exponent
        sized = _size_rates(model, batch, nodes, gpus, exponent)
        placements, placed = _placement_rates(model, batch, most, exponent)
        rates, score = (np.concatenate(pair) for pair in zip(sized, placed, strict=True))
        return TypeTables(
            facts=self.facts(job_type.model),
            rates=rates,
            row=row,
            exact={placement: len(sized.rates) + i for i, placement in enumerate(placements)},
            accuracy=model.accuracy(batch),
            known_remaining=None if batch is None else model.remaining(batch),
            known_speed=None if batch is None else _known_speed(model, batch, most, max_gpus, gpus_per_node),
            score=None if exponent == 1 else score,
        )


def _size_rows(
    most: int, max_gpus: int, gpus_per_node: int
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.int32]], IntArray, IntArray]:
    """Rows by [nodes - 1, GPUs - 1], and the nodes and GPUs of each row."""
    gpus = np.minimum(np.arange(1, max_gpus + 1), most)
    spans = np.arange(1, MAX_SPANS + 1)[:, None]
    fewest = np.minimum(-(-gpus // gpus_per_node), MAX_SPANS)
    widest = np.where(np.arange(1, max_gpus + 1) > most, fewest, np.minimum(gpus, MAX_SPANS))
    nodes = np.clip(spans, fewest, widest)
    cells, row = np.unique(nodes * (max_gpus + 1) + gpus, return_inverse=True)
    shaped = row.reshape(MAX_SPANS, max_gpus).astype(np.int32)
    return shaped, (cells // (max_gpus + 1)).astype(np.int64), (cells % (max_gpus + 1)).astype(np.int64)


class Rates(NamedTuple):
    """[N, epochs] epochs per second with the chosen batch, and a multiple of its score: samples per second times a
    power of their efficiency. -inf if no batch is possible."""

    rates: FloatArray
    score: FloatArray


def _best_rates(model: MeasuredModel, split: BatchSplit, seconds: FloatArray, exponent: float) -> Rates:
    """Rates of the best of splits [N, C] that take `seconds` [N, C] a step. exponent: `metrics.JobMetric.exponent`."""
    best, rates = np.full((2, split.total.shape[0], model.epochs), -np.inf)
    usable = feasible(split, model.limits) & np.isfinite(seconds)
    batches, batch = np.unique(split.total, return_inverse=True)
    gain = model.gain(batches)
    batch = batch.reshape(split.total.shape)
    for candidate in range(split.total.shape[1]):
        rows = np.flatnonzero(usable[:, candidate])
        useful, scale = gain[batch[rows, candidate]], split.total[rows, candidate, None] / model.limits.base
        # Efficiency is gain / scale, and a step trains `scale` base batches.
        worth = useful**exponent * scale ** (1 - exponent)
        score = worth / seconds[rows, candidate, None] / model.epoch_progress
        better = score > best[rows]
        progress = useful / seconds[rows, candidate, None] / model.epoch_progress
        best[rows], rates[rows] = np.where(better, score, best[rows]), np.where(better, progress, rates[rows])
    return Rates(rates, best)


def _size_rates(model: MeasuredModel, batch: int | None, nodes: IntArray, gpus: IntArray, exponent: float) -> Rates:
    """Rates by size; a size without a possible split takes the rates of the nearest size."""
    split = splits(batch, gpus, model.limits)
    steps = model.size_steps(nodes[:, None], split.gpus, split.local, one_by_one=batch is not None)
    seconds = steps.with_accumulation(split.accumulation)
    found = _best_rates(model, split, seconds, exponent)
    usable = np.isfinite(found.rates).all(axis=1)
    for row in np.flatnonzero(~usable):
        others = np.flatnonzero(usable)
        distance = np.abs(gpus[others] - gpus[row]) * 2 * MAX_SPANS + np.abs(nodes[others] - nodes[row])
        nearest = others[np.argmin(distance)]
        found.rates[row], found.score[row] = found.rates[nearest], found.score[nearest]
    return found


def _placement_rates(
    model: MeasuredModel, batch: int | None, most: int, exponent: float
) -> tuple[list[tuple[int, ...]], Rates]:
    """Measured placements of up to `most` GPUs, and the rates on each. A placement without a measured split of the
    batch is left out, so the rates of its size apply."""
    placements = [placement for placement in model.measured.placements if sum(placement) <= most]
    gpus = np.array([sum(placement) for placement in placements], dtype=np.int64)
    split = splits(batch, gpus, model.limits)
    seconds = np.empty(split.total.shape)
    for i, placement in enumerate(placements):
        seconds[i] = model.exact_steps(placement, split.local[i]).with_accumulation(split.accumulation[i])
    found = _best_rates(model, split, seconds, exponent)
    usable = np.isfinite(found.rates[:, 0])
    return [placement for i, placement in enumerate(placements) if usable[i]], Rates(*(part[usable] for part in found))


def _known_speed(model: MeasuredModel, batch: int, most: int, max_gpus: int, gpus_per_node: int) -> FloatArray:
    """[max_gpus + 1] iterations per second on packed placements, the input of Pollux's Optimus; 0 without GPUs."""
    gpus = np.arange(1, most + 1)
    split = split_batch(batch, gpus, model.limits, accumulate_alone=True)
    by_size = model.size_steps(-(-gpus // gpus_per_node), gpus, split.local)
    seconds = by_size.with_accumulation(split.accumulation)
    for k in gpus:
        placement = smallest_rotation(packed_groups(int(k), gpus_per_node))
        if placement in model.measured.placements:
            measured = model.exact_steps(placement, split.local[k - 1 : k])
            exact = measured.with_accumulation(split.accumulation[k - 1 : k])[0]
            seconds[k - 1] = exact if np.isfinite(exact) else seconds[k - 1]
    speed = np.zeros(max_gpus + 1)
    speed[1:] = 1 / seconds[np.minimum(np.arange(max_gpus), most - 1)]
    return speed
