"""What a runner does: hire and release workers, group them, have them train, and recover from faults.

One task does all of it, in turns. A turn ends wherever the group of workers has to change; what changes the group
(a command, a worker that is warm, a fault) is looked at between chunks of training, where nothing is in flight.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections import deque
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch._C._distributed_c10d import TCPStore

from rlpto.errors import CheckpointError
from rlpto.ray_cluster import crew
from rlpto.ray_cluster.crew import LostError, Worker
from rlpto.ray_cluster.data import Position
from rlpto.ray_cluster.memory import Memory
from rlpto.ray_cluster.messages import Checkpoint, JobReport, JobSpec, JobState
from rlpto.ray_cluster.parameter_server import ParameterServer
from rlpto.ray_cluster.tally import Size, Tally
from rlpto.ray_cluster.training import Chunk
from rlpto.ray_cluster.watch import FaultError, collect
from rlpto.ray_cluster.worker import Failure, Seat

AHEAD = 2
"""Chunks handed to the workers at once: they need not wait for the runner."""

GATHERING = 5.0
"""s that a warm worker waits for others that are still starting."""

UNPLACED = 2.0
"""s between attempts to start a worker on a node that is gone."""

STILL_BEATS, STILL_STEPS = 3.0, 10.0
"""A worker that answers may be slow: it is given up after so many heartbeat timeouts and usual steps without a step."""

PATIENCE = 60.0
"""s for what workers do between steps: meeting in a group, waiting for servers to start, handing over their state."""


class Driver:
    """State and work of one job's runner. node: where the runner and its parameter servers are."""

    def __init__(self, spec: JobSpec, node: str, resume: bool, restarted: bool) -> None:
        self._spec = spec
        self._node = node
        self._host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._store = TCPStore(self._host, 0, is_master=True, wait_for_workers=False)
        self._memory = Memory(spec)
        self._tally = Tally()
        self._generation = self._applied = 0
        self._nodes: tuple[str, ...] = ()
        self._outcome: JobState | None = None
        self._stopping = False
        self._wake = asyncio.Event()
        self._training: list[Worker] = []
        self._coming: list[Worker] = []
        self._leaving: list[Worker] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: tuple[Any, ...] = ()
        self._reset = True
        self._group = 0
        self._regroup = False
        self._fresh: set[Worker] = set()
        self._state: tuple[int, bytes] | None = None
        self._sent = 0
        self._fault_since: float | None = None
        self._strikes = 0
        self._hire_from = 0.0
        self._gave_up = False
        self._struck: tuple[int, Checkpoint | None] = (0, None)
        self._saving: asyncio.Task[None] | None = None
        self._saved_at = time.monotonic()
        try:
            kept = self._memory.begin(resume or restarted)
        except CheckpointError as stays:
            self._fail(str(stays))
            return
        if kept is not None:
            self._tally.restore(kept["tally"])
            if restarted:
                self._generation, self._nodes = kept["generation"], tuple(kept["nodes"])
                self._fault_since = time.time()
            self._outcome = kept["outcome"]

    # What the scheduler asks.

    def command(self, generation: int, nodes: tuple[str, ...]) -> None:
        """Take a command, if it is newer than the one in force."""
        if generation <= self._generation or self._outcome is not None or self._stopping:
            self._generation = max(self._generation, generation)
            return
        self._generation, self._nodes = generation, nodes
        self._gave_up, self._strikes, self._hire_from = False, 0, 0.0
        self._remember()
        self._wake.set()

    def stop(self) -> None:
        """Release everything and end."""
        self._stopping, self._nodes = True, ()
        self._wake.set()

    def report(self) -> JobReport:
        """How the job is."""
        tally = self._tally
        holding = tuple(worker.node for worker in [*self._training, *self._coming, *self._leaving])
        if self._in_force():
            self._applied = self._generation
        return JobReport(
            name=self._spec.name,
            generation=self._generation,
            applied=self._applied,
            state=self._outcome or ("running" if self._training else "starting" if self._nodes else "waiting"),
            holding=holding,
            training_on=tuple(worker.node for worker in self._training),
            step=tally.step,
            progress=tally.samples_done / self._spec.data_size,
            loss=tally.loss,
            accuracy=tally.accuracy,
            samples_per_second=tally.samples_per_second if self._training else float("nan"),
            noise_scale=tally.noise_scale,
            accuracy_curve=tuple(tally.curve),
            throughput=tally.throughput(),
            rescales=tally.rescales,
            rescale_seconds=tally.rescale_seconds,
            pauses=tuple(tally.pauses),
            checkpoint=self._memory.checkpoint,
            recoveries=tally.recoveries,
            recovery_seconds=tuple(tally.recovery_seconds),
            failure=self._memory.failure,
            staleness=tally.staleness,
            pid=os.getpid(),
            time=time.time(),
        )

    # The work.

    async def drive(self) -> None:
        """Work until the runner is stopped. What goes wrong here, rather than in training, fails the job at once."""
        try:
            while not self._stopping:
                try:
                    await self._turn()
                except FaultError as fault:
                    await self._recover(fault)
            await self._release_all()
        except Exception:
            self._fail(f"the runner itself failed:\n{traceback.format_exc()}")
            for worker in [*self._training, *self._coming]:
                self._let_go(worker)
        for server in self._servers:
            ray.kill(server)
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._remember()

    async def _turn(self) -> None:
        if self._outcome is None:
            await self._shrink()
            self._hire()
            arrived = self._arrivals()
            if self._saves_apart():
                await self._take_state()
            if arrived or (self._training and self._regroup):
                await self._form(arrived)
            if self._training:
                await self._train()
                return
        else:
            await self._release_all()
        self._wake.clear()
        if self._tasks or self._coming or self._nodes:
            await self._pause(0.05)
        else:
            await self._wake.wait()

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return

    # Who works.

    async def _shrink(self) -> None:
        """Let go of workers that the command has no place for; the last one leaves its state behind."""
        stay, leave = crew.split_by_nodes([*self._training, *self._coming], self._nodes)
        if not leave:
            return
        going = [worker for worker in self._training if worker in leave]
        if going and len(going) == len(self._training):
            self._state = await self._take_state()
            if not self._nodes:
                self._tally.released()
        self._training = [worker for worker in self._training if worker in stay]
        self._regroup = bool(going) and bool(self._training)
        for worker in leave:
            self._let_go(worker)

    def _hire(self) -> None:
        """Start what is missing, on no node more than commanded, counting those that are about to leave."""
        if self._gave_up or time.monotonic() < self._hire_from:
            return
        held = [worker.node for worker in [*self._training, *self._coming, *self._leaving]]
        if self._nodes:
            self._ensure_servers()  # they are up by the time the workers are
        for node in crew.missing(self._nodes, held):
            self._coming.append(crew.start_worker(self._spec, node))

    def _arrivals(self) -> list[Worker]:
        """Workers to take in now: all that are warm, once none is starting any more or they have waited long enough."""
        for worker in [worker for worker in self._coming if worker.ready is None and worker.preparing.done()]:
            self._arrived(worker)
        warm = [worker for worker in self._coming if worker.ready is not None]
        if not warm:
            return []
        waited = time.monotonic() - min(worker.warm_since for worker in warm)
        return warm if len(warm) == len(self._coming) or waited > GATHERING else []

    def _arrived(self, worker: Worker) -> None:
        try:
            said = worker.preparing.result()
        except LostError as lost:
            self._coming.remove(worker)
            self._let_go(worker)
            if lost.unplaced:
                self._hire_from = time.monotonic() + UNPLACED
                gone = f"no worker can start on node {worker.node[:8]}: it is gone"
                if self._memory.failure != gone:
                    self._memory.note(gone)
            else:
                self._strike(str(lost), lasting=False)
            return
        if isinstance(said, Failure):
            self._coming.remove(worker)
            self._let_go(worker)
            self._strike(said.text if said.lasting else said.trace, said.lasting)
            return
        worker.ready, worker.warm_since = said, time.monotonic()

    def _let_go(self, worker: Worker) -> None:
        """End a worker in the background; it counts as holding its GPU until it is gone."""
        for group in (self._training, self._coming):
            if worker in group:
                group.remove(worker)
        self._leaving.append(worker)

        async def leave() -> None:
            await crew.release(worker)
            self._leaving.remove(worker)
            self._wake.set()

        self._background(leave())

    def _background(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release_all(self) -> None:
        if self._training and self._outcome is None:
            try:
                self._state = await self._take_state()
            except FaultError as fault:
                self._memory.note(fault.text)
        for worker in [*self._training, *self._coming]:
            self._let_go(worker)

    # Training together.

    async def _form(self, arrived: list[Worker]) -> None:
        """Make a group of those who train already and those who have arrived."""
        before = list(self._training)
        self._coming = [worker for worker in self._coming if worker not in arrived]
        self._training = [*before, *arrived]
        rollback = not before or (bool(self._servers) and self._reset)
        if rollback:
            await self._load()
        self._group += 1
        self._ensure_servers()
        fresh = set() if rollback else self._fresh | set(arrived)
        ranks = tuple(rank for rank, worker in enumerate(self._training) if worker in fresh)
        workers = len(self._training)
        if not before:
            guess = max(worker.ready.step_seconds for worker in arrived if worker.ready)
            self._tally.step_seconds = max(guess, self._spec.pace or 0.0) / workers
        nodes = len({worker.node for worker in self._training})
        self._tally.grouped(Size(workers, nodes), self._tally.ended is not None, self._fault_since)
        timeout = max(PATIENCE, self._limit())
        seats = [
            Seat(self._group, rank, workers, ranks, self._host, self._store.port, timeout, self._servers, self._reset)
            for rank in range(workers)
        ]
        calls = [worker.handle.join.remote(seat) for worker, seat in zip(self._training, seats, strict=True)]
        await self._all(calls)
        self._fresh.clear()
        self._regroup, self._reset, self._fault_since, self._state = False, False, None, None

    async def _load(self) -> None:
        """Give all workers the newest state there is: what the last group left behind, or the newest checkpoint."""
        state = self._state or await asyncio.to_thread(self._memory.newest)
        self._reset = True
        if state is None:
            # Where the job starts is the first state that faults can lead back to.
            state = await self._take_state()
        self._sent, content = state
        shared = ray.put(content)
        await self._all([worker.handle.load.remote(shared) for worker in self._training])

    def _ensure_servers(self) -> None:
        if self._spec.architecture == "parameter_server" and not self._servers:
            actor: Any = ray.remote(ParameterServer)
            here = NodeAffinitySchedulingStrategy(self._node, soft=False)
            actor = actor.options(num_cpus=0, max_restarts=0, scheduling_strategy=here)
            self._servers = tuple(actor.remote(self._spec.asynchronous) for _ in range(self._spec.servers))
            self._reset = True

    async def _end_servers(self) -> None:
        """End the servers' present group, which wakes workers that wait there; servers that are gone are replaced."""
        said = await crew.everyone(crew.answer(server.end.remote(), crew.ANSWER) for server in self._servers)
        if any(isinstance(answer, LostError) for answer in said):
            for server in self._servers:
                ray.kill(server)
            self._servers = ()

    async def _train(self) -> None:
        """Train until the group has to change, or the job has finished."""
        flight: deque[list[Any]] = deque()
        while True:
            while len(flight) < AHEAD and not self._change_due():
                self._sent += self._tally.chunk_steps()
                flight.append([worker.handle.run.remote(self._sent) for worker in self._training])
            if not flight:
                return
            chunks = await self._chunks(flight.popleft())
            self._tally.add(chunks)
            self._forgive()
            if chunks[0].finished:
                for rest in flight:
                    await self._chunks(rest)
                await self._finish()
                return
            self._hire()
            self._checkpoint_if_due()

    def _change_due(self) -> bool:
        if self._stopping or self._saves_apart():
            return True
        _, leave = crew.split_by_nodes([*self._training, *self._coming], self._nodes)
        return bool(leave) or bool(self._arrivals())

    async def _all(self, calls: list[Any]) -> list[Any]:
        """Results of one call to every worker of the group. Raises FaultError if one is lost, hangs or raised."""
        return await collect(self._training, calls, self._spec.heartbeat_timeout, max(self._limit(), PATIENCE))

    async def _chunks(self, calls: list[Any]) -> list[Chunk]:
        """The same of calls that train, which have to get somewhere sooner."""
        return await collect(self._training, calls, self._spec.heartbeat_timeout, self._limit())

    def _limit(self) -> float:
        """s after which a step that is not done is taken to hang."""
        warm = [worker.ready for worker in self._training if worker.ready is not None]
        slowest = max((ready.step_seconds + ready.evaluation_seconds for ready in warm), default=0.0)
        slowest = max(slowest, self._spec.pace or 0.0, self._tally.step_seconds)
        return STILL_BEATS * self._spec.heartbeat_timeout + STILL_STEPS * slowest

    # State and its safety.

    async def _take_state(self) -> tuple[int, bytes]:
        """Step and state of the group, written as a checkpoint too."""
        first = self._training[:1]
        calls = [worker.handle.state.remote() for worker in first]
        said = await collect(first, calls, self._spec.heartbeat_timeout, max(self._limit(), PATIENCE))
        step, state = said[0]
        await self._write(step, state)
        return step, state

    def _saves_apart(self) -> bool:
        """True if a checkpoint is due that has to be taken while no worker trains: servers would go on changing."""
        return bool(self._servers) and bool(self._training) and self._checkpoint_due()

    def _checkpoint_due(self) -> bool:
        idle = self._saving is None or self._saving.done()
        return idle and time.monotonic() - self._saved_at >= self._spec.checkpoint_interval

    def _checkpoint_if_due(self) -> None:
        if self._checkpoint_due() and not self._servers:
            self._save_from(self._training[0].handle.state.remote())

    def _save_from(self, call: Any) -> None:
        """Write a checkpoint in the background of the state that a worker hands over between two chunks."""
        self._saved_at = time.monotonic()

        async def save() -> None:
            try:
                said = await crew.answer(call)
            except LostError:
                return  # noticed where its training is waited for
            if not isinstance(said, Failure):
                await self._write(*said)

        self._saving = asyncio.ensure_future(save())

    async def _write(self, step: int, state: bytes) -> None:
        try:
            await asyncio.to_thread(self._memory.write, step, state)
        except CheckpointError as refused:
            self._memory.note(str(refused))
        self._saved_at = time.monotonic()
        self._remember()

    def _remember(self) -> None:
        kept = {
            "generation": self._generation,
            "nodes": list(self._nodes),
            "outcome": self._outcome,
            "tally": self._tally.lasting(),
        }
        self._memory.remember(kept)

    async def _finish(self) -> None:
        await self._take_state()
        self._outcome = "finished"
        self._remember()
        await self._release_all()

    # What goes wrong.

    async def _recover(self, fault: FaultError) -> None:
        """Keep those who are well, let go of the others, and go on from the newest state that is left."""
        self._fault_since = self._fault_since or time.time()
        members = list(self._training)
        doubtful = [worker for worker in members if worker not in fault.lost]
        await crew.everyone(crew.answer(worker.handle.abort.remote(), crew.ANSWER) for worker in doubtful)
        if self._servers:
            await self._end_servers()
        answers = await crew.everyone(crew.answer(worker.handle.recover.remote(), crew.ANSWER) for worker in doubtful)
        well = {worker: said for worker, said in zip(doubtful, answers, strict=True) if isinstance(said, Position)}
        raised = not fault.lost and len(well) == len(members)
        if self._servers and self._memory.checkpoint is None:
            raised = True  # what servers hold is lost, and there is nothing to go back to but the start
        for worker in members:
            if raised or worker not in well:
                self._let_go(worker)
        self._reset = bool(self._servers)
        survivors = [] if raised else sorted(well, key=lambda worker: -well[worker].step)
        self._training = survivors
        if survivors:
            furthest = well[survivors[0]].step
            self._fresh = {worker for worker in survivors if well[worker].step < furthest}
            self._regroup = True
            self._sent = furthest
        lasting = raised and any(failure.lasting for failure in fault.failures)
        self._strike(fault.text, lasting)

    def _strike(self, text: str, lasting: bool) -> None:
        """Count a failure, and decide when, or whether, to try again."""
        self._memory.note(text)
        self._strikes += 1
        self._struck = (self._tally.step, self._memory.checkpoint)
        if lasting or self._strikes > self._spec.retries:
            if self._training:
                self._gave_up = True
            else:
                self._fail(None)
            return
        if self._strikes > 1 or not self._training:
            self._hire_from = time.monotonic() + self._spec.backoff * 2 ** (self._strikes - 1)

    def _forgive(self) -> None:
        """Forget failures once the job has got further, with all its workers, than where it met the last of them."""
        step, checkpoint = self._struck
        further = self._tally.step > step and self._memory.checkpoint != checkpoint
        if self._strikes and further and len(self._training) == len(self._nodes):
            self._strikes = 0

    def _fail(self, text: str | None) -> None:
        if text is not None:
            self._memory.note(text)
        self._outcome = "failed"
        self._nodes = ()
        self._remember()

    def _in_force(self) -> bool:
        if self._outcome is not None:
            return not self._training and not self._coming and not self._leaving
        settled = not self._coming and not self._leaving and not self._regroup and self._fault_since is None
        return settled and sorted(worker.node for worker in self._training) == sorted(self._nodes)
