"""Pollux's objective as a cost per job, in tables that the search looks up.

Pollux maximises the power mean, p = -1, over the n jobs of x = speed-up x share x factor + 1e-3 (Qiao et al., OSDI
2021, section 4.2, with the constants of its simulator). That is n over the sum of the costs 1 / x, so that the sum is
minimised, job by job: a job without GPUs costs 1000, one with its fair share of 64 GPUs on 16 nodes about 4.

share: fraction of the cluster that one GPU is, times the number of nodes: 16/64 in that simulator, N / G on N nodes
with G GPUs.
factor: share of the job's pace left by a restart, for a row that differs from the present one; 1 for a row that stays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.compiled import kernel, njit

SMALLEST = 1e-3
"""Added to every job's x, so that a job without GPUs costs 1000 rather than everything."""
NO_GPUS_COST = 1 / SMALLEST
"""Cost of a job without GPUs."""
MAX_NODES = 16
"""Largest number of nodes that a job may span."""
_IDLE_COST = NO_GPUS_COST * (1 + 1e-9)
"""The same in the search: if factor 0 makes GPUs worthless, using them is still better than leaving them idle."""


class Rows(NamedTuple):
    """The rows of n jobs in a placement, few entries each.

    node, gpus: [n, MAX_NODES] nodes on which a job holds GPUs, and how many there. spans: [n] number of those nodes.
    """

    node: IntArray
    gpus: IntArray
    spans: IntArray


class Costs(NamedTuple):
    """Costs of all choices, for n jobs on N nodes with at most K GPUs in all.

    moved: [n, 2, K + 1] cost of 0..K GPUs on one node, and on several, in a row that differs from the present one;
    infinite for numbers that a job cannot have, undefined above `most`.
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
    """Rows of jobs that hold nothing."""
    shape = (jobs, MAX_NODES)
    return Rows(np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64), np.zeros(jobs, dtype=np.int64))


@njit()
def tabulate(
    speedup: FloatArray, held: IntArray, factor: FloatArray, least: IntArray, most: IntArray, size: IntArray
) -> Costs:
    """The costs of all choices; arguments as in `rlpto.policies.pollux.search.search`."""
    n, top = len(speedup), speedup.shape[2] - 1
    reach = np.sort(size)[::-1][:MAX_NODES].sum()
    highest = np.minimum(np.minimum(most, reach), top)
    costs = Costs(np.empty(speedup.shape), np.empty(n), empty_rows(n), held.sum(axis=1), least, highest, size.max())
    _fill(speedup, factor, held, share_of(size), (size > 0).sum() > 1, costs)
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
    """Cost of a job's row."""
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
    """Pollux's objective, to be maximised, of placement [n, N]; the other arguments as in `search`."""
    gpus, nodes = placement.sum(axis=1), (placement > 0).sum(axis=1)
    same: BoolArray = (placement == held).all(axis=1)
    gained = speedup[np.arange(len(gpus)), np.clip(nodes, 1, 2) - 1, gpus] * (gpus > 0)
    x = gained * share_of(size) * np.where(same, 1.0, factor) + SMALLEST
    return float(1 / np.mean(1 / x))
