"""Sampled futures: jobs that may arrive in the hours ahead, for plans that are tried out in a scratch simulator.

How many come when, and of which class, is a joint sample of counts (`paths.py`); what they train (type, data size,
epochs, GPU limits) is drawn with replacement from jobs that have been submitted by now, and from nothing else. Within
a step of the forecast a sampler gives the same futures, less what has passed: all candidates of a plan, and plans
that follow one another, are compared on the same ones (common random numbers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from rlpto.arrivals.online import Newcomers
from rlpto.arrivals.past import CLASSES
from rlpto.arrivals.paths import PathSource
from rlpto.core.cluster import ClusterState, Future
from rlpto.core.futures import FUTURES
from rlpto.core.jobs import JOB
from rlpto.io.arrays import AnyArray, FloatArray, IntArray

OWN_CLASS_JOBS = 10
"""Jobs of a class from which on its sampled jobs are like those of the class, rather than like any."""
MOST_JOBS = 5000
"""Of one future; later ones are left out."""


class FutureSampler:
    """Futures of one run from joint samples of counts. Same seed and same states, same futures.

    source: of this run alone. step: its steps [s]. futures: how many. ends: time [s] from which on nothing is submitted
    any more; None: a workload without an end.
    """

    oracle = False

    def __init__(
        self, source: PathSource, step: float, *, futures: int = FUTURES, seed: int = 0, ends: float | None = None
    ) -> None:
        self._source, self._step, self._futures, self._seed = source, step, futures, seed
        self._ends = math.inf if ends is None else ends
        self._newcomers = Newcomers()
        self._drawn: tuple[int, IntArray | None] = (-1, None)

    def notice(self, state: ClusterState) -> None:
        """Take in the jobs of a state. Every state that is decided on is to be noticed, or asked about."""
        jobs, new = state.jobs, self._newcomers.among(state.jobs)
        if new.any():
            self._source.arrived(jobs.submit_time[new], jobs.priority[new], jobs.requested_gpus[new])

    def __call__(self, state: ClusterState) -> tuple[Future, ...]:
        """Futures after `state.time`, within the horizon of the source.

        One future without jobs while too little is known to forecast, and where nothing is submitted any more.
        """
        self.notice(state)
        if state.time >= self._ends:
            return (_nothing(),)
        known = int(state.time / self._step)
        if self._drawn[0] != known:
            rng = np.random.default_rng([self._seed, known, 0])
            self._drawn = known, self._source.paths(known, self._futures, rng)
        counts = self._drawn[1]
        if counts is None:
            return (_nothing(),)
        rng = np.random.default_rng([self._seed, known, 1])
        return sample_futures(counts, known * self._step, self._step, self._newcomers.seen, state, rng, self._ends)


class OracleFutures:
    """The arrivals that will come: an oracle, to find out what a forecast could be worth at best.

    horizon: seconds ahead that it tells.
    """

    oracle = True

    def __init__(self, horizon: float) -> None:
        self._horizon = horizon

    def notice(self, state: ClusterState) -> None:
        """There is nothing to learn."""

    def __call__(self, state: ClusterState) -> tuple[Future, ...]:
        """The one future: jobs that the state's cluster has yet to be given, as they are."""
        submit = state.jobs.store.records["submit_time"]
        coming = np.flatnonzero((submit > state.time) & (submit <= state.time + self._horizon))
        donors = _donors(coming, state)
        given = donors.given
        return (Future(_unstarted(donors, given["submit_time"], given["priority"]), donors.like),)


def sample_futures(
    counts: IntArray,
    begins: float,
    step: float,
    seen: IntArray,
    state: ClusterState,
    rng: np.random.Generator,
    ends: float = math.inf,
) -> tuple[Future, ...]:
    """Jobs of F futures from counts [F, H, CLASSES] in steps of `step` s from second `begins` on.

    Submit times are spread evenly over each step; those up to `state.time` or not before `ends` are left out, rather
    than drawn again. seen: numbers of jobs submitted by now, which sampled jobs are like: those that were seen before
    `begins` if there are any, of the same class if there are OWN_CLASS_JOBS of it. Epochs are those that are told of
    active jobs, and those that finished ones needed. Where jobs fit their speeds themselves, nothing is told of
    finished ones: an active job of the same type stands for them, and those without one are not drawn.
    """
    submitted = state.jobs.store.records["submit_time"][seen]
    donors = _donors(seen[submitted < begins] if (submitted < begins).any() else seen, state)
    place = np.repeat(np.arange(counts.size), counts.reshape(-1))
    future, at, own = np.unravel_index(place, counts.shape)
    submit, level = begins + (at + rng.random(len(place))) * step, rng.random(len(place))
    kept = np.flatnonzero((submit > state.time) & (submit < ends) & (len(donors.given) > 0))
    kept = kept[np.lexsort((submit[kept], future[kept]))]
    drawn = donors.take(rows_alike(donors.given["priority"], own[kept], level[kept]))
    jobs = _unstarted(drawn, submit[kept], own[kept])
    bounds = np.searchsorted(future[kept], np.arange(len(counts) + 1)).tolist()
    parts = [slice(first, min(last, first + MOST_JOBS)) for first, last in pairwise(bounds)]
    return tuple(Future(jobs[part], drawn.like[part]) for part in parts)


