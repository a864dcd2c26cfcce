"""The reward of a decision: accuracy gained, minus time, resources and rescales it cost."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from rlpto.arrays import FloatArray
from rlpto.settings import Settings

HOUR = 3600.0
LARGEST_WEIGHT = 1e6
"""Of a part of the reward, or of a class in it."""

_ClassWeight = Annotated[float, Field(ge=0, le=LARGEST_WEIGHT)]


class RewardWeights(Settings):
    """Weights of the reward's parts. All times are counted in hours."""

    accuracy: float = Field(1.0, ge=0, le=LARGEST_WEIGHT)
    """Reward for a job of weight 1 that gains all the accuracy it can gain, from start to finish."""
    time: float = Field(1.0, ge=0, le=LARGEST_WEIGHT)
    """Cost of one job being unfinished for one hour; summed over jobs, hours times this is total JCT."""
    resources: float = Field(0.02, ge=0, le=LARGEST_WEIGHT)
    """Cost of one GPU held for one hour."""
    rescale: float = Field(0.1, ge=0, le=LARGEST_WEIGHT)
    """Cost of one hour of rescale delay."""
    classes: tuple[_ClassWeight, _ClassWeight, _ClassWeight] = (3.0, 2.0, 1.0)
    """Weight of a job's accuracy by priority class: high, normal, low."""


def reward_parts(
    accuracy_gain: FloatArray,
    unfinished: FloatArray | float,
    gpu_seconds: FloatArray | float,
    rescale_seconds: FloatArray | float,
    weights: RewardWeights,
) -> FloatArray:
    """Accuracy, time, resources and rescale parts [..., 4], weighted and signed; their sum is the reward.

    Arguments are those sums of `rlpto.cluster.Progress`: accuracy_gain [..., classes], the others [...].
    """
    return np.stack(
        [
            weights.accuracy * np.asarray(accuracy_gain @ np.array(weights.classes)),
            -weights.time * np.asarray(unfinished) / HOUR,
            -weights.resources * np.asarray(gpu_seconds) / HOUR,
            -weights.rescale * np.asarray(rescale_seconds) / HOUR,
        ],
        axis=-1,
    )
