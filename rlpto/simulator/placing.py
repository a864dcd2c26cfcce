"""Compiled: jobs onto the very nodes that a policy has chosen."""

from __future__ import annotations

from rlpto.core.placement import release
from rlpto.io.arrays import AnyArray, IntArray
from rlpto.io.compiled import kernel
from rlpto.simulator.arrays import World
from rlpto.simulator.job_kernels import log_change, start_running, stop_running


@kernel()
def apply_placement(w: World, b: int, index: IntArray, placement: IntArray) -> None:
    """Give job index[i] placement[i, node] GPUs of every node: first all that is given back, then what is taken.

    Jobs that hold just these are not touched. The nodes must have room.
    """
    now, free, changed, count = w.clusters[b].time, w.free[b], w.scratch, 0
    for i in range(len(index)):
        j = index[i]
        job, nodes = w.jobs[b, j], w.nodes[b, j]
        if holds_just(nodes, job.gpus, placement[i]):
            continue
        if placement[i].sum() == 0:
            stop_running(w, b, j, now)
            log_change(w, b, j, now)
            continue
        release(nodes, job.gpus, free)
        changed[count] = i
        count += 1
    for k in range(count):
        i = changed[k]
        j = index[i]
        job, nodes, row = w.jobs[b, j], w.nodes[b, j], placement[i]
        shrinks, kept = 1, 0
        for node in range(len(row)):
            shrinks = int(shrinks and row[node] <= gpus_on(nodes, job.gpus, node))
        before = job.gpus
        for node in range(len(row)):
            free[node] -= row[node]
            for _ in range(row[node]):
                nodes[kept] = node
                kept += 1
        w.clusters[b].held += kept - before
        job.gpus = kept
        start_running(w, b, j, shrinks)
        log_change(w, b, j, now)


@kernel()
def gpus_on(nodes: AnyArray, held: int, node: int) -> int:
    """GPUs of a job's `held` that are on `node`."""
    count = 0
    for i in range(held):
        count += nodes[i] == node
    return count


@kernel()
def holds_just(nodes: AnyArray, held: int, row: IntArray) -> bool:
    """True if a job that holds `held` GPUs has row[node] of them on every node."""
    if row.sum() != held:
        return False
    for i in range(held):  # noqa: SIM110 - compiled code without memory knows no generators
        if gpus_on(nodes, held, nodes[i]) != row[nodes[i]]:
            return False
    return True
