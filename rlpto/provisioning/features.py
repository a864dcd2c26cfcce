"""Observations of rented nodes for an agent, and the meaning of its action: GPUs relative to a heuristic's."""

from __future__ import annotations

import numpy as np

from rlpto.core.renting import NodesState
from rlpto.forecasting.minute_averages import HALF_LIVES
from rlpto.forecasting.series import DAY, MONDAY
from rlpto.io.arrays import AnyArray, FloatArray

LEAST_ACTION, LARGEST_ACTION = -4.0, 3.0
"""Bounds of an action."""
SCALE = 3.0
"""Divisor of logarithms, which makes features about 1."""
LIMIT = 100.0
"""Largest absolute value of a feature."""


FEATURES: tuple[str, ...] = (
    *(f"jobs_{minutes}" for minutes in HALF_LIVES),
    *(f"gpus_{minutes}" for minutes in HALF_LIVES),
    *("used", "idle", "booting", "soon", "waiting", "waiting_jobs", "largest", "spare"),
    *(f"{span}_{part}" for span in ("day", "week") for part in ("sine", "cosine")),
)
"""Names of all features except those of a forecast, in order.

By half-life in minutes: jobs and requested GPUs per boot time. GPUs: that jobs hold, that are unused, of nodes that
boot, of nodes that have booted for two thirds of the boot time, that waiting jobs request. Then the number of waiting
jobs, the GPUs that the largest of them requests, and the spare GPUs of the heuristic that action zero is. All except
the last four are logarithms, log(1 + x) / SCALE.
"""


def node_features(state: NodesState, spare: FloatArray) -> AnyArray:
    """[R, FEATURES + F] float32 observations. spare: [R] spare GPUs of the heuristic."""
    boots = state.boot[:, None] / 60.0
    counts = [
        *(boots * state.averages[:, 0]).T,
        *(boots * state.averages[:, 1]).T,
        *(state.used, state.ready - state.used, state.booting, state.soon, state.waiting, state.waiting_jobs),
        *(state.largest, np.maximum(spare, 0.0)),
        *state.forecast.T,
    ]
    logs = np.log1p(np.maximum(counts, 0.0)) / SCALE
    known = len(FEATURES) - 4
    of_day, of_week = (2 * np.pi * ((state.clock - MONDAY) % span) / span for span in (DAY, 7 * DAY))
    clock = [np.sin(of_day), np.cos(of_day), np.sin(of_week), np.cos(of_week)]
    found = np.stack([*logs[:known], *clock, *logs[known:]], axis=1)
    clipped: AnyArray = np.clip(found, -LIMIT, LIMIT).astype(np.float32)
    return clipped


def gpus_of_action(state: NodesState, spare: FloatArray, action: FloatArray) -> FloatArray:
    """[R] GPUs that an action [R] wants: the heuristic's spare GPUs and a node, times exp(action), less a node.

    Action 0 is the heuristic; below it there may be fewer nodes than waiting jobs request.
    """
    factor = np.exp(np.clip(action, LEAST_ACTION, LARGEST_ACTION))
    return np.maximum(state.demand + (spare + state.size) * factor - state.size, 0.0)
