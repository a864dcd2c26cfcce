"""When jobs will start and finish, found out in a process of its own, so that no decision waits.

The present state is run forward under the present policy: once without further arrivals, and where arrivals are
forecast, once in each of some sampled futures, of which the middle 80 % are told. Futures differ in who arrives, and in
how fast programs turn out to be beside what is believed of them.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace

import numpy as np

from rlpto.arrivals.sampled import Futures, as_believed
from rlpto.core.cluster import Cluster, ClusterState
from rlpto.core.loop import DecisionLoop
from rlpto.core.policy import Policy, StandingPolicy, as_it_stands
from rlpto.core.queues import QueueSettings
from rlpto.io.arrays import FloatArray
from rlpto.planning.prediction import Prediction, predict
from rlpto.planning.snapshot import Snapshot, take_snapshot
from rlpto.simulator.settings import SimulatorSettings

LEVELS = (0.1, 0.9)
"""Quantiles of the sampled futures that bound the interval."""
GUESSED, MEASURED, OWN = 0.4, 0.05, 0.03
"""Standard deviations of the logarithm of speeds beside what is believed: of a program before its jobs have trained, as
guesses are off by half, and after, as sizes that have not been measured are; and of a job beside others of its program.
"""
MOST_POINTS = 5000
"""Decision points of one future after which what is not known by then is not predicted."""
NICENESS = 10
"""Of the process: whoever decides, trains and answers comes first."""
BUSY_SHARE = 0.25
"""Share of the time that the process may be at work."""


@dataclass(frozen=True)
class Outlook:
    """What n jobs will come to, without further arrivals, and in the middle of the sampled futures.

    ids: of the jobs. time [s]: when that was simulated from. start, finish: [n] s. start_bounds, finish_bounds: [2, n]
    s, or None: nothing was forecast. NaN: it does not come to that.
    """

    ids: tuple[str, ...]
    time: float
    policy: str
    start: FloatArray
    finish: FloatArray
    start_bounds: FloatArray | None = None
    finish_bounds: FloatArray | None = None


class Lookahead:
    """Looks ahead from time to time, beside a scheduler.

    queue, settings: of the scheduler, and how time passes in scratch clusters. publish: is told each outlook. failed:
    is told why there is none. interval: least s between two, on the clock `timer`. executor: where they are made; None:
    a process of its own.
    """

    def __init__(
        self,
        queue: QueueSettings,
        settings: SimulatorSettings,
        publish: Callable[[Outlook], None],
        failed: Callable[[str], None],
        interval: float,
        executor: Executor | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timer = timer
        self._queue, self._settings = queue, settings
        self._publish, self._failed, self._interval = publish, failed, interval
        self._own = executor is None
        self._executor = executor or _process()
        self._under_way: tuple[Future[tuple[Prediction, FloatArray | None]], tuple[str, ...], str, float] | None = None
        self._due = -float("inf")

    @property
    def due(self) -> bool:
        """Whether it is time for another outlook."""
        return self._under_way is None and self._timer() >= self._due

    def begin(
        self, cluster: Cluster, policy: Policy, state: ClusterState, name: str, futures: Futures | None = None,
        measured: Callable[[int], bool] = lambda _: True,
    ) -> None:  # fmt: skip
        """Begin another outlook, from `state`, as the queue has ordered it.

        futures: what may arrive meanwhile. measured: whether the speed of a job, by its number, was ever measured.
        """
        now = self._timer()
        self._due = now + self._interval
        try:
            snapshot, remembering = take_snapshot(cluster, state), copy.deepcopy(as_it_stands(policy))
            sampled = None
            if futures is not None:
                spread = [MEASURED if measured(number) else GUESSED for number in snapshot.index.tolist()]
                believed = as_believed(snapshot.tables.types, futures, cluster.jobs, state.jobs.store.told_type)
                sampled = Sampled(believed, np.array(spread))
            answer = self._executor.submit(look_ahead, snapshot, remembering, self._queue, self._settings, sampled)
        except BrokenProcessPool:
            self._executor = _process()
        except Exception as error:  # a plug-in may hold what cannot be copied
            self._failed(f"policy {name} cannot look ahead: {error}")
        else:
            ids = tuple(job.name for job in snapshot.jobs)
            self._under_way = answer, ids, name, now

    def tell(self) -> None:
        """Publish an outlook that has become ready; to be called from time to time."""
        if self._under_way is None or not self._under_way[0].done():
            return
        (answer, ids, name, began), self._under_way = self._under_way, None
        now = self._timer()
        self._due = max(self._due, began + (now - began) / BUSY_SHARE)
        error = answer.exception()
        if error is not None:  # a look ahead that goes wrong is no reason to disturb jobs
            if self._own and isinstance(error, BrokenProcessPool):
                self._executor = _process()
            self._failed(f"{type(error).__name__}: {error}")
            return
        found, bounds = answer.result()
        first, last = (None, None) if bounds is None else bounds
        self._publish(Outlook(ids, found.time, name, found.start, found.finish, first, last))

    def close(self) -> None:
        """Begin nothing further."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_come_second)


