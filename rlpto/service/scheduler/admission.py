"""Selection of the jobs that a policy may decide on, and the reason why each waiting job waits.

The policy sees no held jobs, no waiting jobs while the service is drained, and never more of a user's jobs than the
quota allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.io.arrays import IntArray
from rlpto.store.status import QueueRow

DRAINED = "no job starts: the service is drained"


def eligible(
    state: ClusterState,
    owners: Sequence[str],
    limits: Mapping[str, int],
    drained: bool,
    held: Mapping[int, str],
) -> tuple[ClusterState, dict[int, str]]:
    """Return the state that the policy should see, and the reasons why rows of `state` are hidden.

    owners: owners of the n rows, in queue order. limits: GPUs that a user may hold; users without an entry may hold any
    number. held: by row, the user who put it on hold. A waiting job is hidden if its owner's jobs hold, or should start
    with, the whole quota. Visible jobs may grow into the rest of the quota, in queue order.
    """
    jobs = state.jobs
    waiting = np.flatnonzero(jobs.records["gpus"] == 0).tolist()
    hidden = {row: f"held by {held[row]}" for row in waiting if row in held}
    if drained:
        hidden = dict.fromkeys(waiting, DRAINED) | hidden
    if limits:
        _keep_to_quotas(state, owners, limits, hidden)
    if not hidden:
        return state, hidden
    rows, before = np.setdiff1d(np.arange(len(jobs)), list(hidden)), jobs.records
    left = jobs.reordered(rows, jobs.effective_priority[rows])
    for name in ("max_gpus", "requested_gpus"):  # these may have been lowered, here and by the queue
        left.records[name] = before[name][rows]
    return replace(state, jobs=left), hidden


def _keep_to_quotas(
    state: ClusterState, owners: Sequence[str], limits: Mapping[str, int], hidden: dict[int, str]
) -> None:
    """Add rows beyond the quotas to `hidden`, and lower max_gpus of the others to their owners' quotas.

    A quota may have been lowered since a job was submitted or started: it then gets fewer GPUs than it asks for, but
    never fewer than its min_gpus.
    """
    view = state.jobs.records
    held, least, asked = (view[name].tolist() for name in ("gpus", "min_gpus", "requested_gpus"))
    left, given = dict(limits), dict[int, int]()
    for row, owner in enumerate(owners):
        if owner in left and held[row]:
            given[row] = max(min(held[row], left[owner]), least[row])
            left[owner] -= given[row]
    for row, owner in enumerate(owners):
        if owner not in left or row in hidden or held[row]:
            continue
        wanted = min(asked[row], limits[owner])
        if least[row] > limits[owner]:
            hidden[row] = f"it needs {least[row]} GPUs, and its owner may hold {limits[owner]}"
        elif wanted > left[owner]:
            hidden[row] = f"its owner may hold {limits[owner]} GPUs, and jobs before it have or get them"
        else:
            given[row] = max(wanted, least[row])
            left[owner] -= wanted
    for row, owner in enumerate(owners):
        if row in given:
            base = given[row]
            more = min(max(left[owner], 0), max(int(view["max_gpus"][row]) - base, 0))
            left[owner] -= more
            view["max_gpus"][row] = min(int(view["max_gpus"][row]), base + more)
            view["requested_gpus"][row] = min(int(view["requested_gpus"][row]), int(view["max_gpus"][row]))


def queue_rows(
    state: ClusterState, ids: tuple[str, ...], given: IntArray, hidden: Mapping[int, str], policy: str
) -> list[QueueRow]:
    """The rows of `state` that get no GPUs, in queue order.

    ids: ids of all jobs of the cluster, by number. given: GPUs that the decision gives the rows [n]; jobs may not hold
    all of them yet, or still hold others. hidden: reasons why rows were hidden from the policy.
    """
    asked, taken = state.jobs.requested_gpus.tolist(), int(given.sum())
    free = state.capacity - taken
    rows: list[QueueRow] = []
    ahead = 0
    for row in np.flatnonzero(given == 0).tolist():
        if row in hidden:
            reason = hidden[row]
        elif asked[row] > state.capacity:
            reason = f"it asks for {asked[row]} GPUs, and {state.capacity} are up"
        elif asked[row] > free:
            asks = f"it asks for {asked[row]} GPU{'s' * (asked[row] != 1)}"
            reason = f"{asks}; jobs that run or start are given {taken} of {state.capacity}"
        elif ahead:
            reason = f"jobs before it ask for {ahead} GPUs, and {free} of {state.capacity} are free"
        else:
            reason = f"{policy} does not start it yet"
        rows.append(QueueRow(ids[int(state.jobs.index[row])], len(rows) + 1, ahead, reason))
        ahead += asked[row]
    return rows
