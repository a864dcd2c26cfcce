"""Actions: what the agent's choices mean in GPUs.

Three modes. Whatever the mode, what an action comes to is a wish for every active job; the queue
trims wishes to capacity in order of class, in the one place every policy passes through.

index      the action is the weights of the greedy index (`rlpto.policies.steering`), as steps from
           those it starts from: zero is the tuned index, for every state.
levels     each visible job chooses a number of GPUs from a set.
increment  each visible job gets one worker more, keeps what it has, or gives one back, as in DL2
           (Peng et al., arXiv:1909.06040).
"""

from __future__ import annotations

import numpy as np

from rlpto.arrays import FloatArray, IntArray
from rlpto.compiled import njit
from rlpto.policies.steering import STEERING_FEATURES, JobColumns, steer

MODES = ("index", "levels", "increment")
INDEX, LEVELS, INCREMENT = range(3)

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
"""How far an action of 1 moves each weight: about a tenth of the range it may sensibly have."""

LARGEST = 4.0
"""Entries of an index action are cut to [-LARGEST, LARGEST]."""
FEWER, SAME, MORE = range(3)
"""Choices of `increment`."""


def steps() -> list[float]:
    """STEP in the order of STEERING_FEATURES."""
    return [STEP[name] for name in STEERING_FEATURES]


@njit()
def wishes_of_levels(choice: IntArray, levels: IntArray, jobs: JobColumns) -> IntArray:
    """GPUs [n] wished for; choice: [visible] positions in `levels`. Jobs out of sight keep what they hold."""
    wish = np.minimum(jobs.held, jobs.highest)  # less than is held where a limit has been lowered
    for i in range(min(len(wish), len(choice))):
        level = levels[choice[i]]
        wish[i] = 0 if level == 0 else min(max(level, jobs.lowest[i]), jobs.highest[i])
    return wish


@njit()
def wishes_of_increments(choice: IntArray, jobs: JobColumns) -> IntArray:
    """GPUs [n] wished for; choice: [visible] of FEWER, SAME, MORE. Jobs out of sight keep what they hold."""
    wish = np.minimum(jobs.held, jobs.highest)  # less than is held where a limit has been lowered
    for i in range(min(len(wish), len(choice))):
        if choice[i] == MORE:
            wish[i] = min(max(wish[i] + 1, jobs.lowest[i]), jobs.highest[i])
        elif choice[i] == FEWER:
            wish[i] = wish[i] - 1 if wish[i] > jobs.lowest[i] else 0
    return wish


@njit()
def wishes(
    mode: int, now: float, capacity: int, jobs: JobColumns, weights: FloatArray, choice: IntArray, levels: IntArray
) -> IntArray:
    """GPUs [n] wished for in any mode.

    index: weights [1 or n, STEERING_FEATURES]. levels, increment: choice [visible].
    """
    if mode == INDEX:
        return steer(now, capacity, jobs, weights)
    if mode == LEVELS:
        return wishes_of_levels(choice, levels, jobs)
    return wishes_of_increments(choice, jobs)
