"""Sia: every job on the number and kind of GPUs that an integer programme gives it.

Source: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023; the
weights and the rule of restarts are those of its simulator.
Adapted: a job's restart time is its rescale delay, and its GPU limits are those it was submitted with.
docs/systems/sia.md says what else differs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState
from rlpto.core.gpu_kinds import kinds_of, place_on_kinds, room_of
from rlpto.core.policy import BasePolicy
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.settings import Settings
from rlpto.policies.pollux import policy as pollux

LARGEST_COST = 3000.0
"""Costs are cut off here."""
COST_DIGITS = 2
"""Decimal places that costs are rounded to."""
TIME_LIMIT_S = 2.0
"""Seconds after which the best allocation found so far is taken."""
GAP = 1e-3
"""Relative distance from the optimum at which an allocation is good enough: costs are rounded to a tenth of that."""


class SiaOptions(Settings):
    """Options of `sia`."""

    power: float = Field(-0.5, lt=0)
    """Exponent p of a job's speed-up in the objective: the more negative, the more fairness counts."""
    waiting: float = Field(1.1, gt=0)
    """Cost of a job that gets no GPUs; a running one at its slowest costs 1."""
    restart: float | None = Field(None, ge=0)
    """Seconds that a restart is believed to take; null: each job's own rescale delay."""
    growth: float = Field(2.0, ge=1)
    """Factor by which a job may hold more GPUs than the most it has held so far; it starts on as few as it can."""


class Choices(NamedTuple):
    """Possible allocations: C pairs of a job and a number of GPUs of one kind.

    row: [C] the job's row. kind: [C] number of the kind. gpus: [C]. cost: [C] of the job with that allocation.
    """

    row: IntArray
    kind: IntArray
    gpus: IntArray
    cost: FloatArray


class Sia(BasePolicy[SiaOptions]):
    """Minimises a sum over jobs of (restart factor x speed-up)^p, where a job without GPUs costs `waiting`."""

    name = "sia"
    summary = "integer programme over numbers and kinds of GPU (Sia), elastic; knows no remaining work"
    source = "Jayaram Subramanya et al., SOSP 2023 (Sia)"
    Options = SiaOptions

    def __call__(self, state: ClusterState) -> Allocation:
        """Jobs that are still starting stay; the others get the programme's allocation, and small jobs make room."""
        jobs, shape = state.jobs, state.shape
        held = np.where(shape.offered > 0, state.held_nodes, 0)
        gpus, kind = held.sum(axis=1), kinds_of(held, shape)
        pinned = (jobs.rescale_left > 0) & (gpus >= jobs.min_gpus) & (gpus <= jobs.max_gpus) & (gpus > 0)
        room = room_of(shape)
        np.subtract.at(room, kind[pinned], gpus[pinned])
        choices = find_choices(state, gpus, kind, ~pinned, self.options)
        chosen = solve(choices, room, self.options.waiting)
        gpus, kind = np.where(pinned, gpus, 0), np.where(pinned, kind, -1)
        gpus[choices.row[chosen]], kind[choices.row[chosen]] = choices.gpus[chosen], choices.kind[chosen]
        placement = place_on_kinds(shape, held, gpus, kind, make_room=True)
        return Allocation(gpus, placement=placement)


def configurations(shape: ClusterShape) -> list[list[int]]:
    """Numbers of GPUs a job may hold of each kind [G]: powers of two up to a node, then whole nodes that are up."""
    sizes, found = shape.kind_sizes, []
    for kind, room in zip(shape.kinds, room_of(shape).tolist(), strict=True):
        size = sizes[kind]
        powers = [2**i for i in range(size.bit_length()) if 2**i < size]
        found.append([gpus for gpus in (*powers, *range(size, room + 1, size)) if gpus <= room])
    return found


def restart_factor(age: FloatArray, restarts: IntArray, seconds: FloatArray) -> FloatArray:
    """[n] factor on a job's speed-up after a change: the share of its life, including one more restart, that it
    trained.

    age [s] since it was submitted; seconds: that a restart takes. 1 for a job no older than a restart takes.
    """
    return np.where(age <= seconds, 1.0, pollux.restart_factor(age, restarts, seconds))


