"""Lengths of jobs that had finished before a window began, grouped by model and user for compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlpto.core.jobs import FinishedJob, user_code
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.by_reference import by_reference
from rlpto.io.compiled import kernel
from rlpto.performance.tables import SpeedTables

GROUP = np.dtype([(name, "i8") for name in ("window", "type", "by_user", "user", "first", "end")], align=True)
"""Jobs first to end - 1 share a window and a pooled type; if by_user is 1 also the user, if 0 all users count."""


@by_reference
class History(NamedTuple):
    """Epochs of jobs that had finished before each of several windows began.

    groups: [G] GROUP in ascending order. epochs: [H] epochs of each job of each group, ascending within a group; every
    job is in two groups, one of its user and one of all users. longer: [H] sum of `epochs` from each job to the end of
    its group.
    """

    groups: AnyArray
    epochs: FloatArray
    longer: FloatArray


NO_HISTORY = History(np.zeros(0, dtype=GROUP), np.zeros(0), np.zeros(0))
"""The history if no job had finished."""


def compile_history(windows: Sequence[Sequence[FinishedJob]], tables: SpeedTables) -> History:
    """Group the jobs that had finished before each window. Jobs of types that the tables do not hold are left out."""
    index = {job_type: int(tables.pooled[number]) for job_type, number in tables.submitted.items()}
    found = [
        (window, index[job.job_type], user_code(job.user), job.epochs)
        for window, jobs in enumerate(windows)
        for job in jobs
        if job.job_type in index
    ]
    if not found:
        return NO_HISTORY
    number, types, users = np.array([job[:3] for job in found], dtype=np.int64).T
    none = np.zeros_like(number)
    keys = np.hstack([(number, types, none, none), (number, types, none + 1, users)])
    epochs = np.tile([job[3] for job in found], 2)
    order = np.lexsort((epochs, *keys[::-1]))
    keys, epochs = keys[:, order], epochs[order]
    first = np.flatnonzero(np.append(True, (np.diff(keys) != 0).any(axis=0)))
    end = np.append(first[1:], len(epochs))
    groups = np.zeros(len(first), dtype=GROUP)
    for name, column in zip(GROUP.names or (), (*keys[:, first], first, end), strict=True):
        groups[name] = column
    longer = np.concatenate([np.cumsum(epochs[a:b][::-1])[::-1] for a, b in zip(first, end, strict=True)])
    return History(groups, epochs, longer)


@kernel()
def longer_jobs(
    history: History, window: int, job_type: int, by_user: int, user: int, progress: float
) -> tuple[int, float, float, float]:
    """Return the number of jobs in a group that trained longer than `progress` epochs, and the sum of their epochs.

    Both are 0 if there is no such group. Also return the bounds [low, high) of `progress` within which this result
    stays the same.
    """
    first, end = group_at(history, window, job_type, by_user, user)
    if first == end:
        return 0, 0.0, -np.inf, np.inf
    at = first + np.searchsorted(history.epochs[first:end], progress, side="right")
    shorter = history.epochs[at - 1] if at > first else -np.inf
    if at == end:
        return 0, 0.0, shorter, np.inf
    return int(end - at), history.longer[at], shorter, history.epochs[at]


@kernel()
def group_at(history: History, window: int, job_type: int, by_user: int, user: int) -> tuple[int, int]:
    """Return the first index of a group in `epochs`, and the index after its last; 0, 0 if there is no such group."""
    low, high = 0, len(history.groups)
    while low < high:
        middle = (low + high) // 2
        group = history.groups[middle]
        if group.window != window:
            before = group.window < window
        elif group.type != job_type:
            before = group.type < job_type
        elif group.by_user != by_user:
            before = group.by_user < by_user
        else:
            before = group.user < user
        if before:
            low = middle + 1
        else:
            high = middle
    if low == len(history.groups):
        return 0, 0
    group = history.groups[low]
    if group.window != window or group.type != job_type or group.by_user != by_user or group.user != user:
        return 0, 0
    return group.first, group.end
