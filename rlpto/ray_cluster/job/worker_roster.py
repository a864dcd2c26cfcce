"""The workers of one job: workers that train, workers that are being started, and workers that are being released."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable

from rlpto.ray_cluster.job import worker_actors
from rlpto.ray_cluster.job.supervision import prepared
from rlpto.ray_cluster.job.worker_actors import Worker, WorkerLostError
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.worker.actor import Failure

JOIN_WAIT_S = 5.0
"""Longest time that a warm worker waits for others that are still starting."""

STARTUP_HEARTBEAT_TIMEOUTS = 4.0
"""Heartbeat timeouts that a worker which is being started may be silent: imports leave it little room to answer."""


class WorkerRoster:
    """Workers of one job. changed: is called when one that was released is gone.

    training: those of the present group, by rank. starting: asked for, and not yet in a group.
    """

    def __init__(self, spec: JobSpec, changed: Callable[[], None]) -> None:
        self._spec, self._changed = spec, changed
        self.training: list[Worker] = []
        self.starting: list[Worker] = []
        self._releasing: list[Worker] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def holding(self) -> tuple[str, ...]:
        """Node of every worker that may have a GPU, those being released until they are gone."""
        return tuple(worker.node for worker in [*self.training, *self.starting, *self._releasing])

    @property
    def training_on(self) -> tuple[str, ...]:
        """Node of every worker that trains."""
        return tuple(worker.node for worker in self.training)

    @property
    def releasing(self) -> bool:
        """True while a worker is on its way out."""
        return bool(self._releasing)

    def misplaced(self, nodes: Iterable[str]) -> list[Worker]:
        """Workers that have no place on `nodes` (one entry a worker); those that train have it first."""
        room, found = Counter(nodes), []
        for worker in [*self.training, *self.starting]:
            room[worker.node] -= 1
            if room[worker.node] < 0:
                found.append(worker)
        return found

    def start_missing(self, nodes: Iterable[str]) -> None:
        """Start what is missing, on no node more than in `nodes`, counting those that are about to leave."""
        for node in (Counter(nodes) - Counter(self.holding)).elements():
            worker = worker_actors.start_worker(self._spec, node)
            worker.preparing = asyncio.ensure_future(
                prepared(worker, STARTUP_HEARTBEAT_TIMEOUTS * self._spec.heartbeat_timeout)
            )
            self.starting.append(worker)

    def failed_starts(self) -> list[tuple[Worker, Failure | WorkerLostError]]:
        """Take note of who is warm now; returns those that never will be, which are released, and why."""
        failed: list[tuple[Worker, Failure | WorkerLostError]] = []
        for worker in [worker for worker in self.starting if worker.ready is None and worker.preparing.done()]:
            try:
                said = worker.preparing.result()
            except WorkerLostError as lost:
                failed.append((worker, lost))
                continue
            if isinstance(said, Failure):
                failed.append((worker, said))
            else:
                worker.ready, worker.warm_since = said, time.monotonic()
        for worker, _ in failed:
            self.release(worker)
        return failed

    def ready_to_join(self) -> list[Worker]:
        """Workers to take in now: all that are warm, once none is starting any more or they have waited long enough."""
        warm = [worker for worker in self.starting if worker.ready is not None]
        if not warm:
            return []
        waited = time.monotonic() - min(worker.warm_since for worker in warm)
        return warm if len(warm) == len(self.starting) or waited > JOIN_WAIT_S else []

    def add_to_group(self, arrived: list[Worker]) -> None:
        """Let newcomers train, ranked after those that do already."""
        self.starting = [worker for worker in self.starting if worker not in arrived]
        self.training = [*self.training, *arrived]

    def release(self, worker: Worker) -> None:
        """End a worker in the background; it counts as holding its GPU until it is gone."""
        for group in (self.training, self.starting):
            if worker in group:
                group.remove(worker)
        self._releasing.append(worker)

        async def leave() -> None:
            await worker_actors.release(worker)
            self._releasing.remove(worker)
            self._changed()

        self._background(leave())

    def release_all(self) -> None:
        """Release all."""
        for worker in [*self.training, *self.starting]:
            self.release(worker)

    async def released(self) -> None:
        """Wait until all that were released are gone."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
