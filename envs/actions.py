"""Actions: the numbers of the agent, and the index weights that they stand for.

An action moves the weights of the greedy index (`rlpto.policies.index`), in steps from the start weights: action zero
is the tuned index, in every state. The index then requests GPUs for every active job. The queue trims these requests
to capacity in order of class, as for every policy.
"""

from __future__ import annotations

import numpy as np

from rlpto.io.arrays import AnyArray, FloatArray

STEP: dict[str, float] = {
    "gain": 0.5,
    "remaining": 0.5,
    "remaining_squared": 0.05,
    "load_remaining": 0.25,
    "priority": 1.0,
    "age": 0.5,
    "attained": 0.25,
    "start": 1.5,
    "held": 0.5,
    "held_remaining": 0.15,
    "gain_remaining": 0.1,
    "gain_load": 0.25,
    "pace": 0.25,
    "pace_remaining": 0.1,
    "start_remaining": 0.25,
    "start_load": 0.5,
    "price": 1.0,
    "patience": 1.0,
}
"""Change of each weight by an action of 1: about a tenth of the weight's sensible range."""

ACTION_FEATURES: tuple[str, ...] = tuple(STEP)
"""Names of the index weights that an action moves: the first ones, in their order. The other weights stay as they
start."""

_STEPS = np.array(list(STEP.values()))

LARGEST = 4.0
"""Entries of an action are cut to [-LARGEST, LARGEST]."""


def action_weights(start: FloatArray, actions: AnyArray, shape: tuple[int, ...]) -> FloatArray:
    """Index weights [..., WEIGHT_NAMES] of actions [..., ACTION_FEATURES] of this shape, starting from `start`.

    Raises ValueError if the actions have another shape or are not finite.
    """
    if np.shape(actions) != shape:
        raise ValueError(f"action of shape {np.shape(actions)}: expected {shape}, a number for each index weight")
    numbers = np.asarray(actions, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError("action: expected finite numbers, got NaN or infinity")
    weights: FloatArray = np.broadcast_to(start, (*shape[:-1], len(start))).copy()
    weights[..., : len(ACTION_FEATURES)] += np.clip(numbers, -LARGEST, LARGEST) * _STEPS
    return weights
