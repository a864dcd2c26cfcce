"""Pollux's objective optimised by exact dynamic programming and neighbourhood search, instead of a genetic search.

The objective is a sum of costs of jobs (`pollux_objective`), which dynamic programming minimises exactly over the
numbers of GPUs (`counts.py`); placing those numbers on nodes (`placing.py`) may fail, because free GPUs are
fragmented and rows that could stay block others. So a search follows: free the jobs on some nodes and
some waiting jobs, solve for them alone, place them, and keep the result unless it is worse.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.compiled import kernel, njit
from rlpto.io.draws import uniform
from rlpto.policies.pollux.counts import Counting, count_gpus, make_counting
from rlpto.policies.pollux.objective import Costs, Rows, cost_of, empty_rows, tabulate
from rlpto.policies.pollux.placing import Placed, copy_row, empty_placement, place, put, release

MOST_FREED_NODES = 4
"""Nodes whose jobs are freed in a step, at most."""
FREE_ALL = 0.15
"""Share of the steps that free all jobs."""
FREE_WAITING = 0.5
"""Probability with which a job without GPUs takes part in a step."""
MOVING_STEPS = 0.4
"""Share of the steps that forbid some of the freed jobs to stay as they are."""
MOVED = 0.3
"""Share of the freed jobs that are forbidden to, in these steps."""
WHOLE_STEPS = 0.1
"""Share of the steps that charge jobs on several nodes for whole ones."""


class _Search(NamedTuple):
    """The working state of the search.

    cost: [n] cost of every job's row. order: [n] jobs in order of service. freed: [n] jobs of a step, gpus, stay: [n]
    their GPUs, and whether they may keep their row. before: their rows before the step. free: [n] by job, whether it is
    freed. near: [N] nodes whose jobs are.
    """

    cost: FloatArray
    order: IntArray
    freed: IntArray
    gpus: IntArray
    stay: BoolArray
    before: Rows
    free: BoolArray
    near: BoolArray


@njit()
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
    """Placement [n, N] of n jobs on N nodes that is never worse than leaving all as it is; deterministic.

    speedup: [n, 2, K + 1] pace with 0..K GPUs on one node, and on several, relative to a fair share of the cluster.
    held: [n, N] present placement. factor: [n] what of the pace counts in a row that differs from the present one.
    weight: [n] of every job's cost; 1 in Pollux.
    least, most: [n] GPUs a job may have, if any. order: [n] jobs by attained service: of present rows on several nodes
    that share a node the first stays. size: [N] GPUs of each node, 0 where it is down. steps: of the neighbourhood.
    """
    n = len(factor)
    costs = tabulate(speedup, held, factor, least, most, size)
    for job in range(n):
        costs.moved[job] *= weight[job]
        costs.kept[job] *= weight[job]
    counting = make_counting(costs, size.sum())
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
    if n > 0 and size.sum() > 0:
        _run(costs, counting, placed, s, steps, seed)
    placement = np.zeros(held.shape, dtype=np.int64)
    for job in range(n):
        for i in range(placed.rows.spans[job]):
            placement[job, placed.rows.node[job, i]] = placed.rows.gpus[job, i]
    return placement


@njit()
def least_cost(
    speedup: FloatArray, held: IntArray, factor: FloatArray, least: IntArray, most: IntArray, size: IntArray
) -> float:
    """A lower bound of the sum of costs: the least sum if any job may have its GPUs on one node or on several.

    The arguments are those of `search`; n over it bounds the power mean from above.
    """
    n = len(factor)
    costs = tabulate(speedup, held, factor, least, most, size)
    counting = make_counting(costs, size.sum())
    gpus, stay = np.zeros(n, dtype=np.int64), np.ones(n, dtype=np.bool_)
    return float(count_gpus(costs, np.arange(n), stay, size.sum(), False, counting, gpus))


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
    """Choose the jobs of a step; returns how many random numbers were used."""
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
    """Solve for the freed jobs alone and place them; undone if that is worse."""
    m, before = 0, 0.0
    for job in s.order:
        if s.free[job]:
            s.freed[m] = job
            copy_row(job, placed.rows, s.before, m)
            before += s.cost[job]
            release(job, placed)
            m += 1
    jobs, stay, gpus = s.freed[:m], s.stay[:m], s.gpus[:m]
    count_gpus(costs, jobs, stay, placed.free.sum(), whole, counting, gpus)
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
