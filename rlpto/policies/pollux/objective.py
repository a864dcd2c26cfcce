"""Tabulate Pollux's objective as a cost per job, and find the numbers of GPUs with the least total cost.

Pollux maximises the harmonic mean (the power mean with p = -1) of x = speedup * share * factor + 1e-3 over its n jobs
(Qiao et al., OSDI 2021, section 4.2, with the constants of its simulator). This mean is n over the sum of the costs
1 / x, so the sum is minimised: a job without GPUs costs 1000, a job with its fair share of 64 GPUs on 16 nodes about 4.

A job's row is its GPUs by node.
speedup: the job's pace relative to its pace with a fair share of the cluster.
share: nodes over GPUs of the cluster, N / G: 16/64 in Pollux's simulator.
factor: fraction of the job's pace that remains after the cost of a restart, for a row that differs from the present
row; 1 for the present row.

Numbers of GPUs for jobs come from a multiple-choice knapsack, which dynamic programming solves exactly: every job takes
one option, a number of GPUs with its cost, and all together stay within capacity. Placement is ignored here, so the
least sum over all jobs is a lower bound on the cost of any placement.

Large problems are reduced before they are solved. The optimum is kept unless solving the reduced problem would still
take more than MOST_ADDITIONS additions. At a given price of a GPU every job's
best option is known. The price at which jobs take about the capacity gives a solution and, by the Lagrangian of the
capacity, a lower bound; if an option is worse at this price by more than the difference of the two, no optimum contains
it (reduced-cost fixing; Kellerer, Pferschy, Pisinger, "Knapsack Problems", 2004, chapter 11). Usually one to three
options a job are left.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.compiled import kernel, njit

SMALLEST = 1e-3
"""Added to every job's x: a job without GPUs then costs 1000 instead of infinity."""
NO_GPUS_COST = 1 / SMALLEST
"""Cost of a job without GPUs."""
MAX_NODES = 16
"""Largest number of nodes that a job may span."""
_IDLE_COST = NO_GPUS_COST * (1 + 1e-9)
"""Cost of a job without GPUs in the search. It is slightly above NO_GPUS_COST: a job then takes free GPUs rather than
none even if factor is 0, at which they bring no speed."""
FIX_FROM = 100_000
"""Additions of a dynamic programme (options * capacity) above which reduced-cost fixing drops options first."""
MOST_ADDITIONS = 20_000_000
"""Additions allowed after fixing. Beyond this limit the worst options are dropped too, possibly with the optimum."""
SMALLEST_GAP = 1e-6
"""Gap in cost below which no more options are dropped."""


class Rows(NamedTuple):
    """The rows of n jobs in a placement, stored sparsely.

    node, gpus: [n, MAX_NODES] nodes on which a job holds GPUs, and their number there. spans: [n] number of nodes.
    """

    node: IntArray
    gpus: IntArray
    spans: IntArray


class Costs(NamedTuple):
    """Costs of all choices, for n jobs on N nodes with at most K GPUs in all.

    moved: [n, 2, K + 1] cost of 0..K GPUs on one node, and on several, in a row that differs from the present row;
    infinite for numbers that a job cannot have, zero above `most`.
    kept: [n] cost of the present row; infinite if there is none or it may not stay.
    held: present rows, empty if they may not stay. total: [n] GPUs held now. least, most: [n] GPUs a job may have.
    node: GPUs of the largest node.
    """

    moved: FloatArray
    kept: FloatArray
    held: Rows
    total: IntArray
    least: IntArray
    most: IntArray
    node: int


@njit()
def empty_rows(jobs: int) -> Rows:
    """Return rows of jobs without GPUs."""
    shape = (jobs, MAX_NODES)
    return Rows(np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64), np.zeros(jobs, dtype=np.int64))


def tabulate(
    speedup: FloatArray, held: IntArray, factor: FloatArray, least: IntArray, most: IntArray, size: IntArray
) -> Costs:
    """Return the costs of all choices. The arguments are explained in `rlpto.policies.pollux.search.search`.

    This function is not compiled, because compiling its array operations would take seconds.
    """
    n, top = len(speedup), speedup.shape[2] - 1
    highest = np.minimum(most, min(int(np.sort(size)[::-1][:MAX_NODES].sum()), top))
    moved, kept, largest = np.zeros(speedup.shape), np.zeros(n), int(size.max(initial=0))
    costs = Costs(moved, kept, empty_rows(n), held.sum(axis=1), least, highest, largest)
    _fill(speedup, factor, held, share_of(size), int(np.count_nonzero(size)) > 1, costs)
    return costs


@kernel()
def share_of(size: IntArray) -> float:
    """Return N / G for nodes with size [N] GPUs. Nodes without GPUs do not count."""
    nodes, gpus = 0, 0
    for node in range(len(size)):
        nodes += size[node] > 0
        gpus += size[node]
    return nodes / max(gpus, 1)


