"""Numbers of GPUs for jobs: dynamic programming minimises the sum of their costs exactly.

A multiple-choice knapsack: every job takes one option, a number of GPUs with its cost, and all together stay within
capacity. Placement is left out here, so that the least sum over all jobs is a lower bound of what any placement costs.

Large problems are made small before they are solved, without losing the optimum: steps along the lower convex hulls of
all jobs' costs, best first, give a solution and, by the Lagrangian of the capacity, a lower bound; an option that is
worse at that multiplier by more than the two differ is part of no optimum (reduced-cost fixing; Kellerer, Pferschy,
Pisinger, "Knapsack Problems", 2004, chapter 11). Usually one to three options a job are left.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.compiled import kernel, njit
from rlpto.policies.greedy import heapify, replace_top, shrink_top
from rlpto.policies.pollux.objective import Costs

FIX_FROM = 100_000
"""Additions of a dynamic programme (options x capacity) above which options are fixed first."""
MOST_ADDITIONS = 20_000_000
"""Additions allowed after fixing. Beyond that the worst options are dropped too, possibly with the optimum."""
SMALLEST_GAP = 1e-6
"""Gap in cost below which no options are left out."""


class Counting(NamedTuple):
    """The options of up to n jobs, and room to solve for them.

    first: [n + 1] where each job's options begin. charge, gpus: [options] what an option takes of the capacity, and the
    GPUs it gives. cost: [options]. hull: [options] options on the hull, in the places of the job's own. at, end: [n]
    a job's place among them, and where they end. chosen: [n] option of each job. heap, key: [n] of the steps.
    table: [n + 1, K + 1] least cost of the first jobs within a capacity.
    """

    first: IntArray
    charge: IntArray
    gpus: IntArray
    cost: FloatArray
    hull: IntArray
    at: IntArray
    end: IntArray
    chosen: IntArray
    heap: IntArray
    key: FloatArray
    table: FloatArray


@njit()
def make_counting(costs: Costs, capacity: int) -> Counting:
    """Arrays for all jobs at once, with at most `capacity` GPUs."""
    n = len(costs.kept)
    options = np.minimum(costs.most, capacity).sum() + n
    return Counting(
        np.zeros(n + 1, dtype=np.int64),
        np.zeros(options, dtype=np.int64),
        np.zeros(options, dtype=np.int64),
        np.zeros(options),
        np.zeros(options, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n),
        np.zeros((n + 1, capacity + 1)),
    )


@kernel()
def count_gpus(
    costs: Costs, jobs: IntArray, stay: BoolArray, capacity: int, whole: bool, c: Counting, gpus: IntArray
) -> float:
    """Fill gpus [m] of jobs [m] within capacity, at the least sum of costs, which is returned.

    stay: [m] whether a job may choose its present row. whole: charge a job that needs several nodes for whole ones,
    as if no other job could use the rest.
    """
    _list_options(costs, jobs, stay, capacity, whole, c)
    m = len(jobs)
    for i in range(m):
        c.chosen[i] = c.first[i]
    if (c.first[m] - m) * capacity > FIX_FROM:
        _fix(m, capacity, c)
    total = _solve(m, capacity, c)
    for i in range(m):
        gpus[i] = c.gpus[c.chosen[i]]
    return float(total)


@kernel()
def _list_options(costs: Costs, jobs: IntArray, stay: BoolArray, capacity: int, whole: bool, c: Counting) -> None:
    """Fill the options that cost less than all with fewer GPUs."""
    at = 0
    for i in range(len(jobs)):
        job = jobs[i]
        one, several = costs.moved[job, 0], costs.moved[job, 1]
        best = one[0]
        c.first[i] = at
        c.charge[at], c.gpus[at], c.cost[at] = 0, 0, best
        for gpus in range(max(costs.least[job], 1), min(costs.most[job], capacity) + 1):
            cost = min(one[gpus], several[gpus])
            if stay[i] and gpus == costs.total[job]:
                cost = min(cost, costs.kept[job])
            if cost < best:
                charge = gpus
                if whole and gpus > costs.node:
                    charge = (gpus + costs.node - 1) // costs.node * costs.node
                    if charge > capacity:
                        break
                best = cost
                at += charge > c.charge[at]  # else the option takes the place of one that takes as much
                c.charge[at], c.gpus[at], c.cost[at] = charge, gpus, cost
        at += 1
    c.first[len(jobs)] = at


@kernel()
def _fix(m: int, capacity: int, c: Counting) -> None:
    """Leave out what cannot be part of an optimum, and more if that is still too much to solve."""
    _find_hulls(m, c)
    price, gap = _step_along_hulls(m, capacity, c)
    while True:
        left = _drop(m, price, gap, c)
        if left * capacity <= MOST_ADDITIONS or gap < SMALLEST_GAP:
            break
        gap /= 2


@kernel()
def _find_hulls(m: int, c: Counting) -> None:
    """Fill hull and end; `at` is set to the first option of each job."""
    for i in range(m):
        start = c.first[i]
        size = start
        for option in range(start, c.first[i + 1]):
            while size - start >= 2 and _slope(c, c.hull[size - 2], option) <= _slope(
                c, c.hull[size - 2], c.hull[size - 1]
            ):
                size -= 1
            c.hull[size] = option
            size += 1
        c.at[i], c.end[i] = start, size


@kernel()
def _slope(c: Counting, before: int, after: int) -> float:
    return float((c.cost[after] - c.cost[before]) / (c.charge[after] - c.charge[before]))


@kernel()
def _step_along_hulls(m: int, capacity: int, c: Counting) -> tuple[float, float]:
    """The price of capacity at which the best steps use it up, and what a solution at that price may lack.

    `chosen` becomes the options that are best at that price.
    """
    size, free = 0, capacity
    for i in range(m):
        if c.at[i] + 1 < c.end[i]:
            c.key[i] = -_slope(c, c.hull[c.at[i]], c.hull[c.at[i] + 1])
            c.heap[size] = i
            size += 1
    heapify(c.heap, size, c.key)
    price, gap = -1.0, 0.0
    while size > 0 and free > 0:
        i = c.heap[0]
        here, after = c.hull[c.at[i]], c.hull[c.at[i] + 1]
        if c.charge[after] - c.charge[here] > free:
            if price < 0:  # from here on, steps only make the solution better
                price, gap = c.key[i], c.key[i] * free
                for j in range(m):
                    c.chosen[j] = c.hull[c.at[j]]
            size = shrink_top(c.heap, size, c.key)
            continue
        free -= c.charge[after] - c.charge[here]
        if price >= 0:
            gap -= c.cost[here] - c.cost[after]
        c.at[i] += 1
        if c.at[i] + 1 < c.end[i]:
            c.key[i] = -_slope(c, after, c.hull[c.at[i] + 1])
            replace_top(c.heap, size, c.key)
        else:
            size = shrink_top(c.heap, size, c.key)
    if price < 0:
        price = c.key[c.heap[0]] if size > 0 else 0.0
        for j in range(m):
            c.chosen[j] = c.hull[c.at[j]]
    return price, gap


@kernel()
def _drop(m: int, price: float, gap: float, c: Counting) -> int:
    """Leave out options that are worse than the best by more than gap at this price; how many choices are left."""
    at, choices = 0, 0
    for i in range(m):
        start, stop = c.first[i], c.first[i + 1]
        best = c.cost[c.chosen[i]] + price * c.charge[c.chosen[i]]
        allowed = best + gap + 1e-9 * best  # rounding leaves out nothing
        c.first[i] = at
        for option in range(start, stop):
            if option == c.chosen[i] or c.cost[option] + price * c.charge[option] <= allowed:
                if option == c.chosen[i]:
                    c.chosen[i] = at
                c.charge[at], c.gpus[at], c.cost[at] = c.charge[option], c.gpus[option], c.cost[option]
                at += 1
        if at - c.first[i] > 1:
            choices += at - c.first[i]
    c.first[m] = at
    return choices


@kernel()
def _solve(m: int, capacity: int, c: Counting) -> float:
    """Choose the options of least cost within capacity; their sum."""
    total, rows, most = 0.0, 0, 0
    for i in range(m):
        if c.first[i + 1] - c.first[i] == 1:
            c.chosen[i] = c.first[i]
            total += c.cost[c.first[i]]
            capacity -= c.charge[c.first[i]]
        else:
            most += c.charge[c.first[i + 1] - 1]
            c.heap[rows] = i
            rows += 1
    capacity = min(capacity, most)
    c.table[0, : capacity + 1] = 0.0
    for row in range(rows):
        i = c.heap[row]
        before, after = c.table[row], c.table[row + 1]
        after[: capacity + 1] = np.inf
        for option in range(c.first[i], c.first[i + 1]):
            charge, cost = c.charge[option], c.cost[option]
            for used in range(charge, capacity + 1):
                value = before[used - charge] + cost
                after[used] = value if value < after[used] else after[used]
    total += c.table[rows, capacity]
    for row in range(rows - 1, -1, -1):
        i = c.heap[row]
        option = c.first[i]
        while True:
            charge = c.charge[option]
            if charge <= capacity and c.table[row, capacity - charge] + c.cost[option] == c.table[row + 1, capacity]:
                break
            option += 1
        c.chosen[i] = option
        capacity -= c.charge[option]
    return float(total)
