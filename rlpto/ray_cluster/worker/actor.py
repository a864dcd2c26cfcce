"""The worker actor: one GPU's training process, commanded by its job's controller."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import ray
import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from rlpto.io.errors import RlptoError
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.worker.parameter_server import ParameterServerGroup
from rlpto.ray_cluster.worker.sampling import Position
from rlpto.ray_cluster.worker.training import Chunk, Lines, PrintedLines, Trainer
from rlpto.ray_cluster.worker.worker_group import AllReduceGroup, start_store, use_interface_of

T = TypeVar("T")


@dataclass(frozen=True)
class GroupPlace:
    """Address and membership of a group. number: number of the group, counted up by the controller. world: number of
    workers. fresh: ranks without state, which receive rank 0's state. host, port: address of the controller's store.
    servers: parameter server actors, if any. reset: they take their weights from rank 0."""

    number: int
    world: int
    fresh: tuple[int, ...]
    host: str
    port: int
    timeout: float
    servers: tuple[Any, ...] = ()
    reset: bool = False


@dataclass(frozen=True)
class Ready:
    """A worker is warm. step_seconds, evaluation_seconds: duration of a warm step and of an evaluation."""

    step_seconds: float
    evaluation_seconds: float


@dataclass(frozen=True)
class Failure:
    """An exception in a worker. lasting: caused by bad input; a retry would fail too. text: the message if lasting,
    else the traceback. when: `time.time()`. output: printed lines, in the form of `Chunk.output`."""

    text: str
    lasting: bool
    when: float
    output: Lines = ()


@dataclass(frozen=True)
class WorkerHeartbeat:
    """Sign of life. pid: id of the process. busy: whether the training thread is in a call. phase: phase of its
    trainer. stalled: time since a call began or a heartbeat saw a step done [s]."""

    pid: int
    busy: bool
    phase: str
    stalled: float


class TrainWorker:
    """Actor with two threads: one trains, the other answers meanwhile.

    Exceptions are returned as a `Failure`; after one, all calls except `recover` do nothing.
    """

    def __init__(self, spec: JobSpec) -> None:
        die_with_parent()
        self._spec = spec
        self._trainer: Trainer | None = None
        self._failure: Failure | None = None
        self._store: TCPStore | None = None
        self._busy, self._moved = False, time.monotonic()
        self._seen = 0
        self._printed = PrintedLines()
        if spec.logs:
            self._printed.install()

    def prepare(self) -> Ready | Failure:
        """Make the model and train two warm-up steps, which are undone."""
        return self._guarded(self._prepare)

    def load(self, state: bytes) -> Failure | None:
        """Take over the state of a checkpoint."""
        return self._guarded(lambda: self.trainer.load(state))

    def join(self, place: GroupPlace, rank: int) -> Failure | None:
        """Leave the present group and take a place in another one."""
        return self._guarded(lambda: self._join(place, rank))

    def run(self, until: int, batch_size: int | None) -> Chunk | Failure:
        """Train until step `until` is done, or the job has finished. batch_size: batch size for `Trainer.run`."""
        return self._guarded(lambda: replace(self.trainer.run(until, batch_size), output=self._printed.take()))

    def state(self) -> tuple[int, bytes, bool] | Failure:
        """Step, complete training state, and whether its weights are finite."""
        return self._guarded(lambda: (self.trainer.position.step, *self.trainer.checked_state()))

    def recover(self) -> Position | None:
        """Leave the group, undo an interrupted step, and be ready for another group. Returns None if this is
        impossible."""
        trainer = self.trainer
        if not trainer.program.can_go_on:
            return None
        trainer.join()
        trainer.undo()
        self._failure = None
        return trainer.position

    @ray.method(concurrency_group="control")
    def heartbeat(self) -> WorkerHeartbeat:
        """The present activity of the training thread."""
        step, phase = (0, "own") if self._trainer is None else (self._trainer.position.step, self._trainer.phase)
        if step != self._seen:
            self._seen, self._moved = step, time.monotonic()
        return WorkerHeartbeat(os.getpid(), self._busy, phase, time.monotonic() - self._moved)

    @ray.method(concurrency_group="control")
    def abort(self) -> None:
        """Wake the training thread if it waits for a lost worker."""
        if self._trainer is not None:
            self._trainer.group.abort()

    @property
    def trainer(self) -> Trainer:
        """The trainer made by `prepare`."""
        if self._trainer is None:
            raise RuntimeError("the worker was not prepared")
        return self._trainer

    def _prepare(self) -> Ready:
        if self._spec.device == "cpu" or not torch.cuda.is_available():  # workers share the cores of a machine
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        use_interface_of(address)
        self._trainer = Trainer(self._spec)
        step, evaluation = self._trainer.warm_up()
        if self._spec.architecture == "all_reduce":
            warm_group(self._trainer, start_store(address))
        return Ready(step, evaluation)

    def _join(self, place: GroupPlace, rank: int) -> None:
        trainer = self.trainer
        trainer.join()
        model, optimizer, world = trainer.network, trainer.optimizer, place.world
        if place.servers:
            group = ParameterServerGroup(trainer.program, model, optimizer, place.servers, place.number, rank, world)
            group.enter(place.reset)
            trainer.join(group)
        if place.servers or world == 1:
            return
        if self._store is None:
            self._store = TCPStore(place.host, place.port, is_master=False)
        store = PrefixStore(f"group-{place.number}", self._store)
        together = AllReduceGroup(model, optimizer, store, rank, world, place.timeout)
        # Visible to `abort` from here on, because the others may be lost while this worker waits for them.
        trainer.join(together)
        if place.fresh:
            state = together.share(trainer.state() if rank == 0 else None)
            if rank in place.fresh:
                trainer.load(state)
        together.wrap(trainer.leaves_out)

    def _guarded(self, call: Callable[[], T]) -> T | Failure:
        if self._failure is not None:
            return self._failure
        self._busy, self._moved = True, time.monotonic()
        try:
            return call()
        except Exception as error:
            lasting = isinstance(error, RlptoError)
            text = str(error) if lasting else traceback.format_exc()
            self._failure = Failure(text, lasting, time.time(), self._printed.take())
            if self._trainer is not None:
                self._trainer.group.close()
            return self._failure
        finally:
            self._busy, self._moved = False, time.monotonic()


def warm_group(trainer: Trainer, store: TCPStore) -> None:
    """Form a group of one and train a step in it, which is undone, because the first group of a process is slow. So is
    its first TCPStore where no name server answers: torch looks up the host's name, and gives that up for good."""
    start = trainer.state()
    group = AllReduceGroup(trainer.network, trainer.optimizer, store, 0, 1, 60.0)
    group.wrap(trainer.leaves_out)
    trainer.join(group)
    trainer.step()
    trainer.join()
    trainer.load(start)


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends (Linux); no orphan keeps a GPU."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)
