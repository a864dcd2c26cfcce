"""The actors of one job: starting workers and parameter servers on their nodes, and releasing them reliably."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpto.ray_cluster.controllers import kill_at
from rlpto.ray_cluster.messages import JobSpec, Nodes, Plan, reason_of
from rlpto.ray_cluster.nodes.processes import TITLE
from rlpto.ray_cluster.worker.actor import Failure, Ready, TrainWorker
from rlpto.ray_cluster.worker.parameter_server import ParameterServer

T = TypeVar("T")
A = TypeVar("A", "Worker", "ServerActor")

WORKER_CALL_TIMEOUT_S = 2.0
"""Longest time that a healthy worker takes to answer on its control thread."""


class WorkerLostError(Exception):
    """A worker is gone, or does not answer. unplaced: it never started because its node is gone. unreached: the network
    has lost a call or its answer; the worker may be well."""

    def __init__(self, message: str, unplaced: bool = False, unreached: bool = False) -> None:
        super().__init__(message)
        self.unplaced, self.unreached = unplaced, unreached


@dataclass(eq=False)
class Worker:
    """One worker actor. pid: its process id, 0 before it exists. preparing: task that ends when it is warm or has
    failed. ready: its answer once warm. warm_since: `time.monotonic()` of that answer. current: whether it has the
    newest state of its group."""

    node: str
    handle: Any
    pid: int = 0
    preparing: asyncio.Task[Ready | Failure | WorkerLostError] = field(init=False)
    ready: Ready | None = None
    warm_since: float = 0.0
    current: bool = False


async def result_of(reference: Any, seconds: float | None = None) -> Any:
    """Result of an actor's call. Raises WorkerLostError if the actor is gone or does not answer in time."""
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(reference.future())), seconds)
    except TimeoutError:
        raise WorkerLostError(f"no answer within {seconds:g} s") from None
    except RayError as gone:
        unplaced, unreached = (isinstance(gone, one) for one in (ActorUnschedulableError, ActorUnavailableError))
        raise WorkerLostError(reason_of(gone), unplaced, unreached) from None


async def settle(calls: Iterable[Awaitable[T]]) -> list[T | BaseException]:
    """Run calls concurrently, and return their results or errors."""
    return list(await asyncio.gather(*calls, return_exceptions=True))


def matched(actors: Iterable[A], nodes: Iterable[str]) -> tuple[list[A], list[A], list[str]]:
    """Actors with a place on `nodes` (one entry a place; earlier actors have precedence), actors without one, and the
    nodes of the remaining places."""
    room, kept, without = Counter(nodes), list[A](), list[A]()
    for actor in actors:
        (kept if room[actor.node] > 0 else without).append(actor)
        room[actor.node] -= room[actor.node] > 0
    return kept, without, list(room.elements())


def start_worker(spec: JobSpec, node: str) -> Worker:
    """Ask Ray for a worker with one GPU on `node` and nowhere else; it waits if no GPU is free yet."""
    remote: Any = ray.remote  # its types do not know concurrency groups
    actor = remote(num_gpus=1, num_cpus=0, max_restarts=0, concurrency_groups={"control": 2})(TrainWorker)
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    return Worker(node, actor.options(scheduling_strategy=here, runtime_env=spec.runtime_env).remote(spec))


async def release(worker: Worker) -> None:
    """End a worker, and return when it and its GPU allocation are gone."""
    worker.preparing.cancel()
    ray.kill(worker.handle)
    killed = False
    while True:
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(worker.handle.heartbeat.remote().future())), 0.5)
        except TimeoutError:
            if worker.pid and not killed:
                with suppress(WorkerLostError):
                    await result_of(kill_at(worker.node, worker.pid, TITLE), 10.0)
                    killed = True
        except RayError:
            return
        await asyncio.sleep(0.02)


class ServerActor(NamedTuple):
    """One parameter server. up: task that ends once it answers, or with an error if it is gone."""

    node: str
    handle: Any
    up: asyncio.Task[Any]