def rows_alike(classes: IntArray, wanted: IntArray, level: FloatArray) -> IntArray:
    """[m] numbers of donors for jobs of the classes wanted [m], at levels [m] in [0, 1) of those that are fit.

    classes: of the donors, [n]. Fit are those of the class if there are OWN_CLASS_JOBS of it, else all.
    """
    rows = np.zeros(len(wanted), dtype=np.int64)
    for own in range(CLASSES):
        alike, of_class = np.flatnonzero(classes == own), wanted == own
        fit = alike if len(alike) >= OWN_CLASS_JOBS else np.arange(len(classes))
        rows[of_class] = fit[(level[of_class] * len(fit)).astype(np.int64)] if len(fit) else 0
    return rows


@dataclass(frozen=True)
class _Donors:
    """Jobs that sampled ones are like, [n] each.

    given: JOB. type_index: types in the told tables; like: numbers of jobs that are told as these types. epochs: told,
    or needed. samples: of an epoch of the profile.
    """

    given: AnyArray
    type_index: IntArray
    like: IntArray
    epochs: FloatArray
    samples: FloatArray

    def take(self, rows: IntArray) -> _Donors:
        """Those in `rows` [m]."""
        return _Donors(*(getattr(self, column.name)[rows] for column in fields(self)))


def _donors(numbers: IntArray, state: ClusterState) -> _Donors:
    """Jobs of these numbers [n] in the workload, as what others are like."""
    told, active, store = state.jobs.told(), state.jobs.index, state.jobs.store.records
    row = np.full(len(store), -1)
    row[active] = np.arange(len(active))
    like, types = numbers, store["type_index"][numbers]
    if told.tables.elapsed.size == 0:
        # Tables that are rewritten as jobs learn tell nothing of finished jobs: one of their type stands for them.
        true = store["type_index"]
        standing = dict(zip(true[active].tolist(), active.tolist(), strict=True))
        found = [job if row[job] >= 0 else standing.get(int(true[job]), -1) for job in numbers.tolist()]
        like = np.array(found, dtype=np.int64)
        numbers, like = numbers[like >= 0], like[like >= 0]
        types = told.type_index[row[like]]
    types = told.tables.own[types]
    epochs = store["epochs"][numbers]
    there = row[numbers] >= 0
    epochs[there] = state.jobs.epochs[row[numbers[there]]]
    return _Donors(store[numbers], types, like, epochs, told.tables.samples[types])


def _unstarted(donors: _Donors, submit_time: FloatArray, priority: IntArray) -> AnyArray:
    """[n] JOB like `donors` [n], submitted at these seconds and of these classes, to which nothing has happened."""
    jobs = np.zeros(len(submit_time), dtype=JOB)
    for column in ("data_size", "requested_gpus", "min_gpus", "max_gpus"):
        jobs[column] = donors.given[column]
    jobs["submit_time"] = jobs["wait_start"] = submit_time
    jobs["priority"] = priority
    jobs["epochs"] = jobs["stop_epoch"] = donors.epochs  # that it will stop early, nobody knows
    jobs["type_index"] = jobs["told_type"] = donors.type_index
    jobs["scale"] = donors.samples / jobs["data_size"]
    jobs["start_time"] = jobs["finish_time"] = jobs["measured_accuracy"] = np.nan
    jobs["reached"] = np.nan
    jobs["finish_at"] = np.inf
    return jobs


def _nothing() -> Future:
    """A future in which nothing arrives."""
    return Future(np.zeros(0, dtype=JOB), np.zeros(0, dtype=np.int64))
