"""Pollux's placement of GPU counts on nodes: at most one job that spans several nodes on each node.

Rows that stay as they are come first, then jobs by falling number of GPUs. A job that fits on one node goes where it
leaves least free. A larger one takes nodes without a job that spans several, most free GPUs first, and ends on the
node that what is missing fits best. Where the nodes have no room for a job's number it gets the best one they do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.arrays import BoolArray, IntArray
from rlpto.compiled import kernel, njit
from rlpto.policies.pollux_objective import MAX_NODES, Costs


class Placed(NamedTuple):
    """A placement, and what follows from it.

    rows: [n, N] GPUs of every job on every node. free: [N] GPUs left. spread: [N] whether a job that spans several
    nodes is there. taken: [MAX_NODES] nodes of the job that is being placed. sizes, order: [G + 2], [n] to sort.
    """

    rows: IntArray
    free: IntArray
    spread: BoolArray
    taken: IntArray
    sizes: IntArray
    order: IntArray


@njit()
def empty_placement(jobs: int, size: IntArray) -> Placed:
    """No job has GPUs on nodes with size [N]."""
    return Placed(
        np.zeros((jobs, len(size)), dtype=np.int64),
        size.copy(),
        np.zeros(len(size), dtype=np.bool_),
        np.zeros(MAX_NODES, dtype=np.int64),
        np.zeros(size.sum() + 2, dtype=np.int64),
        np.zeros(jobs, dtype=np.int64),
    )


@kernel()
def release(job: int, placed: Placed) -> int:
    """Free what a job holds; its GPUs."""
    row = placed.rows[job]
    nodes, gpus = 0, 0
    for node in range(len(row)):
        nodes += row[node] > 0
    for node in range(len(row)):
        if row[node] > 0:
            placed.free[node] += row[node]
            gpus += row[node]
            row[node] = 0
            if nodes > 1:
                placed.spread[node] = False
    return gpus


@kernel()
def put(job: int, row: IntArray, placed: Placed) -> bool:
    """Give a job without GPUs this row [N], if that is allowed."""
    nodes = 0
    for node in range(len(row)):
        nodes += row[node] > 0
    for node in range(len(row)):
        if row[node] > placed.free[node] or (nodes > 1 and row[node] > 0 and placed.spread[node]):
            return False
    for node in range(len(row)):
        if row[node] > 0:
            placed.rows[job, node] = row[node]
            placed.free[node] -= row[node]
            if nodes > 1:
                placed.spread[node] = True
    return True


@kernel()
def place(costs: Costs, jobs: IntArray, stay: BoolArray, gpus: IntArray, placed: Placed) -> None:
    """Place jobs [m], which hold nothing, with gpus [m]; in the present row where it may stay [m] and that is as good.

    gpus is used up.
    """
    sizes, order, m = placed.sizes, placed.order, len(jobs)
    sizes[:] = 0
    for i in range(m):
        job, count = jobs[i], gpus[i]
        if stay[i] and count > 0 and count == costs.total[job]:
            best = min(costs.moved[job, 0, count], costs.moved[job, 1, count])
            if costs.kept[job] <= best and put(job, costs.held[job], placed):
                gpus[i] = 0
        sizes[gpus[i]] += 1
    waiting, last = sizes[0], m
    for count in range(len(sizes)):  # where those with so many begin, the largest first
        last -= sizes[count]
        sizes[count] = last
    for i in range(m):
        order[sizes[gpus[i]]] = i
        sizes[gpus[i]] += 1
    for at in range(m - waiting):
        i = order[at]
        _place_anew(costs, jobs[i], gpus[i], placed)


@kernel()
def _place_anew(costs: Costs, job: int, gpus: int, placed: Placed) -> None:
    """Give a job so many GPUs, or the best number that there is room for."""
    free, one = placed.free, costs.moved[job, 0]
    best, most = -1, 0
    for node in range(len(free)):
        most = max(most, free[node])
        if free[node] >= gpus and (best < 0 or free[node] < free[best]):
            best = node
    if best < 0:
        several = _spread(costs, job, gpus, placed)
        gpus = 0
        for fewer in range(1, min(most, costs.most[job]) + 1):
            if one[fewer] < one[gpus]:
                gpus = fewer
        if several <= one[gpus]:
            return
        release(job, placed)
        for node in range(len(free)):
            if free[node] >= gpus and (best < 0 or free[node] < free[best]):
                best = node
    if gpus > 0:
        placed.rows[job, best] = gpus
        free[best] -= gpus


@kernel()
def _spread(costs: Costs, job: int, gpus: int, placed: Placed) -> float:
    """Place a job on several nodes with at most so many GPUs; what that costs, infinity where it is impossible."""
    several, taken, free, row = costs.moved[job, 1], placed.taken, placed.free, placed.rows[job]
    missing, nodes = gpus, 0
    while missing > 0 and nodes < len(taken):
        node = _next_node(missing, placed)
        if node < 0:
            break
        row[node] = min(free[node], missing)
        free[node] -= row[node]
        missing -= row[node]
        placed.spread[node] = True
        taken[nodes] = node
        nodes += 1
    most = gpus - missing
    best = 0
    for fewer in range(1, most + 1):
        if several[fewer] < several[best]:
            best = fewer
    while most > best:
        node = taken[nodes - 1]
        given = min(row[node], most - best)
        row[node] -= given
        free[node] += given
        most -= given
        if row[node] == 0:
            placed.spread[node] = False
            nodes -= 1
    if nodes == 1:  # few GPUs are left of a job that found no room: it is not on several nodes
        placed.spread[taken[0]] = False
        return float(costs.moved[job, 0, best])
    return float(several[best] if best > 0 else np.inf)


@kernel()
def _next_node(missing: int, placed: Placed) -> int:
    """Of the nodes without a job on several the one that what is missing fits best, else that with most free, or -1."""
    free, best = placed.free, -1
    for node in range(len(free)):
        if placed.spread[node] or free[node] == 0:
            continue
        fits = free[node] >= missing
        if best < 0:
            best = node
        elif free[best] >= missing:
            if fits and free[node] < free[best]:
                best = node
        elif free[node] > free[best]:
            best = node
    return best
