"""Turn the plans of jobs into commands to their controllers, without two jobs ever using the same GPU.

A job's *claim* on a node is the largest number of GPUs that its controller may use there now: the maximum over its last
reported GPUs, the newest command it has confirmed, and all commands sent since. A command is sent only if the claims of
all jobs, this command included, fit the node. CPU slots of parameter servers are claimed in the same way. A command
that only releases GPUs never raises a claim and is sent at once. A growing job waits until others have confirmed their
release. A change that both releases and adds GPUs is sent as two commands: the first keeps only the GPUs that stay, the
second adds the new ones. Jobs therefore never deadlock: every plan that fits the nodes is eventually carried out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.messages import Command, JobReport, JobSpec, Plan
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_rules import Clock
from rlpto.store.jobs import ACTIVE, SessionJob

COMMAND_REPEAT_INTERVAL_S = 2.0
"""Time after which an unconfirmed command is sent again, because the controller may have been restarted."""
ATTACH_TIMEOUT_S = 5.0
"""Longest wait of a restarted scheduler for first reports of the controllers it has found."""
GPUS, SLOTS = "GPUs", "CPU slots"
Claim = Counter[tuple[str, str]]
"""Numbers of GPUs and CPU slots, keyed by `GPUS` or `SLOTS` and the node."""


def claim_of(plan: Plan) -> Claim:
    """Return the GPUs and CPU slots that a plan's workers and parameter servers use."""
    return Counter([*((GPUS, node) for node in plan.nodes), *((SLOTS, node) for node in plan.servers)])


@dataclass
class Entry:
    """The plan, the commands and the newest report of one job.

    planned: plan to reach. steps: commands not yet sent, in order. sent: commands already sent, starting with the
    newest one that the controller has confirmed. report: the controller's newest report.
    """

    planned: Plan = field(default_factory=Plan)
    steps: list[Command] = field(default_factory=list)
    sent: list[Command] = field(default_factory=list)
    report: JobReport = field(default_factory=lambda: JobReport(""))

    @property
    def commanded(self) -> Plan:
        """Plan of the newest command."""
        return self.sent[-1].plan if self.sent else Plan()

    @property
    def claim(self) -> Claim:
        """GPUs and CPU slots that the job may be using."""
        serving = self.report.serving_on if any(command.plan.servers for command in self.sent) else ()
        claim = claim_of(Plan(self.report.holding, None, serving))
        for command in self.sent:
            claim |= claim_of(command.plan)
        return claim


