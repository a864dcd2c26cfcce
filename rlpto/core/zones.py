"""Jobs that stay in one zone: on a cluster whose nodes name several, no job gets GPUs of two of them."""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.core.gpu_kinds import kinds_of
from rlpto.core.placement import fit_rows, take_packed
from rlpto.io.arrays import IntArray


def onto_zones(state: ClusterState, wishes: IntArray, placement: IntArray | None, chosen: bool) -> IntArray:
    """Placement [n, N] of wishes [n] GPUs, which fit the cluster in all, each job in one zone: as many as fit there.

    placement: [n, N] of the wishes, which says on which kind of GPU each job is; None: there is one kind. chosen: it is
    the policy's, and stands where it puts a job in one zone.

    The other jobs keep what they hold, in the zone where that is most, up to their wishes. Then they take more, the
    largest wish first. A job moves only where it gets more GPUs than by staying; one that holds none goes where its
    wish leaves fewest free, else where it gets most. One that finds less than its min_gpus waits.
    """
    jobs, shape, zones = state.jobs, state.shape, state.shape.node_zones
    fits, least = jobs.fit_on(shape.kinds), jobs.min_gpus
    kind = np.zeros_like(wishes)
    placed = np.zeros((len(jobs), len(shape)), dtype=np.int64)
    if placement is not None:
        kind, wishes = kinds_of(placement, shape), placement.sum(axis=1)
        in_zone = np.stack([placement[:, zones == zone].any(axis=1) for zone in range(len(shape.zones))], axis=1)
        placed = np.where(chosen & (in_zone.sum(axis=1, keepdims=True) == 1), placement, 0)
    free = shape.offered - placed.sum(axis=0)
    rows = np.flatnonzero(placed.sum(axis=1) < wishes).tolist()
    for row in rows:
        kept = np.where(shape.node_kinds == kind[row], np.minimum(state.held_nodes[row], free), 0)
        placed[row] = np.where(zones == np.bincount(zones, kept).argmax(), kept, 0)
        if placed[row].sum() > wishes[row]:
            fit_rows(placed[row : row + 1], wishes[row : row + 1], np.zeros_like(free))
        free -= placed[row]
    for row in sorted(rows, key=lambda row: -int(wishes[row])):
        room = np.where(shape.node_kinds == kind[row], free + placed[row], 0)
        room_in, held = np.bincount(zones, room).astype(np.int64), int(placed[row].sum())
        sizes = np.minimum(room_in, wishes[row])
        sizes = sizes if fits is None else fits[kind[row], row, sizes]
        sizes[sizes < least[row]] = 0
        size, best = int(sizes.max()), np.flatnonzero(sizes == sizes.max())
        main = int(placed[row].argmax()) if held else -1
        zone = zones[main] if held and zones[main] in best else best[room_in[best].argmin()]
        if held and (zone != zones[main] or size < held):
            free += placed[row]
            placed[row] = 0
        added, left = np.zeros(size - placed[row].sum(), dtype=np.int64), np.where(zones == zone, room - placed[row], 0)
        take_packed(added, len(added), left, main)
        np.add.at(placed[row], added, 1)
        np.subtract.at(free, added, 1)
    return placed