def find_choices(state: ClusterState, gpus: IntArray, kind: IntArray, free: BoolArray, options: SiaOptions) -> Choices:
    """The possible allocations of a state's jobs, with costs. gpus, kind: [n] held now; free: [n] may change."""
    jobs, shape = state.jobs, state.shape
    grid = configurations(shape)
    most = np.clip((options.growth * jobs.peak_gpus).astype(np.int64), np.maximum(jobs.min_gpus, gpus), jobs.max_gpus)
    restarts = np.where(gpus > 0, jobs.rescales, 0)  # a job that has lost its GPUs must not wait for ever
    seconds = jobs.rescale_delay if options.restart is None else np.full(len(jobs), options.restart)
    factor = restart_factor(state.time - jobs.submit_time, restarts, seconds)
    rows, kinds, counts, speeds, fits = [], [], [], [], jobs.fit_on(shape.kinds)
    for number, (gpu, sizes) in enumerate(zip(shape.kinds, grid, strict=True)):
        room = int(room_of(shape)[number])
        width = jobs.speed_on_gpu(gpu).shape[1]
        allowed = np.zeros((len(jobs), width), dtype=bool)
        allowed[:, [size for size in sizes if size < width]] = True
        own = np.flatnonzero((kind == number) & (gpus > 0))
        allowed[own, gpus[own]] = True
        least = np.flatnonzero(jobs.min_gpus > 1)
        allowed[least, jobs.min_gpus[least]] = True
        at, limit = np.arange(width), most
        if fits is not None:
            allowed = (fits[number] == at) & (at > 0)
            limit = np.maximum(most, allowed.argmax(axis=1))  # the fewest on this kind may be more than on others
        allowed &= (at >= jobs.min_gpus[:, None]) & (at <= np.minimum(limit, room)[:, None]) & free[:, None]
        row, count = np.nonzero(allowed)
        rows.append(row)
        counts.append(count)
        kinds.append(np.full(len(row), number))
        speeds.append(jobs.speed_on_gpu(gpu)[row, count])
    row, of_kind, count, speed = map(np.concatenate, (rows, kinds, counts, speeds))
    present = (gpus[row] == count) & (kind[row] == of_kind)
    value = np.where(present, 1.0, factor[row]) * _speed_up(len(jobs), row, speed)
    return Choices(row, of_kind, count, costs(value, options.power))


def _speed_up(count: int, row: IntArray, speed: FloatArray) -> FloatArray:
    """[C] speed of each choice by the lowest that its job, one of `count`, has among its choices; 0 for no speed."""
    lowest = np.full(count, np.inf)
    np.minimum.at(lowest, row, np.where(speed > 0, speed, np.inf))
    return np.where(speed > 0, speed / lowest[row], 0.0)


def costs(value: FloatArray, power: float) -> FloatArray:
    """[C] value^power, cut off and rounded; value: restart factor x speed-up."""
    with np.errstate(divide="ignore"):
        cost = np.where(value > 0, value**power, LARGEST_COST)
    return np.asarray(np.round(np.minimum(cost, LARGEST_COST), COST_DIGITS))


def solve(choices: Choices, room: IntArray, waiting: float) -> IntArray:
    """Indices of the choices at least cost: at most one for each job and at most room [G] GPUs of each kind.

    A job without a choice costs `waiting`. Ties are resolved by the solver (HiGHS), always in the same way.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # a third of a second, for this policy alone
    from scipy.sparse import csr_array

    useful = np.flatnonzero(choices.cost < waiting)
    if len(useful) == 0:
        return useful
    row, kind, gpus = choices.row[useful], choices.kind[useful], choices.gpus[useful]
    number, columns = np.unique(row, return_inverse=True)[1], np.arange(len(useful))
    once = csr_array((np.ones(len(useful)), (number, columns)))
    within = csr_array((gpus.astype(np.float64), (kind, columns)), shape=(len(room), len(useful)))
    found = milp(
        choices.cost[useful] - waiting,
        integrality=np.ones(len(useful), dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(once, ub=1), LinearConstraint(within, ub=room)],
        options={"time_limit": TIME_LIMIT_S, "mip_rel_gap": GAP},
    )
    if found.x is None:  # out of time before anything was found
        return useful[:0]
    return useful[found.x > 0.5]
