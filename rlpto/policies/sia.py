"""Sia: an integer programme chooses every job's GPU type and number of GPUs.

Source: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023, with
the weights and the restart rule of its simulator.
Adapted: a job's restart time is its rescale delay, and its GPU limits are the limits at submission.
docs/systems/sia.md lists the other differences.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState
from rlpto.core.gpu_types import NO_GPU_TYPE, gpu_types_of, room_of
from rlpto.core.placement import pack
from rlpto.core.policy import BasePolicy
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.settings import Settings
from rlpto.policies.pollux.policy import restart_factor

LARGEST_COST = 3000.0
"""Upper limit of a job's cost."""
COST_DIGITS = 2
"""Decimal places to which costs are rounded."""
NODE_LIMIT = 1000
"""Nodes of branch and bound after which the best allocation found so far is taken. Unlike a limit of time, it gives the
same allocation on every machine; workloads tried so far need one node."""
GAP = 1e-3
"""Relative distance from the optimum at which an allocation is good enough."""


class SiaOptions(Settings):
    """Options of `sia`."""

    power: float = Field(-0.5, lt=0)
    """Exponent p of a job's speed-up in the objective: the more negative, the more fairness counts."""
    waiting: float = Field(1.1, gt=0)
    """Cost of a job without GPUs; a job at its slowest allowed speed costs 1."""
    restart: float | None = Field(None, ge=0)
    """Assumed duration of a restart [s]. Default: each job's rescale delay."""
    growth: float = Field(2.0, ge=1)
    """Limit of a job's GPUs, relative to the most it has held so far. A job starts on as few GPUs as it can."""


class Choices(NamedTuple):
    """Possible allocations: C combinations of a job, a GPU type and a number of GPUs.

    row, gpu_type, gpus: [C] the job's row, index of the GPU type, number of GPUs. cost: [C] the job's resulting cost.
    """

    row: IntArray
    gpu_type: IntArray
    gpus: IntArray
    cost: FloatArray


class Sia(BasePolicy[SiaOptions]):
    """Minimises the sum over jobs of (restart factor x speed-up)^p, with cost `waiting` for a job without GPUs."""

    name = "sia"
    summary = "integer programme over numbers and types of GPUs (Sia), elastic; knows no remaining work"
    source = "Jayaram Subramanya et al., SOSP 2023 (Sia)"
    Options = SiaOptions

    def __call__(self, state: ClusterState) -> Allocation:
        """Keep the GPUs of jobs that are still starting; give the others the programme's allocation, moving small jobs
        to make room."""
        jobs, shape = state.jobs, state.shape
        held = np.where(shape.offered > 0, state.held_nodes, 0)
        gpus, gpu_type = held.sum(axis=1), gpu_types_of(held, shape)
        pinned = (jobs.rescale_left > 0) & (gpus >= jobs.min_gpus) & (gpus <= jobs.max_gpus) & (gpus > 0)
        room = room_of(shape)
        np.subtract.at(room, gpu_type[pinned], gpus[pinned])
        choices = find_choices(state, gpus, gpu_type, ~pinned, self.options)
        chosen = solve(choices, room, self.options.waiting)
        gpus, gpu_type = np.where(pinned, gpus, 0), np.where(pinned, gpu_type, NO_GPU_TYPE)
        gpus[choices.row[chosen]], gpu_type[choices.row[chosen]] = choices.gpus[chosen], choices.gpu_type[chosen]
        return Allocation(gpus, placement=pack(held, gpus, gpu_type, shape.node_gpu_types, shape.offered, True))


def configurations(shape: ClusterShape) -> list[list[int]]:
    """Return a job's allowed numbers of GPUs for each GPU type [G]: powers of two up to a node, then whole nodes."""
    sizes, found = shape.node_sizes, []
    for gpu_type, room in zip(shape.gpu_types, room_of(shape).tolist(), strict=True):
        size = sizes[gpu_type]
        powers = [2**i for i in range(size.bit_length()) if 2**i < size]
        found.append([gpus for gpus in (*powers, *range(size, room + 1, size)) if gpus <= room])
    return found


