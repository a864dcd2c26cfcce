"""The work of a controller: start and release workers, group them, have them train, and recover from faults.

A single asyncio task does this work, in turns. A turn ends when the group of workers has to change. Reasons for a
change are a command, a worker that is ready to join, and a fault; they are checked between chunks of training, when no
call to a worker is pending. The phases of the work and their transitions are in `rlpto.ray_cluster.job.phases`.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
import traceback
from collections import Counter, deque
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rlpto.io.errors import CheckpointError
from rlpto.ray_cluster.job.job_folder import JobFolder
from rlpto.ray_cluster.job.phases import Lifecycle, Phase
from rlpto.ray_cluster.job.reporting import ProgressNotes, TrainingStatistics
from rlpto.ray_cluster.job.supervision import FailureKind, FaultError, RetryPolicy, WorkerRoster
from rlpto.ray_cluster.job.training_group import TrainingGroup
from rlpto.ray_cluster.job.worker_actors import ParameterServers, Worker, WorkerLostError
from rlpto.ray_cluster.messages import JobReport, JobSpec, JobState, Plan
from rlpto.ray_cluster.worker.actor import Failure

TURN_S = 0.05
"""Longest time between two turns while workers start or leave."""
REFUSED_RETRY_S = 30.0
"""Time between attempts to write the final weights, if writing fails."""


class ControlLoop:
    """State and work of one job's controller. node: the controller's node, which parameter servers use by default."""

    def __init__(self, spec: JobSpec, node: str, resume: bool, restarted: bool) -> None:
        self._spec = spec
        self._job_folder = JobFolder(spec, self._record)
        self._statistics = TrainingStatistics()
        self._generation = self._applied = 0
        self._plan = Plan()
        self._note = ""
        self._stopping = False
        self._wake = asyncio.Event()
        self._roster = WorkerRoster(spec, self._wake.set)
        self._servers = ParameterServers(spec, node)
        self._lifecycle = Lifecycle()
        self._group = TrainingGroup(
            spec, self._lifecycle, self._roster, self._servers, self._statistics, self._job_folder
        )
        self._retry = RetryPolicy(spec)
        self._grows_since: float | None = None
        self._over = False  # training is complete, but the final weights may not be on disk yet
        self._rolled_back = 0
        self._notes = ProgressNotes()
        try:
            kept = self._job_folder.begin(resume or restarted)
        except CheckpointError as stays:
            self._fail(str(stays))
            return
        if kept is None:
            return
        self._statistics.restore(kept["statistics"])
        self._notes = ProgressNotes(kept["earlier"])
        state, self._note = kept["report"]["state"], kept["report"]["note"]
        if restarted:
            self._generation = kept["generation"]
            self._plan = Plan(tuple(kept["nodes"]), kept["batch_size"], tuple(kept["servers"]))
            self._statistics.faulted()
        if state in ("finished", "failed"):
            self._lifecycle.enter(Phase(state))
        elif restarted:
            self._lifecycle.enter(Phase.RECOVERING)

    # Calls of the scheduler.

    def command(self, generation: int, plan: Plan) -> None:
        """Take a command if it is newer than the present one."""
        if generation <= self._generation or self._lifecycle.ended or self._stopping:
            self._generation = max(self._generation, generation)
            return
        self._generation, self._plan = generation, plan
        self._grows_since = time.monotonic() if self._grows() else None
        self._retry.reset()
        self._job_folder.write_record()
        self._wake.set()

    def stop(self) -> None:
        """Release everything and end."""
        self._stopping, self._plan = True, Plan()
        self._wake.set()

    def report(self) -> JobReport:
        """The job's present report, including notes since the previous one."""
        return replace(self._present(), earlier=self._notes.take())

    def _present(self) -> JobReport:
        statistics = self._statistics
        if self._in_force():
            self._applied = self._generation
        return JobReport(
            job=self._spec.id,
            generation=self._generation,
            applied=self._applied,
            state=self._state,
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

    @property
    def _state(self) -> JobState:
        if self._lifecycle.ended:
            return "finished" if self._lifecycle.phase is Phase.FINISHED else "failed"
        return "running" if self._roster.training else "starting" if self._plan.nodes else "waiting"

    # The work.

    async def run(self) -> None:
        """Work until the controller is stopped. An error here, outside training, fails the job at once."""
        try:
            while not self._stopping:
                try:
                    await self._turn()
                except FaultError as fault:
                    await self._recover(fault)
            await self._release_all()
        except Exception:
            self._fail(f"the controller itself failed:\n{traceback.format_exc()}")
            self._release([*self._roster.training, *self._roster.starting])
        self._servers.kill()
        await self._roster.released()
        self._job_folder.write_record()
        await asyncio.to_thread(self._job_folder.close)

    async def _turn(self) -> None:
        """Let the group follow the plan, and train; without a group, wait until something changes."""
        arrived: list[Worker] = []
        if not self._lifecycle.ended:
            await self._shrink()
            self._start_missing()
            arrived = self._ready_to_join()
        if self._lifecycle.ended:  # or ended just now, because starts have failed too often
            await self._release_all()
        else:
            if self._group.saves_apart():
                await self._group.take_state()
            if self._servers_are_ready():
                if self._roster.training:
                    await self._group.hand_over()
                self._servers.switch(self._plan)
            if arrived or (self._roster.training and self._lifecycle.phase is not Phase.TRAINING):
                await self._group.form(arrived, self._plan)
            if self._roster.training:
                await self._train()
                return
        self._wake.clear()
        if self._roster.leaving or self._roster.starting or self._plan.nodes:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), TURN_S)
        else:
            await self._wake.wait()

    # Starting and releasing workers.

    async def _shrink(self) -> None:
        """Release workers without a place in the plan. If the whole group leaves, its state is kept first."""
        leave, training = self._roster.misplaced(self._plan.nodes), self._roster.training
        if not leave:
            return
        if any(worker in leave for worker in training):
            await self._group.hand_over(whole=all(worker in leave for worker in training))
            if not self._plan.nodes:
                self._statistics.released()
        self._release(leave)
        if not self._plan.nodes:
            self._servers.kill()  # a job that waits takes no CPU slots

    def _start_missing(self) -> None:
        """Give up a growth that takes too long, then start the plan's missing workers and servers if a start is due."""
        self._give_up_growth()
        if self._plan.nodes and self._retry.may_start_workers():
            self._servers.ensure(self._plan)  # they are up by the time the workers are
            if gone := self._servers.failed():
                self._count_failure(gone, "start", lasting=False)
                return
            self._servers.start_missing(self._plan)
            self._roster.start_missing(self._plan.nodes)

    def _grows(self) -> bool:
        """True if the plan keeps all training workers and their servers, and adds others."""
        present = Counter(self._roster.training_on), Counter(self._servers.nodes)
        wanted = Counter(self._plan.nodes), Counter(self._servers.wanted(self._plan))
        return bool(present[0]) and present != wanted and all(a <= b for a, b in zip(present, wanted, strict=True))

    def _give_up_growth(self) -> None:
        """Continue with the training workers and servers if others did not come up in time or within the retries."""
        if self._grows_since is None or self._lifecycle.phase is Phase.RECOVERING or not self._roster.training:
            return
        waited = time.monotonic() - self._grows_since
        if not self._grows():
            self._grows_since = None
        elif waited > self._spec.faults.start_timeout or self._retry.gave_up:
            self._grows_since = None
            for worker in list(self._roster.starting):
                self._roster.release(worker)
            self._servers.drop_starting()
            training, serving = self._roster.training_on, self._servers.nodes
            self._plan = replace(self._plan, nodes=training, servers=serving if self._plan.servers else ())
            self._rolled_back = self._generation
            self._retry.reset()
            left = f"{len(training)} workers" + (f" and {len(serving)} servers" if serving else "")
            late = f"new workers or servers did not come up within {waited:.0f} s: the job goes on with {left}"
            self._job_folder.log_failure(late)
            self._job_folder.write_record()

    def _ready_to_join(self) -> list[Worker]:
        """Count and log failed starts, and return the workers that may join the group now."""
        for worker, reason in self._roster.failed_starts():
            self._start_failed(worker, reason)
        if self._roster.training and self._servers.differ(self._plan) and not self._servers.all_up(self._plan):
            return []  # they join when the servers change: one pause instead of two
        return self._roster.ready_to_join()

    def _servers_are_ready(self) -> bool:
        """True if a change of servers is due, and all new servers and joining workers are up."""
        if not self._servers.differ(self._plan) or not self._servers.all_up(self._plan):
            return False
        return all(worker.ready is not None for worker in self._roster.starting)

    def _start_failed(self, worker: Worker, reason: Failure | WorkerLostError) -> None:
        """Handle a worker that could not be started."""
        if isinstance(reason, Failure):
            for at, line in reason.output:
                self._job_folder.say(line, at)
            self._count_failure(reason.text, "start", reason.lasting)
        elif not reason.unplaced:
            self._count_failure(str(reason), "start", lasting=False)
        else:
            self._retry.node_gone()
            gone = f"no worker can start on node {worker.node[:8]}: it is gone"
            if self._job_folder.failure != gone:
                self._job_folder.log_failure(gone)

    async def _release_all(self) -> None:
        if self._roster.training and not self._lifecycle.ended:
            try:
                await self._group.hand_over()
            except FaultError as fault:
                self._job_folder.log_failure(fault.text)
        self._release([*self._roster.training, *self._roster.starting])

    def _release(self, workers: list[Worker]) -> None:
        for worker in workers:
            self._roster.release(worker)
        if self._lifecycle.phase is Phase.HANDING_OVER and not self._roster.training:
            self._lifecycle.enter(Phase.IDLE)

    # Training together.

    async def _train(self) -> None:
        """Train until the group has to change, or the job has finished."""
        if self._over:
            await self._finish()
            return
        flight: deque[list[Any]] = deque()
        while True:
            ahead = self._statistics.chunks_ahead(self._spec.asynchronous)
            while len(flight) < ahead and not self._change_due():
                self._group.choose_batch_size(self._plan)
                self._group.sent += self._statistics.chunk_steps()
                until, chosen = self._group.sent, self._group.chosen
                flight.append([worker.handle.run.remote(until, chosen) for worker in self._roster.training])
            if not flight:
                return
            chunk = await self._group.chunk(flight.popleft())
            self._notes.note(self._present)
            self._retry.stepped(self._statistics.step, len(self._roster.training) == len(self._plan.nodes))
            if chunk.finished or (not math.isnan(chunk.accuracy) and self._statistics.flattened(self._spec)):
                for rest in flight:
                    await self._group.chunk(rest)
                await self._finish()
                return
            self._start_missing()
            self._group.checkpoint_if_due()

    def _change_due(self) -> bool:
        if self._stopping or self._group.saves_apart() or self._servers_are_ready():
            return True
        return bool(self._roster.misplaced(self._plan.nodes)) or bool(self._ready_to_join())

    # State and its safety.

    def _record(self) -> dict[str, Any]:
        """The record for a restarted controller."""
        return {
            "generation": self._generation,
            "nodes": list(self._plan.nodes),
            "servers": list(self._plan.servers),
            "batch_size": self._plan.batch_size,
            "statistics": self._statistics.lasting(),
            "earlier": [one.figures() for one in self._notes.reports],
            "report": self._present().figures(),
        }

    async def _finish(self) -> None:
        """End the job once its final weights are on disk. While they cannot be written, only the workers have them, so
        the workers stay and writing is tried again, until a worker has to leave or the controller stops."""
        self._over = True
        await self._group.take_state()
        while self._group.refused:
            self._wake.clear()
            if not self._change_due():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), REFUSED_RETRY_S)
            if self._change_due():
                return
            await self._group.take_state()
        trained, declared, size = self._statistics.samples_done, self._spec.epochs, self._spec.data_size
        if trained < declared * size:
            self._note = f"stopped early at epoch {trained / size:.6g} of {declared:.6g}"
        self._lifecycle.enter(Phase.FINISHED)
        self._notes.note(self._present, last=True)
        self._job_folder.say(self._note or f"finished after {trained / size:.6g} epochs")
        self._job_folder.write_record()
        await self._release_all()

    # Faults.

    async def _recover(self, fault: FaultError) -> None:
        """Keep healthy workers, release the others, and continue from the newest remaining state."""
        self._grows_since, self._over = None, False  # missing workers no longer count as growth
        for failure in fault.failures[:1]:
            for at, line in failure.output:
                self._job_folder.say(line, at)
        died, raised, reached = await self._group.keep_survivors(fault)
        lasting = raised and any(failure.lasting for failure in fault.failures)
        kept = self._job_folder.checkpoint if lasting else None
        text = fault.text if kept is None else f"{fault.text}; its last checkpoint is {kept.path}"
        self._count_failure(text, "died" if died else "raised", lasting, reached)

    def _count_failure(self, text: str, kind: FailureKind, lasting: bool, reached: int = 0) -> None:
        """Count a failure, and decide whether to try again. reached: the last completed step, if known."""
        self._job_folder.log_failure(text)
        step = max(reached, self._statistics.step)
        if self._retry.failed(kind, step, lasting, bool(self._roster.training)):
            self._fail(None)

    def _fail(self, text: str | None) -> None:
        if text is not None:
            self._job_folder.log_failure(text)
        self._lifecycle.enter(Phase.FAILED)
        self._plan = Plan()
        self._job_folder.write_record()

    def _in_force(self) -> bool:
        if self._lifecycle.ended:
            return not self._roster.holding
        still = self._lifecycle.phase in (Phase.IDLE, Phase.TRAINING)
        settled = still and not self._roster.starting and not self._roster.leaving
        if self._roster.training and (self._group.chosen != self._plan.batch_size or self._servers.differ(self._plan)):
            return False
        return settled and sorted(self._roster.training_on) == sorted(self._plan.nodes)