def _come_second() -> None:
    """Let others go first, and end with the scheduler: a process whose parent was killed waits for work for ever."""
    os.nice(NICENESS)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


@dataclass(frozen=True)
class Sampled:
    """Futures of the n jobs of a snapshot. spread: [n] standard deviations of the logarithms of programs' speeds."""

    futures: Futures
    spread: FloatArray


def look_ahead(
    snapshot: Snapshot,
    policy: Policy,
    queue: QueueSettings,
    settings: SimulatorSettings,
    sampled: Sampled | None = None,
) -> tuple[Prediction, FloatArray | None]:
    """The prediction without arrivals, and [2, 2, n] the bounds of start and finish over futures; None without any.

    Same arguments, same prediction.
    """
    found = predict(snapshot, policy, queue, settings)
    if sampled is None or not len(snapshot.index):
        return found, None
    both = np.stack(  # [F, 2, n]
        [run_in(snapshot, policy, queue, settings, sampled, one) for one in range(len(sampled.futures.arrivals))]
    )
    known = np.isfinite(both).mean(axis=0) >= LEVELS[1]
    bounds = np.quantile(np.where(np.isfinite(both), both, np.inf), LEVELS, axis=0, method="inverted_cdf")
    return found, np.where(known, bounds, np.nan).transpose(1, 0, 2)


def run_in(
    snapshot: Snapshot, policy: Policy, queue: QueueSettings, settings: SimulatorSettings, sampled: Sampled, one: int
) -> FloatArray:
    """[2, n] start and finish of the jobs of a snapshot in one future. What is not known of a program is the same for
    all of its jobs, beside what is their own."""
    count, rng = len(snapshot.index), np.random.default_rng(one)
    off = {model: float(rng.standard_normal()) for model in sorted({job.model for job in snapshot.jobs})}
    common = np.array([off[job.model] for job in snapshot.jobs])
    factor = np.exp(sampled.spread * common + OWN * rng.standard_normal(count))
    columns = snapshot.columns.take(np.arange(count))
    columns.scale[:] *= factor
    scratch = replace(snapshot, columns=columns).restore(settings.model_copy(update={"max_hours": None}))
    scratch.append(sampled.futures.jobs(one))
    loop, policy = DecisionLoop(scratch, queue), copy.deepcopy(policy)
    standing = policy if isinstance(policy, StandingPolicy) else None
    decide_at = -np.inf
    for _ in range(MOST_POINTS):
        if scratch.done or np.isfinite(scratch.store.finish_time[:count]).all():
            break
        if scratch.active_jobs and (scratch.changed or scratch.time >= decide_at):
            state = loop.state()
            loop.carry_out(state, policy(state), policy.name)
            decide_at = loop.stands_until(state, standing)
        loop.advance(decide_at)
    return np.stack([scratch.store.start_time[:count], scratch.store.finish_time[:count]])
