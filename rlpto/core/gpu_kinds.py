"""Clusters with several GPU types: choose the GPU type of each job, and its nodes.

A job runs on one GPU type at a time. Policies that count GPUs may ignore types: `onto_kinds` turns their counts into
GPUs of one type a job. A policy that chooses types itself places with `place_on_kinds`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.core.cluster import ClusterShape, ClusterState
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import kernel, njit
from rlpto.performance.tables import SpeedTables

NO_KIND = NOWHERE = NOT_WAITING = -1
"""In place of the number of a GPU type or of a node for jobs without GPUs, and of the turn for jobs already placed."""


def room_of(shape: ClusterShape) -> IntArray:
    """[G] GPUs of each type that jobs may hold now."""
    return np.bincount(shape.node_kinds, shape.offered, minlength=len(shape.kinds)).astype(np.int64)


def kinds_of(placement: IntArray, shape: ClusterShape) -> IntArray:
    """[n] number of the GPU type of each row of a placement [n, N]; NO_KIND without GPUs."""
    if placement.shape[1] == 0:
        return np.full(len(placement), NO_KIND)
    return np.where(placement.any(axis=1), shape.node_kinds[placement.argmax(axis=1)], NO_KIND)


def fits_kinds(state: ClusterState, placement: IntArray) -> bool:
    """Whether each row of a placement [n, N] is on one GPU type, with a number of GPUs that is allowed there."""
    shape, gpus = state.shape, placement.sum(axis=1)
    on_kinds = np.stack([placement[:, shape.node_kinds == g].any(axis=1) for g in range(len(shape.kinds))])
    if (on_kinds.sum(axis=0) > 1).any():
        return False
    fits = state.jobs.fit_on(shape.kinds)
    return fits is None or np.array_equal(fits[kinds_of(placement, shape), np.arange(len(gpus)), gpus], gpus)


def onto_kinds(state: ClusterState, wishes: IntArray) -> IntArray:
    """Return a placement [n, N] of requested GPUs [n], which fit the cluster in total, by `choose_kinds`."""
    jobs, shape = state.jobs, state.shape
    held = np.where(shape.offered > 0, state.held_nodes, 0)
    speed = np.stack([jobs.speed_on_gpu(gpu) for gpu in shape.kinds])
    types, fit = jobs.on_kinds(shape.kinds)
    return choose_kinds(jobs.records, wishes, held, shape.offered, shape.node_kinds, speed, types, fit)


class Kinds(NamedTuple):
    """GPU types for compiled code: G GPU types on N nodes, T job types.

    of_node: [N] number of each node's GPU type. by_type: [T, G] variant of each job type on each GPU type. fit: [T, K +
    1] `SpeedTables.fit`; empty ([0, 0]) if every size is allowed.
    """

    of_node: IntArray
    by_type: IntArray
    fit: IntArray

    @classmethod
    def of(cls, shape: ClusterShape, tables: SpeedTables) -> Kinds | None:
        """Return the GPU types of a cluster and its job types; None if the cluster has one GPU type."""
        if len(shape.kinds) == 1:
            return None
        return cls(shape.node_kinds, tables.on_kinds(np.arange(len(tables.types)), shape.kinds), tables.fit)


@njit(error_model="numpy")
def choose_kinds(
    view: AnyArray,
    wishes: IntArray,
    held: IntArray,
    offered: IntArray,
    node_kinds: IntArray,
    speed: FloatArray,
    types: IntArray,
    fit: IntArray,
) -> IntArray:
    """Return a placement [n, N] of requested GPUs [n] for view [n] VIEW, one GPU type a job; jobs hold `held` [n, N].

    A job that does not grow stays on its GPU type. The others follow in queue order: each chooses the GPU type on which
    it should finish first with at most its requested number of the free GPUs there, including another rescale if it has
    to move. A job that finds fewer than its min_gpus on every GPU type waits, and the GPU type with most free GPUs is
    reserved for it: no later job takes any of them.

    offered: [N] GPUs of nodes. node_kinds: [N] their GPU types. speed: [G, n, K + 1] speed with 0 to K GPUs of each
    type; used for growing jobs only. types: [n, G] variant of each job on each GPU type. fit: [T, K + 1] allowed sizes
    of job types; empty ([0, 0]) if all are.
    """
    left = np.zeros(len(speed), dtype=np.int64)
    for node in range(len(offered)):
        left[node_kinds[node]] += offered[node]
    room, can = left.copy(), np.zeros_like(left)
    gpus, kind = np.zeros_like(wishes), np.full_like(wishes, NO_KIND)
    for row in range(len(wishes)):
        for node in range(len(offered)):
            gpus[row] += held[row, node]
            if held[row, node] > 0:
                kind[row] = node_kinds[node]
        gpus[row] = min(wishes[row], gpus[row])
        if fit.size and gpus[row] > 0:
            gpus[row] = fit[types[row, kind[row]], gpus[row]]
        if gpus[row] > 0:
            left[kind[row]] -= gpus[row]
    for row in range(len(wishes)):
        if wishes[row] <= gpus[row]:
            continue
        job, home = view[row], kind[row] if gpus[row] > 0 else NO_KIND
        if home != NO_KIND:
            left[home] += gpus[row]
        chosen, soonest, keep, keeps = 0, np.inf, -1, False
        for g in range(len(speed)):
            can[g], most = min(left[g], wishes[row]), min(room[g], wishes[row])
            if fit.size:
                can[g], most = fit[types[row, g], can[g]], fit[types[row, g], most]
            if can[g] < job.min_gpus:
                can[g] = 0
            if most >= job.min_gpus and (keep < 0 or left[g] > left[keep]):
                keep = g
            keeps = keeps or can[g] > 0
            seconds = job.remaining / speed[g, row, can[g]]
            if home not in (NO_KIND, g):
                seconds += job.rescale_delay
            if can[g] > 0 and seconds < soonest:
                chosen, soonest = g, seconds
        if not keeps:
            gpus[row] = 0
            if keep >= 0 or not fit.size:
                left[max(keep, 0)] = 0
            continue
        if home != NO_KIND and can[home] == wishes[row]:
            chosen = home
        gpus[row], kind[row] = can[chosen], chosen
        left[chosen] -= can[chosen]
    return _place(held, gpus, kind, node_kinds, offered, False)


def place_on_kinds(
    shape: ClusterShape, held: IntArray, gpus: IntArray, kind: IntArray, *, make_room: bool = False
) -> IntArray:
    """Return a placement [n, N] of gpus [n] on nodes of GPU types number kind [n]. GPUs of a type must fit its nodes.

    held: [n, N] GPUs that jobs hold now on nodes that are up. A job with unchanged GPU type and count keeps its nodes.
    A shrinking job first leaves the nodes where it has fewest GPUs. Then the others are placed, the largest first: on
    whole nodes, with the rest on the node that this leaves fullest, or on several nodes if no node has room for the
    rest. make_room: if true, smaller jobs on a single node move instead, with as few GPUs as possible.
    """
    return _place(held, gpus, kind, shape.node_kinds, shape.offered, make_room)


@njit()
def _place(
    held: IntArray, gpus: IntArray, kind: IntArray, node_kinds: IntArray, offered: IntArray, make_room: bool
) -> IntArray:
    """Implement `place_on_kinds` on nodes with `offered` [N] GPUs of the types node_kinds [N]."""
    placement, free = np.zeros_like(held), offered.copy()
    home, turn = np.full_like(gpus, NOWHERE), np.full_like(gpus, NOT_WAITING)
    for row in range(len(gpus)):
        surplus = -gpus[row]
        for node in range(len(free)):
            if gpus[row] > 0 and held[row, node] > 0 and node_kinds[node] == kind[row]:
                placement[row, node] = held[row, node]
                surplus += held[row, node]
        while surplus > 0:
            least = NOWHERE
            for node in range(len(free)):
                if placement[row, node] > 0 and (least == NOWHERE or placement[row, node] < placement[row, least]):
                    least = node
            given = min(surplus, placement[row, least])
            placement[row, least] -= given
            surplus -= given
        most = 0
        for node in range(len(free)):
            if placement[row, node] > most:
                most, home[row] = placement[row, node], node
            if surplus < 0:
                placement[row, node] = 0
            free[node] -= placement[row, node]
        if surplus < 0:
            turn[row] = row
    came = len(gpus)
    while True:
        row = -1
        for other in range(len(gpus)):
            if turn[other] != NOT_WAITING and (
                row < 0 or gpus[other] > gpus[row] or (gpus[other] == gpus[row] and turn[other] < turn[row])
            ):
                row = other
        if row < 0:
            return placement
        turn[row], count, largest = NOT_WAITING, gpus[row], 0
        for node in range(len(free)):
            if node_kinds[node] == kind[row]:
                largest = max(largest, offered[node])
        while count > 0:
            best = _best_node(free, node_kinds, kind[row], count, home[row])
            if make_room and free[best] < min(count, largest):
                _make_room(placement, free, row, min(count, largest), node_kinds, kind[row], gpus, turn, came)
                came += len(gpus)
                best = _best_node(free, node_kinds, kind[row], count, home[row])
            taken = min(count, free[best])
            placement[row, best] += taken
            free[best] -= taken
            count -= taken


@kernel()
def _best_node(free: IntArray, node_kinds: IntArray, kind: int, count: int, home: int) -> int:
    """Return the node of a GPU type for `count` GPUs: home if they fit, else the closest fit, else the emptiest."""
    best = NOWHERE
    for node in range(len(free)):
        if node_kinds[node] != kind:
            continue
        if node == home and free[node] >= count:
            return node
        if best == NOWHERE:
            best = node
        elif free[node] >= count and free[best] >= count:
            best = node if free[node] < free[best] else best
        elif free[node] > free[best]:
            best = node
    return best


@njit()
def _make_room(
    placement: IntArray,
    free: IntArray,
    row: int,
    part: int,
    node_kinds: IntArray,
    kind: int,
    gpus: IntArray,
    turn: IntArray,
    came: int,
) -> None:
    """Free `part` GPUs on one node of a GPU type by moving smaller jobs that have all their GPUs there.

    Smaller means fewer GPUs than the job in `row`. Among the nodes that can be freed, choose a node that moves fewest
    GPUs. Jobs that move wait from turn `came` on.
    """
    best, least = NOWHERE, 0
    for node in range(len(free)):
        if node_kinds[node] == kind:
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
    """[n] 1 for jobs that leave a node to free `missing` GPUs, the largest first; all 0 if that is not enough."""
    moves = np.zeros_like(gpus)
    while missing > 0:
        found = -1
        for other in range(len(gpus)):
            alone = gpus[other] > 0 and placement[other, node] == gpus[other]
            if alone and not moves[other] and gpus[other] < below and (found < 0 or gpus[other] > gpus[found]):
                found = other
        if found < 0:
            return np.zeros_like(gpus)
        moves[found] = 1
        missing -= gpus[found]
    return moves