class GpuClaims:
    """The GPU claims of all jobs. capacity, slots: GPUs and CPU slots of each live node, by node id."""

    def __init__(self, capacity: Mapping[str, int] | None = None, slots: Mapping[str, int] | None = None) -> None:
        self.capacity = dict(capacity or {})
        self.slots = dict(slots or {})
        self.entries: dict[str, Entry] = {}

    def entry(self, job: str) -> Entry:
        """Return a job's entry, creating an empty one if needed."""
        return self.entries.setdefault(job, Entry())

    def plan(self, targets: Mapping[str, Plan], next_generation: Callable[[], int]) -> list[Command]:
        """Replace the plans of some jobs. Returns the commands that carry out the new plans.

        next_generation: returns the number of the next command, larger than all earlier ones. Raises ClusterError,
        without changing anything, if all plans together do not fit the live nodes.
        """
        whole = {job: entry.planned for job, entry in self.entries.items()} | dict(targets)
        wanted = Claim()
        for plan in whole.values():
            wanted.update(claim_of(plan))
        for (what, node), count in wanted.items():
            if count > self._room(what, node):
                room = self._room(what, node)
                raise ClusterError(f"plan asks for {count} {what} of node {node[:8]}, which has {room}")
        steps: list[Command] = []
        for job, plan in targets.items():
            entry = self.entry(job)
            entry.planned = plan
            entry.steps = [Command(job, next_generation(), step) for step in _steps(entry.commanded, plan)]
            steps += entry.steps
        return steps

    def due(self) -> Iterator[Command]:
        """Commands that may be sent now, releasing ones first. Each counts as sent once it is yielded."""
        yield from self._due(releasing=True)
        yield from self._due(releasing=False)

    def _due(self, releasing: bool) -> Iterator[Command]:
        for entry in self.entries.values():
            if len(entry.steps) > 1 and self.fits(entry.steps[-1]):
                del entry.steps[:-1]  # old and new plan fit together: no intermediate step needed
            while entry.steps:
                step = entry.steps[0]
                releases = claim_of(step.plan) <= claim_of(entry.commanded)
                if releases != releasing or not (releases or self.fits(step)):
                    break
                entry.sent.append(entry.steps.pop(0))
                yield step

    def fits(self, command: Command) -> bool:
        """True if all claims fit the nodes' GPUs and CPU slots after this command is sent."""
        wanted = claim_of(command.plan)
        claims = wanted | self.entry(command.job).claim
        for job, entry in self.entries.items():
            if job != command.job:
                claims.update(entry.claim)
        return all(claims[what, node] <= self._room(what, node) for what, node in wanted)

    def _room(self, what: str, node: str) -> int:
        return (self.capacity if what == GPUS else self.slots).get(node, 0)

    def reported(self, report: JobReport) -> None:
        """Store a controller's report, which must be newer than all its earlier ones."""
        entry = self.entry(report.job)
        entry.report = report
        # Always keep the newest command: a restarted controller may not know it, and then gets it again.
        older = [command for command in entry.sent[:-1] if command.generation >= report.generation]
        entry.sent = older + entry.sent[-1:]

    def unconfirmed(self, job: str) -> Command | None:
        """The newest command, if the controller has not confirmed it."""
        entry = self.entry(job)
        return entry.sent[-1] if entry.sent and entry.report.generation < entry.sent[-1].generation else None

    def rolled_back(self, job: str) -> bool:
        """True if the controller has abandoned the growth requested by its newest command, and no newer plan waits."""
        entry = self.entry(job)
        return bool(entry.sent) and not entry.steps and entry.sent[-1].generation == entry.report.rolled_back

    def settled(self, job: str) -> bool:
        """True if the plan of a job is fully in force."""
        entry = self.entry(job)
        return not entry.steps and (not entry.sent or entry.report.applied >= entry.sent[-1].generation)

    def adopt(self, job: str, commands: Sequence[Command], unsent: Collection[int]) -> None:
        """Take over a job whose controller has continued across a restart of the scheduler.

        commands: the job's commands in order, starting with the newest one known to be in force. unsent: generations of
        commands that were never sent. The controller may have carried out any sent command, so their GPUs stay claimed
        until it reports otherwise. Unsent commands are sent once there is room, unless a later command was sent.
        """
        sent = [command for command in commands if command.generation not in unsent]
        newest = sent[-1].generation if sent else 0
        self.entries[job] = Entry(
            planned=commands[-1].plan if commands else Plan(),
            steps=[command for command in commands if command.generation > newest],
            sent=sent,
        )

    def released(self, job: str) -> None:
        """Remove a job whose controller and workers are gone."""
        self.entries.pop(job, None)

    def add_node(self, node: str, gpus: int, slots: int = 0) -> None:
        """Add a node with these numbers of GPUs and CPU slots."""
        self.capacity[node], self.slots[node] = gpus, slots

    def remove_nodes(self, nodes: Collection[str]) -> dict[str, Plan]:
        """Remove nodes. Returns, for each job with workers or servers there, its plan without them. The caller has to
        pass these plans to `plan`."""
        for node in nodes:
            self.capacity.pop(node, None)
            self.slots.pop(node, None)
        left = {}
        for job, entry in self.entries.items():
            plan = entry.planned
            stay, serve = (tuple(node for node in some if node not in nodes) for some in (plan.nodes, plan.servers))
            if (stay, serve) != (plan.nodes, plan.servers):
                left[job] = replace(plan, nodes=stay, servers=serve)
        return left

    def ended(self, job: str) -> None:
        """Clear the plan of an ended job. GPUs that its controller holds stay claimed until `released` is called."""
        entry = self.entry(job)
        entry.planned, entry.steps, entry.sent = Plan(), [], []


def _steps(present: Plan, wanted: Plan) -> list[Plan]:
    """Split the change from one plan to another into at most two steps: one that releases, and one that adds.

    Each step is left out if it would change nothing. Nodes that stay keep their order, so workers keep their ranks. If
    only the batch size changes, that is one step. If no server stays in place, all servers move in the last step,
    because a training job needs at least one.
    """
    stays, added = split_nodes(present.nodes, wanted.nodes)
    serve, join = split_nodes(present.servers, wanted.servers)
    less = len(stays) < len(present.nodes) or (
        len(serve) < len(present.servers) and (bool(serve) or not wanted.servers)
    )
    more = bool(added) or bool(join)
    steps = []
    if less or (not more and wanted.batch_size != present.batch_size):
        kept = serve if serve or not stays else present.servers
        steps.append(replace(wanted, nodes=tuple(stays), servers=tuple(kept) if stays else ()))
    if more:
        steps.append(replace(wanted, nodes=(*stays, *added), servers=(*serve, *join)))
    return steps


