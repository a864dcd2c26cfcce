"""Who may use which GPU: plans, the commands that carry them out one after the other, and claims that never overlap.

A job's *claim* on a node is the most GPUs its controller may have there at this moment: of what it reported to hold, of
the newest command it has confirmed, and of every command that has been sent since. A command goes out only if all
claims together fit the node with it. CPU slots of parameter servers are claimed in the same way. Giving GPUs up never
raises a claim, so such commands go out at once; growing waits until others have confirmed release. A change that does
both is sent as two commands, first what stays, then the whole: every plan that fits is therefore carried out in the
end, in any order jobs wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.messages import Command, JobReport, JobSpec, Plan
from rlpto.ray_cluster.scheduler.backend import Backend
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_rules import Clock
from rlpto.store.jobs import ACTIVE, SessionJob

COMMAND_REPEAT_INTERVAL_S = 2.0
"""A command that has not been confirmed for so long is sent again: the controller may have been restarted."""
ATTACH_TIMEOUT_S = 5.0
"""Longest wait of a restarted scheduler for the first word of the controllers it has found."""
GPUS, SLOTS = "GPUs", "CPU slots"
Claim = Counter[tuple[str, str]]
"""Numbers of GPUs and CPU slots, by `GPUS` or `SLOTS` and node."""


def claim_of(plan: Plan) -> Claim:
    """What the workers and parameter servers of a plan use."""
    return Counter([*((GPUS, node) for node in plan.nodes), *((SLOTS, node) for node in plan.servers)])


@dataclass
class Entry:
    """One job in the claims.

    planned: how it is to train in the end. steps: commands not sent yet, first to last. sent: commands sent, from the
    newest confirmed one on. heard: the newest report.
    """

    planned: Plan = field(default_factory=Plan)
    steps: list[Command] = field(default_factory=list)
    sent: list[Command] = field(default_factory=list)
    heard: JobReport = field(default_factory=lambda: JobReport(""))

    @property
    def commanded(self) -> Plan:
        """Plan of the newest command."""
        return self.sent[-1].plan if self.sent else Plan()

    @property
    def claim(self) -> Claim:
        """What the job may be using."""
        serving = self.heard.serving_on if any(command.plan.servers for command in self.sent) else ()
        claim = claim_of(Plan(self.heard.holding, None, serving))
        for command in self.sent:
            claim |= claim_of(command.plan)
        return claim


class GpuClaims:
    """All jobs' entries. capacity, slots: GPUs and CPU slots by node id, of nodes that are alive."""

    def __init__(self, capacity: Mapping[str, int] | None = None, slots: Mapping[str, int] | None = None) -> None:
        self.capacity = dict(capacity or {})
        self.slots = dict(slots or {})
        self.entries: dict[str, Entry] = {}

    def entry(self, job: str) -> Entry:
        """The entry of a job; a new one holds nothing."""
        return self.entries.setdefault(job, Entry())

    def plan(self, targets: Mapping[str, Plan], next_generation: Callable[[], int]) -> list[Command]:
        """Take over new plans of some jobs; the others' stand. Returns the commands this will take.

        next_generation: gives numbers, each larger than all before. Raises ClusterError, and changes nothing, if the
        whole plan does not fit the nodes that are alive.
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
        """Commands that may go out now, those that give GPUs up first; each counts as sent once it is handed over."""
        yield from self._due(giving=True)
        yield from self._due(giving=False)

    def _due(self, giving: bool) -> Iterator[Command]:
        for entry in self.entries.values():
            if len(entry.steps) > 1 and self.fits(entry.steps[-1]):
                del entry.steps[:-1]  # there is room for old and new side by side: no need to stop in between
            while entry.steps:
                step = entry.steps[0]
                gives = claim_of(step.plan) <= claim_of(entry.commanded)
                if gives != giving or not (gives or self.fits(step)):
                    break
                entry.sent.append(entry.steps.pop(0))
                yield step

    def fits(self, command: Command) -> bool:
        """True if no node is claimed beyond its GPUs and CPU slots once the command is sent."""
        wanted = claim_of(command.plan)
        claims = wanted | self.entry(command.job).claim
        for job, entry in self.entries.items():
            if job != command.job:
                claims.update(entry.claim)
        return all(claims[what, node] <= self._room(what, node) for what, node in wanted)

    def _room(self, what: str, node: str) -> int:
        return (self.capacity if what == GPUS else self.slots).get(node, 0)

    def reported(self, report: JobReport) -> bool:
        """Take in what a controller says; False if something newer has been heard of it already."""
        entry = self.entry(report.job)
        if report.number < entry.heard.number:
            return False
        entry.heard = report
        # The newest command stays in any case: a controller that was restarted may not know it, and gets it again.
        older = [command for command in entry.sent[:-1] if command.generation >= report.generation]
        entry.sent = older + entry.sent[-1:]
        return True

    def unconfirmed(self, job: str) -> Command | None:
        """The newest command if the controller has not confirmed it."""
        entry = self.entry(job)
        return entry.sent[-1] if entry.sent and entry.heard.generation < entry.sent[-1].generation else None

    def rolled_back(self, job: str) -> bool:
        """True if the controller has given up the growth that its newest command asks for."""
        entry = self.entry(job)
        return bool(entry.sent) and entry.sent[-1].generation == entry.heard.rolled_back

    def settled(self, job: str) -> bool:
        """True if the plan for a job is wholly in force."""
        entry = self.entry(job)
        return not entry.steps and (not entry.sent or entry.heard.applied >= entry.sent[-1].generation)

    def adopt(self, job: str, commands: Sequence[Command], unsent: Collection[int]) -> None:
        """Take up a job after a restart of the scheduler, whose controller has gone on meanwhile.

        commands: from the newest one known to be in force on. unsent: generations of commands that were never sent.
        What was sent may have been obeyed, so it is claimed until the controller says otherwise. What was planned and
        not sent goes out once there is room, unless a later command has been sent in its place.
        """
        sent = [command for command in commands if command.generation not in unsent]
        newest = sent[-1].generation if sent else 0
        self.entries[job] = Entry(
            planned=commands[-1].plan if commands else Plan(),
            steps=[command for command in commands if command.generation > newest],
            sent=sent,
        )

    def released(self, job: str) -> None:
        """The job's controller is gone, and with it its workers: nothing of it is left."""
        self.entries.pop(job, None)

    def add_node(self, node: str, gpus: int, slots: int = 0) -> None:
        """A node has come up, with these numbers of GPUs and CPU slots."""
        self.capacity[node], self.slots[node] = gpus, slots

    def remove_nodes(self, nodes: Collection[str]) -> dict[str, Plan]:
        """Nodes are gone. Returns what is left of the plans that had workers or servers there, still to be planned."""
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
        """The job needs nothing any more; what its controller holds it still claims, until it is `released`."""
        entry = self.entry(job)
        entry.planned, entry.steps, entry.sent = Plan(), [], []


