"""Multi-priority queues: who is served first, and the one place where wishes meet capacity.

Every policy passes through here, whatever it is: `Queue.order` sorts the table before the policy
sees it, `Queue.admit` checks what the policy returns and trims it to capacity in that order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from rlpto.arrays import FloatArray, IntArray
from rlpto.cluster import Allocation, ClusterState
from rlpto.compiled import kernel, njit
from rlpto.errors import PolicyError
from rlpto.jobs import JobTable
from rlpto.settings import Settings


class ConvergingSettings(Settings):
    """Jobs that have nearly converged give GPUs, a quarter of their peak at a time, to jobs that have not."""

    gained: float = Field(1.0, gt=0, le=1)
    """Share of all the accuracy a job can gain from which on it counts as converging; 1: no job ever does."""
    keep: float = Field(0.5, gt=0, le=1)
    """Share of the most GPUs it has held that a converging job keeps at least, halfway from `gained` to its end."""


class QueueSettings(Settings):
    """Strict order between priority classes, aging between them, one rule inside each."""

    inside: Literal["fifo", "shortest_first"] = "fifo"
    """Order within a class: by submission, or by remaining time on the requested GPUs."""
    aging_normal: float = Field(1800.0, gt=0)
    """Seconds a waiting job of class normal waits before it counts as high."""
    aging_low: float = Field(3600.0, gt=0)
    """Seconds a waiting job of class low waits before it counts as normal (and then ages on)."""
    shrink_lower: bool = False
    """While a job of a lower class runs, give waiting jobs of higher classes their min_gpus: from GPUs nobody
    uses, then by shrinking jobs of lower classes, down to their min_gpus."""
    converging: ConvergingSettings = ConvergingSettings()
    """Whether jobs shrink as they converge, while other jobs could use their GPUs."""

    @property
    def aging_bound(self) -> float:
        """Seconds after which any waiting job counts as high."""
        return self.aging_low + self.aging_normal


class Queue:
    """The queue of one run. A job that has aged into a higher class stays there.

    promoted: [jobs] classes that each job has risen before this run, if it goes on from another.
    """

    def __init__(self, settings: QueueSettings, promoted: IntArray | None = None) -> None:
        self._settings = settings
        self._promoted: IntArray = np.zeros(0, dtype=np.int64) if promoted is None else promoted

    def reset(self) -> None:
        """Forget all promotions."""
        self._promoted = np.zeros(0, dtype=np.int64)

    def order(self, state: ClusterState) -> ClusterState:
        """The same state with its rows in the order of service and the classes after aging.

        Jobs that are to shrink as they converge show lower max_gpus (and requested_gpus, where those are more), so
        that every policy gives what they leave to others; see `limit_converging`.
        """
        jobs = state.jobs
        if len(jobs) == 0:
            return state
        if (last := int(jobs.index.max())) >= len(self._promoted):
            grown = np.zeros(max(64, 2 * (last + 1)), dtype=np.int64)
            grown[: len(self._promoted)] = self._promoted
            self._promoted = grown
        key = None
        if self._settings.inside == "shortest_first":
            key = jobs.remaining_time(jobs.requested_gpus)
        rows, effective = np.empty_like(jobs.index), np.empty_like(jobs.index)
        order_rows(
            jobs.index,
            jobs.priority,
            jobs.wait_start,
            state.time,
            self._settings.aging_normal,
            self._settings.aging_low,
            self._promoted,
            rows,
            effective,
        )
        if key is not None:
            rows = np.lexsort((key, effective))
        ordered = jobs.reordered(rows, effective[rows])
        if self._settings.converging.gained < 1:
            ordered = self._shrinking(ordered)
        return replace(state, jobs=ordered)

    def _shrinking(self, jobs: JobTable) -> JobTable:
        """The table with the limits of converging jobs lowered."""
        accuracy = (jobs.accuracy_at(0.0 * jobs.progress), jobs.accuracy, jobs.final_accuracy)
        limits, rule = jobs.max_gpus.copy(), self._settings.converging
        limit_converging(*accuracy, jobs.gpus, jobs.peak_gpus, jobs.min_gpus, limits, rule.gained, rule.keep)
        return jobs.limited(limits)

    def stands_until(self, state: ClusterState) -> float:
        """Time until which, unless jobs or nodes come or go, the order of `state` and what is admitted stand.

        To be asked once the decision on `state` has been carried out.
        """
        rule = self._settings
        if rule.inside != "fifo" or rule.shrink_lower or rule.converging.gained < 1:
            return state.time  # remaining times pass each other; shrunk jobs make room for further wishes
        jobs = state.jobs
        # Gathered anew: what the policy saw does not tell who has begun to wait since.
        wait_start = jobs.reordered(np.arange(len(jobs)), jobs.effective_priority).wait_start
        return next_promotion(
            jobs.priority,
            jobs.effective_priority,
            wait_start,
            self._settings.aging_normal,
            self._settings.aging_low,
        )

    def admit(self, state: ClusterState, allocation: Allocation, policy: str) -> Allocation:
        """The allocation that is carried out: checked, and trimmed to capacity in queue order.

        A job that would get less than its min_gpus gets none. Where the state says so, GPUs are held back for
        jobs of class high that are expected, see `hold_back`. Raises PolicyError if a policy returns
        no Allocation, or numbers that are not whole, are negative, or break a job's limits.
        """
        if not isinstance(allocation, Allocation):
            raise PolicyError(f"policy {policy} returned a {type(allocation).__name__}: expected an Allocation")
        jobs = state.jobs
        gpus = whole_numbers(allocation.gpus, len(jobs), policy)
        bad, total = check_limits(gpus, jobs.min_gpus, jobs.max_gpus)
        if bad >= 0:
            raise PolicyError(
                f"policy {policy} gave job {int(jobs.index[bad])} {int(gpus[bad])} GPUs at {state.time:.0f} s: "
                f"expected 0, or {int(jobs.min_gpus[bad])} to {int(jobs.max_gpus[bad])}"
            )
        if total > state.capacity or self._settings.shrink_lower:
            wishes, gpus = gpus, np.empty_like(gpus)
            trim(wishes, jobs.min_gpus, jobs.effective_priority, state.capacity, self._settings.shrink_lower, gpus)
        if state.reserved > 0:
            gpus = gpus.copy()
            hold_back(gpus, jobs.min_gpus, jobs.gpus, jobs.effective_priority, state.capacity, state.reserved)
        return Allocation(gpus, check_order(allocation.order, len(jobs), policy))


def whole_numbers(gpus: Any, count: int, policy: str) -> IntArray:
    """`gpus` as int64 [count], or PolicyError naming the policy and what is wrong."""
    try:
        array = np.asarray(gpus)
    except ValueError:
        raise PolicyError(f"policy {policy} returned ragged GPUs: expected {count} whole numbers") from None
    if array.shape != (count,):
        raise PolicyError(f"policy {policy} returned GPUs of shape {array.shape}: expected ({count},), one per job")
    if array.dtype.kind in "iu":
        return array.astype(np.int64, copy=False)
    if array.dtype.kind != "f":
        raise PolicyError(f"policy {policy} returned GPUs of type {array.dtype}: expected whole numbers")
    # NaN, infinity and what no int64 can hold fail these comparisons too.
    wrong = ~((np.abs(array) < 2.0**62) & (np.floor(array) == array))
    if wrong.any():
        raise PolicyError(f"policy {policy} returned {array[wrong][0]} GPUs: expected whole numbers")
    return array.astype(np.int64)


def check_order(order: Any, count: int, policy: str) -> IntArray | None:
    """`order` as int64 [count] if it is a permutation of the rows, or PolicyError."""
    if order is None:
        return None
    array = np.asarray(order)
    if array.shape != (count,) or array.dtype.kind not in "iu" or not is_permutation(array.astype(np.int64)):
        raise PolicyError(f"policy {policy} returned a placement order that is no permutation of its {count} jobs")
    return array.astype(np.int64)


@njit()
def is_permutation(order: IntArray) -> bool:
    """True if every number from 0 to len - 1 stands in `order` once."""
    seen = np.zeros(len(order), dtype=np.bool_)
    for row in order:
        if row < 0 or row >= len(order) or seen[row]:
            return False
        seen[row] = True
    return True


@kernel()
def order_rows(
    index: IntArray,
    priority: IntArray,
    wait_start: FloatArray,
    now: float,
    aging_normal: float,
    aging_low: float,
    promoted: IntArray,
    rows: IntArray,
    effective: IntArray,
) -> None:
    """Fill `rows` [n] by effective class (stable, so by submission inside a class), and `effective` [n],
    the classes after aging.

    promoted [jobs]: classes each job has risen so far; brought up to date here.
    """
    count = len(index)
    high, normal = 0, 0
    for i in range(count):
        own = priority[i]
        since = wait_start[i]  # NaN while running: compares false below
        risen = 0
        if own == 2 and now >= since + aging_low:
            risen = 2 if now >= since + (aging_low + aging_normal) else 1
        elif own == 1 and now >= since + aging_normal:
            risen = 1
        promoted[index[i]] = max(promoted[index[i]], risen)
        effective[i] = own - promoted[index[i]]
        high += effective[i] == 0
        normal += effective[i] == 1
    at_high, at_normal, at_low = 0, high, high + normal
    for i in range(count):
        if effective[i] == 0:
            rows[at_high] = i
            at_high += 1
        elif effective[i] == 1:
            rows[at_normal] = i
            at_normal += 1
        else:
            rows[at_low] = i
            at_low += 1


@kernel()
def gained_share(first: float, now: float, final: float) -> float:
    """Share of all the accuracy a job can gain that it has gained; 0 where there is none to gain."""
    return (now - first) / (final - first) if final > first else 0.0


@kernel()
def limit_converging(
    first: FloatArray,
    accuracy: FloatArray,
    final: FloatArray,
    held: IntArray,
    peak: IntArray,
    min_gpus: IntArray,
    limits: IntArray,
    since: float,
    keep: float,
) -> None:
    """Lower `limits` [n], the most GPUs of each job, of jobs that converge while others could use GPUs.

    A job converges once it has gained `since` of the accuracy between its `first` and its `final` one. It may then
    hold three quarters of `peak`, the most it has held, and `keep` of it (if that is less) from halfway to its end
    on, but no fewer than its min_gpus. Nothing is lowered unless a job that does not converge holds less than its
    limit. After the convergence shrink of this project's notes on systems (1.7).
    """
    wanted = False
    for i in range(len(first)):
        wanted = wanted or (gained_share(first[i], accuracy[i], final[i]) < since and held[i] < limits[i])
    if not wanted:
        return
    for i in range(len(first)):
        gained = gained_share(first[i], accuracy[i], final[i])
        if gained >= since and peak[i] > 0:
            late = gained >= (1.0 + since) / 2
            share = keep if late else max(keep, 0.75)
            limits[i] = min(limits[i], max(min_gpus[i], int(np.ceil(share * peak[i]))))


@kernel()
def next_promotion(
    priority: IntArray, effective: IntArray, wait_start: FloatArray, aging_normal: float, aging_low: float
) -> float:
    """Earliest time at which a waiting job rises a class; infinity if none ever will."""
    earliest = np.inf
    for i in range(len(priority)):
        if effective[i] == 0 or np.isnan(wait_start[i]):
            continue
        bound = aging_low if priority[i] == 2 else aging_normal
        if priority[i] - effective[i] == 1:
            bound += aging_normal
        earliest = min(earliest, wait_start[i] + bound)
    return earliest


@kernel()
def check_limits(gpus: IntArray, min_gpus: IntArray, max_gpus: IntArray) -> tuple[int, int]:
    """First row whose GPUs break its limits (-1: none), and the sum of all."""
    total = 0
    for i in range(len(gpus)):
        if gpus[i] != 0 and (gpus[i] < min_gpus[i] or gpus[i] > max_gpus[i]):
            return i, total
        total += gpus[i]
    return -1, total


@kernel()
def trim(
    gpus: IntArray, min_gpus: IntArray, effective: IntArray, capacity: int, shrink_lower: bool, given: IntArray
) -> None:
    """Fill `given` [n] with wishes `gpus` [n] cut to `capacity` in row order, rows sorted by `effective` class;
    see `shrink_lower_classes`."""
    left = capacity
    for i in range(len(gpus)):
        given[i] = min(gpus[i], left)
        if given[i] < min_gpus[i]:
            given[i] = 0
        left -= given[i]
    if shrink_lower:
        shrink_lower_classes(given, min_gpus, effective, left)


@kernel()
def hold_back(
    given: IntArray, min_gpus: IntArray, held: IntArray, effective: IntArray, capacity: int, reserved: int
) -> None:
    """Leave `reserved` GPUs of the capacity to nobody, as far as jobs below class high can do without growing.

    given [n] is changed: rows of lower classes, the last first, get no more than they hold (or their min_gpus,
    if they hold less) until enough is left. Nobody loses GPUs, and nobody is kept from starting. After the
    reservation of GPUs for predicted jobs of class high in this project's notes on systems (1.4).
    """
    missing = reserved - capacity
    for i in range(len(given)):
        missing += given[i]
    for i in range(len(given) - 1, -1, -1):
        if missing <= 0:
            break
        if effective[i] > 0:
            taken = min(given[i] - max(min_gpus[i], min(held[i], given[i])), missing)
            if taken > 0:
                given[i] -= taken
                missing -= taken


@njit()
def shrink_lower_classes(given: IntArray, min_gpus: IntArray, effective: IntArray, left: int) -> None:
    """Give waiting rows their min_gpus while rows of a lower class run: from `left` unused GPUs, then out
    of what those hold above their own min_gpus, the last rows giving first. `given` is changed.

    A row for which all of that is not enough goes on waiting, and nothing is shrunk in vain.
    """
    classes = effective.max() + 1 if len(effective) else 0
    spare = np.zeros(classes, dtype=np.int64)
    runs = np.zeros(classes, dtype=np.bool_)
    for i in range(len(given)):
        if given[i] > 0:
            spare[effective[i]] += given[i] - min_gpus[i]
            runs[effective[i]] = True
    donor = len(given) - 1
    for i in range(len(given)):
        lower = effective[i] + 1
        if given[i] > 0 or not runs[lower:].any() or left + spare[lower:].sum() < min_gpus[i]:
            continue
        while left < min_gpus[i]:
            taken = 0
            if given[donor] > 0:
                taken = min(given[donor] - min_gpus[donor], min_gpus[i] - left)
            given[donor] -= taken
            spare[effective[donor]] -= taken
            left += taken
            if left < min_gpus[i]:
                donor -= 1
        given[i] = min_gpus[i]
        left -= given[i]
