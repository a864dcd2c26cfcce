"""The reward of a decision: accuracy gained, minus its cost in time, resources, rescales and late accuracy.

It is a table of terms. To add one, write a function here and add its weight to `RewardWeights`. For a sum that no
cluster counts yet, add a field to `rlpto.core.records.INTERVAL` and count it where it happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.compiled import chained, helper, njit
from rlpto.io.settings import Settings

HOUR = 3600.0
LARGEST_WEIGHT = 1e6
"""Upper bound of the weight of a reward term or of a class."""

_ClassWeight = Annotated[float, Field(ge=0, le=LARGEST_WEIGHT)]


class RewardWeights(Settings):
    """Weights of the reward's terms. All times are counted in hours."""

    accuracy: float = Field(1.0, ge=0, le=LARGEST_WEIGHT)
    """Reward for a job with class weight 1 (`classes`) that gains all the accuracy it can gain."""
    time: float = Field(1.0, ge=0, le=LARGEST_WEIGHT)
    """Cost of one job being unfinished for one hour. The sum over jobs is the total JCT in hours times this weight."""
    resources: float = Field(0.02, ge=0, le=LARGEST_WEIGHT)
    """Cost of one GPU held for one hour."""
    rescale: float = Field(0.1, ge=0, le=LARGEST_WEIGHT)
    """Cost of one hour of rescale delay."""
    shortfall: float = Field(0.0, ge=0, le=LARGEST_WEIGHT)
    """Cost of one hour of a job with class weight 1 that has not yet gained any accuracy. After 90 % of the accuracy it
    can gain, an hour costs a tenth of this. For users who care when accuracy is gained, not only when a job ends."""
    money: float = Field(0.0, ge=0, le=LARGEST_WEIGHT)
    """Cost of one unit of money, the unit of `price` in `cluster.nodes`."""
    classes: tuple[_ClassWeight, _ClassWeight, _ClassWeight] = (3.0, 2.0, 1.0)
    """Weight of a job's accuracy, and of its shortfall, by priority class: high, normal, low."""

    def record(self) -> AnyArray:
        """[1] WEIGHTS, for compiled code."""
        record = np.zeros(1, dtype=WEIGHTS)
        for name in type(self).model_fields:
            record[name] = getattr(self, name)
        return record


WEIGHTS = np.dtype(
    [(name, "f8", 3) if name == "classes" else (name, "f8") for name in RewardWeights.model_fields], align=True
)
"""`RewardWeights` as a record."""

TermFunction = Callable[[Any, float, Any], float]


@dataclass(frozen=True)
class Term:
    """A term of the reward. name: of the term and its weight. unit: unit of the amount. description: text in tables.

    function: compiled; maps (sums, gain, weights) to its part of the reward. sums: of the interval, a record of
    `rlpto.core.records.INTERVAL`; gain: accuracy gained in it, weighted by class; weights: a record of WEIGHTS.
    """

    name: str
    unit: str
    description: str
    function: TermFunction


TERMS: list[Term] = []
"""All terms, in the order in which they are reported; their sum is the reward."""


def term(unit: str, description: str) -> Callable[[TermFunction], TermFunction]:
    """Decorator: add a function to the table of terms, under its own name without leading underscores."""

    def add(function: TermFunction) -> TermFunction:
        compiled = helper(error_model="numpy")(function)
        TERMS.append(Term(function.__name__.lstrip("_"), unit, description, compiled))
        return compiled

    return add


@term("1", "Accuracy gained, as a share of what each job can gain, weighted by its priority class, summed over jobs.")
def _accuracy(sums: Any, gain: float, weights: Any) -> float:
    return float(weights.accuracy * gain)


@term(
    "job-h",
    "Minus the weighted job-hours between submit and finish: with weight 1 the negative sum of all JCTs in hours.",
)
def _time(sums: Any, gain: float, weights: Any) -> float:
    return float(-weights.time * sums.unfinished / HOUR)


@term("GPU-h", "Minus the weighted GPU-hours held.")
def _resources(sums: Any, gain: float, weights: Any) -> float:
    return float(-weights.resources * sums.gpu_seconds / HOUR)


@term("h", "Minus the weighted hours of delay that rescales cost.")
def _rescale(sums: Any, gain: float, weights: Any) -> float:
    return float(-weights.rescale * sums.rescale_seconds / HOUR)


@term(
    "job-h",
    "Minus the weighted sum over jobs of hours in the system x share of the job's achievable accuracy gain still "
    "missing x weight of its priority class.",
)
def _shortfall(sums: Any, gain: float, weights: Any) -> float:
    lost, classes = sums.shortfall, weights.classes
    late = lost[0] * classes[0] + lost[1] * classes[1] + lost[2] * classes[2]
    return float(-weights.shortfall * late / HOUR)


@term("money", "Minus the weighted price of the GPUs that jobs held on permanent nodes, and of all rented nodes.")
def _money(sums: Any, gain: float, weights: Any) -> float:
    return float(-weights.money * sums.cost)


REWARD_PARTS: tuple[str, ...] = tuple(entry.name for entry in TERMS)
"""Names of the terms."""

fill_terms = chained([entry.function for entry in TERMS])
"""fill_terms(out, (sums, gain, weights)), compiled: fill out [TERMS] with an interval's terms; arguments of `Term`."""


@njit()
def class_gain(sums: Any, weights: Any) -> float:
    """Accuracy gained in an interval (a record of INTERVAL), weighted by class (of a record of WEIGHTS)."""
    gain, classes = sums.accuracy_gain, weights.classes
    return float(gain[0] * classes[0] + gain[1] * classes[1] + gain[2] * classes[2])


@njit()
def weigh(sums: AnyArray, weights: AnyArray, out: FloatArray) -> None:
    """Fill out [TERMS] with the terms of one interval. sums: [1] INTERVAL. weights: [1] WEIGHTS."""
    fill_terms(out, (sums[0], class_gain(sums[0], weights[0]), weights[0]))


@njit()
def _weigh_all(intervals: AnyArray, gains: FloatArray, weights: AnyArray, out: FloatArray) -> None:
    for i in range(len(intervals)):
        fill_terms(out[i], (intervals[i], gains[i], weights[0]))


def reward_terms(intervals: AnyArray, weights: RewardWeights) -> FloatArray:
    """[N, TERMS] terms of intervals [N] `rlpto.core.records.INTERVAL`, weighted and signed; their sum is the reward."""
    out = np.empty((len(intervals), len(TERMS)))
    if len(intervals):
        gains: FloatArray = intervals["accuracy_gain"] @ np.array(weights.classes)
        _weigh_all(intervals, gains, weights.record(), out)
    return out