def find_choices(
    state: ClusterState, gpus: IntArray, gpu_type: IntArray, free: BoolArray, options: SiaOptions
) -> Choices:
    """Return the possible allocations of a state's jobs, with costs. gpus, gpu_type: [n] number and type of the GPUs
    held now. free: [n] whether the allocation may change."""
    jobs, shape = state.jobs, state.shape
    most = np.clip((options.growth * jobs.peak_gpus).astype(np.int64), np.maximum(jobs.min_gpus, gpus), jobs.max_gpus)
    speeds = np.stack([jobs.speed_on_gpu(gpu) for gpu in shape.gpu_types])
    at, allowed = np.arange(speeds.shape[2]), np.zeros(speeds.shape, dtype=bool)
    for number, sizes in enumerate(configurations(shape)):
        allowed[number][:, [size for size in sizes if size < len(at)]] = True
    own, least = np.flatnonzero((gpu_type != NO_GPU_TYPE) & (gpus > 0)), np.flatnonzero(jobs.min_gpus > 1)
    allowed[gpu_type[own], own, gpus[own]] = True
    allowed[:, least, jobs.min_gpus[least]] = True
    if (floor_size := jobs.floor_size_on(shape.gpu_types)) is not None:
        every = np.minimum(at, floor_size[..., -1:])  # other jobs allow every size up to a maximum
        sized = (floor_size != every).any(axis=(0, 2))
        allowed = (floor_size == at) & (at > 0) & (allowed | sized[:, None])
        most = np.maximum(most, np.where(sized, allowed.argmax(axis=2), 0))  # the smallest size depends on the GPU type
    limit = np.minimum(most, room_of(shape)[:, None])
    allowed &= (at >= jobs.min_gpus[:, None]) & (at <= limit[..., None]) & free[:, None]
    of_type, row, count = np.nonzero(allowed)
    speed, lowest = speeds[of_type, row, count], np.full(len(jobs), np.inf)
    np.minimum.at(lowest, row, np.where(speed > 0, speed, np.inf))
    restarts = np.where(gpus > 0, jobs.rescales, 0)  # so a job that has lost its GPUs does not wait for ever
    seconds = jobs.rescale_delay if options.restart is None else np.full(len(jobs), options.restart)
    age = state.time - jobs.submit_time
    factor = np.where(age <= seconds, 1.0, restart_factor(age, restarts, seconds))
    present = (gpus[row] == count) & (gpu_type[row] == of_type)
    value = np.where(present, 1.0, factor[row]) * np.where(speed > 0, speed / lowest[row], 0.0)
    return Choices(row, of_type, count, costs(value, options.power))


def costs(value: FloatArray, power: float) -> FloatArray:
    """Return value^power [C], at most LARGEST_COST, rounded. value: restart factor x speed-up."""
    with np.errstate(divide="ignore"):
        cost = np.where(value > 0, value**power, LARGEST_COST)
    return np.asarray(np.round(np.minimum(cost, LARGEST_COST), COST_DIGITS))


def solve(choices: Choices, room: IntArray, waiting: float) -> IntArray:
    """Return the indices of the choices with least total cost: at most one per job, and room [G] GPUs of each type.

    A job without a choice costs `waiting`. Ties are resolved by the solver (HiGHS), always in the same way.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # the import takes a third of a second
    from scipy.sparse import csr_array

    useful = np.flatnonzero(choices.cost < waiting)
    if len(useful) == 0:
        return useful
    row, gpu_type, gpus = choices.row[useful], choices.gpu_type[useful], choices.gpus[useful]
    number, columns = np.unique(row, return_inverse=True)[1], np.arange(len(useful))
    once = csr_array((np.ones(len(useful)), (number, columns)))
    within = csr_array((gpus.astype(np.float64), (gpu_type, columns)), shape=(len(room), len(useful)))
    found = milp(
        choices.cost[useful] - waiting,
        integrality=np.ones(len(useful), dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(once, ub=1), LinearConstraint(within, ub=room)],
        options={"node_limit": NODE_LIMIT, "mip_rel_gap": GAP},
    )
    if found.x is None:  # the limit was reached before a solution was found
        return useful[:0]
    return useful[found.x > 0.5]
