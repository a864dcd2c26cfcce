"""The law `table`: step times measured by number of nodes and GPUs, and the numbers of GPUs that a model runs on.

Models of billions of parameters run only on some numbers of GPUs: at least as many as hold the model, in multiples of
the degrees of tensor and pipeline parallelism. Tables hold the step time of the fastest combination at each size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field

from rlpto.io.arrays import BoolArray, FloatArray, IntArray

_Count = Annotated[int, Field(ge=1, le=16_384)]
_Seconds = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class SizeTable:
    """Measured seconds of a step at one total batch size, and the sizes that are allowed.

    steps: (nodes, GPUs, seconds), ascending by GPUs, then nodes. allowed: numbers of GPUs that a job may have, within
    the measured range. Default: the measured numbers. Between measured sizes the logarithm of the time is linear in the
    logarithm of the GPUs, on one node and on several nodes separately; no size beyond the measured ones is allowed.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    steps: Annotated[tuple[tuple[_Count, _Count, _Seconds], ...], Field(min_length=1)]
    allowed: Annotated[tuple[_Count, ...], Field(min_length=1)] | None = None
    law: Literal["table"] = field(default="table", kw_only=True)

    def __post_init__(self) -> None:
        sizes = [(gpus, nodes) for nodes, gpus, _ in self.steps]
        for before, after in pairwise(sizes):
            if before == after:
                raise ValueError(f"steps: {after[0]} GPUs on {after[1]} nodes are listed twice, expected once")
            if before > after:
                raise ValueError(f"steps: {after[0]} GPUs after {before[0]}, expected ascending GPUs, then nodes")
        few = next(((gpus, nodes) for gpus, nodes in sizes if nodes > gpus), None)
        if few is not None:
            raise ValueError(f"steps: {few[0]} GPUs on {few[1]} nodes, expected a GPU or more a node")
        if any(after <= before for before, after in pairwise(self.sizes)):
            raise ValueError(f"allowed: {list(self.sizes)}, expected ascending sizes, each once")
        outside = [size for size in self.sizes if not sizes[0][0] <= size <= sizes[-1][0]]
        if outside:
            raise ValueError(f"allowed: {outside[0]} GPUs, expected {sizes[0][0]} to {sizes[-1][0]}, the measured ones")

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of GPUs that a job may have, ascending."""
        return tuple(sorted({gpus for _, gpus, _ in self.steps})) if self.allowed is None else self.allowed

    @cached_property
    def _points(self) -> tuple[tuple[FloatArray, FloatArray], ...]:
        """Logarithms of GPUs and of seconds, for steps on one node, on several nodes, and on any number of nodes.

        The third pair replaces the first or the second if that has no steps.
        """
        either = _points_of(self.steps)
        apart = (_points_of([row for row in self.steps if (row[0] > 1) == several]) for several in (False, True))
        return (*(points if len(points[0]) else either for points in apart), either)

    def step_time(
        self, nodes: ArrayLike, replicas: ArrayLike, local_batch: ArrayLike, accumulation: ArrayLike = 0
    ) -> FloatArray:
        """Implement `ThroughputLaw`. `local_batch` has no effect: the total batch is the measured one. Outside the
        measured sizes, where no job runs, speed is proportional to GPUs below them, and constant above them."""
        nodes, gpus, _ = np.broadcast_arrays(nodes, np.asarray(replicas, dtype=np.float64), local_batch)
        *apart, either = self._points
        one, several = (_interpolated(points, either, gpus) for points in apart)
        seconds = np.where(nodes > 1, several, one) * np.maximum(self.steps[0][1] / gpus, 1.0)
        return np.asarray(seconds * (1 + np.asarray(accumulation)))

    def floor_size(self, max_gpus: int) -> IntArray:
        """[max_gpus + 1] largest allowed size up to each number of GPUs, or 0."""
        return largest_sizes(self.sizes, max_gpus)

    def held_out_errors(self) -> list[float]:
        """Relative errors of the step time of each measured size except the outermost, predicted from the others."""
        errors = []
        for several in (False, True):
            gpus, seconds = _points_of([row for row in self.steps if (row[0] > 1) == several])
            for i in range(1, len(gpus) - 1):
                others = np.delete(gpus, i), np.delete(seconds, i)
                errors.append(abs(float(np.exp(np.interp(gpus[i], *others) - seconds[i])) - 1))
        return errors


def largest_sizes(sizes: tuple[int, ...], max_gpus: int) -> IntArray:
    """[max_gpus + 1] largest of ascending `sizes` up to each number of GPUs, or 0."""
    known = np.array([0, *sizes], dtype=np.int64)
    return known[np.searchsorted(known, np.arange(max_gpus + 1), side="right") - 1]


def _points_of(rows: Iterable[tuple[int, int, float]]) -> tuple[FloatArray, FloatArray]:
    """Logarithms of GPUs and of seconds. If a size was measured on several numbers of nodes, the fewest count."""
    packed: dict[int, float] = {}
    for _, gpus, seconds in rows:
        packed.setdefault(gpus, seconds)
    return np.log(np.array(list(packed), dtype=np.float64)), np.log(np.array(list(packed.values())))


def _interpolated(
    points: tuple[FloatArray, FloatArray], either: tuple[FloatArray, FloatArray], gpus: FloatArray
) -> FloatArray:
    """Seconds by GPUs: by `points` within their range, by `either` outside it."""
    at = np.log(gpus)
    inside: BoolArray = (at >= points[0][0] - 1e-9) & (at <= points[0][-1] + 1e-9)
    return np.asarray(np.exp(np.where(inside, np.interp(at, *points), np.interp(at, *either))))
