"""Faults of a job: distinguishing workers that are gone, hang or raised, and deciding when to retry the job."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rlpto.ray_cluster.job.worker_actors import Worker, WorkerLostError, result_of, settle
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.worker.actor import Failure, Ready, WorkerHeartbeat

FAULT_GATHER_S = 0.5
"""Time for the other workers to notice a fault too, before they are aborted."""

HEARTBEAT_INTERVAL_S = 0.5
"""Time between heartbeats asked of workers that are silent."""


class FaultError(Exception):
    """Something went wrong in the group. lost: workers that are gone or hang, and why. failures: what others raised."""

    def __init__(self, lost: dict[Worker, str], failures: Iterable[Failure]) -> None:
        self.lost, self.failures = lost, list(failures)
        super().__init__(self.text)

    @property
    def text(self) -> str:
        """The reason why a worker is gone, else the first exception: later ones only follow from it."""
        if self.lost:
            return next(iter(self.lost.values()))
        first = min(self.failures, key=lambda failure: failure.when)
        return first.text if first.lasting else first.trace


async def prepared(worker: Worker, heartbeat: float) -> Ready | Failure:
    """Prepare a worker, without a time limit as long as it gives signs of life.

    heartbeat: s without one after which it is given up. Raises WorkerLostError if it is gone, or was never there.
    """
    # Its process id comes first, so that it can be ended even if it stops in the middle.
    worker.pid = await result_of(worker.handle.pid.remote())
    try:
        (ready,) = await collect([worker], [worker.handle.prepare.remote()], heartbeat, math.inf)
    except FaultError as fault:
        if fault.failures:
            return fault.failures[0]
        raise WorkerLostError(fault.text) from None
    said: Ready = ready
    return said


async def collect(workers: Sequence[Worker], calls: Sequence[Any], heartbeat: float, limit: float) -> list[Any]:
    """Results of one call to each of the workers.

    heartbeat: s after which a worker that does not answer is given up. limit: s after which one that answers, but
    makes no progress, is given up. Raises FaultError if a worker is lost, hangs or raised.
    """
    tasks = [asyncio.ensure_future(result_of(call)) for call in calls]
    heartbeats: asyncio.Task[list[Any]] | None = None
    pending, fault_at = set(tasks), float("inf")
    hung: dict[Worker, str] = {}
    try:
        while pending and not hung and time.monotonic() - fault_at < FAULT_GATHER_S:
            done, pending = await asyncio.wait(
                pending, timeout=HEARTBEAT_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
            )
            if any(task.exception() is not None or isinstance(task.result(), Failure) for task in done):
                fault_at = min(fault_at, time.monotonic())
            if heartbeats is not None and heartbeats.done():
                hung = hanging(workers, heartbeats.result(), limit)
                heartbeats = None
            if not done and heartbeats is None:
                asked = (result_of(worker.handle.heartbeat.remote(), heartbeat) for worker in workers)
                heartbeats = asyncio.ensure_future(settle(asked))
    finally:
        for task in [*pending, *([heartbeats] if heartbeats else [])]:
            task.cancel()
    ended = [(worker, task) for worker, task in zip(workers, tasks, strict=True) if task not in pending]
    lost = {worker: str(task.exception()) for worker, task in ended if task.exception() is not None}
    results = [task.result() for _, task in ended if task.exception() is None]
    failures = [result for result in results if isinstance(result, Failure)]
    if pending or lost or failures:
        raise FaultError(lost | hung, failures)
    return results


def hanging(
    workers: Sequence[Worker], heartbeats: Sequence[WorkerHeartbeat | BaseException], limit: float
) -> dict[Worker, str]:
    """Workers to give up, and why: those that do not answer; else, if no busy worker made progress for `limit`
    seconds, those that the others wait for; all of them if that is unknown.
    """
    pairs = list(zip(workers, heartbeats, strict=True))
    answers = [(worker, heartbeat) for worker, heartbeat in pairs if isinstance(heartbeat, WorkerHeartbeat)]
    if len(answers) < len(workers):
        silent = [(worker, error) for worker, error in pairs if not isinstance(error, WorkerHeartbeat)]
        return {worker: f"the worker on node {worker.node[:8]} does not answer: {error}" for worker, error in silent}
    busy = [(worker, heartbeat) for worker, heartbeat in answers if heartbeat.busy]
    if not busy or any(heartbeat.stalled <= limit for _, heartbeat in busy):
        return {}
    guilty = [worker for worker, heartbeat in busy if heartbeat.phase == "own"] or [worker for worker, _ in busy]
    return {worker: f"the worker on node {worker.node[:8]} hangs: no step within {limit:.1f} s" for worker in guilty}


NODE_GONE_RETRY_S = 2.0
"""Time between attempts to start a worker on a node that is gone."""

FailureKind = Literal["raised", "died", "start"]
"""Training code raised; a worker or server that took part is gone or hangs; one that was started did not come up."""


class RetryPolicy:
    """Failures of one job since it last made progress. gave_up: it keeps the workers it has, and starts no others.

    What counts as progress depends on the failure. Code that raised has to pass the step at which it did. The death of
    a worker is not evidence against the code: any step after it is progress, although the job may have gone back
    further. Failed starts count until all workers train, because workers already training do not make a start more
    likely.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._retries, self._backoff = spec.retries, spec.backoff
        self._count = 0
        self._start_after = 0.0
        self._must_pass = -1
        self._progress = False
        self.gave_up = False

    def reset(self) -> None:
        """A new command resets the count of failures."""
        self._count, self._start_after, self.gave_up = 0, 0.0, False

    def may_start_workers(self) -> bool:
        """True if workers may be started now."""
        return not self.gave_up and time.monotonic() >= self._start_after

    def node_gone(self) -> None:
        """A node is gone, which is not counted as the job's failure."""
        self._start_after = time.monotonic() + NODE_GONE_RETRY_S

    def failed(self, kind: FailureKind, step: int, lasting: bool, trains: bool) -> bool:
        """Count a failure at `step`. lasting: a retry will not help. trains: some workers still train.

        Returns whether the job has failed.
        """
        if kind != "start":
            if self._progress:
                self._count, self.gave_up = 0, False
            self._must_pass, self._progress = step if kind == "raised" else -1, False
        self._count += 1
        if lasting or self._count > self._retries:
            self.gave_up = trains
            return not trains
        if self._count > 1 or not trains:
            self._start_after = time.monotonic() + self._backoff * 2 ** (self._count - 1)
        return False

    def stepped(self, step: int, whole: bool) -> None:
        """Step `step` is done. whole: by all workers that the job was given."""
        if step > self._must_pass:
            self._progress = True
            if whole:
                self._count = 0
