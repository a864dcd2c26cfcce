"""Numbers of GPUs for jobs: dynamic programming minimises the sum of their costs exactly.

A multiple-choice knapsack: every job takes one option, a number of GPUs with its cost, and all together stay within
capacity. Placement is left out here, so that the least sum over all jobs is a lower bound of what any placement costs.

Large problems are made small before they are solved, without losing the optimum: at a price of a GPU every job's best
option is known, and the price at which jobs take about the capacity gives a solution and, by the Lagrangian of the
capacity, a lower bound; an option that is worse at that price by more than the two differ is part of no optimum
(reduced-cost fixing; Kellerer, Pferschy, Pisinger, "Knapsack Problems", 2004, chapter 11). Usually one to three options
a job are left.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.compiled import kernel, njit
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
    GPUs it gives. cost: [options]. chosen: [n] option of each job. several: [n] jobs with more than one option.
    table: [n + 1, K + 1] least cost of the first of these within a capacity. price: [1] of a GPU in the last problem.
    """

    first: IntArray
    charge: IntArray
    gpus: IntArray
    cost: FloatArray
    chosen: IntArray
    several: IntArray
    table: FloatArray
    price: FloatArray


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
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros((n + 1, capacity + 1)),
        np.zeros(1),
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
    price, gap = _price(m, capacity, c)
    c.price[0] = price
    while True:
        left = _drop(m, price, gap, c)
        if left * capacity <= MOST_ADDITIONS or gap < SMALLEST_GAP:
            break
        gap /= 2


@kernel()
def _price(m: int, capacity: int, c: Counting) -> tuple[float, float]:
    """The price of a GPU at which jobs take about the capacity, and what a solution at that price may lack.

    Between a solution that takes too few GPUs and one that takes too many lies the price at which both are worth the
    same; what is best there replaces one of them, until nothing is better.
    """
    few, dear = 0, 0.0
    for i in range(m):
        dear += c.cost[c.first[i]]
    many, cheap = _best_at(m, 0.0, c)
    if many <= capacity:
        return 0.0, 0.0
    for near in (0.9, 1.1):  # only to save rounds
        used, cost = _best_at(m, near * c.price[0], c)
        if few < used <= capacity:
            few, dear = used, cost
        elif capacity < used < many:
            many, cheap = used, cost
    while True:
        price = (dear - cheap) / (many - few)
        used, cost = _best_at(m, price, c)
        if cost + price * used >= (cheap + price * many) * (1 - 1e-12):
            return price, price * (capacity - few)
        if used <= capacity:
            few, dear = used, cost
        else:
            many, cheap = used, cost


@kernel()
def _best_at(m: int, price: float, c: Counting) -> tuple[int, float]:
    """GPUs that all jobs take, and the sum of their costs, if each takes its best option at a price of a GPU."""
    used, total = 0, 0.0
    for i in range(m):
        best, least = c.first[i], c.cost[c.first[i]]
        for option in range(c.first[i] + 1, c.first[i + 1]):
            value = c.cost[option] + price * c.charge[option]
            if value < least:
                best, least = option, value
        used += c.charge[best]
        total += c.cost[best]
    return used, total


@kernel()
def _drop(m: int, price: float, gap: float, c: Counting) -> int:
    """Leave out options that are worse than the best by more than gap at this price; how many choices are left."""
    at, choices = 0, 0
    for i in range(m):
        start, stop = c.first[i], c.first[i + 1]
        best = np.inf
        for option in range(start, stop):
            best = min(best, c.cost[option] + price * c.charge[option])
        allowed = best + gap + 1e-9 * best  # rounding leaves out nothing
        c.first[i] = at
        for option in range(start, stop):
            if c.cost[option] + price * c.charge[option] <= allowed:
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
            c.several[rows] = i
            rows += 1
    capacity = min(capacity, most)
    c.table[0, : capacity + 1] = 0.0
    for row in range(rows):
        i = c.several[row]
        before, after = c.table[row], c.table[row + 1]
        after[: capacity + 1] = np.inf
        for option in range(c.first[i], c.first[i + 1]):
            charge, cost = c.charge[option], c.cost[option]
            for used in range(charge, capacity + 1):
                value = before[used - charge] + cost
                after[used] = value if value < after[used] else after[used]
    total += c.table[rows, capacity]
    for row in range(rows - 1, -1, -1):
        i = c.several[row]
        option = c.first[i]
        while True:
            charge = c.charge[option]
            if charge <= capacity and c.table[row, capacity - charge] + c.cost[option] == c.table[row + 1, capacity]:
                break
            option += 1
        c.chosen[i] = option
        capacity -= c.charge[option]
    return float(total)
