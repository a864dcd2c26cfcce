"""Clusters with several kinds of GPU: which job runs on which kind, and on which nodes of it.

A job runs on one kind at a time. Policies that count GPUs need know nothing of kinds: `onto_kinds` is the rule by which
their counts become GPUs of a kind. A policy that chooses kinds itself places with `place_on_kinds`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlpto.core.cluster import ClusterShape, ClusterState
from rlpto.io.arrays import IntArray

NO_KIND = -1
"""In place of the number of a kind where a job holds no GPUs."""
NOWHERE = -1
"""In place of the number of a node, likewise."""


def room_of(shape: ClusterShape) -> IntArray:
    """[G] GPUs of every kind that jobs may hold now."""
    return np.bincount(shape.node_kinds, shape.offered, minlength=len(shape.kinds)).astype(np.int64)


def kinds_of(placement: IntArray, shape: ClusterShape) -> IntArray:
    """[n] number of the kind of GPU that each row of a placement [n, N] is on; NO_KIND without GPUs."""
    if placement.shape[1] == 0:
        return np.full(len(placement), NO_KIND)
    return np.where(placement.any(axis=1), shape.node_kinds[placement.argmax(axis=1)], NO_KIND)


def spans_kinds(placement: IntArray, shape: ClusterShape) -> IntArray:
    """Rows of a placement [n, N] that hold GPUs of more than one kind."""
    by_kind = np.stack([placement[:, shape.node_kinds == g].any(axis=1) for g in range(len(shape.kinds))])
    return np.flatnonzero(by_kind.sum(axis=0) > 1)


def onto_kinds(state: ClusterState, wishes: IntArray) -> IntArray:
    """Placement [n, N] of wishes [n] GPUs, which fit the cluster in all, each job on one kind.

    A job that does not grow stays on its kind. The others follow in queue order: each chooses the kind on which it
    should finish first with at most its wish of the free GPUs there, after another rescale if it has to move. Kinds
    are compared by `JobTable.speed_on_gpu`. A job that finds less than its min_gpus on every kind waits, and the kind
    with most GPUs left is kept for it: no job behind it takes any of those.
    """
    jobs, shape = state.jobs, state.shape
    held = np.where(shape.offered > 0, state.held_nodes, 0)
    count, own = held.sum(axis=1), kinds_of(held, shape)
    kept, fits = np.minimum(wishes, count), jobs.fit_on(shape.kinds)
    if fits is not None:
        kept = fits[own, np.arange(len(kept)), kept]
    if np.array_equal(count, wishes) and np.array_equal(kept, count):
        return held
    left, room = room_of(shape), room_of(shape)
    np.subtract.at(left, own[kept > 0], kept[kept > 0])
    speed = np.stack([jobs.speed_on_gpu(gpu) for gpu in shape.kinds])
    gpus, kind = kept.copy(), own.copy()
    for row in np.flatnonzero(wishes > kept).tolist():
        home = int(own[row]) if kept[row] else NO_KIND
        if home != NO_KIND:
            left[home] += kept[row]
        can = np.minimum(left, wishes[row])
        can[can < jobs.min_gpus[row]] = 0
        suits = room >= jobs.min_gpus[row]
        if fits is not None:
            can = fits[np.arange(len(can)), row, can]
            suits = fits[np.arange(len(can)), row, np.minimum(room, wishes[row])] > 0
        if not can.any():
            gpus[row] = 0
            if suits.any() or fits is None:
                left[np.argmax(np.where(suits, left, -1))] = 0
            continue
        with np.errstate(divide="ignore"):
            seconds = jobs.remaining[row] / speed[np.arange(len(can)), row, can]
        if home != NO_KIND and can[home] == wishes[row]:
            chosen = home
        else:
            seconds += jobs.rescale_delay[row] * ((np.arange(len(can)) != home) & (home != NO_KIND))
            chosen = int(np.argmin(np.where(can > 0, seconds, np.inf)))
        gpus[row], kind[row] = can[chosen], chosen
        left[chosen] -= can[chosen]
    return place_on_kinds(shape, held, gpus, kind)


def fits_kinds(state: ClusterState, placement: IntArray) -> bool:
    """Whether each row of a placement [n, N] on single kinds holds a number of GPUs that is allowed on its kind."""
    fits, gpus = state.jobs.fit_on(state.shape.kinds), placement.sum(axis=1)
    if fits is None:
        return True
    return np.array_equal(fits[kinds_of(placement, state.shape), np.arange(len(gpus)), gpus], gpus)


def place_on_kinds(
    shape: ClusterShape, held: IntArray, gpus: IntArray, kind: IntArray, *, make_room: bool = False
) -> IntArray:
    """Placement [n, N] of gpus [n] on nodes of the kinds numbered kind [n]; those of a kind must fit its nodes.

    held: [n, N] what jobs hold now, on nodes that are up. Who keeps its kind and its number keeps its nodes; who
    shrinks gives up its smallest parts first. Then the others, the largest first: whole nodes, then the rest on the
    node that it leaves fullest; where no node has room for that, on as many as it takes. make_room: rather than that,
    smaller jobs that stand on one node move, as few GPUs of theirs as possible.
    """
    nodes = shape.node_kinds
    stays = (gpus > 0) & (kinds_of(held, shape) == kind)
    placement = np.where(stays[:, None], held, 0)
    _shrink(placement, gpus)
    free = shape.offered - placement.sum(axis=0)
    grows = np.flatnonzero((gpus > 0) & (placement.sum(axis=1) < gpus))
    home = np.where(placement.any(axis=1), placement.argmax(axis=1), NOWHERE)
    free += placement[grows].sum(axis=0)
    placement[grows] = 0
    waiting = sorted(grows.tolist(), key=lambda row: -gpus[row])
    while waiting:
        row = waiting.pop(0)
        of_kind = np.flatnonzero(nodes == kind[row])
        moved = _fill(placement, free, row, int(gpus[row]), of_kind, int(home[row]), gpus if make_room else None)
        waiting = sorted([*waiting, *moved], key=lambda row: -gpus[row])
    return placement


def _shrink(placement: IntArray, gpus: IntArray) -> None:
    """Take from rows that hold more than gpus [n], their smallest parts first."""
    for row in np.flatnonzero(placement.sum(axis=1) > gpus).tolist():
        surplus = int(placement[row].sum() - gpus[row])
        for node in np.argsort(placement[row], kind="stable").tolist():
            given = min(surplus, int(placement[row, node]))
            placement[row, node] -= given
            surplus -= given


def _fill(
    placement: IntArray, free: IntArray, row: int, count: int, nodes: IntArray, home: int, gpus: IntArray | None
) -> list[int]:
    """Give a row `count` GPUs of `nodes`; returns rows that had to leave. gpus: [n] of all rows; None: none may."""
    moved: list[int] = []
    largest = int((placement[:, nodes].sum(axis=0) + free[nodes]).max())
    while count > 0:
        part = min(count, largest)
        if gpus is not None and free[nodes].max() < part:
            moved += _make_room(placement, free, row, part, nodes, gpus)
        fitting = nodes[free[nodes] >= count]
        if home in fitting:
            best = home
        elif len(fitting):
            best = int(fitting[np.argmin(free[fitting])])
        else:
            best = int(nodes[np.argmax(free[nodes])])
        taken = min(count, int(free[best]))
        placement[row, best] += taken
        free[best] -= taken
        count -= taken
    return moved


def _make_room(
    placement: IntArray, free: IntArray, row: int, part: int, nodes: IntArray, gpus: IntArray
) -> Sequence[int]:
    """Free `part` GPUs of one of `nodes` by moving jobs smaller than that of `row` which stand there alone.

    Of the nodes that can be freed, the one that moves fewest GPUs, if there is one. Returns the jobs that move.
    """
    single = (placement > 0).sum(axis=1) == 1
    best: tuple[int, int, list[int]] | None = None
    for node in nodes.tolist():
        here = np.flatnonzero(single & (placement[:, node] > 0) & (gpus < gpus[row])).tolist()
        here.sort(key=lambda other: -gpus[other])
        missing, leaving = part - int(free[node]), []
        for other in here:  # the largest that are needed, then one that covers the rest
            if missing > 0:
                leaving.append(other)
                missing -= int(gpus[other])
        cost = int(gpus[leaving].sum())
        if missing <= 0 and (best is None or cost < best[0]):
            best = (cost, node, leaving)
    if best is None:
        return ()
    _, node, leaving = best
    for other in leaving:
        free[node] += placement[other, node]
        placement[other] = 0
    return leaving
