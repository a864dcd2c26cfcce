"""A job service in virtual time: the real scheduler and its databases over controllers in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlpto.core.policy import Policy
from rlpto.experiments.config import Config
from rlpto.policies.registry import make_policy
from rlpto.ray_cluster.messages import Command, JobReport
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.service.scheduler.catalogue import ProgramChecks
from rlpto.service.scheduler.loop import make_scheduler
from rlpto.service.scheduler.session import Environment
from rlpto.service.settings import ServiceSettings
from rlpto.store.database import Store
from rlpto.store.jobs import JobRow, get_job, insert_job
from rlpto.store.programs import set_programs
from rlpto.store.requests import Kind, Switch, ask, get_request
from rlpto.store.rows import find
from tests.ray_cluster.fakes import FakeBackend, FakeController, FakeTime

PROGRAM: dict[str, Any] = {
    "training": "some.module:Program", "samples": 100, "epochs": 5, "batch_size": 8, "pace": 0.5,
}  # fmt: skip
Act = tuple[float, Callable[["VirtualService"], object]]
"""When [s of the world], and what happens then."""


class KilledError(BaseException):
    """The scheduler process is gone in the middle of what it did."""


def problem_of(training: str, _: Sequence[str]) -> str:
    """What is wrong with a class path, as if some could be imported."""
    return "" if training.startswith(("some.", "rlpto.")) else "no such class"


class Inline(Executor):
    """Runs what it is given at once."""

    def submit(self, call: Callable[..., Any], /, *given: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*given, **more))
        return done


@dataclass
class VirtualBackend(FakeBackend):
    """Users act while time passes. held: GPU-seconds of every job, as they really were."""

    acts: list[Act] = field(default_factory=list)
    service: VirtualService | None = None
    held: Counter[str] = field(default_factory=Counter)
    told_now: bool = False
    noted: dict[str, list[JobReport]] = field(default_factory=dict)

    def note(self) -> None:
        """Controllers note how their jobs stand while nobody asks."""
        for job, controller in self.controllers.items():
            self.noted.setdefault(job, []).append(self.report(controller))

    def command(self, command: Command) -> None:
        self.told_now = True
        super().command(command)

    def reports(self, timeout: float) -> list[JobReport]:
        until = self._next(self.world.wall + max(timeout, 0.001))
        if self.told_now:  # a controller answers a command at once
            until, self.told_now = self.world.wall + 0.001, False
        if self.acts and self.acts[0][0] <= until:
            at, act = self.acts.pop(0)
            self.pass_time(max(at - self.world.wall, 0.0))
            act(self.service)  # type: ignore[arg-type]
        else:
            self.pass_time(until - self.world.wall)
        found = [self.report(controller) for controller in self.controllers.values()]
        return [replace(one, earlier=tuple(self.noted.pop(one.job, ()))) for one in found]

    def _next(self, until: float) -> float:
        """When the next controller has something to say, or `until`."""
        now = self.world.wall
        for one in self.controllers.values():
            if now < one.ready_at and one.applied != one.generation:
                until = min(until, one.ready_at)
            if one.training_on and one.state == "running":
                left = (one.spec.epochs - one.progress) / one.speed
                until = min(until, now + max(left, 0.001))
        return until

    def report(self, controller: FakeController) -> JobReport:
        """A real job stops at its last epoch, however rarely somebody looks."""
        found = super().report(controller)
        return replace(found, progress=min(found.progress, controller.spec.epochs))

    def pass_time(self, seconds: float) -> None:
        for controller in [*self.controllers.values(), *self._ending.values()]:
            self.held[controller.spec.id] += len(controller.holding) * seconds
        super().pass_time(seconds)


def config(interval: float = 60.0, **more: Any) -> Config:
    """An experiment on two nodes of two GPUs."""
    nodes = [{"count": 2, "gpus": 2}]
    return Config.model_validate({"cluster": {"nodes": nodes}, "simulator": {"interval": interval}, **more})


class VirtualService:
    """The service. A test that kills its scheduler starts another one; the cluster goes on meanwhile.

    store: a connection of users. downtime: seconds from a kill to the next start. look_ahead: whether starts and
    finishes are predicted, at once and in this process. backend: makes the cluster. clock_error: s by which the clock
    of the machine is wrong. programs: what each trains, by name. began: time of the world [s]. poll: longest time [s]
    between two looks at the cluster.
    """

    def __init__(
        self,
        folder: Path,
        setup: Config | None = None,
        *,
        rate: float = 0.001,
        settings: dict[str, Any] | None = None,
        make: Callable[[str], Policy] = make_policy,
        look_ahead: bool = False,
        backend: Callable[..., VirtualBackend] = VirtualBackend,
        ready: Callable[[str], bool] = lambda _: True,
        programs: Mapping[str, Mapping[str, Any]] | None = None,
        poll: float = 5.0,
    ) -> None:
        self._look_ahead, self._ready, self._poll = look_ahead, ready, poll
        self.clock_error = 0.0
        self.world = FakeTime()
        self.began = self.world.wall
        self.setup, self._make = setup or config(), make
        gpus = {f"n{number}": node.gpus for number, node in enumerate(self.setup.cluster.shape)}
        self.backend = backend(self.world, gpus, delay=5.0, rate=rate, service=self)
        given: dict[str, Any] = {"folder": folder, "experiment": "ray_smoke.yaml", **(settings or {})}
        self.settings = ServiceSettings.model_validate(given, context={"folder": folder})
        self.store = Store(self.settings.database, durable=False)
        self.store.rows("PRAGMA synchronous = OFF")
        self.set_programs({"tiny": PROGRAM} if programs is None else programs)
        self.downtime = 0.0
        self.start()

    def now(self) -> float:
        """Time [s] by the clock of the machine."""
        return self.world.wall + self.clock_error

    def set_programs(self, programs: Mapping[str, Mapping[str, Any]]) -> None:
        """Add or replace what programs train, by name."""
        set_programs(self.store, {name: {"program": keys} for name, keys in programs.items()})

    def submit(self, owner: str = "ann", epochs: float = 2.0, program: str = "tiny", **more: Any) -> str:
        """A job of a user; its id."""
        return insert_job(self.store, JobRow(owner, "a job", program, epochs, **more), self.now()).id

    def row(self, job: str) -> JobRow:
        """A job as the database has it."""
        return get_job(self.store, job)  # type: ignore[return-value]

    def until(self, job: str, *states: str) -> None:
        """Serve until a job is in one of these states."""
        self.run(lambda: self.row(job).state in states)

    def ask(self, kind: Kind, job: str | None = None, **body: object) -> int:
        """Ask the scheduler for something as the web process does; the number of the request."""
        return ask(self.store, kind, "op", self.now(), job, body)

    def switches(self) -> list[Switch]:
        """Policies that were put in force, newest first."""
        return find(self.store, Switch, "ORDER BY number DESC")

    def problem(self, request: int) -> str | None:
        """What was answered to a request; None: nothing yet."""
        return get_request(self.store, request).problem  # type: ignore[union-attr]

    def start(self) -> None:
        """Start the scheduler."""
        self.database = SessionDatabase(self.settings.database, lambda _: None)
        self.database.rows("PRAGMA synchronous = OFF")
        environment = Environment(
            backend=self.backend,
            wall=self.now,
            clock=lambda began: self.world.clock(began),
            make=self._make,
            checks=ProgramChecks(problem_of, Inline()),
            look_ahead=self._look_ahead,
            executor=Inline(),
            timer=lambda: self.world.wall,
            ready=self._ready,
        )
        self.loop = make_scheduler(self.settings, self.setup, self.database, environment)
        self.loop.cluster.poll = self._poll

    def restart(self) -> None:
        """Start the scheduler that was killed."""
        with suppress(Exception):
            self.database.close()
        for _ in range(25 if self.downtime else 0):
            self.backend.pass_time(self.downtime / 25)
            self.backend.note()
        self.start()

    def steps(self, count: int) -> None:
        """Serve for a number of rounds."""
        for _ in range(count):
            self.loop.step()

    def run(self, until: Callable[[], bool]) -> None:
        """Serve until something holds; a scheduler that is killed is started again."""
        call = self.loop.step
        while not until():
            try:
                call()
                call = self.loop.step
            except KilledError:
                call = self.restart

    def close(self) -> None:
        """Leave."""
        self.database.close()
        self.store.close()
