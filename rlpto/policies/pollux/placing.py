"""Pollux's placement of GPU counts on nodes: at most one job that spans several nodes on each node.

Rows that stay as they are come first, then jobs by falling number of GPUs. A job that fits on one node goes to the
node where it leaves the fewest free GPUs. A larger one takes nodes without a spanning job, most free GPUs first, and
puts its last GPUs on the node that fits them best. If a job's number does not fit, it gets the best number that does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.io.arrays import BoolArray, IntArray
from rlpto.io.compiled import kernel, njit
from rlpto.policies.pollux.objective import MAX_NODES, Costs, Rows, empty_rows


class Placed(NamedTuple):
    """A placement, and facts derived from it.

    rows: of every job. free: [N] GPUs left. spread: [N] whether a job that spans several nodes is there.
    sizes, order: [G + 2], [n] to sort.
    """

    rows: Rows
    free: IntArray
    spread: BoolArray
    sizes: IntArray
    order: IntArray


@njit()
def empty_placement(jobs: int, size: IntArray) -> Placed:
    """No job has GPUs on nodes with size [N]."""
    return Placed(
        empty_rows(jobs),
        size.copy(),
        np.zeros(len(size), dtype=np.bool_),
        np.zeros(size.sum() + 2, dtype=np.int64),
        np.zeros(jobs, dtype=np.int64),
    )


@kernel()
def release(job: int, placed: Placed) -> None:
    """Free what a job holds."""
    rows = placed.rows
    spans = rows.spans[job]
    for i in range(spans):
        placed.free[rows.node[job, i]] += rows.gpus[job, i]
        if spans > 1:
            placed.spread[rows.node[job, i]] = False
    rows.spans[job] = 0


@kernel()
def put(job: int, source: Rows, at: int, placed: Placed) -> bool:
    """Give a job without GPUs the row `at` of others, if that is allowed."""
    rows, spans = placed.rows, source.spans[at]
    for i in range(spans):
        node = source.node[at, i]
        if source.gpus[at, i] > placed.free[node] or (spans > 1 and placed.spread[node]):
            return False
    for i in range(spans):
        node, gpus = source.node[at, i], source.gpus[at, i]
        rows.node[job, i], rows.gpus[job, i] = node, gpus
        placed.free[node] -= gpus
        if spans > 1:
            placed.spread[node] = True
    rows.spans[job] = spans
    return True


@kernel()
def copy_row(job: int, rows: Rows, target: Rows, at: int) -> None:
    """Make row `at` of target that of a job."""
    target.spans[at] = rows.spans[job]
    for i in range(rows.spans[job]):
        target.node[at, i], target.gpus[at, i] = rows.node[job, i], rows.gpus[job, i]


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
            if costs.kept[job] <= best and put(job, costs.held, job, placed):
                gpus[i] = 0
        sizes[gpus[i]] += 1
    waiting, last = sizes[0], m
    for count in range(len(sizes)):  # where jobs with this number begin, the largest first
        last -= sizes[count]
        sizes[count] = last
    for i in range(m):
        order[sizes[gpus[i]]] = i
        sizes[gpus[i]] += 1
    for at in range(m - waiting):
        i = order[at]
        _place_new(costs, jobs[i], gpus[i], placed)


@kernel()
def _place_new(costs: Costs, job: int, gpus: int, placed: Placed) -> None:
    """Give a job its number of GPUs, or the best number that there is room for."""
    free, rows, one = placed.free, placed.rows, costs.moved[job, 0]
    best = _best_fit(gpus, free)
    if best < 0:
        most = free[0]
        for node in range(1, len(free)):  # numba's max() allocates unless it was compiled before, outside a kernel
            most = max(most, free[node])
        several = _spread(costs, job, gpus, placed)
        gpus = 0
        for fewer in range(1, min(most, costs.most[job]) + 1):
            if one[fewer] < one[gpus]:
                gpus = fewer
        if several <= one[gpus]:
            return
        release(job, placed)
        best = _best_fit(gpus, free)
    if gpus > 0:
        rows.node[job, 0], rows.gpus[job, 0], rows.spans[job] = best, gpus, 1
        free[best] -= gpus


@kernel()
def _best_fit(gpus: int, free: IntArray) -> int:
    """The first node with the fewest free GPUs among those with enough, or -1."""
    best = -1
    for node in range(len(free)):
        if free[node] >= gpus and (best < 0 or free[node] < free[best]):
            best = node
            if free[node] == gpus:
                break
    return best


@kernel()
def _spread(costs: Costs, job: int, gpus: int, placed: Placed) -> float:
    """Place a job on several nodes with at most the given GPUs; returns the cost, infinity if impossible."""
    several, free, rows = costs.moved[job, 1], placed.free, placed.rows
    missing, spans = gpus, 0
    while missing > 0 and spans < MAX_NODES:
        node = _next_node(missing, placed)
        if node < 0:
            break
        taken = min(free[node], missing)
        rows.node[job, spans], rows.gpus[job, spans] = node, taken
        free[node] -= taken
        missing -= taken
        placed.spread[node] = True
        spans += 1
    most = gpus - missing
    best = 0
    for fewer in range(1, most + 1):
        if several[fewer] < several[best]:
            best = fewer
    while most > best:
        node = rows.node[job, spans - 1]
        given = min(rows.gpus[job, spans - 1], most - best)
        rows.gpus[job, spans - 1] -= given
        free[node] += given
        most -= given
        if rows.gpus[job, spans - 1] == 0:
            placed.spread[node] = False
            spans -= 1
    rows.spans[job] = spans
    if spans == 1:  # a job that found little room ends up with few GPUs: it is not on several nodes
        placed.spread[rows.node[job, 0]] = False
        return float(costs.moved[job, 0, best])
    return float(several[best] if best > 0 else np.inf)


@kernel()
def _next_node(missing: int, placed: Placed) -> int:
    """The node without a spanning job that fits the missing GPUs best, else the one with the most free, or -1."""
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
