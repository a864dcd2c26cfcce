"""Workers of a job that train together: forming a group, sharing state, training in chunks, and surviving faults."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray

from rlpto.ray_cluster.controllers import gpu_type_at
from rlpto.ray_cluster.job.job_folder import JobFolder
from rlpto.ray_cluster.job.phases import Lifecycle, Phase
from rlpto.ray_cluster.job.reporting import Size, TrainingStatistics
from rlpto.ray_cluster.job.supervision import FaultError, WorkerRoster, collect
from rlpto.ray_cluster.job.worker_actors import WORKER_CALL_TIMEOUT_S, ParameterServers, Worker, result_of, settle
from rlpto.ray_cluster.messages import JobSpec, Plan, global_batch
from rlpto.ray_cluster.worker.actor import GroupPlace
from rlpto.ray_cluster.worker.sampling import Position
from rlpto.ray_cluster.worker.training import Chunk
from rlpto.ray_cluster.worker.worker_group import start_store

HANG_HEARTBEAT_TIMEOUTS, HANG_STEPS = 3.0, 10.0
"""Time without a step after which a responding worker counts as hanging: heartbeat timeouts plus usual step times."""

BETWEEN_STEPS_TIMEOUT_S = 60.0
"""Longest time for operations between steps: meeting in a group, waiting for servers, handing over state."""


class TrainingGroup:
    """The present group of a job's workers, and the state from which the next one continues.

    state: step and state handed over by the last group. refused: whether the disk refused the last checkpoint by
    `take_state`. sent: newest step handed out to workers. chosen: batch size in force, None for the job's own.
    trains_since: start of training without a fault, on the monotonic clock.
    """

    def __init__(
        self,
        spec: JobSpec,
        lifecycle: Lifecycle,
        roster: WorkerRoster,
        servers: ParameterServers,
        statistics: TrainingStatistics,
        job_folder: JobFolder,
    ) -> None:
        self._spec, self._lifecycle, self._roster, self._servers = spec, lifecycle, roster, servers
        self._statistics, self._job_folder = statistics, job_folder
        self._host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._store = start_store(self._host)
        self._number = self.sent = 0
        self.state: tuple[int, bytes] | None = None
        self.refused = False
        self.chosen: int | None = None
        self.trains_since = time.monotonic()

    async def form(self, arrived: list[Worker], plan: Plan) -> None:
        """Make a group of the training workers and the new ones."""
        first, recovers = not self._roster.training, self._lifecycle.phase is Phase.RECOVERING
        self._lifecycle.enter(Phase.FORMING)
        self._roster.add_to_group(arrived)
        members = self._roster.training
        if first or self._servers.stale or not any(worker.current for worker in members):
            await self._load()
        elif self._servers.handles and not all(worker.current for worker in members):
            _, state = await self.take_state()  # servers have the weights, but not the job's position
            await self._ask([worker for worker in members if not worker.current], "load", ray.put(state))
        self._number += 1
        self._servers.ensure(plan)
        ranks = tuple(rank for rank, worker in enumerate(members) if not worker.current)
        workers = len(members)
        if first:
            guess = max(worker.ready.step_seconds for worker in arrived if worker.ready)
            self._statistics.step_seconds = max(guess, self._spec.pace or 0.0) / workers
            self.chosen = None  # the guess is of the job's own batch size
        nodes = len({worker.node for worker in members})
        size = Size(workers, nodes, len(self._servers.handles), gpu_type_at(members[0].node))
        self._statistics.grouped(size, rescaled=self._statistics.ended is not None and not recovers)
        timeout, at = max(BETWEEN_STEPS_TIMEOUT_S, self._limit()), (self._host, self._store.port)
        place = GroupPlace(self._number, workers, ranks, *at, timeout, self._servers.handles, self._servers.stale)
        await self._answers(members, [worker.handle.join.remote(place, rank) for rank, worker in enumerate(members)])
        self._job_folder.say(f"training on {workers} GPU{'s' * (workers > 1)} of {nodes} node{'s' * (nodes > 1)}")
        for worker in members:
            worker.current = True
        if first or recovers:
            self.trains_since = time.monotonic()
        self._servers.stale, self.state = False, None
        self._lifecycle.enter(Phase.TRAINING)

    async def _load(self) -> None:
        """Load the newest state into all workers, from the last group or the newest checkpoint."""
        self._servers.stale, loaded = True, False
        while not loaded:
            state = self.state or await asyncio.to_thread(self._job_folder.newest_state)
            if state is None:
                # The initial state is the first one that a fault can return to.
                state = await self.take_state()
            self.sent, content = state
            shared = ray.put(content)
            try:
                await self._ask(self._roster.training, "load", shared)
                loaded = True
            except FaultError as fault:
                if fault.missed or not all(failure.lasting for failure in fault.failures):
                    raise
                self.state = None
                self._job_folder.refuse(fault.text)
                if not self._job_folder.has_checkpoints:  # the job starts over, with workers that have loaded nothing
                    raise FaultError({}, [replace(failure, lasting=False) for failure in fault.failures]) from None
                await self._ask(self._roster.training, "recover")
        for worker in self._roster.training:
            worker.current = True

    async def hand_over(self, whole: bool = True) -> None:
        """End training, because workers leave or servers change. whole: keep the group's state, which no worker or
        server would otherwise keep. Raises FaultError if the worker that hands it over fails."""
        if self._lifecycle.phase is Phase.TRAINING:
            self._lifecycle.enter(Phase.HANDING_OVER)
        has_state = any(worker.current for worker in self._roster.training)  # not if a fault left newcomers alone
        if whole and has_state and not self._servers.stale:
            self.state = await self.take_state()

    def choose_batch_size(self, plan: Plan) -> None:
        """Hand out the plan's batch size from the next chunk on."""
        chosen, workers = plan.batch_size, len(self._roster.training)
        if chosen != self.chosen:
            before = global_batch(self._spec, workers, self.chosen)
            self._statistics.step_seconds *= global_batch(self._spec, workers, chosen) / before
            self.chosen = chosen

    async def chunk(self, calls: list[Any]) -> Chunk:
        """Count the results of training calls, and log workers' output and new measurements.

        Returns the chunk of rank 0. Raises FaultError under the conditions of `_answers`.
        """
        chunks = await collect(self._roster.training, calls, self._spec.faults.heartbeat_timeout, self._limit())
        self._statistics.add(chunks)
        first: Chunk = chunks[0]
        for at, rank, line in sorted((at, rank, line) for rank, one in enumerate(chunks) for at, line in one.output):
            self._job_folder.say(f"[worker {rank}] {line}" if rank else line, at)
        if not math.isnan(first.accuracy):
            self._job_folder.say(
                f"epoch {first.evaluated_at:.6g} of {self._spec.epochs:.6g}: loss {self._statistics.loss:.4g}, "
                f"accuracy {first.accuracy:.4g}"
            )
        return first

    async def _ask(self, workers: Sequence[Worker], method: str, *arguments: Any) -> list[Any]:
        """Make the same call to several workers, and return their answers. Raises FaultError under the conditions of
        `_answers`."""
        return await self._answers(workers, [getattr(worker.handle, method).remote(*arguments) for worker in workers])

    async def _answers(self, workers: Sequence[Worker], calls: list[Any]) -> list[Any]:
        """Wait for the workers' answers to one call each. Raises FaultError if a worker is lost, hangs or raised."""
        limit = max(self._limit(), BETWEEN_STEPS_TIMEOUT_S)
        return await collect(workers, calls, self._spec.faults.heartbeat_timeout, limit)

    def _limit(self) -> float:
        """Time after which an unfinished step counts as hanging [s]."""
        warm = [worker.ready for worker in self._roster.training if worker.ready is not None]
        slowest = max((ready.step_seconds + ready.evaluation_seconds for ready in warm), default=0.0)
        slowest = max(slowest, self._spec.pace or 0.0, self._statistics.step_seconds)
        return HANG_HEARTBEAT_TIMEOUTS * self._spec.faults.heartbeat_timeout + HANG_STEPS * slowest

    async def take_state(self) -> tuple[int, bytes]:
        """Step and state of the group, also written as a checkpoint if the weights are finite."""
        ((step, state, finite),) = await self._ask(self._roster.training[:1], "state")
        self.refused = not await self._job_folder.save(step, state, finite)
        return step, state

    def saves_apart(self) -> bool:
        """True if a due checkpoint needs a pause of training, because servers would continue to change."""
        servers = bool(self._servers.handles) and not self._servers.stale
        return servers and bool(self._roster.training) and self._job_folder.due()

    def checkpoint_if_due(self) -> None:
        """Start writing a checkpoint while the workers continue, if one is due."""
        if self._job_folder.due() and not self._servers.handles:
            self._job_folder.save_from(self._roster.training[0].handle.state.remote())

    async def keep_survivors(self, fault: FaultError) -> tuple[bool, bool, int]:
        """Keep healthy workers after a fault, and release the others.

        Returns whether a worker or server has died, whether training code raised (no worker is kept then), and the
        furthest step completed by a worker, which may be later than the last chunk handed over.
        """
        self._lifecycle.enter(Phase.RECOVERING)
        self._statistics.faulted()
        if fault.lost:
            self._job_folder.shorten(time.monotonic() - self.trains_since)
        members = list(self._roster.training)
        doubtful = [worker for worker in members if worker not in fault.lost]
        aborted = await settle(result_of(worker.handle.abort.remote(), WORKER_CALL_TIMEOUT_S) for worker in doubtful)
        had_servers = bool(self._servers.handles)
        await self._servers.end_group()
        died = bool(fault.missed) or (had_servers and not self._servers.handles)
        answers = await settle(map(self._recovered, doubtful, aborted))
        well = {worker: said for worker, said in zip(doubtful, answers, strict=True) if isinstance(said, Position)}
        raised = not fault.missed and not any(isinstance(said, BaseException) for said in answers)
        if self._servers.handles and self._job_folder.checkpoint is None:
            raised = True  # the servers' state is lost, and the only state to return to is the start
        for worker in members:
            if raised or worker not in well:
                self._roster.release(worker)
        survivors = [] if raised else sorted(well, key=lambda worker: -well[worker].step)
        self._roster.training = survivors
        if survivors:
            furthest = well[survivors[0]].step
            self.sent = furthest
            for worker in survivors:
                # A newcomer that a fault kept from getting the group's state is still at step 0.
                worker.current = well[worker].step == furthest and (worker.current or furthest > 0)
        return died, raised, max((position.step for position in well.values()), default=0)

    async def _recovered(self, worker: Worker, aborted: object) -> Position:
        """Position of a worker after a fault. Its training thread, which recovers, may first have to end a step, unless
        its other thread did not answer either. aborted: what that thread answered."""
        call = worker.handle.recover.remote()
        if isinstance(aborted, BaseException):
            found: Position = await result_of(call, WORKER_CALL_TIMEOUT_S)
            return found
        (found,) = await collect([worker], [call], self._spec.faults.heartbeat_timeout, self._limit())
        return found
