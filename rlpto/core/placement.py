"""Choose the nodes for each job's number of GPUs, in compiled functions that the simulator and Ray clusters share.

A pool is the nodes of one GPU type. A policy or `choose_gpu_types` first chooses the pool of each job; this module
chooses nodes within the pool. There are two strategies. With *pack* (default) a job spans as few nodes as possible,
prefers the node that it leaves fullest (`best_node`), and keeps its nodes if it can when its size changes. With
*most_free* GPUs come from the node with most free ones, then from the next. This is the rule of the Pollux simulator,
which places a job again when its size changes.

A job's GPUs are either a list of node numbers, one per GPU (`take`, `shrink_in_place`), or a row of GPUs by node, where
all jobs are placed at once (`pack`, `fit_rows`).
"""

from __future__ import annotations

import numpy as np

from rlpto.io.arrays import AnyArray, IntArray
from rlpto.io.compiled import kernel, njit

NOWHERE = NOT_WAITING = -1
"""NOWHERE: a node number that means no node. NOT_WAITING: the turn of a job that is already placed."""


@kernel(inline="always")
def fullest(counts: AnyArray) -> int:
    """Return the number of the largest entry of counts [N], the first of equals."""
    best = 0
    for node in range(1, len(counts)):
        if counts[node] > counts[best]:
            best = node
    return best


@kernel()
def best_node(free: IntArray, count: int, home: int, pools: AnyArray | None = None, pool: int = 0) -> int:
    """Return the node for `count` GPUs: home if they fit there, else the closest fit, else the node with most free.

    Of equally good nodes, return the first; return NOWHERE if the pool has no node. free: [N] free GPUs. home: a node
    of the pool, or NOWHERE. pools: [N] pool of each node; only nodes of pool number `pool` count. Default: all count.
    """
    if home != NOWHERE and free[home] >= count:
        return home
    best = NOWHERE
    for node in range(len(free)):
        if pools is not None and pools[node] != pool:
            continue
        if free[node] == count:
            return node
        both_fit = free[node] > count and free[best] > count
        if best == NOWHERE or (free[node] < free[best] if both_fit else free[node] > free[best]):
            best = node
    return best


@kernel()
def first_fit(free: IntArray, count: int, first: int) -> int:
    """Return the first node with `count` free GPUs, searching from node `first` and wrapping round, or NOWHERE."""
    for step in range(len(free)):
        node = (first + step) % len(free)
        if free[node] >= count:
            return node
    return NOWHERE


@kernel(inline="always")
def release(nodes: AnyArray, held: int, free: IntArray) -> None:
    """Add all GPUs of a job to free [N]. nodes: [G] node of each of its `held` GPUs."""
    for i in range(held):
        free[nodes[i]] += 1


@kernel(inline="always")
def take(nodes: AnyArray, count: int, free: IntArray, home: int, most_free: int) -> None:
    """Take `count` GPUs from one node after another, and write the node of each into nodes[:count].

    The cluster must have `count` free GPUs. free: [N] free GPUs, reduced here. home: node to prefer among equally good
    ones, or NOWHERE. most_free: if 1, take from the node with most free GPUs instead of `best_node`.
    """
    held = 0
    while held < count:
        chosen = fullest(free) if most_free else best_node(free, count - held, home)
        if home != NOWHERE and free[home] == free[chosen]:
            chosen = home
        taken = min(free[chosen], count - held)
        free[chosen] -= taken
        for _ in range(taken):
            nodes[held] = chosen
            held += 1


@kernel(inline="always")
def main_node(nodes: AnyArray, held: int) -> int:
    """Return the node that holds most of a job's GPUs (the first of equals), or NOWHERE if the job holds none."""
    best, most = NOWHERE, 0
    i = 0
    while i < held:
        start = i
        while i < held and nodes[i] == nodes[start]:
            i += 1
        if i - start > most:
            best, most = nodes[start], i - start
    return best


@kernel(inline="always")
def shrink_in_place(nodes: AnyArray, held: int, count: int, free: IntArray) -> None:
    """Give GPUs back until `count` are left, emptying the nodes with fewest of the job's GPUs first."""
    while held > count:
        start, fewest, i = 0, held + 1, 0
        while i < held:
            first = i
            while i < held and nodes[i] == nodes[first]:
                i += 1
            if i - first <= fewest:
                start, fewest = first, i - first
        given = min(fewest, held - count)
        free[nodes[start]] += given
        for k in range(start, held - given):
            nodes[k] = nodes[k + given]
        held -= given


@kernel(inline="always")
def span(nodes: AnyArray, held: int) -> int:
    """Return the number of nodes a job spans, counted as runs of equal node numbers in nodes [G]."""
    groups = 0
    for i in range(held):
        if i == 0 or nodes[i] != nodes[i - 1]:
            groups += 1
    return groups


@kernel()
def take_in_turn(row: IntArray, count: int, free: IntArray, first: int) -> int:
    """Add `count` GPUs to row [N], using up node after node from number `first` on and wrapping around.

    Return the last node used, or NOWHERE if the nodes have fewer free GPUs.
    """
    for step in range(len(free)):
        node = (first + step) % len(free)
        taken = min(free[node], count)
        row[node] += taken
        free[node] -= taken
        count -= taken
        if count == 0:
            return node
    return NOWHERE