@kernel()
def _fill(speedup: FloatArray, factor: FloatArray, held: IntArray, share: float, several: bool, costs: Costs) -> None:
    for job in range(len(factor)):
        moved, least, most = costs.moved[job], costs.least[job], costs.most[job]
        moved[:, 0] = _IDLE_COST
        for gpus in range(1, most + 1):
            for spread in range(2):
                possible = gpus >= least and ((several and gpus >= 2) if spread else gpus <= costs.node)
                x = speedup[job, spread, gpus] * share * factor[job] + SMALLEST
                moved[spread, gpus] = 1 / x if possible else np.inf
        costs.kept[job] = np.inf
        total, spans = costs.total[job], 0
        if not max(least, 1) <= total <= most:
            continue
        for node in range(held.shape[1]):
            if held[job, node] > 0:
                if spans < MAX_NODES:
                    costs.held.node[job, spans], costs.held.gpus[job, spans] = node, held[job, node]
                spans += 1
        if spans <= MAX_NODES:
            costs.held.spans[job] = spans
            costs.kept[job] = 1 / (speedup[job, min(spans, 2) - 1, total] * share + SMALLEST)


@kernel()
def cost_of(costs: Costs, job: int, rows: Rows) -> float:
    """Return the cost of a job's row."""
    gpus, spans = 0, rows.spans[job]
    same = 0 < spans == costs.held.spans[job]
    for i in range(spans):
        gpus += rows.gpus[job, i]
        found = False
        for k in range(costs.held.spans[job]):
            if costs.held.node[job, k] == rows.node[job, i]:
                found = costs.held.gpus[job, k] == rows.gpus[job, i]
        same = same and found
    return float(costs.kept[job] if same else costs.moved[job, 1 if spans > 1 else 0, gpus])


def power_mean(speedup: FloatArray, held: IntArray, factor: FloatArray, placement: IntArray, size: IntArray) -> float:
    """Return Pollux's objective, to be maximised, for placement [n, N]. `search` explains the other arguments."""
    gpus, nodes = placement.sum(axis=1), (placement > 0).sum(axis=1)
    same: BoolArray = (placement == held).all(axis=1)
    gained = speedup[np.arange(len(gpus)), np.clip(nodes, 1, 2) - 1, gpus] * (gpus > 0)
    x = gained * share_of(size) * np.where(same, 1.0, factor) + SMALLEST
    return float(1 / np.mean(1 / x))


class Counting(NamedTuple):
    """The options of up to n jobs, and room to solve for them.

    first: [n + 1] index of each job's first option. charge, gpus: [options] capacity that an option uses, and GPUs that
    it gives. cost: [options] cost of the job with it. chosen: [n] option of each job. several: [n] jobs with more than
    one option. table: [n + 1, K + 1] least cost of the first 0..n jobs of `several` within 0..K GPUs. price: [1] price
    of a GPU in the last problem.
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
    """Return arrays for all jobs at once, with at most `capacity` GPUs."""
    n = len(costs.kept)
    options = n
    for most in costs.most:
        options += min(most, capacity)
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
    """Fill gpus [m] of jobs [m] within capacity with the least sum of costs, and return this sum.

    stay: [m] whether a job may choose its present row. whole: charge a job that needs several nodes for whole nodes,
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
    """List each job's options in `c`, except options that cost no less than an option with fewer GPUs."""
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
                at += charge > c.charge[at]  # else the option replaces another with the same charge
                c.charge[at], c.gpus[at], c.cost[at] = charge, gpus, cost
        at += 1
    c.first[len(jobs)] = at


@kernel()
def _fix(m: int, capacity: int, c: Counting) -> None:
    """Drop the options that cannot be part of an optimum, and more if the problem is still too large."""
    price, gap = _price(m, capacity, c)
    c.price[0] = price
    while True:
        left = _drop(m, price, gap, c)
        if left * capacity <= MOST_ADDITIONS or gap < SMALLEST_GAP:
            break
        gap /= 2


@kernel()
def _price(m: int, capacity: int, c: Counting) -> tuple[float, float]:
    """Return the price of a GPU at which jobs take about the capacity, and a bound on the excess cost of the solution
    at this price.

    Start with a solution that takes too few GPUs and another that takes too many. At the price that makes both equally
    good, the best solution replaces one of the two, until no solution is better than both.
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
    """Return the GPUs that all jobs take, and the sum of their costs, if each takes its best option at a GPU price."""
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
    """Drop options that are worse than a job's best by more than gap at this price. Return the number of options left,
    not counting jobs with a single option."""
    at, choices = 0, 0
    for i in range(m):
        start, stop = c.first[i], c.first[i + 1]
        best = np.inf
        for option in range(start, stop):
            best = min(best, c.cost[option] + price * c.charge[option])
        allowed = best + gap + 1e-9 * best  # tolerance for rounding
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
    """Choose the options with least total cost within capacity, and return this cost."""
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
