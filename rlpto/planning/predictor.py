"""Predict when jobs will start and finish: a scratch cluster runs forward under their policy.

`predict` does so once, without arrivals. A `Predictor` does it alongside a running scheduler, without delaying
decisions. If arrivals are forecast, it does so in each of some sampled futures: their median is predicted, and the
middle 80 % are the interval. Futures differ in arrivals, in remaining work that is not declared, and in the true speed
of programs relative to the estimate.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace

import numpy as np

from rlpto.core.cluster import Allocation, Cluster, ClusterState, Placement
from rlpto.core.jobs import Job
from rlpto.core.loop import DecisionLoop, ProgressWatch
from rlpto.core.policy import Policy, frozen
from rlpto.core.queues import QueueSettings
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.planning.snapshot import ScratchCluster, Snapshot, take_snapshot
from rlpto.policies.registry import code_files, load_files
from rlpto.simulator.settings import SimulatorSettings
from rlpto.store.status import PredictionRow

LEVELS = (0.1, 0.5, 0.9)
"""Quantiles of the sampled futures: the prediction, between the bounds of its interval."""
OWN = 0.03
"""Standard deviation of the logarithm of a job's speed relative to other jobs of its program."""
MOST_POINTS = 5000
"""Decision points of one future; starts and finishes after the last are not predicted."""
NICENESS = 10
"""Niceness of a predicting process: decisions, training and answers come first."""
INTERVAL_S = 5.0
"""Least time between two predictions, by default."""
BUSY_SHARE = 0.25
"""Largest share of time in which a process may predict."""
THREAD_SHARE = 0.05
"""Largest share of time in which a thread in the scheduler's own process may predict."""


@dataclass(frozen=True)
class JobForecast:
    """Predicted start and finish of the n present jobs.

    time [s]: of the snapshot. index: [n] numbers of the jobs in the cluster's workload, in order of submission.
    start, finish: [n] s on the cluster's clock; start is the first GPU, which may lie in the past. NaN if a job does
    not start or finish with the nodes that are up.
    """

    time: float
    index: IntArray
    start: FloatArray
    finish: FloatArray


def predict(snapshot: Snapshot, policy: Policy, queue: QueueSettings, settings: SimulatorSettings) -> JobForecast:
    """Run forward until the jobs of the snapshot have finished: no arrivals, no failures, no forecast.

    policy: decides in the scratch cluster, as a copy with its present memory; it does not look ahead there. Same
    arguments, same prediction.
    Raises PolicyError if the policy returns no allocation, ConfigError without GPUs.
    """
    if not len(snapshot.index):
        return JobForecast(snapshot.time, snapshot.index, np.zeros(0), np.zeros(0))
    start, finish = _run_forward(snapshot, snapshot.restore(settings), frozen(policy), queue)
    return JobForecast(snapshot.time, snapshot.index, start, finish)


class _Numbered:
    """A policy in the scratch cluster of a snapshot, where jobs have other numbers.

    The policy is shown the numbers of the snapshot's cluster, because it may remember jobs by them. Jobs that arrive in
    the scratch cluster are numbered from `Snapshot.following` on.
    """

    def __init__(self, policy: Policy, snapshot: Snapshot) -> None:
        self.name, self._policy = policy.name, policy
        self._numbers, self._following = snapshot.index, snapshot.following
        self._shown: ClusterState

    def reset(self, seed: int) -> None:
        self._policy.reset(seed)

    def __call__(self, state: ClusterState) -> Allocation:
        row, count = state.jobs.index, len(self._numbers)
        shown = np.where(row < count, self._numbers.take(row, mode="clip"), self._following + row - count)

        def placement(index: IntArray) -> Placement:
            arrivals = index - self._following + count
            return state.placement(np.where(arrivals < count, self._numbers.searchsorted(index), arrivals))

        self._shown = replace(state, jobs=state.jobs.renumbered(shown), placement=placement)
        return self._policy(self._shown)

    def stands_until(self, state: ClusterState) -> float:
        stands_until = getattr(self._policy, "stands_until", None)  # isinstance takes long for a protocol
        return state.time if stands_until is None else float(stands_until(self._shown))