@kernel()
def shrink_row(row: IntArray, surplus: int, free: IntArray, last: bool) -> None:
    """Give `surplus` GPUs of a row [N] back, emptying the nodes with fewest of them first.

    last: of nodes with equally many, empty the last one first, else the first one.
    """
    while surplus > 0:
        least = NOWHERE
        for node in range(len(row)):
            if row[node] > 0 and (least == NOWHERE or row[node] < row[least] or (last and row[node] == row[least])):
                least = node
        given = min(row[least], surplus)
        row[least] -= given
        free[least] += given
        surplus -= given


@kernel()
def fit_rows(placement: IntArray, gpus: IntArray, free: IntArray) -> None:
    """Make rows of placement [n, N] hold gpus [n] in total: remove the smallest parts, add where most are free."""
    for i in range(len(gpus)):
        shrink_row(placement[i], placement[i].sum() - gpus[i], free, True)
    for i in range(len(gpus)):
        missing = gpus[i] - placement[i].sum()
        while missing > 0:
            best = fullest(free)
            taken = min(free[best], missing)
            placement[i, best] += taken
            free[best] -= taken
            missing -= taken


@njit()
def pack(
    held: IntArray, gpus: IntArray, pool: IntArray, pools: IntArray, offered: IntArray, make_room: bool
) -> IntArray:
    """Return a placement [n, N] of gpus [n] for n jobs, each within its pool. The GPUs of a pool must fit its nodes.

    held: [n, N] GPUs that jobs hold now on nodes that are up. pool: [n] pool of each job. pools: [N] pool of each node.
    offered: [N] GPUs of each node that jobs may hold.
    A job with unchanged pool and count keeps its nodes. A shrinking job first leaves the nodes where it has fewest
    GPUs. Then the others are placed, the largest first: on whole nodes, with the rest on the node that this leaves
    fullest, or on several nodes if no node has room for the rest. make_room: if true, and no node has room for a part,
    move smaller single-node jobs off one node instead of splitting the part, and move as few GPUs as possible.
    """
    placement, free = np.zeros_like(held), offered.copy()
    home, turn = np.full_like(gpus, NOWHERE), np.full_like(gpus, NOT_WAITING)
    for row in range(len(gpus)):
        kept = 0
        for node in range(len(free)):
            if gpus[row] > 0 and held[row, node] > 0 and pools[node] == pool[row]:
                placement[row, node] = held[row, node]
                free[node] -= held[row, node]
                kept += held[row, node]
        shrink_row(placement[row], kept - gpus[row], free, False)
        if kept > 0:
            home[row] = fullest(placement[row])
        if kept < gpus[row]:
            turn[row] = row
            for node in range(len(free)):
                free[node] += placement[row, node]
                placement[row, node] = 0
    came = len(gpus)
    while True:
        row = NOWHERE
        for other in range(len(gpus)):
            if turn[other] != NOT_WAITING and (
                row == NOWHERE or gpus[other] > gpus[row] or (gpus[other] == gpus[row] and turn[other] < turn[row])
            ):
                row = other
        if row == NOWHERE:
            return placement
        turn[row], count, largest = NOT_WAITING, gpus[row], 0
        for node in range(len(free)):
            if pools[node] == pool[row]:
                largest = max(largest, offered[node])
        while count > 0:
            best = best_node(free, count, home[row], pools, pool[row])
            if make_room and free[best] < min(count, largest):
                _make_room(placement, free, row, min(count, largest), pools, pool[row], gpus, turn, came)
                came += len(gpus)
                best = best_node(free, count, home[row], pools, pool[row])
            taken = min(count, free[best])
            placement[row, best] += taken
            free[best] -= taken
            count -= taken


@njit()
def _make_room(
    placement: IntArray,
    free: IntArray,
    row: int,
    part: int,
    pools: IntArray,
    pool: int,
    gpus: IntArray,
    turn: IntArray,
    came: int,
) -> None:
    """Free `part` GPUs on one node of a pool by moving smaller jobs that have all their GPUs there.

    Smaller means fewer GPUs than the job in `row`. Among the nodes where this is possible, choose one from which fewest
    GPUs move. Jobs that move are placed again later, in turns from `came` on.
    """
    best, least = NOWHERE, 0
    for node in range(len(free)):
        if pools[node] == pool:
            moves = _clear(placement, node, part - free[node], gpus, gpus[row])
            cost = 0
            for other in range(len(gpus)):
                cost += gpus[other] * moves[other]
            if cost > 0 and (best == NOWHERE or cost < least):
                best, least = node, cost
    if best == NOWHERE:
        return
    moves = _clear(placement, best, part - free[best], gpus, gpus[row])
    for other in range(len(gpus)):
        if moves[other]:
            free[best] += placement[other, best]
            placement[other, best] = 0
            turn[other] = came + other


@njit()
def _clear(placement: IntArray, node: int, missing: int, gpus: IntArray, below: int) -> IntArray:
    """Return [n] 1 for jobs that leave a node to free `missing` GPUs, the largest first; all 0 if too few can."""
    moves = np.zeros_like(gpus)
    while missing > 0:
        found = NOWHERE
        for other in range(len(gpus)):
            alone = gpus[other] > 0 and placement[other, node] == gpus[other]
            if alone and not moves[other] and gpus[other] < below and (found == NOWHERE or gpus[other] > gpus[found]):
                found = other
        if found == NOWHERE:
            return np.zeros_like(gpus)
        moves[found] = 1
        missing -= gpus[found]
    return moves
