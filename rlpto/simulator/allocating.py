"""Compiled: immediate effects of a decision on the GPUs, nodes and types of jobs."""

from __future__ import annotations

import numpy as np

from rlpto.core.placement import NOWHERE, main_node, release, shrink_in_place, take
from rlpto.io.arrays import AnyArray, IntArray
from rlpto.io.compiled import helper, kernel
from rlpto.simulator.arrays import World
from rlpto.simulator.job_kernels import (
    foresee_finish,
    log_change,
    run_at,
    speed_row,
    start_running,
    stop_running,
    train_at,
)


@helper(_nrt=True)
def sort_growing(growing: IntArray, gpus: IntArray, order: IntArray, most_free: int) -> None:
    """Sort rows into the order of placement: by `order` under most_free, else by descending number of GPUs, because
    large jobs need whole nodes; ties keep their order."""
    if most_free:
        grows = np.zeros(len(order), dtype=np.bool_)
        for row in growing:
            grows[row] = True
        at = 0
        for row in order:
            if grows[row]:
                growing[at] = row
                at += 1
    elif len(growing) > 16:  # by counting, as sorting functions take seconds to compile
        most, unsorted = 0, np.empty(len(growing), dtype=np.int64)
        for k in range(len(growing)):
            unsorted[k] = growing[k]
            most = max(most, gpus[growing[k]])
        begins, at = np.zeros(most + 1, dtype=np.int64), 0
        for row in unsorted:
            begins[gpus[row]] += 1
        for count in range(most, -1, -1):
            begins[count], at = at, at + begins[count]
        for row in unsorted:
            growing[begins[gpus[row]]] = row
            begins[gpus[row]] += 1
    else:  # few rows: sort in place, without extra memory
        for k in range(1, len(growing)):
            row, at = growing[k], k
            while at > 0 and gpus[growing[at - 1]] < gpus[row]:
                growing[at] = growing[at - 1]
                at -= 1
            growing[at] = row


@helper()
def apply_allocation(w: World, b: int, index: IntArray, gpus: IntArray, order: IntArray) -> None:
    """Give job index[i] gpus[i] GPUs, for every active job; order: rows in which jobs are placed.

    All released GPUs are freed before others are taken. Jobs with an unchanged number are not touched.
    """
    now, most_free, free, jobs = w.clusters[b].time, w.rules[0].most_free, w.free[b], w.jobs[b]
    growing, count = w.scratch, 0  # rows that get more GPUs
    for i in range(len(index)):
        j = index[i]
        job = jobs[j]
        if job.gpus == gpus[i]:
            continue
        if gpus[i] == 0:
            stop_running(w, b, j, now)
            log_change(w, b, j, now)
        elif gpus[i] < job.gpus and not most_free:
            shrink_in_place(w.nodes[b, j], job.gpus, gpus[i], free)
            w.clusters[b].held -= job.gpus - gpus[i]
            job.gpus = gpus[i]
            start_running(w, b, j, 1)
            log_change(w, b, j, now)
        else:
            release(w.nodes[b, j], job.gpus, free)
            growing[count] = i
            count += 1
    if count > 1:
        sort_growing(growing[:count], gpus, order, most_free)
    for k in range(count):
        i = growing[k]
        j = index[i]
        job, nodes = jobs[j], w.nodes[b, j]
        take(nodes, gpus[i], free, NOWHERE if most_free else main_node(nodes, job.gpus), most_free)
        w.clusters[b].held += gpus[i] - job.gpus
        job.gpus = gpus[i]
        start_running(w, b, j, 0)
        log_change(w, b, j, now)


@kernel()
def apply_placement(w: World, b: int, index: IntArray, placement: IntArray) -> None:
    """Give job index[i] placement[i, node] GPUs of every node, after freeing all released GPUs.

    Jobs that already hold exactly these GPUs are not touched. The nodes must have room.
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


@helper()
def gpus_on(nodes: AnyArray, held: int, node: int) -> int:
    """Number of a job's `held` GPUs that are on `node`."""
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


@kernel()
def choose_types(w: World, b: int, index: IntArray, types: IntArray) -> None:
    """Change the type of job index[i] to types[i]: it continues with another batch size and loses nothing.

    Its training so far counts as saved by a checkpoint. A job that moves to another GPU type releases its GPUs, because
    its workers cannot move.
    """
    for i in range(len(index)):
        j = index[i]
        job = w.jobs[b, j]
        before, job_type = job.type_index, types[i]
        if before == job_type:
            continue
        job.type_index = job.estimated_type = job_type
        if w.types[before].gpu_type != w.types[job_type].gpu_type and job.gpus > 0:
            stop_running(w, b, j, w.clusters[b].time)
        if job.gpus == 0:
            continue
        if job.grow_left > 0.0:
            job.next_row = speed_row(w, b, j)
            run_at(w, b, j, row_like(w, before, job_type, job.training_gpus, job.row))
        else:
            run_at(w, b, j, speed_row(w, b, j))
        foresee_finish(w, b, j)


@kernel()
def restart_jobs(w: World, b: int, index: IntArray, rescales: IntArray) -> None:
    """Restart running jobs index [n], whose servers have changed, from a checkpoint; no worker trains until then.

    rescales: [n] the jobs' rescales before the decision. A job that also got other GPUs restarts only once.
    """
    for i in range(len(index)):
        j = index[i]
        job = w.jobs[b, j]
        delay = float(w.types[job.type_index].delay)
        resized = job.rescales > rescales[i]
        if resized and w.rules[0].overlap == 0:
            continue
        if not resized:
            job.rescales += 1
            w.sums[b].rescales += 1
        w.sums[b].rescale_seconds += delay
        job.rescale_left = delay
        train_at(w, b, j, speed_row(w, b, j))
        foresee_finish(w, b, j)


@kernel()
def row_like(w: World, before: int, after: int, gpus: int, row: int) -> int:
    """Return the row of type `after` for GPUs that span the same number of nodes as in `row` of type `before`."""
    spans = w.row.shape[1]
    for spanned in range(spans):
        if w.row[before, spanned, gpus] == row:
            return int(w.row[after, spanned, gpus])
    return int(w.row[after, 0, gpus])
