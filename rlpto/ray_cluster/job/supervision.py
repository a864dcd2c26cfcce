"""Waiting for what all workers of a group do, and telling apart those that are gone, that hang, and that raised."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rlpto.ray_cluster.job.worker_actors import LostError, Worker, answer, everyone
from rlpto.ray_cluster.worker.actor import Failure, Pulse, Ready

LATE = 0.5
"""s for the other workers to notice a fault too, before they are told."""

BEAT = 0.5
"""s between looks at workers that are silent."""


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

    heartbeat: s without one after which it is given up. Raises LostError if it is gone, or was never there.
    """
    # Its process id comes first, so that it can be ended even if it stops in the middle.
    worker.pid = await answer(worker.handle.pid.remote())
    try:
        (ready,) = await collect([worker], [worker.handle.prepare.remote()], heartbeat, math.inf)
    except FaultError as fault:
        if fault.failures:
            return fault.failures[0]
        raise LostError(fault.text) from None
    said: Ready = ready
    return said


async def collect(workers: Sequence[Worker], calls: Sequence[Any], heartbeat: float, limit: float) -> list[Any]:
    """Results of one call to each of the workers.

    heartbeat: s after which a worker that does not answer is given up. limit: s after which one that answers, but
    gets nowhere, is. Raises FaultError if a worker is lost, hangs or raised.
    """
    tasks = [asyncio.ensure_future(answer(call)) for call in calls]
    pulses: asyncio.Task[list[Any]] | None = None
    pending, fault_at = set(tasks), float("inf")
    hung: dict[Worker, str] = {}
    try:
        while pending and not hung and time.monotonic() - fault_at < LATE:
            done, pending = await asyncio.wait(pending, timeout=BEAT, return_when=asyncio.FIRST_COMPLETED)
            if any(map(_faulty, done)):
                fault_at = min(fault_at, time.monotonic())
            if pulses is not None and pulses.done():
                hung = hanging(workers, pulses.result(), limit)
                pulses = None
            if not done and pulses is None:
                asked = (answer(worker.handle.pulse.remote(), heartbeat) for worker in workers)
                pulses = asyncio.ensure_future(everyone(asked))
    finally:
        for task in [*pending, *([pulses] if pulses else [])]:
            task.cancel()
    ended = [(worker, task) for worker, task in zip(workers, tasks, strict=True) if task not in pending]
    lost = {worker: str(task.exception()) for worker, task in ended if task.exception() is not None}
    results = [task.result() for _, task in ended if task.exception() is None]
    failures = [result for result in results if isinstance(result, Failure)]
    if pending or lost or failures:
        raise FaultError(lost | hung, failures)
    return results


def hanging(workers: Sequence[Worker], pulses: Sequence[Pulse | BaseException], limit: float) -> dict[Worker, str]:
    """Workers to give up, and why: those that do not answer; else, if all that are busy got nowhere for `limit`
    seconds, those that the others wait for; all of them where that cannot be told.
    """
    silent = {
        worker: f"the worker on node {worker.node[:8]} does not answer: {pulse}"
        for worker, pulse in zip(workers, pulses, strict=True)
        if isinstance(pulse, BaseException)
    }
    if silent:
        return silent
    busy = [(worker, pulse) for worker, pulse in zip(workers, pulses, strict=True) if _busy(pulse)]
    if not busy or any(_still(pulse) <= limit for _, pulse in busy):
        return {}
    own = [worker for worker, pulse in busy if isinstance(pulse, Pulse) and pulse.phase == "own"]
    guilty = own or [worker for worker, _ in busy]
    return {worker: f"the worker on node {worker.node[:8]} hangs: no step within {limit:.1f} s" for worker in guilty}


def _busy(pulse: Pulse | BaseException) -> bool:
    return isinstance(pulse, Pulse) and pulse.busy != ""


def _still(pulse: Pulse | BaseException) -> float:
    return pulse.still if isinstance(pulse, Pulse) else 0.0


def _faulty(task: asyncio.Task[Any]) -> bool:
    return task.exception() is not None or isinstance(task.result(), Failure)
