"""The tuned index: greedy by a log-linear score of every step, with a handful of tuned weights.

Source: index policies for parallel jobs follow Gittins and Whittle (Gittins, Glazebrook, Weber,
"Multi-armed Bandit Allocation Indices", 2011); the marginal gain over a power of the remaining time
sits between equal shares and SRTF (Berg, Vesilo, Harchol-Balter 2020). Constants by evolution
strategy (`rlpto tune index`).
Adapted: this project's own form. A step from k to k' GPUs scores
    sum over features of weight x feature,
and the best steps are taken until the GPUs are gone. Steps follow the concave hull of the speed.

Weights may differ by job, and so may depend on the state: that is how a learned policy steers this
one (`index_gpus` with [n, features] weights).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.arrays import FloatArray, IntArray
from rlpto.cluster import Allocation, ClusterState
from rlpto.compiled import njit
from rlpto.policies.greedy import Steps, grow, hull_steps
from rlpto.policies.index_weights import INDEX_FEATURES, IndexWeights, load_index_weights
from rlpto.policies.speeds import unit_speed
from rlpto.rewards import HOUR
from rlpto.settings import Settings

_COLUMN = {name: column for column, name in enumerate(INDEX_FEATURES)}
_OF_JOB = slice(_COLUMN["remaining"], _COLUMN["attained"] + 1)
_OF_HELD = slice(_COLUMN["held"], _COLUMN["held_remaining"] + 1)
STRICT = 1e6
"""Added, for each class above the lowest, to the score of a step that starts a job: more than weights can undo."""
SHORTEST = 1.0
"""Remaining times below this many seconds count as this."""


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
    """GPUs [n] by index; weights: [features] for all jobs, or [n, features].

    Whatever the weights, jobs of a higher class start before any job of the lowest class present
    starts, and before any job grows.
    """
    jobs = state.jobs
    lowest = jobs.min_gpus
    steps = hull_steps(jobs.speed, lowest, jobs.max_gpus)
    scores = index_scores(state, steps, weights)
    scores[:, 0] += STRICT * (jobs.effective_priority.max() - jobs.effective_priority)
    return grow(np.zeros_like(lowest), steps.target, scores, lowest, state.capacity, -np.inf)


def index_features(state: ClusterState) -> FloatArray:
    """[n, features] what is known of a job before any step.

    Three are completed by the step: `gain` (1 here) by the log of its gain, `start` (1 here) by
    whether it starts the job, and the two of `held` by the part of its GPUs the job holds.
    """
    jobs = state.jobs
    hours = np.log(np.maximum(jobs.remaining / unit_speed(jobs), SHORTEST) / HOUR)
    load = np.log1p(jobs.max_gpus.sum() / max(state.capacity, 1))
    features = np.ones((len(jobs), len(INDEX_FEATURES)))
    features[:, _COLUMN["remaining"]] = hours
    features[:, _COLUMN["remaining_squared"]] = hours * hours
    features[:, _COLUMN["load_remaining"]] = hours * load
    features[:, _COLUMN["priority"]] = 1 - jobs.effective_priority
    features[:, _COLUMN["age"]] = np.log1p((state.time - jobs.submit_time) / HOUR)
    features[:, _COLUMN["attained"]] = np.log1p(jobs.attained_service / HOUR)
    features[:, _COLUMN["held_remaining"]] = hours
    return features


def index_scores(state: ClusterState, steps: Steps, weights: FloatArray) -> FloatArray:
    """[n, K + 1] score of the step from k GPUs on, for the k that a job passes on its way up.

    -infinity elsewhere, and for steps that gain nothing. weights: [features] or [n, features].
    """
    jobs = state.jobs
    parts = index_features(state) * weights
    return _score_steps(
        steps.target,
        steps.gain,
        unit_speed(jobs),
        jobs.gpus,
        parts[:, _OF_JOB].sum(axis=1),
        parts[:, _COLUMN["gain"]].copy(),
        parts[:, _COLUMN["start"]].copy(),
        parts[:, _OF_HELD].sum(axis=1),
    )


@njit(error_model="numpy")
def _score_steps(
    target: IntArray,
    gain: FloatArray,
    unit: FloatArray,
    held: IntArray,
    base: FloatArray,
    gain_weight: FloatArray,
    start: FloatArray,
    sticky: FloatArray,
) -> FloatArray:
    """Add up a step's score; only steps on the way up from no GPUs are looked at."""
    score = np.full(gain.shape, -np.inf)
    for row in range(len(gain)):
        gpus = 0
        while target[row, gpus] > gpus and gain[row, gpus] > 0:
            after = target[row, gpus]
            kept = max(min(held[row], after) - gpus, 0) / (after - gpus)
            score[row, gpus] = base[row] + gain_weight[row] * np.log(gain[row, gpus] / unit[row]) + sticky[row] * kept
            if gpus == 0:
                score[row, gpus] += start[row]
            gpus = after
    return score
