"""Who is shown to the policy: no waiting job while the service is drained, and no more of a user than the quota."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.io.arrays import BoolArray


def eligible(
    state: ClusterState, owners: Sequence[str], quotas: Mapping[str, int | None], default: int | None, drained: bool
) -> tuple[ClusterState, BoolArray]:
    """The state as the policy is to see it, and which rows [n] of `state` are in it.

    owners: of the n rows, in queue order. quotas: GPUs that a user may hold; who is not there may hold `default`; None:
    any number. A job that waits is left out where its owner's jobs hold, or are to start with, all that the quota
    allows. Those that are shown may grow into what is left of it, the first ones first.
    """
    jobs = state.jobs
    shown = jobs.records["gpus"] > 0 if drained else np.ones(len(jobs), dtype=np.bool_)
    limits = {owner: quotas.get(owner, default) for owner in set(owners)}
    if any(limit is not None for limit in limits.values()):
        _keep_to_quotas(state, owners, limits, shown)
    if shown.all():
        return state, shown
    rows, before = np.flatnonzero(shown), jobs.records
    left = jobs.reordered(rows, jobs.effective_priority[rows])
    for name in ("max_gpus", "requested_gpus"):  # which may have been lowered, here and by the queue
        left.records[name] = before[name][rows]
    return replace(state, jobs=left), shown


def _keep_to_quotas(
    state: ClusterState, owners: Sequence[str], limits: Mapping[str, int | None], shown: BoolArray
) -> None:
    """Take rows beyond the quotas out of `shown`, and lower max_gpus of the others to what their owners may hold."""
    view = state.jobs.records
    held, asked = view["gpus"], view["requested_gpus"].copy()
    left = {owner: limit for owner, limit in limits.items() if limit is not None}
    for row, owner in enumerate(owners):
        if owner in left:
            left[owner] -= int(held[row])
    for row, owner in enumerate(owners):
        if owner in left and shown[row] and held[row] == 0:
            if asked[row] > left[owner]:
                shown[row] = False
            else:
                left[owner] -= int(asked[row])
    for row, owner in enumerate(owners):
        if owner in left and shown[row]:
            base = max(int(held[row]) or int(asked[row]), int(view["min_gpus"][row]))
            more = min(max(left[owner], 0), max(int(view["max_gpus"][row]) - base, 0))
            left[owner] -= more
            view["max_gpus"][row] = min(int(view["max_gpus"][row]), base + more)
            view["requested_gpus"][row] = min(int(view["requested_gpus"][row]), int(view["max_gpus"][row]))
