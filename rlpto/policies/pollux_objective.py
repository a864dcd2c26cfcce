"""Pollux's objective as a cost per job, in tables that the search looks up.

Pollux maximises the power mean, p = -1, over the n jobs of x = speed-up x share x factor + 1e-3 (Qiao et al., OSDI
2021, section 4.2, with the constants of its simulator). That is n over the sum of the costs 1 / x, so that the sum is
minimised, job by job: a job without GPUs costs 1000, one with its fair share of 64 GPUs on 16 nodes about 4.

share: what one GPU is of the cluster, times the number of nodes, which is 16/64 there and N / G on N nodes with G GPUs.
factor: what a restart leaves of the job's pace, for a row that differs from the present one; 1 for a row that stays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.arrays import BoolArray, FloatArray, IntArray
from rlpto.compiled import kernel, njit

SMALLEST = 1e-3
"""Added to every job's x, so that a job without GPUs costs 1000 rather than everything."""
NO_GPUS_COST = 1 / SMALLEST
"""Cost of a job without GPUs."""
MAX_NODES = 16
"""Most nodes that a job may span."""
_IDLE_COST = NO_GPUS_COST * (1 + 1e-9)
"""The same in the search: where factor 0 makes GPUs worth nothing, they are better used than idle."""


class Costs(NamedTuple):
    """What every choice costs, for n jobs on N nodes with at most K GPUs in all.

    moved: [n, 2, K + 1] cost of 0..K GPUs on one node, and on several, in a row that differs from the present one;
    infinite where a job cannot have so many, undefined above `most`.
    kept: [n] cost of the present row; infinite where there is none, or none that may stay.
    held: [n, N] GPUs of each job on each node now. total: [n] their sums. least, most: [n] GPUs a job may have.
    node: GPUs of the largest node.
    """

    moved: FloatArray
    kept: FloatArray
    held: IntArray
    total: IntArray
    least: IntArray
    most: IntArray
    node: int


@njit()
def tabulate(
    speedup: FloatArray, held: IntArray, factor: FloatArray, least: IntArray, most: IntArray, size: IntArray
) -> Costs:
    """The costs of all choices; arguments as in `rlpto.policies.pollux_search.search`."""
    n, top = len(speedup), speedup.shape[2] - 1
    reach = np.sort(size)[::-1][:MAX_NODES].sum()
    highest = np.minimum(np.minimum(most, reach), top)
    costs = Costs(np.empty(speedup.shape), np.empty(n), held, held.sum(axis=1), least, highest, size.max())
    _fill(speedup, factor, share_of(size), (size > 0).sum() > 1, costs)
    return costs


@kernel()
def share_of(size: IntArray) -> float:
    """N / G for nodes with size [N] GPUs; those without any count for nothing."""
    nodes, gpus = 0, 0
    for node in range(len(size)):
        nodes += size[node] > 0
        gpus += size[node]
    return nodes / max(gpus, 1)


@kernel()
def _fill(speedup: FloatArray, factor: FloatArray, share: float, several: bool, costs: Costs) -> None:
    for job in range(len(factor)):
        moved, least, most = costs.moved[job], costs.least[job], costs.most[job]
        moved[:, 0] = _IDLE_COST
        for gpus in range(1, most + 1):
            for spread in range(2):
                possible = gpus >= least and ((several and gpus >= 2) if spread else gpus <= costs.node)
                x = speedup[job, spread, gpus] * share * factor[job] + SMALLEST
                moved[spread, gpus] = 1 / x if possible else np.inf
        count = costs.total[job]
        nodes = 0
        for node in range(costs.held.shape[1]):
            nodes += costs.held[job, node] > 0
        costs.kept[job] = np.inf
        if max(least, 1) <= count <= most and nodes <= MAX_NODES:
            costs.kept[job] = 1 / (speedup[job, min(nodes, 2) - 1, count] * share + SMALLEST)


@kernel()
def cost_of(costs: Costs, job: int, row: IntArray) -> float:
    """Cost of a job's row [N] of a placement."""
    gpus, nodes, same = 0, 0, True
    for node in range(len(row)):
        gpus += row[node]
        nodes += row[node] > 0
        same = same and row[node] == costs.held[job, node]
    if same and gpus > 0:
        return float(costs.kept[job])
    return float(costs.moved[job, 1 if nodes > 1 else 0, gpus])


def power_mean(speedup: FloatArray, held: IntArray, factor: FloatArray, placement: IntArray, size: IntArray) -> float:
    """Pollux's objective, to be maximised, of placement [n, N]; the other arguments as in `search`."""
    gpus, nodes = placement.sum(axis=1), (placement > 0).sum(axis=1)
    same: BoolArray = (placement == held).all(axis=1)
    gained = speedup[np.arange(len(gpus)), np.clip(nodes, 1, 2) - 1, gpus] * (gpus > 0)
    x = gained * share_of(size) * np.where(same, 1.0, factor) + SMALLEST
    return float(1 / np.mean(1 / x))