def _run_forward(
    snapshot: Snapshot, scratch: ScratchCluster, policy: Policy, queue: QueueSettings, most_points: float = math.inf
) -> FloatArray:
    """[2, n] start and finish [s] of a snapshot's jobs in its scratch cluster, which runs until they have finished.

    A copy of the policy decides, starting with its present memory. most_points: decision points after which the run
    ends.
    """
    loop, policy, count = DecisionLoop(scratch, queue), _Numbered(copy.deepcopy(policy), snapshot), len(snapshot.index)
    progress, store, points = ProgressWatch(scratch, policy.name), scratch.store, 0
    while not (scratch.done or points >= most_points or np.isfinite(store.finish_time[:count]).all()):
        loop.decide(policy)
        passed = scratch.advance(loop.valid_until)
        points += len(passed)
        progress.check(passed)
    return np.stack([store.start_time[:count], store.finish_time[:count]])


@dataclass(frozen=True)
class Sampled:
    """F futures of the n jobs of a snapshot.

    jobs: returns the arrivals of a future, by its number. spread: [n] standard deviations of the logarithms of the
    programs' speeds. remaining: [F, n] epochs that are left of the jobs, or None if they are declared.
    """

    count: int
    jobs: Callable[[int], Sequence[Job]]
    spread: FloatArray
    remaining: FloatArray | None = None


@dataclass(frozen=True)
class Predictions:
    """Predicted start and finish of n jobs, with 80 % intervals over the sampled futures.

    ids: ids of the jobs. time, start, finish: fields of `JobForecast`. bounds: [2, 2, n] s of start and of finish.
    Default: no bounds, because nothing was forecast; the prediction is then without arrivals. NaN if a job does not
    start or finish with the nodes that are up.
    """

    ids: tuple[str, ...]
    time: float
    policy: str
    start: FloatArray
    finish: FloatArray
    bounds: FloatArray | None = None

    def rows(self, wall: Callable[[float], float]) -> list[PredictionRow]:
        """The predictions of each job. wall: time [s since 1970] of a second of the session."""
        named = {"start": self.start, "finish": self.finish}
        if self.bounds is not None:
            ends = ("start_low", "start_high", "finish_low", "finish_high")
            named |= dict(zip(ends, self.bounds.reshape(4, -1), strict=True))
        return [
            PredictionRow(job, wall(self.time), self.policy, **{
                name: wall(float(seconds[at])) if math.isfinite(seconds[at]) else None
                for name, seconds in named.items()
            })
            for at, job in enumerate(self.ids)
        ]  # fmt: skip


class Predictor:
    """Makes predictions at intervals, alongside a scheduler.

    queue: the scheduler's settings. settings: how time passes in scratch clusters. publish: receives all predictions.
    failed: receives the reason why there are none. interval: least s between two, on the clock `timer`. executor: where
    they are computed. Default: a separate process. share: largest share of time spent there.
    """

    def __init__(
        self,
        queue: QueueSettings,
        settings: SimulatorSettings,
        publish: Callable[[Predictions], None],
        failed: Callable[[str], None],
        interval: float = INTERVAL_S,
        executor: Executor | None = None,
        timer: Callable[[], float] = time.monotonic,
        share: float = BUSY_SHARE,
    ) -> None:
        self._timer, self._share = timer, share
        self._queue, self._settings = queue, settings
        self._publish, self._failed, self._interval = publish, failed, interval
        self._own = executor is None
        self._executor = executor or own_process()
        self._under_way: tuple[Future[tuple[JobForecast, FloatArray | None]], tuple[str, ...], str, float] | None = None
        self._due = -math.inf

    @property
    def due(self) -> bool:
        """Whether the next predictions are due."""
        return self._under_way is None and self._timer() >= self._due

    def begin(
        self, cluster: Cluster, ids: Sequence[str], policy: Policy, state: ClusterState, name: str,
        sampled: Callable[[Snapshot], Sampled] | None = None,
    ) -> None:  # fmt: skip
        """Begin to predict from `state`, as the queue has ordered it. ids: ids of all jobs. name: policy's name."""
        now = self._timer()
        self._due = now + self._interval
        try:
            snapshot, present = take_snapshot(cluster, state), frozen(policy)
            remembering = SentPolicy.of(present) if self._own else copy.deepcopy(present)
            futures = None if sampled is None else sampled(snapshot)
            answer = self._executor.submit(look_ahead, snapshot, remembering, self._queue, self._settings, futures)
        except BrokenProcessPool as error:
            if self._own:
                self._executor = own_process()
            self._failed(f"{type(error).__name__}: {error}")
        except Exception as error:  # a plug-in may hold what cannot be copied
            self._failed(f"policy {name} cannot be copied: {error}")
        else:
            self._under_way = answer, tuple(ids[number] for number in snapshot.index.tolist()), name, now

    def publish(self) -> None:
        """Publish predictions that have become ready. Call it regularly."""
        if self._under_way is None or not self._under_way[0].done():
            return
        (answer, ids, name, began), self._under_way = self._under_way, None
        now = self._timer()
        self._due = max(self._due, began + (now - began) / self._share)
        error = answer.exception()
        if error is not None:  # a prediction that goes wrong is no reason to disturb jobs
            if self._own and isinstance(error, BrokenProcessPool):
                self._executor = own_process()
            self._failed(f"{type(error).__name__}: {error}")
            return
        found, bounds = answer.result()
        self._publish(Predictions(ids, found.time, name, found.start, found.finish, bounds))

    def close(self) -> None:
        """Stop predicting."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def own_process() -> ProcessPoolExecutor:
    """Start a process that predicts alongside the scheduler, and ends with it."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_come_second)


