"""The workers of one job: workers that train, workers that are being started, and workers that are being released."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from rlpto.ray_cluster.job import worker_actors
from rlpto.ray_cluster.job.supervision import prepared
from rlpto.ray_cluster.job.worker_actors import ParameterServers, Worker, WorkerLostError
from rlpto.ray_cluster.messages import JobSpec, Plan
from rlpto.ray_cluster.worker.actor import Failure

JOIN_WAIT_S = 5.0
"""Longest time that a warm worker waits for others that are still starting."""

STARTUP_HEARTBEAT_TIMEOUTS = 4.0
"""Heartbeat timeouts for which a starting worker may be silent: imports often keep it from answering."""


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
        """True while a worker is being released."""
        return bool(self._releasing)

    def misplaced(self, nodes: Iterable[str]) -> list[Worker]:
        """Workers without a place on `nodes` (one entry a worker); training workers have precedence."""
        _, without, _ = worker_actors.matched([*self.training, *self.starting], nodes)
        return without

    def start_missing(self, nodes: Iterable[str]) -> None:
        """Start missing workers, on no node more than in `nodes`, counting those that are about to leave."""
        *_, missing = worker_actors.matched([*self.training, *self.starting, *self._releasing], nodes)
        for node in missing:
            worker = worker_actors.start_worker(self._spec, node)
            worker.preparing = asyncio.ensure_future(
                prepared(worker, STARTUP_HEARTBEAT_TIMEOUTS * self._spec.heartbeat_timeout)
            )
            self.starting.append(worker)

    def failed_starts(self) -> list[tuple[Worker, Failure | WorkerLostError]]:
        """Note the workers that are warm now; returns failed ones, which are released, with reasons."""
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
        """Workers to take in now: all that are warm, once none is starting any more or they have waited long enough; of
        a model that several hold together, as many as hold whole copies."""
        warm = [worker for worker in self.starting if worker.ready is not None]
        if not warm:
            return []
        waited = time.monotonic() - min(worker.warm_since for worker in warm)
        whole = warm[: len(warm) - len(warm) % self._spec.model_parallel]
        return whole if len(warm) == len(self.starting) or waited > JOIN_WAIT_S else []

    def set_apart(self, workers: list[Worker]) -> None:
        """Workers that trained wait, warm, until there are enough to hold the model."""
        for worker in workers:
            worker.warm_since = time.monotonic()
        self.training = [worker for worker in self.training if worker not in workers]
        self.starting = [*workers, *self.starting]

    def add_to_group(self, arrived: list[Worker]) -> None:
        """Let new workers train, ranked after the present ones."""
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

        task: asyncio.Task[None] = asyncio.ensure_future(leave())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def release_all(self) -> None:
        """Release all."""
        for worker in [*self.training, *self.starting]:
            self.release(worker)

    async def released(self) -> None:
        """Wait until all that were released are gone."""
        if self._tasks:
            await asyncio.wait(self._tasks)


class Growth:
    """The growth that the newest command asks for, until all of it trains or it is given up.

    timeout: s after which it is given up. why: of the last one that was.
    """

    def __init__(self, roster: WorkerRoster, servers: ParameterServers, timeout: float) -> None:
        self._roster, self._servers, self._timeout = roster, servers, timeout
        self._since: float | None = None
        self.why = ""

    def begin(self, plan: Plan) -> None:
        """A plan has been commanded."""
        self._since = time.monotonic() if self._is_ahead(plan) else None

    def cancel(self) -> None:
        """A fault intervened: missing workers no longer count as growth."""
        self._since = None

    def _is_ahead(self, plan: Plan) -> bool:
        """True if all workers and servers that train have a place in the plan, which asks for more."""
        present = Counter(self._roster.training_on), Counter(self._servers.nodes)
        wanted = Counter(plan.nodes), Counter(self._servers.wanted(plan))
        return bool(present[0]) and present != wanted and all(a <= b for a, b in zip(present, wanted, strict=True))

    def given_up(self, plan: Plan, gave_up: bool) -> Plan | None:
        """Release workers and servers that did not come up in time; returns the plan of those training. None: no
        change.

        gave_up: starts have failed so often that there is no other attempt.
        """
        if self._since is None or not self._roster.training:
            return None
        if not self._is_ahead(plan):
            self._since = None
            return None
        waited = time.monotonic() - self._since
        if waited <= self._timeout and not gave_up:
            return None
        self._since = None
        for worker in list(self._roster.starting):
            self._roster.release(worker)
        self._servers.drop_starting()
        training, serving = self._roster.training_on, self._servers.nodes
        left = f"{len(training)} workers" + (f" and {len(serving)} servers" if serving else "")
        self.why = f"new workers or servers did not come up within {waited:.0f} s: the job goes on with {left}"
        return replace(plan, nodes=training, servers=serving if plan.servers else ())
