"""The tuned index: greedy by a log-linear score of every step, with a handful of tuned weights.

Source: index policies for parallel jobs follow Gittins and Whittle (Gittins, Glazebrook, Weber,
"Multi-armed Bandit Allocation Indices", 2011); the marginal gain over a power of the remaining time
sits between equal shares and SRTF (Berg, Vesilo, Harchol-Balter 2020). Constants by evolution
strategy (`rlpto tune index`).
Adapted: this project's own form. A step from k to k' GPUs scores
    sum over features of weight x feature,
and the best steps are taken until the GPUs are gone. Steps follow the concave hull of the speed.

Weights may differ by job, and so may depend on the state: that is how a learned policy steers this
one (`steered_gpus`). It has some further weights, `rlpto.policies.steering`, which here are off.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.arrays import FloatArray, IntArray
from rlpto.cluster import Allocation, ClusterState
from rlpto.policies.greedy import Steps
from rlpto.policies.index_weights import IndexWeights, load_index_weights
from rlpto.policies.steering import score_steps, steer, steering_weights
from rlpto.settings import Settings


class IndexOptions(Settings):
    """Options of `index`."""

    weights: Path | None = None
    """YAML file of weights, as `rlpto tune index` writes it; null: the two-parameter form."""


class Index:
    """Steps with the largest index first, until the GPUs are gone or nothing speeds a job up."""

    summary = "greedy by marginal gain over remaining time^a, sticky, with tuned constants, elastic"
    source = "this project; after Gittins indices and Berg et al. 2020"
    Options = IndexOptions

    def __init__(self, options: IndexOptions | None = None, weights: IndexWeights | None = None) -> None:
        self.name = "index"
        self.options = options or IndexOptions()
        if weights is None:
            weights = IndexWeights() if self.options.weights is None else load_index_weights(self.options.weights)
        self._weights = weights.vector()

    def reset(self, seed: int) -> None:
        """Nothing is remembered."""

    def __call__(self, state: ClusterState) -> Allocation:
        """Score all steps and take the best."""
        return Allocation(index_gpus(state, self._weights))


def index_gpus(state: ClusterState, weights: FloatArray) -> IntArray:
    """GPUs [n] by index; weights: [INDEX_FEATURES] for all jobs, or [n, INDEX_FEATURES].

    Whatever the weights, jobs of a higher class start before any job of the lowest class present
    starts, and before any job grows.
    """
    return steered_gpus(state, steering_weights(weights))


def steered_gpus(state: ClusterState, weights: FloatArray) -> IntArray:
    """GPUs [n] by index; weights: [STEERING_FEATURES] for all jobs, or [n, STEERING_FEATURES]."""
    return steer(state.time, state.capacity, state.jobs.records, state.jobs.speed, np.atleast_2d(weights))


def index_scores(state: ClusterState, steps: Steps, weights: FloatArray) -> FloatArray:
    """[n, K + 1] score of the step from k GPUs on, for the k that a job passes on its way up.

    -infinity elsewhere, and for steps that gain nothing. weights: [INDEX_FEATURES] or [n, INDEX_FEATURES].
    """
    jobs, steering = state.jobs, np.atleast_2d(steering_weights(weights))
    return score_steps(state.time, state.capacity, jobs.records, jobs.speed, steps, steering)