def _come_second() -> None:
    """Lower the priority of this process, and end it with the scheduler: otherwise it would wait for work for ever."""
    os.nice(NICENESS)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


@dataclass(frozen=True)
class SentPolicy:
    """A policy with its memory, on its way to another process. content: its pickle. files: its `code_files`.

    A policy that the executor unpickled itself would end the process if its module were missing there.
    """

    content: bytes
    files: dict[str, str]

    @classmethod
    def of(cls, policy: Policy) -> SentPolicy:
        """Pickle a policy."""
        return cls(pickle.dumps(policy), code_files(policy))

    def policy(self) -> Policy:
        """The policy. Raises ConfigError if a file of its classes has changed since."""
        load_files(self.files)
        policy: Policy = pickle.loads(self.content)
        return policy


def look_ahead(
    snapshot: Snapshot,
    policy: Policy | SentPolicy,
    queue: QueueSettings,
    settings: SimulatorSettings,
    sampled: Sampled | None,
) -> tuple[JobForecast, FloatArray | None]:
    """Return the prediction, and [2, 2, n] the bounds of start and finish over the sampled futures.

    sampled: if None, the prediction is without arrivals, and there are no bounds. A start or finish that too few of the
    futures reach has no bounds either, and its job's prediction is the one without arrivals. Same arguments, same
    prediction.
    """
    policy = policy.policy() if isinstance(policy, SentPolicy) else policy
    found = predict(snapshot, policy, queue, settings)
    if sampled is None or not len(snapshot.index):
        return found, None
    both = np.stack(  # [F, 2, n]
        [run_in(snapshot, policy, queue, settings, sampled, one) for one in range(sampled.count)]
    )
    known = np.isfinite(both).mean(axis=0) >= LEVELS[-1]
    at_levels = np.quantile(np.where(np.isfinite(both), both, np.inf), LEVELS, axis=0, method="inverted_cdf")
    low, middle, high = np.where(known, at_levels, np.nan)
    both_known = known.all(axis=0)  # a median start may be later than a finish without arrivals
    start, finish = np.where(both_known, middle, [found.start, found.finish])
    return replace(found, start=start, finish=finish), np.stack([low, high], axis=1)


def run_in(
    snapshot: Snapshot, policy: Policy, queue: QueueSettings, settings: SimulatorSettings, sampled: Sampled, one: int
) -> FloatArray:
    """[2, n] start and finish of the jobs of a snapshot in one future.

    The unknown speed of a program is the same for all of its jobs; each job also has a deviation of its own.
    """
    count, rng = len(snapshot.index), np.random.default_rng(one)
    off = {model: float(rng.standard_normal()) for model in sorted({job.model for job in snapshot.jobs})}
    common = np.array([off[job.model] for job in snapshot.jobs])
    factor = np.exp(sampled.spread * common + OWN * rng.standard_normal(count))
    columns = snapshot.columns.take(np.arange(count))
    columns.scale[:] *= factor
    if sampled.remaining is not None:
        columns.epochs[:] = columns.stop_epoch[:] = columns.progress + sampled.remaining[one]
    scratch = replace(snapshot, columns=columns).restore(settings)
    scratch.append(sampled.jobs(one))
    return _run_forward(snapshot, scratch, policy, queue, MOST_POINTS)


def prediction_settings(settings: SimulatorSettings) -> SimulatorSettings:
    """Settings of time in predictions: real jobs keep training while new workers start, and keep their nodes."""
    return settings.model_copy(update={"growth": "overlap", "placement": "pack", "epoch_resolution": 0.0})
