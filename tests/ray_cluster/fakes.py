"""Controllers in memory and a clock that is set by hand, for tests of the scheduler's own logic."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from rlpto.ray_cluster.messages import Command, Interruptions, JobReport, JobSpec, Plan
from rlpto.ray_cluster.scheduler.backend import NodeInfo
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_rules import Clock
from rlpto.store.checkpoints import Checkpoint


class FakeTime:
    """Seconds of the world; `clock` is what the cluster is given as its clock."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0

    def clock(self, began: float | None = None, at: float = 0.0) -> Clock:
        world = self

        class Hand(Clock):
            def now(self) -> float:
                return world.wall - self.began

        hand = Hand()
        hand.began = self.wall - at if began is None else began
        return hand


def said(job: str, generation: int, applied: int, holding: tuple[str, ...], serving: tuple[str, ...] = ()) -> JobReport:
    """What a controller says of its GPUs."""
    return JobReport(job, generation, applied, holding=holding, serving_on=serving)


@dataclass
class FakeController:
    """A controller that obeys after `delay` s: gives up at once, takes and trains later. rate: epochs/s a worker.

    A job that may stop early does as soon as it may. broken: nodes on which nothing comes up.
    """

    spec: JobSpec
    delay: float
    rate: float
    broken: Collection[str] = ()
    progress: float = 0.0
    generation: int = 0
    applied: int = 0
    plan: Plan = field(default_factory=Plan)
    holding: tuple[str, ...] = ()
    training_on: tuple[str, ...] = ()
    serving_on: tuple[str, ...] = ()
    ready_at: float = 0.0
    state: str = "waiting"
    failure: str = ""
    note: str = ""
    rescales: int = 0
    rolled_back: int = 0

    def take(self, command: Command, now: float) -> None:
        if command.generation <= self.generation or self.state in ("finished", "failed"):
            return
        self.generation, self.plan, self.holding = command.generation, command.plan, command.plan.nodes
        self.training_on = tuple((Counter(self.training_on) & Counter(self.holding)).elements())
        self.ready_at = now + self.delay if len(self.training_on) < len(self.holding) else now

    @property
    def speed(self) -> float:
        """Epochs per second."""
        return self.rate * len(self.training_on)

    def live(self, seconds: float, now: float) -> None:
        if self.state in ("finished", "failed"):
            return
        if now >= self.ready_at and self.applied != self.generation:
            if self.training_on and {*self.plan.nodes, *self.plan.servers} & set(self.broken):
                self.plan = Plan(self.training_on, self.plan.batch_size, self.serving_on)
                self.holding, self.rolled_back = self.training_on, self.generation
                self.failure = "new workers or servers did not come up"
            else:
                self.rescales += bool(self.training_on)
                self.training_on, self.serving_on = self.plan.nodes, self.plan.servers
            self.applied = self.generation
        self.progress += self.speed * seconds
        self.state = "running" if self.training_on else "waiting"
        if self.progress >= self.spec.epochs * (1.0 if self.spec.stop is None else self.spec.stop.after):
            self.note = "" if self.spec.stop is None else f"stopped early at epoch {self.progress:g}"
            self.state, self.holding, self.training_on = "finished", (), ()


