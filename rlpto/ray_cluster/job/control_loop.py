"""What a controller does: start and release workers, group them, have them train, and recover from faults.

One task does all of it, in turns. A turn ends wherever the group of workers has to change; what changes the group
(a command, a worker that is warm, a fault) is looked at between chunks of training, where nothing is in flight.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray

from rlpto.io.errors import CheckpointError
from rlpto.ray_cluster.controllers import kind_at
from rlpto.ray_cluster.job.job_folder import Checkpointer, JobFolder
from rlpto.ray_cluster.job.reporting import Size, TrainingStatistics
from rlpto.ray_cluster.job.supervision import FailureKind, FaultError, RetryPolicy, collect
from rlpto.ray_cluster.job.worker_actors import (
    WORKER_CALL_TIMEOUT_S,
    ParameterServers,
    Worker,
    WorkerLostError,
    result_of,
    settle,
)
from rlpto.ray_cluster.job.worker_roster import Growth, WorkerRoster
from rlpto.ray_cluster.messages import JobReport, JobSpec, JobState, Nodes, Plan, global_batch
from rlpto.ray_cluster.worker.actor import Failure, GroupPlace
from rlpto.ray_cluster.worker.network import start_store
from rlpto.ray_cluster.worker.sampling import Position
from rlpto.ray_cluster.worker.training import Chunk

HANG_HEARTBEAT_TIMEOUTS, HANG_STEPS = 3.0, 10.0
"""Heartbeat timeouts plus usual steps without a step after which a worker that answers is taken to hang."""

BETWEEN_STEPS_TIMEOUT_S = 60.0
"""Longest time for what workers do between steps: meeting in a group, waiting for servers, handing over their state."""


class ControlLoop:
    """State and work of one job's controller. node: where the controller and its parameter servers are."""

    def __init__(self, spec: JobSpec, node: str, resume: bool, restarted: bool) -> None:
        self._spec = spec
        self._host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._store = start_store(self._host)
        self._job_folder = JobFolder(spec)
        self._statistics = TrainingStatistics()
        self._checkpointer = Checkpointer(self._job_folder, spec.checkpoint_interval, self._record)
        self._generation = self._applied = 0
        self._plan = Plan()
        self._chosen: int | None = None
        self._outcome: JobState | None = None
        self._note = ""
        self._stopping = False
        self._wake = asyncio.Event()
        self._roster = WorkerRoster(spec, self._wake.set)
        self._servers = ParameterServers(spec, node)
        self._reset = True
        self._group = 0
        self._regroup = False
        self._fresh: set[Worker] = set()
        self._state: tuple[int, bytes] | None = None
        self._sent = 0
        self._fault_since: float | None = None
        self._trains_since = time.monotonic()
        self._retry = RetryPolicy(spec)
        self._growth = Growth(self._roster, self._servers, spec.start_timeout)
        self._rolled_back = 0
        try:
            kept = self._job_folder.begin(resume or restarted)
        except CheckpointError as stays:
            self._fail(str(stays))
            return
        if kept is not None:
            self._statistics.restore(kept["statistics"])
            if restarted:
                self._generation = kept["generation"]
                self._plan = Plan(tuple(kept["nodes"]), kept["batch_size"], tuple(kept["servers"]))
                self._fault_since = time.monotonic()
            self._outcome, self._note = kept["outcome"], kept.get("note", "")

    # What the scheduler asks.

    @property
    def _nodes(self) -> Nodes:
        """Where workers are to be."""
        return self._plan.nodes

    def command(self, generation: int, plan: Plan) -> None:
        """Take a command, if it is newer than the one in force."""
        if generation <= self._generation or self._outcome is not None or self._stopping:
            self._generation = max(self._generation, generation)
            return
        self._generation, self._plan = generation, plan
        self._growth.begin(plan)
        self._retry.reset()
        self._checkpointer.write_record()
        self._wake.set()

    def stop(self) -> None:
        """Release everything and end."""
        self._stopping, self._plan = True, Plan()
        self._wake.set()

    def report(self) -> JobReport:
        """How the job is."""
        statistics = self._statistics
        if self._in_force():
            self._applied = self._generation
        return JobReport(
            job=self._spec.id,
            generation=self._generation,
            applied=self._applied,
            state=self._outcome or ("running" if self._roster.training else "starting" if self._nodes else "waiting"),
            holding=self._roster.holding,
            training_on=self._roster.training_on,
            serving_on=self._servers.holding,
            rolled_back=self._rolled_back,
            progress=statistics.samples_done / self._spec.data_size,
            samples_per_second=statistics.samples_per_second if self._roster.training else float("nan"),
            batch_size=statistics.batch_size if self._roster.training else 0,
            **statistics.figures(),
            checkpoint=self._job_folder.checkpoint,
            failure=self._job_folder.failure,
            note=self._note,
            pid=os.getpid(),
            time=time.time(),
        )

    # The work.

    async def run(self) -> None:
        """Work until the controller is stopped. What goes wrong here, not in training, fails the job at once."""
        try:
            while not self._stopping:
                try:
                    await self._turn()
                except FaultError as fault:
                    await self._recover(fault)
            await self._release_all()
        except Exception:
            self._fail(f"the controller itself failed:\n{traceback.format_exc()}")
            self._roster.release_all()
        self._servers.kill()
        await self._roster.released()
        self._checkpointer.write_record()

    async def _turn(self) -> None:
        if self._outcome is None:
            await self._shrink()
            self._start_missing()
            arrived = self._ready_to_join()
            if self._saves_apart():
                await self._take_state()
            if self._servers_are_ready():
                await self._switch_servers()
            if arrived or (self._roster.training and self._regroup):
                await self._form(arrived)
            if self._roster.training:
                await self._train()
                return
        else:
            await self._release_all()
        self._wake.clear()
        if self._roster.releasing or self._roster.starting or self._nodes:
            await self._pause(0.05)
        else:
            await self._wake.wait()

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return

    # Starting and releasing workers.

    async def _shrink(self) -> None:
        """Let go of workers that the command has no place for; the last one leaves its state behind."""
        leave = self._roster.misplaced(self._nodes)
        if not leave:
            return
        going = [worker for worker in self._roster.training if worker in leave]
        if going and len(going) == len(self._roster.training):
            if self._state_is_whole():
                self._state = await self._take_state()
            if not self._nodes:
                self._statistics.released()
        for worker in leave:
            self._roster.release(worker)
        if not self._nodes:
            self._servers.kill()  # a job that waits takes no CPU slots
        # After a fault those who are left have to meet again whoever leaves now.
        self._regroup = (self._regroup or bool(going)) and bool(self._roster.training)

    def _start_missing(self) -> None:
        """Start workers and servers that the command asks for, if it is time to; give them up if they take too long."""
        self._roll_back_if_late()
        if self._nodes and self._retry.may_start_workers():
            self._ensure_servers()  # they are up by the time the workers are
            if gone := self._servers.failed():
                self._count_failure(gone, "start", lasting=False)
                return
            self._servers.start_missing(self._plan)
            self._roster.start_missing(self._nodes)

    def _roll_back_if_late(self) -> None:
        """Give up workers and servers that were to join those which train, and have not come up in time."""
        kept = None if self._fault_since is not None else self._growth.given_up(self._plan, self._retry.gave_up)
        if kept is not None:
            self._plan, self._rolled_back = kept, self._generation
            self._retry.reset()
            self._job_folder.log_failure(self._growth.why)
            self._checkpointer.write_record()

    def _ready_to_join(self) -> list[Worker]:
        """Workers to take in now."""
        for worker, reason in self._roster.failed_starts():
            self._start_failed(worker, reason)
        if self._roster.training and self._servers.differ(self._plan) and not self._servers.all_up(self._plan):
            return []  # they join when the servers change, so that the job is held up but once
        return self._roster.ready_to_join()

    def _servers_are_ready(self) -> bool:
        """True if other servers are to serve, and all of them are up, as are the workers that join with them."""
        if not self._servers.differ(self._plan) or not self._servers.all_up(self._plan):
            return False
        return all(worker.ready is not None for worker in self._roster.starting)

    async def _switch_servers(self) -> None:
        """Let the servers of the plan serve: they get weights and optimizer state from those that did."""
        if self._roster.training and self._state_is_whole():
            self._state = await self._take_state()
        self._servers.switch(self._plan)
        self._reset, self._regroup = True, bool(self._roster.training)

    def _start_failed(self, worker: Worker, reason: Failure | WorkerLostError) -> None:
        """A worker did not come to be."""
        if isinstance(reason, Failure):
            self._count_failure(reason.text if reason.lasting else reason.trace, "start", reason.lasting)
        elif not reason.unplaced:
            self._count_failure(str(reason), "start", lasting=False)
        else:
            self._retry.node_gone()
            gone = f"no worker can start on node {worker.node[:8]}: it is gone"
            if self._job_folder.failure != gone:
                self._job_folder.log_failure(gone)

    async def _release_all(self) -> None:
        if self._roster.training and self._outcome is None and self._state_is_whole():
            try:
                self._state = await self._take_state()
            except FaultError as fault:
                self._job_folder.log_failure(fault.text)
        self._roster.release_all()

    # Training together.

    async def _form(self, arrived: list[Worker]) -> None:
        """Make a group of those who train already and those who have arrived."""
        before = list(self._roster.training)
        self._roster.add_to_group(arrived)
        rollback = not before or (bool(self._servers.handles) and self._reset)
        fresh = set() if rollback else self._fresh | set(arrived)
        if rollback:
            await self._load()
        elif self._servers.handles and fresh:
            await self._load_position(fresh)
        self._group += 1
        self._ensure_servers()
        ranks = tuple(rank for rank, worker in enumerate(self._roster.training) if worker in fresh)
        workers = len(self._roster.training)
        if not before:
            guess = max(worker.ready.step_seconds for worker in arrived if worker.ready)
            self._statistics.step_seconds = max(guess, self._spec.pace or 0.0) / workers
            self._chosen = None  # the guess is of the job's own batch size
        nodes = len({worker.node for worker in self._roster.training})
        size = Size(workers, nodes, len(self._servers.handles), kind_at(self._roster.training[0].node))
        self._statistics.grouped(size, self._statistics.ended is not None, self._fault_since)
        timeout = max(BETWEEN_STEPS_TIMEOUT_S, self._limit())
        servers = self._servers.handles
        places = [
            GroupPlace(self._group, rank, workers, ranks, self._host, self._store.port, timeout, servers, self._reset)
            for rank in range(workers)
        ]
        calls = [worker.handle.join.remote(place) for worker, place in zip(self._roster.training, places, strict=True)]
        await self._all(calls)
        self._job_folder.say(f"training on {workers} GPU{'s' * (workers > 1)} of {nodes} node{'s' * (nodes > 1)}")
        self._fresh.clear()
        if not before or self._fault_since is not None:
            self._trains_since = time.monotonic()
        self._regroup, self._reset, self._fault_since, self._state = False, False, None, None

    async def _load(self) -> None:
        """Give all workers the newest state there is: what the last group left behind, or the newest checkpoint."""
        self._reset, loaded = True, False
        while not loaded:
            state = self._state or await asyncio.to_thread(self._job_folder.newest_state)
            if state is None:
                # Where the job starts is the first state that faults can lead back to.
                state = await self._take_state()
            self._sent, content = state
            shared = ray.put(content)
            try:
                await self._all([worker.handle.load.remote(shared) for worker in self._roster.training])
                loaded = True
            except FaultError as fault:
                if fault.lost or not all(failure.lasting for failure in fault.failures):
                    raise
                self._state = None
                self._job_folder.refuse(fault.text)
                if not self._job_folder.has_checkpoints:  # the job starts over, with workers that have loaded nothing
                    raise FaultError({}, [replace(failure, lasting=False) for failure in fault.failures]) from None
                await self._all([worker.handle.recover.remote() for worker in self._roster.training])

    async def _load_position(self, fresh: set[Worker]) -> None:
        """Tell newcomers where the job stands: servers have its weights for them, but not its position."""
        _, state = await self._take_state()
        shared = ray.put(state)
        newcomers = [worker for worker in self._roster.training if worker in fresh]
        calls = [worker.handle.load.remote(shared) for worker in newcomers]
        await self._collect(newcomers, calls)

    def _ensure_servers(self) -> None:
        if self._servers.ensure(self._plan):
            self._reset = True

    async def _train(self) -> None:
        """Train until the group has to change, or the job has finished."""
        flight: deque[list[Any]] = deque()
        while True:
            ahead = self._statistics.chunks_ahead(self._spec.asynchronous)
            while len(flight) < ahead and not self._change_due():
                self._choose_batch_size()
                self._sent += self._statistics.chunk_steps()
                flight.append([worker.handle.run.remote(self._sent, self._chosen) for worker in self._roster.training])
            if not flight:
                return
            chunks = await self._chunks(flight.popleft())
            self._statistics.add(chunks)
            self._say_how_it_goes(chunks[0])
            self._retry.stepped(self._statistics.step, len(self._roster.training) == len(self._nodes))
            if chunks[0].finished or self._has_flattened(chunks[0]):
                for rest in flight:
                    chunks = await self._chunks(rest)
                    self._statistics.add(chunks)
                    self._say_how_it_goes(chunks[0])
                await self._finish()
                return
            self._start_missing()
            self._checkpoint_if_due()

    def _say_how_it_goes(self, chunk: Chunk) -> None:
        """What rank 0 has printed, and what it has just measured, for those who follow the job."""
        for at, line in chunk.output:
            self._job_folder.say(line, at)
        if not math.isnan(chunk.accuracy):
            self._job_folder.say(
                f"epoch {chunk.evaluated_at:.6g} of {self._spec.epochs:.6g}: loss {self._statistics.loss:.4g}, "
                f"accuracy {chunk.accuracy:.4g}"
            )

    def _has_flattened(self, chunk: Chunk) -> bool:
        """True if the job is to stop early, by what rank 0 has just measured. Evaluations outlive the controller."""
        rule = self._spec.stop
        new = rule is not None and not math.isnan(chunk.accuracy)
        return rule is not None and new and self._statistics.has_flattened(rule, self._spec.epochs)

    def _choose_batch_size(self) -> None:
        """Hand out the plan's batch size from the next chunk on."""
        chosen, workers = self._plan.batch_size, len(self._roster.training)
        if chosen != self._chosen:
            before = global_batch(self._spec, workers, self._chosen)
            self._statistics.step_seconds *= global_batch(self._spec, workers, chosen) / before
            self._chosen = chosen

    def _change_due(self) -> bool:
        if self._stopping or self._saves_apart():
            return True
        if self._servers_are_ready():
            return True
        return bool(self._roster.misplaced(self._nodes)) or bool(self._ready_to_join())

    async def _all(self, calls: list[Any]) -> list[Any]:
        """Results of one call to every worker of the group. Raises FaultError if one is lost, hangs or raised."""
        return await self._collect(self._roster.training, calls)

    async def _collect(self, workers: Sequence[Worker], calls: list[Any]) -> list[Any]:
        """The same of any workers."""
        limit = max(self._limit(), BETWEEN_STEPS_TIMEOUT_S)
        return await collect(workers, calls, self._spec.heartbeat_timeout, limit)

    async def _chunks(self, calls: list[Any]) -> list[Chunk]:
        """The same of calls that train, which have to get somewhere sooner."""
        return await collect(self._roster.training, calls, self._spec.heartbeat_timeout, self._limit())

    def _limit(self) -> float:
        """s after which a step that is not done is taken to hang."""
        warm = [worker.ready for worker in self._roster.training if worker.ready is not None]
        slowest = max((ready.step_seconds + ready.evaluation_seconds for ready in warm), default=0.0)
        slowest = max(slowest, self._spec.pace or 0.0, self._statistics.step_seconds)
        return HANG_HEARTBEAT_TIMEOUTS * self._spec.heartbeat_timeout + HANG_STEPS * slowest

    # State and its safety.

    async def _take_state(self) -> tuple[int, bytes]:
        """Step and state of the group, written as a checkpoint too."""
        first = self._roster.training[:1]
        calls = [worker.handle.state.remote() for worker in first]
        said = await self._collect(first, calls)
        step, state = said[0]
        await self._checkpointer.write(step, state)
        return step, state

    def _saves_apart(self) -> bool:
        """True if a checkpoint is due that has to be taken while no worker trains: servers would go on changing."""
        servers = bool(self._servers.handles) and self._state_is_whole()
        return servers and bool(self._roster.training) and self._checkpointer.due()

    def _state_is_whole(self) -> bool:
        """True if a worker can hand over the whole state: not between a fault and the servers' new start."""
        return not (self._reset and self._spec.architecture == "parameter_server")

    def _checkpoint_if_due(self) -> None:
        if self._checkpointer.due() and not self._servers.handles:
            self._checkpointer.save_from(self._roster.training[0].handle.state.remote())

    def _record(self) -> dict[str, Any]:
        """What a restarted controller has to know."""
        return {
            "generation": self._generation,
            "nodes": list(self._plan.nodes),
            "servers": list(self._plan.servers),
            "batch_size": self._plan.batch_size,
            "outcome": self._outcome,
            "note": self._note,
            "statistics": self._statistics.lasting(),
        }

    async def _finish(self) -> None:
        await self._take_state()
        trained, declared, size = self._statistics.samples_done, self._spec.epochs, self._spec.data_size
        if trained < declared * size:
            self._note = f"stopped early at epoch {trained / size:.6g} of {declared:.6g}"
        self._outcome = "finished"
        self._job_folder.say(self._note or f"finished after {trained / size:.6g} epochs")
        self._checkpointer.write_record()
        await self._release_all()

    # What goes wrong.

    async def _recover(self, fault: FaultError) -> None:
        """Keep those who are well, let go of the others, and go on from the newest state that is left."""
        now = time.monotonic()
        if fault.lost:
            self._checkpointer.shorten(now - self._trains_since)
        self._fault_since = self._fault_since or now
        self._growth.cancel()
        for failure in fault.failures[:1]:
            for at, line in failure.output:
                self._job_folder.say(line, at)
        members = list(self._roster.training)
        doubtful = [worker for worker in members if worker not in fault.lost]
        await settle(result_of(worker.handle.abort.remote(), WORKER_CALL_TIMEOUT_S) for worker in doubtful)
        had_servers = bool(self._servers.handles)
        await self._servers.end_group()
        died = bool(fault.lost) or (had_servers and not self._servers.handles)
        answers = await settle(result_of(worker.handle.recover.remote(), WORKER_CALL_TIMEOUT_S) for worker in doubtful)
        well = {worker: said for worker, said in zip(doubtful, answers, strict=True) if isinstance(said, Position)}
        raised = not fault.lost and len(well) == len(members)
        if self._servers.handles and self._job_folder.checkpoint is None:
            raised = True  # what servers hold is lost, and there is nothing to go back to but the start
        for worker in members:
            if raised or worker not in well:
                self._roster.release(worker)
        self._reset = bool(self._servers.handles)
        survivors = [] if raised else sorted(well, key=lambda worker: -well[worker].step)
        self._roster.training = survivors
        if survivors:
            furthest = well[survivors[0]].step
            self._fresh = {worker for worker in survivors if well[worker].step < furthest}
            self._regroup = True
            self._sent = furthest
        lasting = raised and any(failure.lasting for failure in fault.failures)
        # Workers were further than the last chunk that they have handed over.
        reached = max((position.step for position in well.values()), default=0)
        self._count_failure(fault.text, "died" if died else "raised", lasting, reached)

    def _count_failure(self, text: str, kind: FailureKind, lasting: bool, reached: int = 0) -> None:
        """Count a failure, and decide whether to try again. reached: a step that is done, if that is known."""
        self._job_folder.log_failure(text)
        step = max(reached, self._statistics.step)
        if self._retry.failed(kind, step, lasting, bool(self._roster.training)):
            self._fail(None)

    def _fail(self, text: str | None) -> None:
        if text is not None:
            self._job_folder.log_failure(text)
        self._outcome = "failed"
        self._plan = Plan()
        self._checkpointer.write_record()

    def _in_force(self) -> bool:
        if self._outcome is not None:
            return not self._roster.holding
        settled = (
            not self._roster.starting and not self._roster.releasing and not self._regroup and self._fault_since is None
        )
        if self._roster.training and (self._chosen != self._plan.batch_size or self._servers.differ(self._plan)):
            return False
        return settled and sorted(self._roster.training_on) == sorted(self._nodes)
