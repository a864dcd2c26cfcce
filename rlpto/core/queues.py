"""Priority queues: the order of service, and the trimming of requested allocations to capacity.

Every policy passes through here: `Queue.order` sorts the table before the policy sees it, `Queue.admit` checks the
policy's allocation and trims it to capacity in that order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator

from rlpto.core.admission import admit
from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.gpu_types import fits_gpu_types, onto_gpu_types
from rlpto.core.job_table import STRICT
from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.core.placement import fit_rows
from rlpto.core.queue_order import next_promotion, order_rows
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.io.errors import PolicyError
from rlpto.io.reading import one_line
from rlpto.io.settings import Settings
from rlpto.performance.tables import NO_TYPE

CLASSES = len(PRIORITY_CLASSES)

_ClassWeight = Annotated[float, Field(gt=0, le=1e6)]


class QueueSettings(Settings):
    """Order of service: priority classes, aging between them, and the order within a class."""

    classes: Literal["strict", "weighted"] = "strict"
    """strict: a job of a higher class, after aging, comes first under every policy. weighted: classes have weights but
    none comes first: jobs queue as if each class above low had been submitted earlier by the times of aging below it,
    and policies that rank by an amount divide it by the weight of the class."""
    class_weights: tuple[_ClassWeight, _ClassWeight, _ClassWeight] = (4.0, 2.0, 1.0)
    """Weights of the classes high, normal and low (after aging), in descending order, used if classes are weighted. A
    job of weight 4 counts like a job of weight 1 with a quarter of its remaining time, or of the GPU time it has
    had."""
    inside: Literal["fifo", "fair_users"] = "fifo"
    """Order within a class (weighted: among all jobs): by submission, or first the users with least recent GPU time
    (`rlpto.core.queue_order`)."""
    aging_normal: float = Field(1800.0, gt=0)
    """Seconds that a job of class normal waits before it counts as high; weighted: also the head start in the queue of
    high over normal."""
    aging_low: float = Field(3600.0, gt=0)
    """Seconds that a job of class low waits before it counts as normal (and then ages on); weighted: also the head
    start in the queue of normal over low."""
    reserve_after: float | None = Field(None, gt=0)
    """Seconds without GPUs after which a job is next under every policy: GPUs that become free are reserved for it
    until it can start with its min_gpus, and no policy takes these from it again. Default: nothing is reserved. On
    clusters of several GPU types nothing is reserved."""

    @field_validator("class_weights")
    @classmethod
    def _descending(cls, weights: tuple[float, float, float]) -> tuple[float, float, float]:
        if any(lower > higher for higher, lower in pairwise(weights)):
            raise ValueError("class_weights must not rise from high to low")
        return weights

    @property
    def strict(self) -> bool:
        """Whether a job of a higher class comes first under every policy."""
        return self.classes == "strict"

    def reserved_after(self, gpu_types: int) -> float:
        """Seconds after which GPUs are reserved for a job on a cluster of `gpu_types` GPU types; infinity if never."""
        return np.inf if self.reserve_after is None or gpu_types > 1 else self.reserve_after


class Queue:
    """The queue of one run. A job that has aged into a higher class stays there; its record stores this.

    served: function that returns the past and expected GPU-seconds of each row's user, for `inside: fair_users`.
    """

    def __init__(self, settings: QueueSettings, served: Callable[[ClusterState], FloatArray] | None = None) -> None:
        self._settings, self._served = settings, served
        self._class_weights = STRICT if settings.strict else np.array(settings.class_weights)

    def order(self, state: ClusterState) -> ClusterState:
        """Return the same state with its rows in the order of service and their classes after aging."""
        jobs, rule = state.jobs, self._settings
        if len(jobs) == 0:
            return state
        rows, effective = np.empty_like(jobs.index), np.empty_like(jobs.index)
        aging = rule.aging_normal, rule.aging_low
        order_rows(jobs.store.records, jobs.index, state.time, *aging, rule.strict, rows, effective)
        ordered = jobs.reordered(rows, effective, self._class_weights)
        if self._served is not None:
            places = ordered.ranked(self._served(replace(state, jobs=ordered)) / ordered.class_weight)
            ordered = ordered.reordered(places, effective[places])
        return replace(state, jobs=ordered)

    def stands_until(self, state: ClusterState) -> float:
        """Time until which the order of `state` and the admitted allocation are valid, unless jobs or nodes come or go.

        Call it after the decision on `state` has been carried out.
        """
        rule = self._settings
        if rule.inside != "fifo" or rule.reserve_after is not None:
            return state.time  # users take turns; jobs become overdue
        return next_promotion(state.jobs.store.records, state.jobs.index, rule.aging_normal, rule.aging_low)

    def admit(self, state: ClusterState, allocation: Allocation, policy: str) -> Allocation:
        """Return the allocation to carry out: checked, and trimmed to capacity in queue order.

        A job that would get fewer than its min_gpus gets none. A job with allowed sizes gets the largest allowed size
        up to its trimmed number (on its GPU type). On several GPU types `onto_gpu_types` assigns and places the jobs,
        unless the policy has placed every job on one type. Jobs get no GPUs if CPU slots for their parameter servers
        are missing.

        Raises PolicyError if a policy returns no Allocation, numbers that are not whole, are negative, or break a job's
        limits, a batch size or parameter servers that the job cannot have, or a placement that the nodes have no room
        for.
        """
        if not isinstance(allocation, Allocation):
            raise PolicyError(f"policy {policy} returned a {type(allocation).__name__}: expected an Allocation")
        jobs = state.jobs
        wishes = whole_numbers(allocation.gpus, len(jobs), policy)
        gpus = np.empty_like(wishes)
        floor_size = jobs.floor_size_anywhere
        after = self._settings.reserved_after(len(state.shape.gpu_types))
        sizes = floor_size if floor_size.size else None
        bad = admit(jobs.records, wishes, state.capacity, gpus, jobs.store.records, sizes, state.time, after)
        if bad >= 0:
            raise PolicyError(
                f"policy {policy} gave job {int(jobs.index[bad])} {int(wishes[bad])} GPUs at {state.time:.0f} s: "
                f"expected 0, or {int(jobs.min_gpus[bad])} to {int(jobs.max_gpus[bad])}"
            )
        order = check_order(allocation.order, len(jobs), policy)
        servers = admit_servers(allocation.servers, state, gpus, policy)
        placement = check_placement(allocation.placement, state, wishes, policy)
        if len(state.shape.gpu_types) > 1:
            if placement is None or not np.array_equal(gpus, wishes) or not fits_gpu_types(state, placement):
                placement = onto_gpu_types(state, gpus)  # the policy ignores GPU types and has only counted GPUs
        elif placement is not None and not np.array_equal(gpus, wishes):
            fit_rows(placement, gpus, state.shape.offered - placement.sum(axis=0))
        if placement is not None:
            gpus = placement.sum(axis=1)
            servers = servers if servers is None else np.where(gpus > 0, servers, 0)
        batch_size = check_batch_size(allocation.batch_size, state, gpus, policy)
        return Allocation(gpus, order, batch_size, placement, servers)


def as_array(values: Any, policy: str, ragged: str) -> AnyArray:
    """Return `values` as an array. Raises PolicyError if they cannot be converted. ragged: end of the message for
    rows of different lengths."""
    try:
        return np.asarray(values)
    except ValueError:
        raise PolicyError(f"policy {policy} returned {ragged}") from None
    except (RuntimeError, TypeError) as error:  # for example a torch tensor with a gradient, or on a GPU
        raise PolicyError(f"policy {policy} returned no array: {one_line(error)}") from None


def whole_numbers(numbers: Any, count: int, policy: str, unit: str = "GPUs") -> IntArray:
    """Return `numbers` as int64 [count]. Raises PolicyError naming the policy and the fault. unit: for the message."""
    array = as_array(numbers, policy, f"ragged {unit}: expected {count} whole numbers")
    if array.shape != (count,):
        raise PolicyError(f"policy {policy} returned {unit} of shape {array.shape}: expected ({count},), one per job")
    if array.dtype.kind in "iu":
        return array.astype(np.int64, copy=False)
    if array.dtype.kind != "f":
        raise PolicyError(f"policy {policy} returned {unit} of type {array.dtype}: expected whole numbers")
    # NaN, infinity and numbers too large for int64 fail these comparisons too.
    wrong = ~((np.abs(array) < 2.0**62) & (np.floor(array) == array))
    if wrong.any():
        raise PolicyError(f"policy {policy} returned {array[wrong][0]} {unit}: expected whole numbers")
    return array.astype(np.int64)


def check_batch_size(batch_size: Any, state: ClusterState, gpus: IntArray, policy: str) -> IntArray | None:
    """Batch sizes [n] of the jobs that get `gpus` [n], 0 for jobs without GPUs; None if none is chosen.

    Raises PolicyError naming the policy if a job cannot have its batch size.
    """
    if batch_size is None:
        return None
    jobs = state.jobs
    chosen = whole_numbers(batch_size, len(jobs), policy, "samples in a batch")
    wrong = np.flatnonzero(jobs.types_at(chosen) == NO_TYPE)  # a size that exists has all numbers of servers
    if len(wrong):
        known = [size for size in jobs.batch_sizes[wrong[0]].tolist() if size > 0]
        raise PolicyError(
            f"policy {policy} gave job {int(jobs.index[wrong[0]])} a batch size of {int(chosen[wrong[0]])} at "
            f"{state.time:.0f} s: expected 0 (its own choice)" + (f" or one of {known}" if known else "")
        )
    return np.where(gpus > 0, chosen, 0)


def check_placement(placement: Any, state: ClusterState, gpus: IntArray, policy: str) -> IntArray | None:
    """Return `placement` as a new int64 [n, N]. Raises PolicyError unless it gives gpus [n] on nodes that are up."""
    if placement is None:
        return None
    shape = len(state.jobs), len(state.shape)
    expected = f"expected whole numbers of shape {shape}, one for every job and node"
    array = as_array(placement, policy, f"a ragged placement: {expected}")
    if array.shape != shape or array.dtype.kind not in "iu":
        raise PolicyError(
            f"policy {policy} returned a placement of shape {array.shape} and type {array.dtype}: {expected}"
        )
    array = array.astype(np.int64)
    wrong = np.flatnonzero((array < 0).any(axis=1) | (array.sum(axis=1) != gpus))
    if len(wrong):
        job, placed = int(state.jobs.index[wrong[0]]), array[wrong[0]].tolist()
        raise PolicyError(f"policy {policy} placed job {job} on {placed}: expected {int(gpus[wrong[0]])} GPUs in all")
    for number, (room, used) in enumerate(zip(state.shape.offered.tolist(), array.sum(axis=0).tolist(), strict=True)):
        if used > room:
            raise PolicyError(f"policy {policy} placed {used} GPUs on node {number}: expected at most {room}")
    return array


def check_order(order: Any, count: int, policy: str) -> IntArray | None:
    """Return `order` as int64 [count]. Raises PolicyError unless it is a permutation of the rows."""
    if order is None:
        return None
    wrong = f"a placement order that is no permutation of its {count} jobs"
    array = as_array(order, policy, wrong)
    if array.shape != (count,) or array.dtype.kind not in "iu" or not is_permutation(array.astype(np.int64)):
        raise PolicyError(f"policy {policy} returned {wrong}")
    return array.astype(np.int64)


def admit_servers(servers: Any, state: ClusterState, gpus: IntArray, policy: str) -> IntArray | None:
    """Parameter servers [n] of the jobs that get `gpus` [n], 0 for jobs without GPUs; None if no job has any.

    servers: requested numbers, `Allocation.servers`. They are cut to the CPU slots: jobs first keep the servers they
    have, then get more in queue order. A job whose number was chosen gets as many as there are; a job with its default
    number gets exactly that or none. The `gpus` of a job that gets none are set to 0.
    Raises PolicyError naming the policy for a number that a job cannot have.
    """
    jobs, chosen = state.jobs, np.zeros(len(state.jobs), dtype=np.int64)
    if servers is not None:
        chosen = whole_numbers(servers, len(jobs), policy, "parameter servers")
    if not jobs.has_servers:
        if chosen.any():
            raise PolicyError(f"policy {policy} chose parameter servers for jobs that have none")
        return None
    own, most = jobs.own_servers, jobs.most_servers
    wrong = np.flatnonzero((chosen < 0) | (chosen > most))
    if len(wrong):
        job, highest = int(jobs.index[wrong[0]]), int(most[wrong[0]])
        raise PolicyError(
            f"policy {policy} gave job {job} {int(chosen[wrong[0]])} parameter servers at {state.time:.0f} s: expected "
            + (f"0 (its own number), or 1 to {highest}" if highest else "0, for it trains without")
        )
    wanted = np.where(gpus > 0, np.where(chosen > 0, chosen, own), 0)
    least = np.where(chosen > 0, 1, own)
    held = np.where(jobs.gpus > 0, jobs.servers, 0)
    given = np.minimum(wanted, held)
    share_slots(given, wanted, least, state.cpu_slots)
    gpus[(wanted > 0) & (given == 0)] = 0
    return given


@njit()
def share_slots(given: IntArray, wanted: IntArray, least: IntArray, slots: int) -> None:
    """Raise given [n], slots that rows hold already, to wanted [n] in order while slots last, or cut it to the slots.

    A row that gets less than its least gets nothing.
    """
    left = slots
    for i in range(len(given)):
        given[i] = min(given[i], left)
        left -= given[i]
    for i in range(len(given)):
        reached = min(wanted[i], given[i] + left)
        if reached >= least[i]:
            left -= reached - given[i]
            given[i] = reached
        else:
            left += given[i]
            given[i] = 0


@njit()
def is_permutation(order: IntArray) -> bool:
    """True if every number from 0 to len - 1 is in `order` once."""
    seen = np.zeros(len(order), dtype=np.bool_)
    for row in order:
        if row < 0 or row >= len(order) or seen[row]:
            return False
        seen[row] = True
    return True
