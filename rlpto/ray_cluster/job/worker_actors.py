"""The actors of one job: starting workers and parameter servers on their nodes, and releasing them for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnschedulableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.nodes.processes import TITLE, kill_titled
from rlpto.ray_cluster.worker.actor import Failure, Ready, TrainWorker
from rlpto.ray_cluster.worker.parameter_server import ParameterServer

T = TypeVar("T")

WORKER_CALL_TIMEOUT_S = 2.0
"""Longest time that a healthy worker takes to answer on its control thread."""


class WorkerLostError(Exception):
    """A worker is gone, or does not answer. unplaced: its node is gone, so that it never was."""

    def __init__(self, message: str, unplaced: bool = False) -> None:
        super().__init__(message)
        self.unplaced = unplaced


@dataclass(eq=False)
class Worker:
    """One worker actor. pid: of its process, 0 until there is one. preparing: ends when it is warm, or never will be.
    ready: what it said once it was warm. warm_since: `time.monotonic()` when it said so."""

    node: str
    handle: Any
    pid: int = 0
    preparing: asyncio.Task[Ready | Failure] = field(init=False)
    ready: Ready | None = None
    warm_since: float = 0.0


async def result_of(reference: Any, seconds: float | None = None) -> Any:
    """Result of an actor's call. Raises WorkerLostError if the actor is gone or says nothing for so long."""
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(reference.future())), seconds)
    except TimeoutError:
        raise WorkerLostError(f"no answer within {seconds:g} s") from None
    except RayError as gone:
        first = str(gone).strip().splitlines()[0]
        raise WorkerLostError(first, isinstance(gone, ActorUnschedulableError)) from None


async def settle(calls: Iterable[Awaitable[T]]) -> list[T | BaseException]:
    """Results or errors of calls that run side by side."""
    return list(await asyncio.gather(*calls, return_exceptions=True))


def start_worker(spec: JobSpec, node: str) -> Worker:
    """Ask Ray for a worker with one GPU on `node` and nowhere else; if its GPU is not free yet, it waits for it."""
    remote: Any = ray.remote  # its types do not know concurrency groups
    actor = remote(num_gpus=1, num_cpus=0, max_restarts=0, concurrency_groups={"control": 2})(TrainWorker)
    actor = actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
    return Worker(node, actor.remote(spec))


async def release(worker: Worker) -> None:
    """End a worker and come back when it is gone, and its GPU with it."""
    worker.preparing.cancel()
    ray.kill(worker.handle)
    killed = False
    while True:
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(worker.handle.heartbeat.remote().future())), 0.5)
        except TimeoutError:
            if worker.pid and not killed:
                # A stopped process does not hear Ray's request to end.
                killed = await kill_process(worker)
        except RayError:
            return
        await asyncio.sleep(0.02)


async def kill_process(worker: Worker) -> bool:
    """Kill the process of a worker by its id, on its node. True if that was done."""
    here = NodeAffinitySchedulingStrategy(worker.node, soft=False)
    task: Any = ray.remote(kill_titled)
    try:
        await result_of(
            task.options(num_cpus=0, max_retries=0, scheduling_strategy=here).remote(worker.pid, TITLE), 10.0
        )
    except WorkerLostError:
        return False
    return True


class ParameterServers:
    """Starts the servers of a job that has some, on `node`, and replaces them. handles: of those there are now."""

    def __init__(self, spec: JobSpec, node: str) -> None:
        self._spec, self._node = spec, node
        self.handles: tuple[Any, ...] = ()

    def ensure(self) -> bool:
        """Start servers if the job needs some and has none. True if they are new: they hold no weights yet."""
        if self._spec.architecture != "parameter_server" or self.handles:
            return False
        actor: Any = ray.remote(ParameterServer)
        here = NodeAffinitySchedulingStrategy(self._node, soft=False)
        actor = actor.options(num_cpus=0, max_restarts=0, scheduling_strategy=here)
        self.handles = tuple(actor.remote(self._spec.asynchronous) for _ in range(self._spec.servers))
        return True

    async def end_group(self) -> None:
        """End the present group, which wakes workers that wait there; if a server is gone, all of them are let go."""
        said = await settle(result_of(server.end.remote(), WORKER_CALL_TIMEOUT_S) for server in self.handles)
        if any(isinstance(one, WorkerLostError) for one in said):
            self.kill()

    def kill(self) -> None:
        """Let all servers go."""
        for server in self.handles:
            ray.kill(server)
        self.handles = ()
