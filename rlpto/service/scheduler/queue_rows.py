"""Where every waiting job stands in the queue, and why it waits."""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.io.arrays import BoolArray, IntArray
from rlpto.store.status import QueueRow


def queue_rows(
    state: ClusterState, ids: tuple[str, ...], given: IntArray, shown: BoolArray, policy: str, drained: bool
) -> list[QueueRow]:
    """The rows of `state` that get no GPUs, in queue order.

    ids: of all jobs of the cluster, by number. given: [n] GPUs that the decision gives the rows. shown: [n] whether the
    policy was shown them.
    """
    asked = state.jobs.requested_gpus.tolist()
    free = state.capacity - int(given.sum())
    rows: list[QueueRow] = []
    ahead = 0
    for row in np.flatnonzero(given == 0).tolist():
        if asked[row] > state.capacity:
            reason = f"it asks for {asked[row]} GPUs, and {state.capacity} are up"
        elif not shown[row]:
            reason = "no job starts: the service is drained" if drained else "its owner holds the GPUs of the quota"
        elif asked[row] > free:
            reason = f"it asks for {asked[row]} GPU{'s' * (asked[row] != 1)}, and {free} of {state.capacity} are free"
        elif ahead:
            reason = f"jobs before it ask for {ahead} GPUs, and {free} of {state.capacity} are free"
        else:
            reason = f"{policy} does not start it yet"
        rows.append(QueueRow(ids[int(state.jobs.index[row])], len(rows) + 1, ahead, reason))
        ahead += asked[row]
    return rows
