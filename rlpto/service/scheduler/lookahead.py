"""When jobs will start and finish, found out in a process of its own, so that no decision waits.

The present state is run forward under the present policy: once without further arrivals, and where arrivals are
forecast, once in each of some sampled futures, of which the middle 80 % are told.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace

import numpy as np

from rlpto.arrays import FloatArray
from rlpto.cluster import Cluster, ClusterState
from rlpto.cluster import Future as Arrivals
from rlpto.jobs import Job
from rlpto.planning.prediction import Prediction, predict
from rlpto.planning.snapshot import Snapshot, take_snapshot
from rlpto.policies.base import Policy, as_it_stands
from rlpto.queues import QueueSettings
from rlpto.scheduler import DecisionLoop
from rlpto.simulator.settings import SimulatorSettings

LEVELS = (0.1, 0.9)
"""Quantiles of the sampled futures that bound the interval."""
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
    is told why there is none. interval: least s between two. executor: where they are made; None: a process of its
    own.
    """

    def __init__(
        self,
        queue: QueueSettings,
        settings: SimulatorSettings,
        publish: Callable[[Outlook], None],
        failed: Callable[[str], None],
        interval: float,
        executor: Executor | None = None,
    ) -> None:
        self._queue, self._settings = queue, settings
        self._publish, self._failed, self._interval = publish, failed, interval
        self._own = executor is None
        self._executor = executor or _process()
        self._under_way: tuple[Future[tuple[Prediction, FloatArray | None]], tuple[str, ...], str, float] | None = None
        self._due = -float("inf")

    @property
    def due(self) -> bool:
        """Whether it is time for another outlook."""
        return self._under_way is None and time.monotonic() >= self._due

    def begin(
        self, cluster: Cluster, policy: Policy, state: ClusterState, name: str, futures: Sequence[Arrivals] = ()
    ) -> None:
        """Begin another outlook, from `state`, as the queue has ordered it. futures: what may arrive meanwhile."""
        now = time.monotonic()
        self._due = now + self._interval
        try:
            snapshot, remembering = take_snapshot(cluster, state), copy.deepcopy(as_it_stands(policy))
            arrivals = [arrivals_of(snapshot, future) for future in futures]
            answer = self._executor.submit(look_ahead, snapshot, remembering, self._queue, self._settings, arrivals)
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
        now = time.monotonic()
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
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=os.nice, initargs=(NICENESS,))


def arrivals_of(snapshot: Snapshot, future: Arrivals) -> list[Job]:
    """The jobs of a sampled future as jobs of a scratch cluster; those unlike any that is there now are left out."""
    row = {int(number): at for at, number in enumerate(snapshot.index.tolist())}
    jobs = []
    for at, (record, like) in enumerate(zip(future.jobs, future.like.tolist(), strict=True)):
        if like not in row:
            continue
        kind = snapshot.tables.types[int(snapshot.tables.own[snapshot.columns.type_index[row[like]]])]
        jobs.append(
            Job(
                name=f"future-{at}",
                submit_time=float(record["submit_time"]),
                model=kind.model,
                epochs=float(record["epochs"]),
                data_size=float(record["data_size"]),
                requested_gpus=int(record["requested_gpus"]),
                min_gpus=int(record["min_gpus"]),
                max_gpus=int(record["max_gpus"]),
                priority=int(record["priority"]),
                batch_size=kind.batch_size,
                metric=kind.metric,
            )
        )
    return jobs


def look_ahead(
    snapshot: Snapshot,
    policy: Policy,
    queue: QueueSettings,
    settings: SimulatorSettings,
    futures: Sequence[Sequence[Job]] = (),
) -> tuple[Prediction, FloatArray | None]:
    """The prediction without arrivals, and [2, 2, n] the bounds of start and finish over futures; None without any.

    futures: jobs that arrive in each. Same arguments, same prediction.
    """
    found = predict(snapshot, policy, queue, settings)
    if not futures or not len(snapshot.index):
        return found, None
    runs = [_run(snapshot, copy.deepcopy(policy), queue, settings, jobs) for jobs in futures]
    both = np.stack(runs)  # [F, 2, n]
    known = np.isfinite(both).mean(axis=0) >= LEVELS[1]
    with np.errstate(invalid="ignore"):
        bounds = np.quantile(np.where(np.isfinite(both), both, np.inf), LEVELS, axis=0, method="inverted_cdf")
    return found, np.where(known, bounds, np.nan).transpose(1, 0, 2)


def _run(
    snapshot: Snapshot, policy: Policy, queue: QueueSettings, settings: SimulatorSettings, jobs: Sequence[Job]
) -> FloatArray:
    """[2, n] start and finish of the jobs of a snapshot where further jobs arrive."""
    count = len(snapshot.index)
    scratch = snapshot.restore(settings.model_copy(update={"max_hours": None}))
    if jobs:
        scratch.append(sorted((later(job, snapshot.time) for job in jobs), key=lambda job: job.submit_time))
    loop = DecisionLoop(scratch, queue)
    for _ in range(MOST_POINTS):
        if scratch.done or np.isfinite(scratch.store.finish_time[:count]).all():
            break
        if scratch.active_jobs:
            state = loop.state()
            loop.carry_out(state, policy(state), policy.name)
        loop.advance()
    return np.stack([scratch.store.start_time[:count], scratch.store.finish_time[:count]])


def later(job: Job, time: float) -> Job:
    """The job, submitted no earlier than at a time [s]."""
    return job if job.submit_time >= time else replace(job, submit_time=time)
