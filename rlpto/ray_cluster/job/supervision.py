"""Waiting for what all workers of a group do, and telling apart those that are gone, that hang, and that raised."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rlpto.ray_cluster.job.worker_actors import Worker, WorkerLostError, result_of, settle
from rlpto.ray_cluster.worker.actor import Failure, Heartbeat, Ready

FAULT_GATHER_S = 0.5
"""Time for the other workers to notice a fault too, before they are told."""

HEARTBEAT_INTERVAL_S = 0.5
"""Time between heartbeats asked of workers that are silent."""


class FaultError(Exception):
    """Something went wrong in the group. lost: workers that are gone or hang, and why. failures: what others raised."""

    def __init__(self, lost: dict[Worker, str], failures: Iterable[Failure]) -> None:
        self.lost, self.failures = lost, list(failures)
        super().__init__(self.text)

    @property
    def text(self) -> str:
        """Why a worker is gone, else what was raised first: others only notice that it left."""
        if self.lost:
            return next(iter(self.lost.values()))
        first = min(self.failures, key=lambda failure: failure.when)
        return first.text if first.lasting else first.trace


async def prepared(worker: Worker, heartbeat: float) -> Ready | Failure:
    """Have a worker get warm, however long that takes, as long as it gives signs of life.

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
    gets nowhere, is. Raises FaultError if a worker is lost, hangs or raised.
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
            if any(map(_faulty, done)):
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
    workers: Sequence[Worker], heartbeats: Sequence[Heartbeat | BaseException], limit: float
) -> dict[Worker, str]:
    """Workers to give up, and why: those that do not answer; else, if all that are busy got nowhere for `limit`
    seconds, those that the others wait for; all of them where that cannot be told.
    """
    silent = {
        worker: f"the worker on node {worker.node[:8]} does not answer: {heartbeat}"
        for worker, heartbeat in zip(workers, heartbeats, strict=True)
        if isinstance(heartbeat, BaseException)
    }
    if silent:
        return silent
    busy = [(worker, heartbeat) for worker, heartbeat in zip(workers, heartbeats, strict=True) if _busy(heartbeat)]
    if not busy or any(_stalled(heartbeat) <= limit for _, heartbeat in busy):
        return {}
    own = [worker for worker, heartbeat in busy if isinstance(heartbeat, Heartbeat) and heartbeat.phase == "own"]
    guilty = own or [worker for worker, _ in busy]
    return {worker: f"the worker on node {worker.node[:8]} hangs: no step within {limit:.1f} s" for worker in guilty}


def _busy(heartbeat: Heartbeat | BaseException) -> bool:
    return isinstance(heartbeat, Heartbeat) and heartbeat.busy != ""


def _stalled(heartbeat: Heartbeat | BaseException) -> float:
    return heartbeat.stalled if isinstance(heartbeat, Heartbeat) else 0.0


def _faulty(task: asyncio.Task[Any]) -> bool:
    return task.exception() is not None or isinstance(task.result(), Failure)
