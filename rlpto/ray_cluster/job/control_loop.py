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
from torch._C._distributed_c10d import TCPStore

from rlpto.errors import CheckpointError
from rlpto.ray_cluster.job import worker_actors
from rlpto.ray_cluster.job.checkpointing import Saver
from rlpto.ray_cluster.job.job_folder import Memory
from rlpto.ray_cluster.job.reporting import Size, Tally
from rlpto.ray_cluster.job.retry_policy import Strikes
from rlpto.ray_cluster.job.server_actors import Servers
from rlpto.ray_cluster.job.supervision import FaultError, collect
from rlpto.ray_cluster.job.worker_actors import LostError, Worker
from rlpto.ray_cluster.job.worker_roster import Staff
from rlpto.ray_cluster.messages import JobReport, JobSpec, JobState
from rlpto.ray_cluster.worker.actor import Failure, Seat
from rlpto.ray_cluster.worker.sampling import Position
from rlpto.ray_cluster.worker.training import Chunk

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
        self._saver = Saver(self._memory, spec.checkpoint_interval, self._record)
        self._generation = self._applied = 0
        self._nodes: tuple[str, ...] = ()
        self._outcome: JobState | None = None
        self._stopping = False
        self._wake = asyncio.Event()
        self._staff = Staff(spec, self._wake.set)
        self._servers = Servers(spec, node)
        self._reset = True
        self._group = 0
        self._regroup = False
        self._fresh: set[Worker] = set()
        self._state: tuple[int, bytes] | None = None
        self._sent = 0
        self._fault_since: float | None = None
        self._strikes = Strikes(spec)
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
        self._strikes.start_over()
        self._saver.remember()
        self._wake.set()

    def stop(self) -> None:
        """Release everything and end."""
        self._stopping, self._nodes = True, ()
        self._wake.set()

    def report(self) -> JobReport:
        """How the job is."""
        tally = self._tally
        if self._in_force():
            self._applied = self._generation
        return JobReport(
            name=self._spec.name,
            generation=self._generation,
            applied=self._applied,
            state=self._outcome or ("running" if self._staff.training else "starting" if self._nodes else "waiting"),
            holding=self._staff.holding,
            training_on=tuple(worker.node for worker in self._staff.training),
            progress=tally.samples_done / self._spec.data_size,
            samples_per_second=tally.samples_per_second if self._staff.training else float("nan"),
            **tally.figures(),
            checkpoint=self._memory.checkpoint,
            failure=self._memory.failure,
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
            self._staff.let_all_go()
        self._servers.kill()
        await self._staff.gone()
        self._saver.remember()

    async def _turn(self) -> None:
        if self._outcome is None:
            await self._shrink()
            self._hire()
            arrived = self._arrivals()
            if self._saves_apart():
                await self._take_state()
            if arrived or (self._staff.training and self._regroup):
                await self._form(arrived)
            if self._staff.training:
                await self._train()
                return
        else:
            await self._release_all()
        self._wake.clear()
        if self._staff.leaves or self._staff.coming or self._nodes:
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
        leave = self._staff.misplaced(self._nodes)
        if not leave:
            return
        going = [worker for worker in self._staff.training if worker in leave]
        if going and len(going) == len(self._staff.training):
            if self._whole():
                self._state = await self._take_state()
            if not self._nodes:
                self._tally.released()
        for worker in leave:
            self._staff.let_go(worker)
        # After a fault those who are left have to meet again whoever leaves now.
        self._regroup = (self._regroup or bool(going)) and bool(self._staff.training)

    def _hire(self) -> None:
        """Start workers that the command asks for, if it is time to."""
        if self._nodes and self._strikes.may_hire():
            self._ensure_servers()  # they are up by the time the workers are
            self._staff.hire(self._nodes)

    def _arrivals(self) -> list[Worker]:
        """Workers to take in now."""
        for worker, reason in self._staff.missed():
            self._missed(worker, reason)
        return self._staff.arrivals()

    def _missed(self, worker: Worker, reason: Failure | LostError) -> None:
        """A worker did not come to be."""
        if isinstance(reason, Failure):
            self._strike(reason.text if reason.lasting else reason.trace, reason.lasting)
        elif not reason.unplaced:
            self._strike(str(reason), lasting=False)
        else:
            self._strikes.unplaced()
            gone = f"no worker can start on node {worker.node[:8]}: it is gone"
            if self._memory.failure != gone:
                self._memory.note(gone)

    async def _release_all(self) -> None:
        if self._staff.training and self._outcome is None and self._whole():
            try:
                self._state = await self._take_state()
            except FaultError as fault:
                self._memory.note(fault.text)
        self._staff.let_all_go()

    # Training together.

    async def _form(self, arrived: list[Worker]) -> None:
        """Make a group of those who train already and those who have arrived."""
        before = list(self._staff.training)
        self._staff.admit(arrived)
        rollback = not before or (bool(self._servers.handles) and self._reset)
        fresh = set() if rollback else self._fresh | set(arrived)
        if rollback:
            await self._load()
        elif self._servers.handles and fresh:
            await self._brief(fresh)
        self._group += 1
        self._ensure_servers()
        ranks = tuple(rank for rank, worker in enumerate(self._staff.training) if worker in fresh)
        workers = len(self._staff.training)
        if not before:
            guess = max(worker.ready.step_seconds for worker in arrived if worker.ready)
            self._tally.step_seconds = max(guess, self._spec.pace or 0.0) / workers
        nodes = len({worker.node for worker in self._staff.training})
        self._tally.grouped(Size(workers, nodes), self._tally.ended is not None, self._fault_since)
        timeout = max(PATIENCE, self._limit())
        servers = self._servers.handles
        seats = [
            Seat(self._group, rank, workers, ranks, self._host, self._store.port, timeout, servers, self._reset)
            for rank in range(workers)
        ]
        calls = [worker.handle.join.remote(seat) for worker, seat in zip(self._staff.training, seats, strict=True)]
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
        await self._all([worker.handle.load.remote(shared) for worker in self._staff.training])

    async def _brief(self, fresh: set[Worker]) -> None:
        """Tell newcomers where the job stands: servers have its weights for them, but not its position."""
        _, state = await self._take_state()
        shared = ray.put(state)
        newcomers = [worker for worker in self._staff.training if worker in fresh]
        calls = [worker.handle.load.remote(shared) for worker in newcomers]
        await collect(newcomers, calls, self._spec.heartbeat_timeout, max(self._limit(), PATIENCE))

    def _ensure_servers(self) -> None:
        if self._servers.ensure():
            self._reset = True

    async def _train(self) -> None:
        """Train until the group has to change, or the job has finished."""
        flight: deque[list[Any]] = deque()
        while True:
            ahead = self._tally.chunks_ahead(self._spec.asynchronous)
            while len(flight) < ahead and not self._change_due():
                self._sent += self._tally.chunk_steps()
                flight.append([worker.handle.run.remote(self._sent) for worker in self._staff.training])
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
        return bool(self._staff.misplaced(self._nodes)) or bool(self._arrivals())

    async def _all(self, calls: list[Any]) -> list[Any]:
        """Results of one call to every worker of the group. Raises FaultError if one is lost, hangs or raised."""
        return await collect(self._staff.training, calls, self._spec.heartbeat_timeout, max(self._limit(), PATIENCE))

    async def _chunks(self, calls: list[Any]) -> list[Chunk]:
        """The same of calls that train, which have to get somewhere sooner."""
        return await collect(self._staff.training, calls, self._spec.heartbeat_timeout, self._limit())

    def _limit(self) -> float:
        """s after which a step that is not done is taken to hang."""
        warm = [worker.ready for worker in self._staff.training if worker.ready is not None]
        slowest = max((ready.step_seconds + ready.evaluation_seconds for ready in warm), default=0.0)
        slowest = max(slowest, self._spec.pace or 0.0, self._tally.step_seconds)
        return STILL_BEATS * self._spec.heartbeat_timeout + STILL_STEPS * slowest

    # State and its safety.

    async def _take_state(self) -> tuple[int, bytes]:
        """Step and state of the group, written as a checkpoint too."""
        first = self._staff.training[:1]
        calls = [worker.handle.state.remote() for worker in first]
        said = await collect(first, calls, self._spec.heartbeat_timeout, max(self._limit(), PATIENCE))
        step, state = said[0]
        await self._saver.write(step, state)
        return step, state

    def _saves_apart(self) -> bool:
        """True if a checkpoint is due that has to be taken while no worker trains: servers would go on changing."""
        servers = bool(self._servers.handles) and self._whole()
        return servers and bool(self._staff.training) and self._saver.due()

    def _whole(self) -> bool:
        """True if a worker can hand over the whole state: not between a fault and the servers' new start."""
        return not (self._reset and self._spec.architecture == "parameter_server")

    def _checkpoint_if_due(self) -> None:
        if self._saver.due() and not self._servers.handles:
            self._saver.save_from(self._staff.training[0].handle.state.remote())

    def _record(self) -> dict[str, Any]:
        """What a restarted runner has to know."""
        return {
            "generation": self._generation,
            "nodes": list(self._nodes),
            "outcome": self._outcome,
            "tally": self._tally.lasting(),
        }

    async def _finish(self) -> None:
        await self._take_state()
        self._outcome = "finished"
        self._saver.remember()
        await self._release_all()

    # What goes wrong.

    async def _recover(self, fault: FaultError) -> None:
        """Keep those who are well, let go of the others, and go on from the newest state that is left."""
        self._fault_since = self._fault_since or time.time()
        members = list(self._staff.training)
        doubtful = [worker for worker in members if worker not in fault.lost]
        await worker_actors.everyone(
            worker_actors.answer(worker.handle.abort.remote(), worker_actors.ANSWER) for worker in doubtful
        )
        await self._servers.end_group()
        answers = await worker_actors.everyone(
            worker_actors.answer(worker.handle.recover.remote(), worker_actors.ANSWER) for worker in doubtful
        )
        well = {worker: said for worker, said in zip(doubtful, answers, strict=True) if isinstance(said, Position)}
        raised = not fault.lost and len(well) == len(members)
        if self._servers.handles and self._memory.checkpoint is None:
            raised = True  # what servers hold is lost, and there is nothing to go back to but the start
        for worker in members:
            if raised or worker not in well:
                self._staff.let_go(worker)
        self._reset = bool(self._servers.handles)
        survivors = [] if raised else sorted(well, key=lambda worker: -well[worker].step)
        self._staff.training = survivors
        if survivors:
            furthest = well[survivors[0]].step
            self._fresh = {worker for worker in survivors if well[worker].step < furthest}
            self._regroup = True
            self._sent = furthest
        lasting = raised and any(failure.lasting for failure in fault.failures)
        self._strike(fault.text, lasting)

    def _strike(self, text: str, lasting: bool) -> None:
        """Count a failure, and decide whether to try again."""
        self._memory.note(text)
        if self._strikes.strike(self._tally.step, self._memory.checkpoint, lasting, bool(self._staff.training)):
            self._fail(None)

    def _forgive(self) -> None:
        if len(self._staff.training) == len(self._nodes):
            self._strikes.forgive(self._tally.step, self._memory.checkpoint)

    def _fail(self, text: str | None) -> None:
        if text is not None:
            self._memory.note(text)
        self._outcome = "failed"
        self._nodes = ()
        self._saver.remember()

    def _in_force(self) -> bool:
        if self._outcome is not None:
            return not self._staff.holding
        settled = not self._staff.coming and not self._staff.leaves and not self._regroup and self._fault_since is None
        return settled and sorted(worker.node for worker in self._staff.training) == sorted(self._nodes)
