"""The phases of a job's control loop: their table, and random commands and faults with workers in memory."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from rlpto.ray_cluster.job import control_loop, training_group, worker_actors
from rlpto.ray_cluster.job.control_loop import ControlLoop
from rlpto.ray_cluster.job.phases import NEXT, Lifecycle, Phase
from rlpto.ray_cluster.job.worker_actors import ServerActor, Worker
from rlpto.ray_cluster.messages import JobSpec, Plan
from rlpto.ray_cluster.worker.actor import Failure, Ready, WorkerHeartbeat
from rlpto.ray_cluster.worker.sampling import Position
from rlpto.ray_cluster.worker.training import Chunk
from tests.ray_cluster.running import make_spec

NODES = "abc"
LAST_COMMAND, LAST_STEP = 25, 10**9


def test_only_transitions_of_the_table_are_legal() -> None:
    for before, after in product(Phase, Phase):
        lifecycle, legal = Lifecycle(), after in NEXT[before]
        lifecycle.phase = before
        with nullcontext() if legal else pytest.raises(RuntimeError, match=f"from {before.value} to {after.value}"):
            lifecycle.enter(after)
        assert lifecycle.phase is (after if legal else before)


class Actor:
    """The handle of a worker or server in memory. Its answers arrive at once, or a moment later."""

    def __init__(self, world: World) -> None:
        self.world, self.alive, self.step, self.failed = world, True, 0, False

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *given: SimpleNamespace(future=lambda: self._answer(method, *given)))

    def _answer(self, method: str, *given: Any) -> Future[Any]:
        found: Future[Any] = Future()
        chance = self.world.random.random()
        if method in ("run", "join", "state", "load", "prepare") and chance < self.world.faults:
            self.failed, self.alive = True, chance > self.world.faults / 2
        if not self.alive:
            found.set_exception(RayActorError())
        elif self.failed and method in ("run", "join", "state", "load", "prepare"):
            found.set_result(Failure("raised", False, time.time()))
        else:
            result = getattr(self.world, method)(self, *given)
            asyncio.get_running_loop().call_later(0.001 * (chance > 0.5), lambda: found.set_result(result))
        return found


class World:
    """Workers and servers in memory. faults: probability that a call of the training fails or kills its worker.
    last: step at which the job has finished."""

    def __init__(self, seed: int, faults: float) -> None:
        self.random, self.faults, self.last = Random(seed), faults, LAST_STEP

    def start_worker(self, _: Any, node: str) -> Worker:
        return Worker(node, Actor(self))

    def start_server(self, node: str, _: Plan) -> ServerActor:
        async def up() -> None: ...

        return ServerActor(node, Actor(self), asyncio.ensure_future(up()))

    def prepare(self, _: Actor) -> Ready:
        return Ready(0.001, 0.0)

    def heartbeat(self, _: Actor) -> WorkerHeartbeat:
        return WorkerHeartbeat(0, False, "own", 0.0)

    def load(self, worker: Actor, state: bytes) -> None:
        worker.step = int(state)

    def join(self, *_: Any) -> None: ...

    abort = end = join

    def recover(self, worker: Actor) -> Position:
        worker.failed = False
        return Position(worker.step)

    def state(self, worker: Actor) -> tuple[int, bytes, bool]:
        return worker.step, str(worker.step).encode(), True

    def run(self, worker: Actor, until: int, _: int | None) -> Chunk:
        steps, worker.step = until - worker.step, min(until, self.last)
        position, now = Position(worker.step, progress=float(worker.step)), time.monotonic()
        done = worker.step >= self.last
        return Chunk(position, max(steps, 1), 1, 16, False, 1.0, 1.0, float("nan"), 0.0, done, now, now)


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Phase, Phase]]:
    """Transitions that have happened. Controllers find no Ray."""
    found: set[tuple[Phase, Phase]] = set()
    enter = Lifecycle.enter

    def noted(self: Lifecycle, phase: Phase) -> None:
        before = self.phase
        enter(self, phase)
        found.add((before, phase))

    monkeypatch.setattr(Lifecycle, "enter", noted)
    monkeypatch.setattr(control_loop, "TURN_S", 0.002)
    monkeypatch.setattr(ray, "kill", lambda handle: setattr(handle, "alive", False))
    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(training_group, "gpu_type_at", lambda _: "gpu")
    monkeypatch.setattr(training_group, "start_store", lambda _: SimpleNamespace(port=0))
    return found


async def live(spec: JobSpec, world: World, finish: bool) -> None:
    """Command a job at random, then let it train in peace, and let it finish or stop it."""
    loop = ControlLoop(spec, "a", resume=False, restarted=False)
    random, work = world.random, asyncio.ensure_future(loop.run())
    for generation in range(1, LAST_COMMAND):
        nodes = tuple(random.choices(NODES, k=random.choice((0, 1, 1, 2, 3))))
        servers = (random.choice(NODES),) if nodes and random.random() < 0.5 else ()
        loop.command(generation, Plan(nodes, random.choice((None, 32)), servers))
        await asyncio.sleep(0.02 * random.random())
    world.faults = 0.0
    loop.command(LAST_COMMAND, Plan(("a", "b")))
    await reached(loop, lambda report: report.ended or report.applied == LAST_COMMAND)
    report = loop.report()
    assert report.ended or sorted(report.training_on) == ["a", "b"]
    if finish:
        world.last = 0
        await reached(loop, lambda report: report.ended)
    loop.stop()
    await asyncio.wait_for(work, 10.0)
    last = loop.report()
    assert last.holding == ()
    assert "the controller itself failed" not in last.failure
    again = ControlLoop(spec, "a", resume=True, restarted=True).report()
    assert (again.state, again.step) == (last.state, last.step)


async def reached(loop: ControlLoop, holds: Any) -> None:
    """Wait until a report meets a condition."""
    by = time.monotonic() + 20.0
    while not holds(report := loop.report()):
        assert time.monotonic() < by, report
        await asyncio.sleep(0.005)


def test_random_commands_and_faults_follow_the_table_and_a_job_trains_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entered: set[tuple[Phase, Phase]]
) -> None:
    """An illegal transition would fail the job as a fault of its controller."""
    for seed, architecture in product(range(6), ("all_reduce", "parameter_server")):
        world = World(seed, faults := (0.0, 0.03, 0.2)[seed % 3])
        monkeypatch.setattr(worker_actors, "start_worker", world.start_worker)
        monkeypatch.setattr(worker_actors.ParameterServers, "_start", world.start_server)
        rules = {"retries": 1 if faults > 0.1 else 1000, "backoff": 0.001, "checkpoint_interval": 0.01}
        folder = tmp_path / f"{architecture}-{seed}"
        asyncio.run(live(make_spec(folder, architecture=architecture, **rules, pace=None), world, finish=seed % 2 == 0))
    never = {(before, after) for before, some in NEXT.items() for after in some} - entered
    assert never <= {(before, after) for before in Phase for after in (Phase.FAILED, Phase.RECOVERING)}, "rare faults"
