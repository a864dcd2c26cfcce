"""The tuned index: greedy by a log-linear score of every step, with a handful of tuned weights.

Source: index policies for parallel jobs follow Gittins and Whittle (Gittins, Glazebrook, Weber,
"Multi-armed Bandit Allocation Indices", 2011); the marginal gain over a power of the remaining time
sits between equal shares and SRTF (Berg, Vesilo, Harchol-Balter 2020). Constants by evolution
strategy (`rlpto tune index`).
Adapted: this project's own form. A step from k to k' GPUs scores
    sum over features of weight x feature,
and the best steps are taken until the GPUs are gone. Steps follow the concave hull of the speed.

A learned policy steers this one by other weights in every state (`rlpto.policies.steering`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy
from rlpto.io.arrays import FloatArray
from rlpto.io.settings import Settings
from rlpto.policies.index_weights import IndexWeights, load_weights
from rlpto.policies.steering import steer


class IndexOptions(Settings):
    """Options of `index`."""

    weights: Path | None = None
    """YAML file of weights, as `rlpto tune index` writes it; null: the two-parameter form."""


class Index(BasePolicy[IndexOptions]):
    """Steps with the largest index first, until the GPUs are gone or no step speeds up a job."""

    name = "index"
    summary = "greedy by marginal gain over remaining time^a, sticky, with tuned constants, elastic"
    source = "this project; after Gittins indices and Berg et al. 2020"
    Options = IndexOptions

    def __init__(
        self,
        options: IndexOptions | None = None,
        weights: IndexWeights | None = None,
        steering: FloatArray | None = None,
    ) -> None:
        """weights, or steering [STEERING_FEATURES]: used instead of the weights in `options`."""
        super().__init__(options)
        if steering is not None:
            found = steering
        elif self.options.weights is not None and weights is None:
            found = load_weights(self.options.weights)
        else:
            found = (weights or IndexWeights()).vector()
        self._weights = np.atleast_2d(found)

    def __call__(self, state: ClusterState) -> Allocation:
        """Score all steps and take the best."""
        return Allocation(steer(state.time, state.capacity, state.jobs.records, state.jobs.speed, self._weights))
