"""Optimise Pollux's objective by exact dynamic programming and neighbourhood search, instead of a genetic search.

The objective is a sum of costs of jobs, which dynamic programming minimises exactly over the numbers of GPUs
(`objective.py`). Placing these numbers on nodes may fail, because free GPUs are fragmented and rows that stay block
others. A neighbourhood search therefore follows: free the jobs on some nodes and some waiting jobs, solve for them
alone, place them, and keep the result unless it is worse.

A node has at most one job that spans several nodes. Unchanged rows are placed first, then jobs by
falling number of GPUs, each by `rlpto.core.placement.best_node`: a job that fits on one node goes to the node where it
leaves the fewest free GPUs, and a larger job takes nodes of the pool without a spanning job. Unlike in `pack`, a job
whose number does not fit gets the best number that fits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.core.placement import NOWHERE, best_node
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.compiled import kernel, njit
from rlpto.io.draws import uniform
from rlpto.policies.pollux.objective import (
    MAX_NODES,
    Costs,
    Counting,
    Rows,
    cost_of,
    count_gpus,
    empty_rows,
    make_counting,
    tabulate,
)

MOST_FREED_NODES = 4
"""Largest number of nodes whose jobs are freed in a step."""
FREE_ALL = 0.15
"""Share of the steps that free all jobs."""
FREE_WAITING = 0.5
"""Probability with which a job without GPUs takes part in a step."""
MOVING_STEPS = 0.4
"""Share of the steps in which some of the freed jobs may not keep their rows."""
MOVED = 0.3
"""Share of the freed jobs that may not keep their rows, in these steps."""
WHOLE_STEPS = 0.1
"""Share of the steps that charge jobs on several nodes for whole nodes."""


@kernel()
def total(gpus: IntArray) -> int:
    """Return the sum of GPUs [N]; an array's method takes the compiler longer."""
    found = 0
    for node in range(len(gpus)):
        found += gpus[node]
    return found


class Placed(NamedTuple):
    """A placement, and arrays derived from it.

    rows: rows of all jobs. free: [N] free GPUs. spread: [N] whether a job on the node spans several nodes.
    sizes, order: [G + 2], [n] memory for sorting.
    """

    rows: Rows
    free: IntArray
    spread: BoolArray
    sizes: IntArray
    order: IntArray


@njit()
def empty_placement(jobs: int, size: IntArray) -> Placed:
    """Return a placement without GPUs for any job, on nodes with size [N]."""
    return Placed(
        empty_rows(jobs),
        size.copy(),
        np.zeros(len(size), dtype=np.bool_),
        np.zeros(total(size) + 2, dtype=np.int64),
        np.zeros(jobs, dtype=np.int64),
    )


@kernel()
def release(job: int, placed: Placed) -> None:
    """Free the GPUs of a job."""
    rows = placed.rows
    spans = rows.spans[job]
    for i in range(spans):
        placed.free[rows.node[job, i]] += rows.gpus[job, i]
        if spans > 1:
            placed.spread[rows.node[job, i]] = False
    rows.spans[job] = 0


@kernel()
def put(job: int, source: Rows, at: int, placed: Placed) -> bool:
    """Give a job without GPUs the row `at` of `source` if it fits, and return whether it does."""
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
    """Copy the row of a job to row `at` of target."""
    target.spans[at] = rows.spans[job]
    for i in range(rows.spans[job]):
        target.node[at, i], target.gpus[at, i] = rows.node[job, i], rows.gpus[job, i]


