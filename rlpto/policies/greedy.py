"""Compiled kernels of greedy allocation: steps of growth, and the heap that takes the best one.

A job's choices are 0 GPUs or anything from its lowest to its highest number. A *step* leads from a
number of GPUs to a larger one. Speeds often dip where a job spills over to another node, where
single GPUs would lead a greedy policy to a dead end; `hull_steps` therefore walks along the upper
concave hull of a value over GPUs, which is a chain of single GPUs wherever the value is concave.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.arrays import FloatArray, IntArray
from rlpto.compiled import njit


class Steps(NamedTuple):
    """What the next step of each row is, from any number of GPUs; n rows, K GPUs at most.

    target: [n, K + 1] int64, GPUs after the step; the present number where there is none.
    gain: [n, K + 1] float64, value gained per GPU of the step; 0 where there is none.
    """

    target: IntArray
    gain: FloatArray


@njit()
def hull_steps(value: FloatArray, lowest: IntArray, highest: IntArray) -> Steps:
    """Steps along the upper concave hull of `value` [n, K + 1] over 0 and lowest..highest GPUs."""
    count, width = value.shape
    target = np.zeros((count, width), dtype=np.int64)
    gain = np.zeros((count, width))
    chain = np.empty(width, dtype=np.int64)  # vertices right of the present number, nearest last
    for row in range(count):
        top = highest[row]
        target[row, top] = top
        chain[0] = top
        size = 1
        gpus = top - 1
        while gpus >= 0:
            if 0 < gpus < lowest[row]:
                gpus = 0
            here = value[row, gpus]
            slope = (value[row, chain[size - 1]] - here) / (chain[size - 1] - gpus)
            while size > 1:
                beyond = (value[row, chain[size - 2]] - here) / (chain[size - 2] - gpus)
                if beyond <= slope + 1e-12 * abs(slope):  # straight lines, up to rounding, stay single steps
                    break
                slope = beyond
                size -= 1
            target[row, gpus] = chain[size - 1]
            gain[row, gpus] = slope
            chain[size] = gpus
            size += 1
            gpus -= 1
    return Steps(target, gain)


@njit()
def grow(
    gpus: IntArray, target: IntArray, score: FloatArray, lowest: IntArray, capacity: int, threshold: float
) -> IntArray:
    """Take steps in order of score until GPUs run out or no step scores above `threshold`.

    gpus: [n] to start from; the sum must be within capacity. target, score: [n, K + 1] as in
    `Steps`, by present GPUs. Ties go to the first row. A step that does not fit is replaced by the
    row's start with its lowest number, if that is what it is about and that fits, and left out
    otherwise. Returns GPUs [n].
    """
    count = len(gpus)
    gpus = gpus.copy()
    heap = np.empty(count, dtype=np.int64)
    key = np.empty(count)
    free, size = capacity, 0
    for row in range(count):
        free -= gpus[row]
        if target[row, gpus[row]] > gpus[row] and score[row, gpus[row]] > threshold:
            key[row] = score[row, gpus[row]]
            heap[size] = row
            size += 1
    heapify(heap, size, key)
    while free > 0 and size > 0:
        row = heap[0]
        after = target[row, gpus[row]]
        if after - gpus[row] > free and gpus[row] == 0:
            after = lowest[row]
        if after - gpus[row] <= free:
            free -= after - gpus[row]
            gpus[row] = after
            if target[row, after] > after and score[row, after] > threshold:
                key[row] = score[row, after]
                replace_top(heap, size, key)
                continue
        size = shrink_top(heap, size, key)
    return gpus


@njit()
def heapify(heap: IntArray, size: int, key: FloatArray) -> None:
    """Order `heap[:size]`, row numbers, so that the row with the largest key, first of equals, is on top."""
    for at in range(size // 2 - 1, -1, -1):
        _sift_down(heap, size, key, at)


@njit()
def replace_top(heap: IntArray, size: int, key: FloatArray) -> None:
    """Put the top row where it belongs after its key has changed."""
    _sift_down(heap, size, key, 0)


@njit()
def shrink_top(heap: IntArray, size: int, key: FloatArray) -> int:
    """Drop the top row; returns the new size."""
    heap[0] = heap[size - 1]
    _sift_down(heap, size - 1, key, 0)
    return size - 1


@njit()
def _sift_down(heap: IntArray, size: int, key: FloatArray, at: int) -> None:
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
