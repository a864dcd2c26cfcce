"""Compiled kernels of greedy allocation: steps of growth, and a heap that selects the best step.

A job's choices are 0 GPUs or any number from its lowest to its highest. A *step* leads from a
number of GPUs to a larger one. Speed often dips when a job spills over to another node, and a greedy
policy with steps of single GPUs would stop there. `hull_steps` therefore follows the upper concave
hull of a value over GPUs, which consists of single GPUs wherever the value is concave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.compiled import helper, kernel, njit
from rlpto.policies.filling import fit_in_order


class GrowthSteps(NamedTuple):
    """The next step of each row from any number of GPUs; n rows, at most K GPUs.

    target: [n, K + 1] int64, GPUs after the step; the present number if there is no step.
    gain: [n, K + 1] float64, value gained per GPU of the step; 0 if there is no step.
    """

    target: IntArray
    gain: FloatArray


@njit()
def hull_steps(value: FloatArray, lowest: IntArray, highest: IntArray) -> GrowthSteps:
    """Return the steps along the upper concave hull of `value` [n, K + 1] over 0 and lowest..highest GPUs."""
    steps = GrowthSteps(np.zeros(value.shape, dtype=np.int64), np.zeros(value.shape))
    chain = np.empty(value.shape[1], dtype=np.int64)
    for row in range(len(value)):
        walk_hull(value[row], lowest[row], highest[row], chain, steps.target[row], steps.gain[row])
    return steps


@kernel()
def walk_hull(
    value: FloatArray, lowest: int, highest: int, chain: IntArray, target: IntArray, gain: FloatArray
) -> None:
    """Fill target and gain [K + 1] of a row of `hull_steps`, except for 1..lowest - 1 GPUs, which no job can hold.

    chain: [K + 1] working memory for the hull's vertices right of the present number, nearest last.
    """
    target[highest] = chain[0] = highest
    size = 1
    gpus = highest - 1
    while gpus >= 0:
        if 0 < gpus < lowest:
            gpus = 0
        here = value[gpus]
        slope = (value[chain[size - 1]] - here) / (chain[size - 1] - gpus)
        while size > 1:
            beyond = (value[chain[size - 2]] - here) / (chain[size - 2] - gpus)
            if beyond <= slope + 1e-12 * abs(slope):  # straight lines, up to rounding, stay single steps
                break
            slope = beyond
            size -= 1
        target[gpus] = chain[size - 1]
        gain[gpus] = slope
        chain[size] = gpus
        size += 1
        gpus -= 1


@helper()
def sift_down(heap: IntArray, size: int, key: FloatArray, at: int) -> None:
    """Move a row of `heap[:size]` to its place. The row with the largest key, first of equals, is on top."""
    row = heap[at]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size:
            left, right = heap[child], heap[child + 1]
            if key[right] > key[left] or (key[right] == key[left] and right < left):
                child += 1
        best = heap[child]
        if key[best] > key[row] or (key[best] == key[row] and best < row):
            heap[at] = best
            at = child
        else:
            break
    if size > 0:
        heap[at] = row


def growing(score: Callable[..., float]) -> Callable[..., IntArray]:
    """Return a compiled greedy search that takes steps in order of the compiled score(row, gpus, *known).

    grow(gpus, target, known, lowest, capacity, threshold) ends when GPUs run out or no step scores above `threshold`.
    gpus: [n] at the start; the sum must be within capacity. target: [n, K + 1] of `GrowthSteps`. Ties go to the first
    row. If a row's first step does not fit but its lowest number does, the row starts with that number; other steps
    that do not fit are left out. Returns GPUs [n]. `score` is called only for the next step of a row.
    """

    @helper()
    def take(
        gpus: IntArray,
        target: IntArray,
        known: tuple[Any, ...],
        lowest: IntArray,
        free: int,
        threshold: float,
        heap: IntArray,
        key: FloatArray,
    ) -> None:
        size = 0
        for row in range(len(gpus)):
            free -= gpus[row]
            if target[row, gpus[row]] > gpus[row]:
                key[row] = score(row, gpus[row], *known)
                if key[row] > threshold:
                    heap[size] = row
                    size += 1
        for at in range(size // 2 - 1, -1, -1):
            sift_down(heap, size, key, at)
        while free > 0 and size > 0:
            row = heap[0]
            after = target[row, gpus[row]]
            if after - gpus[row] > free and gpus[row] == 0:
                after = lowest[row]
            if after - gpus[row] <= free:
                free -= after - gpus[row]
                gpus[row] = after
                if target[row, after] > after:
                    key[row] = score(row, after, *known)
                    if key[row] > threshold:
                        sift_down(heap, size, key, 0)
                        continue
            size -= 1
            heap[0] = heap[size]
            sift_down(heap, size, key, 0)

    @helper(_nrt=True)
    def grow(
        gpus: IntArray, target: IntArray, known: tuple[Any, ...], lowest: IntArray, capacity: int, threshold: float
    ) -> IntArray:
        gpus, count = gpus.copy(), len(gpus)
        take(gpus, target, known, lowest, capacity, threshold, np.empty(count, dtype=np.int64), np.empty(count))
        return gpus

    return grow


@kernel()
def _stored(row: int, gpus: int, score: FloatArray) -> np.float64:
    return np.float64(score[row, gpus])


_grow = growing(_stored)


@njit()
def grow(
    gpus: IntArray, target: IntArray, score: FloatArray, lowest: IntArray, capacity: int, threshold: float
) -> IntArray:
    """Take steps in order of a score [n, K + 1], given by present GPUs, with the search of `growing`."""
    return _grow(gpus, target, (score,), lowest, capacity, threshold)


def size_steps(value: FloatArray, floor_size: IntArray, highest: IntArray) -> GrowthSteps:
    """Return the steps from any number of GPUs to the next allowed size up to highest [n].

    floor_size: [n, K + 1] `JobTable.floor_size`. value: [n, K + 1], not finite where it is unknown, as without GPUs.
    """
    gpus = np.arange(floor_size.shape[1])
    sizes = np.where((floor_size == gpus) & (gpus <= highest[:, None]), gpus, len(gpus))
    later = np.minimum.accumulate(sizes[:, ::-1], axis=1)[:, ::-1]  # the first size from each number of GPUs on
    target = np.where(np.roll(later, -1, axis=1) < len(gpus), np.roll(later, -1, axis=1), gpus)
    target[:, -1] = gpus[-1]
    with np.errstate(invalid="ignore"):
        gain = (np.take_along_axis(value, target, axis=1) - value) / np.maximum(target - gpus, 1)
    return GrowthSteps(target, np.where(np.isfinite(gain), gain, 0.0))


def single_steps(gain: FloatArray, highest: IntArray) -> GrowthSteps:
    """Return steps of one GPU up to highest [n] for rows that have GPUs; a row without GPUs has no steps."""
    gpus = np.arange(gain.shape[1])
    return GrowthSteps(np.where((gpus > 0) & (gpus < highest[:, None]), gpus + 1, gpus), gain)


def grow_from_lowest(
    order: IntArray, lowest: IntArray, steps: GrowthSteps, capacity: int, threshold: float = 0.0
) -> IntArray:
    """Return GPUs [n]: each row of `order` in turn gets its lowest number, if that fits; then steps follow by gain."""
    return grow(fit_in_order(order, lowest, capacity), steps.target, steps.gain, lowest, capacity, threshold)