def _steps(present: Plan, wanted: Plan) -> list[Plan]:
    """The way from one plan to another: what stays, if anything is given up; then all, if anything is added.

    Nodes that stay keep their order, so that ranks do. Where nodes stay as they are, another batch size is one step.
    Where no server stays where it is, all move in the last step: a job that trains has one at least.
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
    """Nodes of `present` that stay, and those of `wanted` that are added to them."""
    free = Counter(wanted)
    stays = [node for node in present if _take(free, node)]
    return stays, [node for node in wanted if _take(free, node)]


def _take(left: Counter[str], node: str) -> bool:
    """Take one of `left` if there is one."""
    if left[node] <= 0:
        return False
    left[node] -= 1
    return True


class CommandLog:
    """Sends controllers the commands that were planned, in time and in order. claims: who may use which GPU. specs:
    what each job's controller needs, by job."""

    def __init__(
        self, backend: Backend, database: SessionDatabase, specs: Mapping[str, JobSpec], claims: GpuClaims
    ) -> None:
        self.claims = claims
        self._backend = backend
        self._database = database
        self._specs = specs
        self._there: set[str] = set()
        self._ever: set[str] = set()
        self._sent_at: dict[str, float] = {}
        self._over: list[str] = []

    def plan(self, targets: Mapping[str, Plan], time: float) -> None:
        """Enter plans of jobs in the GPU claims and, before any command is sent, in the database."""
        self._database.plan(targets, self.claims.plan(targets, self._database.next_generation), time)

    def send_due(self, time: float) -> None:
        """Send the commands that may be sent now, and those again that seem not to have arrived."""
        while self._over:  # only now is it in the database that these jobs are over
            self._backend.end(self._over.pop())
        for command in list(self.claims.due()):
            # In the database first: what may have been sent counts as sent.
            self._database.commanded(command.generation, time)
            self._send(command, time)
        # Thousands may wait, and need no command.
        involved = [(job, entry) for job, entry in self.claims.entries.items() if entry.planned.nodes or entry.sent]
        for job, entry in involved:
            if entry.planned.nodes:
                self._start(job)  # while others make room for its workers
            again = self.claims.unconfirmed(job)
            if again is not None and time >= self._sent_at.get(job, -np.inf) + COMMAND_REPEAT_INTERVAL_S:
                self._send(again, time)

    def _send(self, command: Command, time: float) -> None:
        self._start(command.job)
        self._sent_at[command.job] = time
        self._backend.command(command)

    def _start(self, job: str) -> None:
        """See to it that a job has a controller."""
        if job not in self._there:
            self._there.add(job)
            self._database.set_job(job, launched=1)
            self._backend.start(self._specs[job], resume=job in self._ever)
            self._ever.add(job)

    def end(self, job: str) -> None:
        """The job needs no controller any more."""
        self.claims.ended(job)
        self._over.append(job)

    def gone(self, job: str) -> Plan:
        """A job's controller is gone, and with it its workers. Returns the plan of the job."""
        planned = self.claims.entry(job).planned
        self.claims.released(job)
        self._database.forget_commands(job)
        self._there.discard(job)
        return planned

    def has_controller(self, job: str) -> bool:
        """True while the job has a controller, or may have one."""
        return job in self._there

    def forget(self, jobs: Collection[str]) -> None:
        """These jobs have ended, and their controllers are gone."""
        for job in jobs:
            self.claims.released(job)
            self._sent_at.pop(job, None)
            self._ever.discard(job)

    def reopen(self, rows: Sequence[SessionJob], controllers: Collection[str]) -> list[str]:
        """Take over what the database says, and the controllers that were found; those that are not needed are ended.
        Returns jobs that had a controller which is gone; they go on from their checkpoints."""
        active = [row.id for row in rows if row.state in ACTIVE]
        self._ever = {row.id for row in rows if row.launched}
        self._there = {job for job in active if job in controllers}
        commands, unsent = self._database.newest_commands(), self._database.unsent()
        for job in active:
            if job in self._there:
                self.claims.adopt(job, commands.get(job, ()), unsent)
        for job in controllers:
            if job not in self._there:
                self._backend.end(job)
        lost = [job for job in active if job in self._ever - self._there]
        for job in lost:
            self._database.forget_commands(job)
        return lost

    def first_reports(self, clock: Clock) -> list[JobReport]:
        """Reports of every controller that there is after a restart, as far as they answer in time."""
        heard, by = list[JobReport](), clock.now() + ATTACH_TIMEOUT_S
        while self._there - {report.job for report in heard} and clock.now() < by:
            heard += self._backend.reports(0.05)
        return heard