def split_nodes(present: Sequence[str], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split into nodes of `present` that stay, and nodes of `wanted` to add."""
    free = Counter(wanted)
    stays = [node for node in present if _take(free, node)]
    return stays, [node for node in wanted if _take(free, node)]


def _take(left: Counter[str], node: str) -> bool:
    """Decrease left[node] by one if it is positive, and return whether it was."""
    if left[node] <= 0:
        return False
    left[node] -= 1
    return True


class CommandSender:
    """Sends planned commands to controllers, in order and when claims permit. claims: GPU claims of jobs. specs:
    controller specifications by job."""

    def __init__(
        self, backend: RayBackend, database: SessionDatabase, specs: Mapping[str, JobSpec], claims: GpuClaims
    ) -> None:
        self.claims = claims
        self._backend = backend
        self._database = database
        self._specs = specs
        self._with_controller: set[str] = set()
        self._launched: set[str] = set()
        self._sent_at: dict[str, float] = {}
        self._ended: list[str] = []

    def plan(self, targets: Mapping[str, Plan], time: float) -> None:
        """Enter plans in the GPU claims and, before any command is sent, in the database."""
        self._database.plan(targets, self.claims.plan(targets, self._database.next_generation), time)

    def send_due(self, time: float) -> None:
        """Send commands that are due, and repeat unconfirmed ones."""
        while self._ended:  # the database now records that these jobs have ended
            self._backend.end(self._ended.pop())
        for command in list(self.claims.due()):
            # Record it first: after a crash, any command that may have been sent must count as sent.
            self._database.commanded(command.generation, time)
            self._send(command, time)
        # Skip waiting jobs: there may be thousands, and they need no command.
        involved = [(job, entry) for job, entry in self.claims.entries.items() if entry.planned.nodes or entry.sent]
        for job, entry in involved:
            if entry.planned.nodes:
                self._start(job)  # while other jobs make room for its workers
            again = self.claims.unconfirmed(job)
            if again is not None and time >= self._sent_at.get(job, -np.inf) + COMMAND_REPEAT_INTERVAL_S:
                self._send(again, time)

    def _send(self, command: Command, time: float) -> None:
        self._start(command.job)
        self._sent_at[command.job] = time
        self._backend.command(command)

    def _start(self, job: str) -> None:
        """Start a job's controller if it has none."""
        if job not in self._with_controller:
            self._with_controller.add(job)
            self._database.set_job(job, launched=1)
            self._backend.start(self._specs[job], resume=job in self._launched)
            self._launched.add(job)

    def end(self, job: str) -> None:
        """Mark that a job needs no controller any more."""
        self.claims.ended(job)
        self._ended.append(job)

    def gone(self, job: str) -> Plan:
        """Remove a job's controller that is gone with its workers. Returns the job's plan."""
        planned = self.claims.entry(job).planned
        self.claims.released(job)
        self._database.forget_commands(job)
        self._with_controller.discard(job)
        return planned

    def has_controller(self, job: str) -> bool:
        """True while the job has a controller, or may have one."""
        return job in self._with_controller

    def forget(self, jobs: Collection[str]) -> None:
        """Forget ended jobs whose controllers are gone."""
        for job in jobs:
            self.claims.released(job)
            self._sent_at.pop(job, None)
            self._launched.discard(job)

    def reopen(self, rows: Sequence[SessionJob], controllers: Collection[str]) -> list[str]:
        """Restore the state after a restart of the scheduler, from the database and the running controllers, and end
        controllers that no active job needs. Returns jobs whose controller is gone, which resume from their
        checkpoints."""
        active = [row.id for row in rows if row.state in ACTIVE]
        self._launched = {row.id for row in rows if row.launched}
        self._with_controller = {job for job in active if job in controllers}
        commands, unsent = self._database.newest_commands(), self._database.unsent()
        for job in active:
            if job in self._with_controller:
                self.claims.adopt(job, commands.get(job, ()), unsent)
        for job in controllers:
            if job not in self._with_controller:
                self._backend.end(job)
        lost = [job for job in active if job in self._launched - self._with_controller]
        for job in lost:
            self._database.forget_commands(job)
        return lost

    def first_reports(self, clock: Clock) -> list[JobReport]:
        """Wait for a first report from every controller after a restart, for a limited time."""
        reports, by = list[JobReport](), clock.now() + ATTACH_TIMEOUT_S
        while self._with_controller - {report.job for report in reports} and clock.now() < by:
            reports += self._backend.reports(0.05)
        return reports