@dataclass
class FakeBackend:
    """A cluster in memory. gpus, cpus: by node; gpu_types: of the GPUs. delay: s until a command is in force. rate:
    epochs/s of a worker.

    broken: nodes on which nothing comes up: who grows into them goes on as before. controller: makes one. clock_jumps:
    when the clock of controllers does, and by how many s.
    """

    world: FakeTime
    gpus: dict[str, int]
    delay: float = 0.5
    rate: float = 0.1
    controllers: dict[str, FakeController] = field(default_factory=dict)
    started: list[tuple[str, bool]] = field(default_factory=list)
    saved: dict[str, float] = field(default_factory=dict)
    most: Counter[str] = field(default_factory=Counter)
    commanded: dict[str, list[Plan]] = field(default_factory=lambda: defaultdict(list))
    deaf: set[str] = field(default_factory=set)
    cpus: dict[str, int] = field(default_factory=dict)
    gpu_types: dict[str, str] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    drained: list[tuple[str, float]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    announced: dict[str, float] = field(default_factory=dict)
    silent: dict[str, float] = field(default_factory=dict)
    cut_off: float = 0.0
    join: str = "ray start --address head:6379"
    requested: list[int] = field(default_factory=list)
    shown: Callable[[list[NodeInfo]], list[NodeInfo]] | None = None
    clock_jumps: tuple[float, float] = (math.inf, 0.0)
    controller: Callable[..., FakeController] = FakeController
    _gone: dict[str, str] = field(default_factory=dict)
    _ending: dict[str, FakeController] = field(default_factory=dict)

    def nodes(self) -> list[NodeInfo]:
        found = [
            NodeInfo(node, gpus, "", self.cpus.get(node, 0), self.gpu_types.get(node, "gpu"))
            for node, gpus in self.gpus.items()
            if node not in self.silent
        ]
        return found if self.shown is None else self.shown(found)

    def drain(self, node: str, seconds: float) -> str:
        self.drained.append((node, seconds))
        if self.refusals:
            return self.refusals.pop()
        if not self.gpus.pop(node, 0):
            return "there is no such node"
        self.announced[node] = self.world.wall + seconds
        return ""

    def request(self, gpus: int) -> None:
        self.requested.append(gpus)

    def find(self) -> set[str]:
        return set(self.controllers)

    def start(self, spec: JobSpec, resume: bool) -> None:
        self.started.append((spec.id, resume))
        progress = self.saved.get(spec.id, 0.0) if resume else 0.0
        self.controllers[spec.id] = self.controller(spec, self.delay, self.rate, progress=progress)
        self.controllers[spec.id].broken = self.broken

    def command(self, command: Command) -> None:
        self.commanded[command.job].append(command.plan)
        if command.job in self.controllers and command.job not in self.deaf:
            self.controllers[command.job].take(command, self.world.wall)
            self._count()

    def reports(self, timeout: float) -> list[JobReport]:
        self.pass_time(max(timeout, 0.001))
        return [self.report(controller) for controller in self.controllers.values()]

    def pass_time(self, seconds: float) -> None:
        self.world.wall += seconds
        for controller in self.controllers.values():
            controller.live(seconds, self.world.wall)
            self.saved[controller.spec.id] = controller.progress
        self._gone |= dict.fromkeys(self._ending, "")
        self._ending.clear()
        self._count()

    def report(self, controller: FakeController) -> JobReport:
        same = ("generation", "applied", "state", "holding", "training_on", "serving_on", "rolled_back", "progress")
        step, paused = int(100 * controller.progress), 0.05
        return JobReport(
            controller.spec.id,
            **{name: getattr(controller, name) for name in (*same, "failure", "note")},
            step=step,
            accuracy=min(0.1 + 0.2 * controller.progress, 0.9),
            interruptions=Interruptions(
                controller.rescales, paused * controller.rescales, (paused,) * controller.rescales
            ),
            checkpoint=Checkpoint(step, "checkpoint", "0" * 64),
            time=self.world.wall + (self.clock_jumps[1] if self.world.wall >= self.clock_jumps[0] else 0.0),
        )

    def end(self, job: str) -> None:
        if job in self.controllers:
            self._ending[job] = self.controllers.pop(job)
        else:
            self._gone[job] = ""

    def end_all(self) -> None:
        for job in list(self.controllers):
            self.end(job)

    def gone(self) -> dict[str, str]:
        gone, self._gone = self._gone, {}
        return gone

    def kill_node(self, node: str) -> None:
        del self.gpus[node]
        for one in self.controllers.values():
            one.holding = tuple(other for other in one.holding if other != node)
            one.training_on = tuple(other for other in one.training_on if other != node)

    def _count(self) -> None:
        """Remember the most GPUs that were ever in use on a node, and refuse more than it has."""
        used, served = Counter[str](), Counter[str]()
        for one in self.controllers.values():
            used.update(node for node in one.holding if node in self.gpus)
            served.update(Counter(one.plan.servers) | Counter(one.serving_on))
        self.most |= used
        assert used <= Counter(self.gpus), "more workers on a node than it has GPUs"
        assert served <= Counter(self.cpus), "more servers on a node than it has CPU slots"


def events_of(database: SessionDatabase) -> list[tuple[float, str, str, str, float | None, str]]:
    """Time, kind, job, node, value and detail of all events of a session, in order."""
    rows = database.rows("SELECT time, job, body FROM events WHERE time IS NOT NULL ORDER BY seq")
    found = ((time, job or "", json.loads(body)) for time, job, body in rows)
    return [
        (time, body["what"], job, body.get("node", ""), body.get("value"), body.get("detail", ""))
        for time, job, body in found
    ]


def node_changes(database: SessionDatabase) -> list[tuple[str, str]]:
    """Kind and node of the events of nodes that came or went, in order, without nodes that did not answer for a while,
    as on a busy machine."""
    found: list[tuple[str, str]] = []
    for _, kind, _, node, _, detail in events_of(database):
        if kind == "node_up" and detail.startswith("answers again"):
            found.remove(("node_down", node))
        elif kind in ("node_up", "node_down"):
            found.append((kind, node))
    return found
