"""One application's measurements as functions: interpolated times and gradient statistics.

The rules are those of the simulator in the Pollux artifact (OSDI 2021), so that its results can be
reproduced exactly. For a size that was never measured that simulator stops with an error; here the nearest
measured size is used instead, see `MeasuredModel.size_steps`.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ProfileError
from rlpto.performance.accuracy import metric_of, to_accuracy
from rlpto.performance.efficiency import BatchLimits, gained
from rlpto.performance.measurements import Measurements

MAX_SPANS = 16
"""Largest measured number of nodes; more nodes count as this many."""


class StepTimes(NamedTuple):
    """Seconds of a step without accumulation and of its synchronisation, arrays of one shape."""

    step: FloatArray
    sync: FloatArray

    def with_accumulation(self, accumulation: IntArray) -> FloatArray:
        """Seconds of a step that computes `accumulation` times more, unsynchronised."""
        return self.step + (self.step - self.sync) * accumulation


class MeasuredModel:
    """One application's measurements as functions."""

    def __init__(self, measured: Measurements) -> None:
        self.measured = measured
        self.limits = BatchLimits(measured.base_batch, measured.largest_batch, measured.min_local, measured.max_local)
        self.epochs = measured.epochs
        progress = measured.progress
        self.epoch_progress: FloatArray = np.diff(progress)
        """[epochs] iterations at the base batch size that each epoch takes."""
        if np.any(self.epoch_progress <= 0):
            raise ProfileError(f"{measured.name}: progress in the validation files does not grow with the epoch")
        self.samples = float(measured.base_batch * progress[-1] / measured.epochs)
        steps = measured.steps
        self._points: FloatArray = np.column_stack([steps.nodes, steps.replicas, steps.local_batch])
        self._times: FloatArray = np.column_stack([steps.step_time, steps.sync_time])
        self._statistics = measured.stacked("grad_sqr"), measured.stacked("grad_var")

    @cached_property
    def _linear(self) -> LinearNDInterpolator:
        return LinearNDInterpolator(self._points, self._times)

    def exact_steps(self, placement: tuple[int, ...], local_batch: IntArray) -> StepTimes:
        """Step times on a measured placement (smallest rotation), linear in the local batch [N].

        NaN outside the local batches measured there: measurements of an exact placement are not extrapolated.
        """
        rows = self.measured.placements[placement]
        at = np.asarray(local_batch, dtype=np.float64)
        outside = (at < rows.local_batch[0]) | (at > rows.local_batch[-1])
        step = np.interp(at, rows.local_batch, rows.step_time)
        sync = np.interp(at, rows.local_batch, rows.sync_time)
        return StepTimes(np.where(outside, np.nan, step), np.where(outside, np.nan, sync))

    def size_steps(
        self, nodes: IntArray, gpus: IntArray, local_batch: IntArray, *, one_by_one: bool = True
    ) -> StepTimes:
        """Step times by size alone, linear between the measured (nodes, GPUs, local batch); shapes broadcast.

        Nodes count as at most 16. A size outside the convex hull of what was measured takes the times of the nearest
        one inside: first GPUs per node are limited to the measured maximum (4 a node), with the same local batch; a
        size still outside takes the nearest measured point, every axis scaled to its range.

        one_by_one: look up every size in a separate call, as the reference does. The measured sizes form a grid, so
        their triangulation has flat simplices, and for a size inside one the search decides which diagonal counts (up
        to 13 % seen). Within a call each search starts where the previous one ended, so separate calls can give other
        results, and they are slow for many sizes.
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
        """[N, epochs] squared norm and variance of the gradient with total batches [N], linear between runs."""
        low, high, weight = self._neighbours(batch)
        sqr, var = (
            (1 - weight)[:, None] * stacked[low] + weight[:, None] * stacked[high] for stacked in self._statistics
        )
        return sqr, var

    def iterations(self, batch: int) -> FloatArray:
        """[epochs] iterations at the end of each epoch with a fixed total batch size, linear between runs."""
        low, high, weight = self._neighbours(np.array([batch]))
        iteration = self.measured.stacked("iteration")
        return np.asarray((1 - weight[0]) * iteration[low[0]] + weight[0] * iteration[high[0]])

    def accuracy(self, batch: int | None) -> FloatArray:
        """[epochs + 1] accuracy by epoch, never falling: for that batch size, or the mean over all."""
        metrics = self.measured.stacked("metric")
        metric = metric_of(self.measured.name, metrics)
        by_run = to_accuracy(metric, metrics)
        if batch is None:
            accuracy = by_run.mean(axis=0)
        else:
            low, high, weight = self._neighbours(np.array([batch]))
            accuracy = (1 - weight[0]) * by_run[low[0]] + weight[0] * by_run[high[0]]
        return np.asarray(np.maximum.accumulate(np.concatenate([[metric.untrained], accuracy])))

    def _neighbours(self, batch: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
        """Runs with the next smaller and larger batch size, and the weight of the larger; [N] each."""
        batches = self.measured.batches
        high = np.clip(np.searchsorted(batches, batch), 0, len(batches) - 1)
        low = np.where(batches[high] == batch, high, np.maximum(high - 1, 0))
        span = batches[high] - batches[low]
        weight = np.where(span > 0, (batch - batches[low]) / np.maximum(span, 1), 0.0)
        return low, high, weight
