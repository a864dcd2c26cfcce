"""Who works for one job: workers that train, workers that are being started, and workers that are let go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable

from rlpto.ray_cluster.job import worker_actors
from rlpto.ray_cluster.job.supervision import prepared
from rlpto.ray_cluster.job.worker_actors import LostError, Worker
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.worker.actor import Failure

GATHERING = 5.0
"""s that a warm worker waits for others that are still starting."""

STARTING_BEATS = 4.0
"""Heartbeat timeouts that a worker which is being started may be silent: imports leave it little room to answer."""


class Staff:
    """Workers of one job. changed: is called when one that was let go is gone.

    training: those of the present group, by rank. coming: asked for, and not yet in a group.
    """

    def __init__(self, spec: JobSpec, changed: Callable[[], None]) -> None:
        self._spec, self._changed = spec, changed
        self.training: list[Worker] = []
        self.coming: list[Worker] = []
        self._leaving: list[Worker] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def holding(self) -> tuple[str, ...]:
        """Node of every worker that may have a GPU, those that are let go until they are gone."""
        return tuple(worker.node for worker in [*self.training, *self.coming, *self._leaving])

    @property
    def leaves(self) -> bool:
        """True while a worker is on its way out."""
        return bool(self._leaving)

    def misplaced(self, nodes: Iterable[str]) -> list[Worker]:
        """Workers that have no place on `nodes` (one entry a worker); those that train have it first."""
        return worker_actors.misplaced([*self.training, *self.coming], nodes)

    def hire(self, nodes: Iterable[str]) -> None:
        """Start what is missing, on no node more than in `nodes`, counting those that are about to leave."""
        for node in worker_actors.missing(nodes, self.holding):
            worker = worker_actors.start_worker(self._spec, node)
            worker.preparing = asyncio.ensure_future(prepared(worker, STARTING_BEATS * self._spec.heartbeat_timeout))
            self.coming.append(worker)

    def missed(self) -> list[tuple[Worker, Failure | LostError]]:
        """Take note of who is warm now; returns those that never will be, which are let go, and why."""
        failed: list[tuple[Worker, Failure | LostError]] = []
        for worker in [worker for worker in self.coming if worker.ready is None and worker.preparing.done()]:
            try:
                said = worker.preparing.result()
            except LostError as lost:
                failed.append((worker, lost))
                continue
            if isinstance(said, Failure):
                failed.append((worker, said))
            else:
                worker.ready, worker.warm_since = said, time.monotonic()
        for worker, _ in failed:
            self.let_go(worker)
        return failed

    def arrivals(self) -> list[Worker]:
        """Workers to take in now: all that are warm, once none is starting any more or they have waited long enough."""
        warm = [worker for worker in self.coming if worker.ready is not None]
        if not warm:
            return []
        waited = time.monotonic() - min(worker.warm_since for worker in warm)
        return warm if len(warm) == len(self.coming) or waited > GATHERING else []

    def admit(self, arrived: list[Worker]) -> None:
        """Let newcomers train, after those who do already."""
        self.coming = [worker for worker in self.coming if worker not in arrived]
        self.training = [*self.training, *arrived]

    def let_go(self, worker: Worker) -> None:
        """End a worker in the background; it counts as holding its GPU until it is gone."""
        for group in (self.training, self.coming):
            if worker in group:
                group.remove(worker)
        self._leaving.append(worker)

        async def leave() -> None:
            await worker_actors.release(worker)
            self._leaving.remove(worker)
            self._changed()

        self._background(leave())

    def let_all_go(self) -> None:
        """End everybody."""
        for worker in [*self.training, *self.coming]:
            self.let_go(worker)

    async def gone(self) -> None:
        """Wait until all who were let go are gone."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