@kernel()
def place(costs: Costs, jobs: IntArray, stay: BoolArray, gpus: IntArray, placed: Placed) -> None:
    """Place jobs [m], which hold no GPUs, with gpus [m]; in the present row if the job may stay [m] and this is as
    good. gpus is overwritten.
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
    for count in range(len(sizes)):  # start of the jobs with this number, the largest first
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
    """Give a job its number of GPUs, or the best number that fits."""
    free, rows, one = placed.free, placed.rows, costs.moved[job, 0]
    best = best_node(free, gpus, NOWHERE)
    if free[best] < gpus:
        most = free[best]
        several = _spread(costs, job, gpus, placed)
        gpus = 0
        for fewer in range(1, min(most, costs.most[job]) + 1):
            if one[fewer] < one[gpus]:
                gpus = fewer
        if several <= one[gpus]:
            return
        release(job, placed)
        best = best_node(free, gpus, NOWHERE)
    if gpus > 0:
        rows.node[job, 0], rows.gpus[job, 0], rows.spans[job] = best, gpus, 1
        free[best] -= gpus


@kernel()
def _spread(costs: Costs, job: int, gpus: int, placed: Placed) -> float:
    """Place a job on several nodes with at most the given GPUs. Return the cost, infinity if impossible."""
    several, free, rows = costs.moved[job, 1], placed.free, placed.rows
    missing, spans = gpus, 0
    while missing > 0 and spans < MAX_NODES:
        node = best_node(free, missing, NOWHERE, placed.spread, False)
        if node == NOWHERE or free[node] == 0:
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
    if spans == 1:  # a job that found little room ended up on a single node
        placed.spread[rows.node[job, 0]] = False
        return float(costs.moved[job, 0, best])
    return float(several[best] if best > 0 else np.inf)


class _Search(NamedTuple):
    """The working state of the search.

    cost: [n] cost of every job's row. order: [n] jobs in order of service. freed: [n] jobs freed in a step. gpus, stay:
    [n] GPUs of these jobs, and whether they may keep their rows. before: their rows before the step. free: [n] whether
    each job is freed. near: [N] whether each node's jobs are freed.
    """

    cost: FloatArray
    order: IntArray
    freed: IntArray
    gpus: IntArray
    stay: BoolArray
    before: Rows
    free: BoolArray
    near: BoolArray


def search(
    speedup: FloatArray,
    held: IntArray,
    factor: FloatArray,
    weight: FloatArray,
    least: IntArray,
    most: IntArray,
    order: IntArray,
    size: IntArray,
    steps: int,
    seed: int,
) -> IntArray:
    """Return a placement [n, N] of n jobs on N nodes that is never worse than the present placement; deterministic.

    speedup: [n, 2, K + 1] pace with 0..K GPUs on one node, and on several, relative to a fair share of the cluster.
    held: [n, N] present placement. factor: [n] factor on pace in a row that differs from the present row.
    weight: [n] weight of every job's cost; 1 in Pollux. least, most: [n] limits of a job's GPUs, unless it gets none.
    order: [n] jobs by attained service; if present rows on several nodes share a node, the first job's row stays.
    size: [N] GPUs of each node, 0 while it is down. steps: steps of the neighbourhood search.
    """
    costs, placement = tabulate(speedup, held, factor, least, most, size), np.zeros(held.shape, dtype=np.int64)
    costs.moved[:] *= weight[:, None, None]
    costs.kept[:] *= weight
    _search(costs, order, size, steps, seed, placement)
    return placement


@njit()
def _search(costs: Costs, order: IntArray, size: IntArray, steps: int, seed: int, placement: IntArray) -> None:
    """Implement `search`: fill in the placement."""
    n, gpus = len(costs.kept), total(size)
    counting = make_counting(costs, gpus)
    placed = empty_placement(n, size)
    s = _Search(
        np.zeros(n),
        order,
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.ones(n, dtype=np.bool_),
        empty_rows(n),
        np.zeros(n, dtype=np.bool_),
        np.zeros(len(size), dtype=np.bool_),
    )
    if n > 0 and gpus > 0:
        _run(costs, counting, placed, s, steps, seed)
    for job in range(n):
        for i in range(placed.rows.spans[job]):
            placement[job, placed.rows.node[job, i]] = placed.rows.gpus[job, i]


def least_cost(
    speedup: FloatArray, held: IntArray, factor: FloatArray, least: IntArray, most: IntArray, size: IntArray
) -> float:
    """Return a lower bound on the sum of costs: the least sum if any job may have its GPUs on one node or on several.

    `search` explains the arguments. n over this sum bounds the power mean from above.
    """
    costs = tabulate(speedup, held, factor, least, most, size)
    return least_sum(costs, int(size.sum()))


@njit()
def least_sum(costs: Costs, capacity: int) -> float:
    """Return the least sum of costs within capacity, wherever GPUs are."""
    n, counting = len(costs.kept), make_counting(costs, capacity)
    gpus, stay = np.zeros(n, dtype=np.int64), np.ones(n, dtype=np.bool_)
    return float(count_gpus(costs, np.arange(n), stay, capacity, False, counting, gpus))


@kernel()
def _run(costs: Costs, counting: Counting, placed: Placed, s: _Search, steps: int, seed: int) -> None:
    for job in s.order:
        if costs.kept[job] < np.inf:
            put(job, costs.held, job, placed)
    for job in s.order:
        s.cost[job] = cost_of(costs, job, placed.rows)
    for whole in (False, True):
        s.free[:] = True
        _rearrange(costs, counting, placed, s, whole)
    for step in range(steps):
        draw = _choose(placed, s, seed, step)
        moving = uniform(seed, step, draw) < MOVING_STEPS
        whole = uniform(seed, step, draw + 1) < WHOLE_STEPS
        for i in range(len(s.stay)):
            s.stay[i] = not moving or uniform(seed, step, draw + 2 + i) >= MOVED
        _rearrange(costs, counting, placed, s, whole)


@kernel()
def _choose(placed: Placed, s: _Search, seed: int, step: int) -> int:
    """Choose the jobs of a step, and return the number of random numbers used."""
    rows, n, nodes = placed.rows, len(s.free), len(s.near)
    if uniform(seed, step, 0) < FREE_ALL:
        s.free[:] = True
        return 1
    s.near[:] = False
    draws = 3 + int(uniform(seed, step, 1) * MOST_FREED_NODES)
    for draw in range(2, draws):
        s.near[int(uniform(seed, step, draw) * nodes)] = True
    for job in range(n):
        s.free[job] = False
        for i in range(rows.spans[job]):
            s.free[job] |= s.near[rows.node[job, i]]
        if rows.spans[job] == 0:
            s.free[job] = uniform(seed, step, draws) < FREE_WAITING
            draws += 1
    s.free[int(uniform(seed, step, draws) * n)] = True
    return draws + 1


@kernel()
def _rearrange(costs: Costs, counting: Counting, placed: Placed, s: _Search, whole: bool) -> None:
    """Solve for the freed jobs alone and place them; undo this if the result is worse."""
    m, before = 0, 0.0
    for job in s.order:
        if s.free[job]:
            s.freed[m] = job
            copy_row(job, placed.rows, s.before, m)
            before += s.cost[job]
            release(job, placed)
            m += 1
    jobs, stay, gpus = s.freed[:m], s.stay[:m], s.gpus[:m]
    count_gpus(costs, jobs, stay, total(placed.free), whole, counting, gpus)
    place(costs, jobs, stay, gpus, placed)
    after = 0.0
    for job in jobs:
        after += cost_of(costs, job, placed.rows)
    if after > before:
        for job in jobs:
            release(job, placed)
        for i in range(m):
            put(jobs[i], s.before, i, placed)
    else:
        for job in jobs:
            s.cost[job] = cost_of(costs, job, placed.rows)