class ParameterServers:
    """The parameter servers of a job, on the nodes of its plan, or all on the controller's `node` if the plan names
    none.

    A change takes two steps: `start_missing`, while the old ones serve, and `switch` once all are up. stale: whether
    they must take the weights from the first worker of the next group.
    """

    def __init__(self, spec: JobSpec, node: str) -> None:
        self._spec = spec
        self._own = (node,) * spec.servers if spec.architecture == "parameter_server" else ()
        self._serving: list[ServerActor] = []
        self._starting: list[ServerActor] = []
        self.stale = False

    @property
    def handles(self) -> tuple[Any, ...]:
        """The serving servers."""
        return tuple(server.handle for server in self._serving)

    @property
    def nodes(self) -> Nodes:
        """Nodes of the serving servers."""
        return tuple(server.node for server in self._serving)

    @property
    def holding(self) -> Nodes:
        """Node of every server that is alive or being started."""
        return tuple(server.node for server in [*self._serving, *self._starting])

    def wanted(self, plan: Plan) -> Nodes:
        """Nodes of a plan's servers."""
        return plan.servers or self._own if self._own else ()

    def differ(self, plan: Plan) -> bool:
        """True if the serving servers differ from the plan's."""
        return bool(self._serving) and Counter(self.nodes) != Counter(self.wanted(plan))

    def all_up(self, plan: Plan) -> bool:
        """True if every server of the plan serves, or is ready to."""
        up = [server.node for server in self._starting if server.up.done() and server.up.exception() is None]
        return not Counter(self.wanted(plan)) - Counter([*self.nodes, *up])

    def ensure(self, plan: Plan) -> None:
        """Start servers if the job needs some and none serves."""
        if self._serving or not self._own:
            return
        self.drop_starting()
        self._serving, self.stale = [self._start(node, plan) for node in self.wanted(plan)], True

    def start_missing(self, plan: Plan) -> None:
        """Start the plan's missing servers while the old ones serve; release other starting servers."""
        *_, due = matched(self._serving, self.wanted(plan))
        kept, without, missing = matched(self._starting, due)
        _end(without)
        self._starting = [*kept, *(self._start(node, plan) for node in missing)]

    def failed(self) -> str:
        """Reason why a starting server is gone, empty if none is. `start_missing` starts it again."""
        gone = [server for server in self._starting if server.up.done() and server.up.exception() is not None]
        self._starting = [server for server in self._starting if server not in gone]
        return f"a parameter server on node {gone[0].node[:8]} is gone: {gone[0].up.exception()}" if gone else ""

    def switch(self, plan: Plan) -> None:
        """Switch to the plan's servers, which are all up."""
        kept, without, _ = matched([*self._serving, *self._starting], self.wanted(plan))
        _end(without)
        self._serving, self._starting, self.stale = kept, [], True

    def drop_starting(self) -> None:
        """Release starting servers."""
        _end(self._starting)

    def _start(self, node: str, plan: Plan) -> ServerActor:
        actor: Any = ray.remote(ParameterServer)
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        slots = int(bool(plan.servers))  # on a node named by the plan; on the controller's node it takes none
        options = {"num_cpus": slots, "max_restarts": 0, "scheduling_strategy": here}
        handle = actor.options(**options, runtime_env=self._spec.runtime_env).remote(self._spec.asynchronous)
        up = asyncio.ensure_future(result_of(handle.alive.remote()))
        up.add_done_callback(lambda task: task.cancelled() or task.exception())  # no longer waited for
        return ServerActor(node, handle, up)

    async def end_group(self) -> None:
        """End the present group, which wakes its waiting workers. If a server is gone, all servers are released."""
        said = await settle(result_of(server.handle.end.remote(), WORKER_CALL_TIMEOUT_S) for server in self._serving)
        if any(isinstance(one, WorkerLostError) for one in said):
            self.kill()
        self.stale = bool(self._serving)

    def kill(self) -> None:
        """Release all servers."""
        _end(self._starting)
        _end(self._serving)


def _end(servers: list[ServerActor]) -> None:
    while servers:
        ray.kill(servers.pop().handle)
