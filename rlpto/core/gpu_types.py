"""Clusters with several GPU types: choose the GPU type of each job.

A job runs on one GPU type at a time. Policies that count GPUs may ignore types: `onto_gpu_types` turns their counts
into GPUs of one type a job. A policy that chooses types itself only has to call `rlpto.core.placement.pack`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.core.cluster import ClusterShape, ClusterState
from rlpto.core.placement import pack
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.performance.tables import SpeedTables

NO_GPU_TYPE = -1
"""In place of the number of a GPU type, for jobs without GPUs."""


def room_of(shape: ClusterShape) -> IntArray:
    """[G] GPUs of each type that jobs may hold now."""
    return np.bincount(shape.node_gpu_types, shape.offered, minlength=len(shape.gpu_types)).astype(np.int64)


def gpu_types_of(placement: IntArray, shape: ClusterShape) -> IntArray:
    """[n] number of the GPU type of each row of a placement [n, N]; NO_GPU_TYPE without GPUs."""
    if placement.shape[1] == 0:
        return np.full(len(placement), NO_GPU_TYPE)
    return np.where(placement.any(axis=1), shape.node_gpu_types[placement.argmax(axis=1)], NO_GPU_TYPE)


def rented_groups_of(shape: ClusterShape, tables: SpeedTables) -> IntArray:
    """[T] number of the first group of rented nodes whose GPU type jobs of a type may use; -1 if there is none."""
    found = np.full(len(tables.types), -1, dtype=np.int64)
    for number, group in reversed([*enumerate(shape.rented_groups)]):
        types = tables.on_gpu_types(np.arange(len(found)), [shape[int(group[0])].gpu])[:, 0]
        found[tables.floor_size[types].any(axis=1) if tables.floor_size.size else types >= 0] = number
    return found


def fits_gpu_types(state: ClusterState, placement: IntArray) -> bool:
    """Whether each row of a placement [n, N] is on one GPU type, with a number of GPUs that is allowed there."""
    shape, gpus, gpu_type = state.shape, placement.sum(axis=1), gpu_types_of(placement, state.shape)
    if placement[shape.node_gpu_types != gpu_type[:, None]].any():
        return False
    floor_size = state.jobs.floor_size_on(shape.gpu_types)
    return floor_size is None or np.array_equal(floor_size[gpu_type, np.arange(len(gpus)), gpus], gpus)


def onto_gpu_types(state: ClusterState, wishes: IntArray) -> IntArray:
    """Return a placement [n, N] of requested GPUs [n], which fit the cluster in total, by `choose_gpu_types`."""
    jobs, shape = state.jobs, state.shape
    held = np.where(shape.offered > 0, state.held_nodes, 0)
    speed = np.stack([jobs.speed_on_gpu(gpu) for gpu in shape.gpu_types])
    types, floor_size = jobs.on_gpu_types(shape.gpu_types)
    of_type = np.stack([held[:, shape.node_gpu_types == g].sum(axis=1) for g in range(len(shape.gpu_types))], axis=1)
    gpus, gpu_type = choose_gpu_types(jobs.records, wishes, of_type, room_of(shape), speed, types, floor_size)
    return pack(held, gpus, gpu_type, shape.node_gpu_types, shape.offered, False)


class GpuTypes(NamedTuple):
    """GPU types for compiled code: G GPU types on N nodes, T job types.

    of_node: [N] number of each node's GPU type. by_type: [T, G] variant of each job type on each GPU type.
    floor_size: [T, K + 1] `SpeedTables.floor_size`; empty ([0, 0]) if every size is allowed.
    """

    of_node: IntArray
    by_type: IntArray
    floor_size: IntArray

    @classmethod
    def of(cls, shape: ClusterShape, tables: SpeedTables) -> GpuTypes | None:
        """Return the GPU types of a cluster and its job types; None if the cluster has one GPU type."""
        if len(shape.gpu_types) == 1:
            return None
        by_type = tables.on_gpu_types(np.arange(len(tables.types)), shape.gpu_types)
        return cls(shape.node_gpu_types, by_type, tables.floor_size)


@njit(error_model="numpy")
def choose_gpu_types(
    view: AnyArray,
    wishes: IntArray,
    held: IntArray,
    room: IntArray,
    speed: FloatArray,
    types: IntArray,
    floor_size: IntArray,
) -> tuple[IntArray, IntArray]:
    """Return the GPUs [n], at most the requested ones [n], and the number of the GPU type [n] of jobs view [n] VIEW.

    A job that does not grow stays on its GPU type. The others follow in queue order: each chooses the GPU type on which
    it should finish first with at most its requested number of the free GPUs there, including another rescale if it has
    to move. A job that finds fewer than its min_gpus on every GPU type waits. Of the types with enough GPUs for it, the
    one with most free GPUs is reserved for it: no later job takes any of them.

    held: [n, G] GPUs of each type that jobs hold. room: [G] GPUs of each type that jobs may hold. speed: [G, n, K + 1]
    speed with 0 to K GPUs of each type; used for growing jobs only. types: [n, G] variant of each job on each GPU type.
    floor_size: [T, K + 1] allowed sizes of job types; empty ([0, 0]) if all are.
    """
    left, can = room.copy(), np.zeros_like(room)
    gpus, gpu_type = np.zeros_like(wishes), np.full_like(wishes, NO_GPU_TYPE)
    for row in range(len(wishes)):
        for g in range(len(room)):
            if held[row, g] > 0:
                gpus[row], gpu_type[row] = min(wishes[row], held[row, g]), g
        if floor_size.size and gpus[row] > 0:
            gpus[row] = floor_size[types[row, gpu_type[row]], gpus[row]]
        if gpus[row] > 0:
            left[gpu_type[row]] -= gpus[row]
    for row in range(len(wishes)):
        if wishes[row] <= gpus[row]:
            continue
        job, home = view[row], gpu_type[row] if gpus[row] > 0 else NO_GPU_TYPE
        if home != NO_GPU_TYPE:
            left[home] += gpus[row]
        chosen, soonest, keep, keeps = 0, np.inf, -1, False
        for g in range(len(speed)):
            can[g], most = min(left[g], wishes[row]), min(room[g], wishes[row])
            if floor_size.size:
                can[g], most = floor_size[types[row, g], can[g]], floor_size[types[row, g], most]
            if can[g] < job.min_gpus:
                can[g] = 0
            if most >= job.min_gpus and (keep < 0 or left[g] > left[keep]):
                keep = g
            keeps = keeps or can[g] > 0
            seconds = job.remaining / speed[g, row, can[g]]
            if home not in (NO_GPU_TYPE, g):
                seconds += job.rescale_delay
            if can[g] > 0 and seconds < soonest:
                chosen, soonest = g, seconds
        if not keeps:
            gpus[row] = 0
            if keep >= 0:
                left[keep] = 0
            continue
        if home != NO_GPU_TYPE and can[home] == wishes[row]:
            chosen = home
        gpus[row], gpu_type[row] = can[chosen], chosen
        left[chosen] -= can[chosen]
    return gpus, gpu_type
