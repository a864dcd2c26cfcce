"""A cluster in real time, as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState, JobSource, Node, Placement, Progress
from rlpto.core.external_load import BackgroundLoad
from rlpto.core.gpu_kinds import NO_KIND, kinds_of
from rlpto.core.job_store import JobStore
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import EstimateNoise, Job
from rlpto.core.records import AllocationChanges
from rlpto.core.server_slots import check_servers_fit
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ClusterError, JobError, RlptoError
from rlpto.knowledge.known import RemainingKnowledge, believed_remaining
from rlpto.performance.tables import NO_TYPE, SpeedTables
from rlpto.ray_cluster.messages import JobReport, JobSpec, Nodes, Plan
from rlpto.ray_cluster.scheduler.backend import Backend, NodeInfo
from rlpto.ray_cluster.scheduler.clock import Clock, SessionTiming
from rlpto.ray_cluster.scheduler.command_log import CommandLog
from rlpto.ray_cluster.scheduler.job_columns import JobColumns
from rlpto.ray_cluster.scheduler.node_inventory import NodeInventory, usable_nodes
from rlpto.ray_cluster.scheduler.online_estimates import OnlineEstimates
from rlpto.ray_cluster.scheduler.placement import allocated_plans, known_placement, remaining_plans
from rlpto.ray_cluster.scheduler.run_tables import allocation_changes, last_line, note_events
from rlpto.ray_cluster.scheduler.session_database import Decision, SessionDatabase
from rlpto.ray_cluster.scheduler.session_folder import refuse_lost_database
from rlpto.ray_cluster.scheduler.workload import check_jobs_fit
from rlpto.store.jobs import EXPECTED

WRITE_INTERVAL_S = 1.0
"""How often what controllers say is written to the database, and observers are told, if nothing happens in between."""


@dataclass(frozen=True)
class PolicyKnowledge:
    """What policies know of jobs. noise: errors of speeds, or None. estimates: learned from what jobs report, in place
    of the tables; None: the tables. remaining: work that is left, see `rlpto.knowledge.known`."""

    noise: EstimateNoise | None = None
    estimates: OnlineEstimates | None = None
    remaining: RemainingKnowledge = "declared"


class RayCluster:
    """Runs `jobs` on the nodes that `backend` finds; the same `Cluster` as the simulator's, in wall-clock time.

    jobs: sorted by submit time [s since the session's start]. specs: what the controller of each job needs, in the same
    order. tables: what policies are told about speed. database: what the session has come to so far; if it is not
    empty, the session goes on: its controllers are taken over, and jobs whose controller is gone go on from their
    checkpoints. knowledge: what policies know.
    source: where further jobs come from while the session lasts, with `specs_of` to say what the controllers of some
    jobs need, given the number of the first of them.
    background: what other processes hold of the nodes, from the session's start; nobody is there to hold it really.
    observers: called about once a second, and after every event and decision.

    ids: of the jobs in this session, in their order; `reports`, the newest of each, are by id.
    held_gpus: those that the decision in force gives to jobs; some may still be on their way. active_jobs: submitted,
    and neither finished nor failed.

    Placement: whoever keeps GPUs keeps them where they are; others span few nodes. A job that is given fewer GPUs gives
    them up before another is told to take them (`rlpto.ray_cluster.scheduler.gpu_claims`).

    Raises ClusterError if no node has GPUs, JobError for a job that wants more than all nodes have together; later
    ClusterError if all nodes are gone for too long, JobError once all jobs have failed.
    """

    serves = False
    """Whether further jobs are awaited whatever fails, as `rlpto.ray_cluster.scheduler.serving` does."""

    def __init__(
        self,
        backend: Backend,
        jobs: Sequence[Job],
        specs: Sequence[JobSpec],
        tables: SpeedTables,
        database: SessionDatabase,
        rules: SessionTiming,
        observers: Iterable[Callable[[RayCluster], None]] = (),
        clock: Callable[[float | None, float], Clock] = Clock,
        knowledge: PolicyKnowledge = PolicyKnowledge(),
        source: JobSource | None = None,
        specs_of: Callable[[Sequence[Job], int], Sequence[JobSpec]] | None = None,
        background: Sequence[BackgroundLoad] = (),
    ) -> None:
        self.tables = tables
        found = usable_nodes(backend.nodes(), tables.kinds)
        whole = ClusterShape(Node(node.gpus, node.cpus, node.gpu) for node in found)
        check_jobs_fit(() if self.serves else jobs, whole.most_gpus)
        self.jobs = tuple(jobs)
        self._backend = backend
        self.database = database
        self.columns = JobColumns(jobs, tables)
        self.store = self.columns.store
        check_servers_fit(jobs, self.store, tables, whole)
        self.reports: dict[str, JobReport] = {}
        self.ids = tuple(spec.id for spec in specs)
        self._specs = {spec.id: spec for spec in specs}
        self._number = {job: number for number, job in enumerate(self.ids)}
        began, left = database.number("began"), database.number("beat") or 0.0
        self._nodes = NodeInventory(background, database, found, left)
        self._commands = CommandLog(backend, database, self._specs, self._nodes.claims)
        self._rules = rules
        self._noise, self.estimates = knowledge.noise, knowledge.estimates
        left_work = partial(believed_remaining, knowledge.remaining, self.store, tables.own)
        self._left = None if knowledge.remaining == "declared" else left_work
        if self.estimates is not None:
            self._tell_anew(self.estimates)
        self._observers = tuple(observers)
        self._source, self._specs_of = source, specs_of
        self._losses: dict[str, tuple[float, int]] = {}
        self._last_look = 0.0
        self._policy = ("", 0.0)
        self._written = -np.inf
        self._fatal: RlptoError | None = None
        self.changed = True
        self.held_gpus = self.active_jobs = 0
        controllers = backend.find()
        if not database.begun:
            refuse_lost_database(database.path, specs, controllers)
        submitted = [(spec, job.submit_time) for job, spec in zip(jobs, specs, strict=True)]
        database.enter_jobs(submitted, growing=source is not None)
        # While nobody trained no time passed: without controllers the session goes on from where it was left.
        self._clock = clock(began, left) if began is not None and controllers else clock(None, left)
        database.begin(self._clock.began)
        self.time = self._gpus_seen = left
        for info in found:
            self._nodes.add(info, self.time)
        self._reopen(sorted(controllers))

    # what the scheduler sees

    @property
    def shape(self) -> ClusterShape:
        """The nodes as they are now; what was up at some time and is missing is down."""
        return self._nodes.shape

    @property
    def up_gpus(self) -> int:
        """GPUs of nodes that are up."""
        return self._nodes.shape.up_gpus

    @property
    def done(self) -> bool:
        """True once every job has finished or failed, or the time limit is reached."""
        closed = self._source is None or self._source.closed
        over = closed and self._next == len(self.jobs) and not self.columns.active.any()
        return over or self.time >= self._rules.limit

    @property
    def rescale_delay(self) -> FloatArray:
        """[M] seconds without progress that a change of each job's GPUs is expected to cost."""
        delay: FloatArray = self.tables.rescale_delay[self.store.type_index]
        return delay

    def state(self) -> ClusterState:
        """The table of active jobs as it stands now, in order of submission."""
        active = np.flatnonzero(self.columns.active)
        table, interval = self.table_of(active), self._rules.interval
        return ClusterState(self.time, table, self.shape, interval, placement=self.placement)

    def table_of(self, index: IntArray) -> JobTable:
        """The table of any jobs of the workload, finished ones too; accuracies are measured where there are any."""
        told = self.tables if self.estimates is None else self.estimates.tables
        gpus_per_node, classes = self.shape.gpus_per_node, self.store.priority[index]
        return JobTable(self.store, told, index, classes, gpus_per_node, self._noise, self._left)

    def placement(self, index: IntArray) -> Placement:
        """Where the plan in force puts active jobs, and what of it trains."""
        ids = [self.ids[number] for number in index.tolist()]
        trains = [self.reports[job].training_on if job in self.reports else () for job in ids]
        left = self.columns.left_of_rescale(index, self.time)
        return known_placement(self._commands.claims.capacity, list(map(self.nodes_of, ids)), trains, left)

    def changes(self) -> AllocationChanges:
        """Every change of the GPUs that a job's controller has reported to hold, restarts of the scheduler included."""
        return allocation_changes(self.database, self._number)

    @property
    def hosts(self) -> Mapping[str, str]:
        """Names of the machines of nodes that are up, or were."""
        return self._nodes.hosts

    def nodes_of(self, job: str) -> Nodes:
        """Ray's node id of each GPU that the plan gives to the job with this id."""
        return self._commands.claims.entry(job).planned.nodes

    # what the scheduler does

    def deciding(self, policy: str, latency: float) -> None:
        """Name of the policy whose allocation comes next, and the seconds it took, for the database."""
        self._policy = (policy, latency)

    def apply(self, state: ClusterState, allocation: Allocation) -> None:
        """Carry out an allocation that `rlpto.core.queues.Queue.admit` has let through for the present state.

        It is in the database before any controller is told. Those who give GPUs up are told now, those who take them
        as soon as there is room.
        """
        claims = self._commands.claims
        ids = [self.ids[number] for number in state.jobs.index.tolist()]
        present = {job: claims.entry(job).planned for job in ids}
        after = dict(zip(ids, allocation.gpus.tolist(), strict=True))
        chosen = np.zeros_like(allocation.gpus) if allocation.batch_size is None else allocation.batch_size
        with self.database.transaction():
            plans = allocated_plans(claims, present, allocation)
            self._give({job: plan for job, plan in plans.items() if plan != present[job]})
            types = state.jobs.types_at(chosen, allocation.servers)
            if allocation.placement is not None:
                kind = kinds_of(allocation.placement, self.shape)
                types = state.jobs.types_on(types, kind, self.shape.kinds)
            self._take_types(state.jobs.index, types)
            self._count()
            policy, latency = self._policy
            # Of a service thousands of jobs may wait for months: only who has GPUs is noted.
            noted = [job for job in ids if after[job] or present[job].nodes] if self.serves else ids
            self.database.decision(
                Decision(
                    time=self.time,
                    policy=policy,
                    latency=latency,
                    capacity=self.up_gpus,
                    held=self.held_gpus,
                    active=self.active_jobs,
                    waiting=sum(gpus == 0 for gpus in after.values()),
                    observation={job: len(present[job].nodes) for job in noted},
                    action={job: after[job] for job in noted},
                    batch_sizes={job: plan.batch_size for job, plan in plans.items() if plan.batch_size},
                )
            )
        self._commands.send_due(self.time)
        self._tell()

    def advance(self) -> Progress:
        """Wait until the next decision is due: at the end of the interval, or when something happens."""
        rules, start = self._rules, self.time
        due = rules.due(self.time)
        on_events = rules.decide_on == "events"
        self.changed = False
        while not self.done and self.time < due and not (self.changed and on_events):
            now = self._clock.now()
            ahead = [due - now, rules.poll, rules.limit - now]
            if on_events and self._next < len(self.jobs):
                ahead.append(self.jobs[self._next].submit_time - now)
            self._look(self._backend.reports(max(min(ahead), 0.0)), until=np.inf if on_events else due)
        progress = self.columns.take(start, self.time)
        self.database.followed(progress)
        return progress

    def close(self, keep: bool = False) -> None:
        """Leave the session. keep: its controllers go on training; otherwise they write a checkpoint and end."""
        try:
            with self.database.transaction():
                self._write_all()
                self.database.event(self.time, "scheduler_left", detail="its controllers go on" if keep else "")
        finally:
            if not keep:
                self._backend.end_all()

    # looking at the cluster

    def _look(self, heard: Iterable[JobReport], until: float) -> None:
        """Take in everything that has happened since the last look.

        until: new jobs join only once it is that late; infinity: whenever they are submitted.
        """
        alive, heard = usable_nodes(self._backend.nodes(), self.tables.kinds), list(heard)
        gone = self._backend.gone()
        now = max(self._clock.now(), self.time)
        self.columns.pass_time(now - self.time)
        self._last_look, self.time = self.time, now
        with self.database.transaction():  # others wait meanwhile: Ray has been asked before
            for seconds in self.database.take_waits():
                self.database.event(now, "disk_full", value=seconds)
            self._look_at_nodes(alive)
            for report in heard:
                self._hear(report)
            for job, reason in gone.items():
                self._controller_gone(job, reason)
            self._take_in()
            if now >= until or until == np.inf:
                self._let_in()
            self._count()
            if self.changed or now >= self._written + WRITE_INTERVAL_S:
                self._write_all()
        self._commands.send_due(now)
        if self.estimates is not None and self.estimates.learn():
            self._tell_anew(self.estimates)
        if self._written == now:
            self._tell()
        if self._fatal is not None:
            raise self._fatal

    def _look_at_nodes(self, alive: Sequence[NodeInfo]) -> None:
        if dead := self._nodes.missing(alive):
            self._nodes_down(dead)
        if self._nodes.take_in(alive, self.time):
            self.changed = True
        if self.up_gpus:
            self._gpus_seen = self.time
        elif self.active_jobs and self.time - self._gpus_seen > self._rules.without_gpus and not self.serves:
            self._fatal = ClusterError(
                f"no node with GPUs has been alive for {self._rules.without_gpus:.0f} s while {self.active_jobs} jobs "
                "wait: expected one to come back"
            )

    def _nodes_down(self, nodes: Sequence[str]) -> None:
        """Nodes are gone: their jobs go on with what is left, or wait if that is less than they need."""
        left = self._nodes.remove(nodes, self.time)
        after = remaining_plans(self._commands.claims, left, lambda job: int(self.store.min_gpus[self._number[job]]))
        self._give(after)
        self._take_planned_types(after)
        self.changed = True

    def _take_in(self) -> None:
        """Jobs that have become known."""
        jobs = [] if self._source is None else self._source.poll()
        if jobs and self._specs_of is not None:
            self._append(jobs, self._specs_of(jobs, len(self.jobs)))

    def _append(self, jobs: Sequence[Job], specs: Sequence[JobSpec]) -> None:
        """Take in further jobs, with what their controllers need."""
        check_jobs_fit(() if self.serves else jobs, self.shape.most_gpus)
        check_servers_fit(jobs, JobStore.from_jobs(jobs, self.tables), self.tables, self.shape)
        self.columns.append(jobs)
        self._specs.update((spec.id, spec) for spec in specs)
        self._number_anew((*self.jobs, *jobs), (*self.ids, *(spec.id for spec in specs)))
        self.database.add_jobs([(spec, job.submit_time) for job, spec in zip(jobs, specs, strict=True)])

    def _number_anew(self, jobs: tuple[Job, ...], ids: tuple[str, ...]) -> None:
        self.jobs, self.ids = jobs, ids
        self._number = {job: number for number, job in enumerate(ids)}

    def _let_in(self) -> None:
        """Jobs that have been submitted by now."""
        while self._next < len(self.jobs) and self.jobs[self._next].submit_time <= self.time:
            job = self.ids[self._next]
            self.columns.arrive(self._next)
            self.database.let_in(job, self.time)
            self._next += 1
            self.changed = True

    def _hear(self, report: JobReport) -> None:
        """Take in what a controller says of its job."""
        job, number = report.job, self._number.get(report.job)
        before, claims = self.reports.get(job), self._commands.claims
        if number is None:  # it ended long ago
            return
        if not claims.reported(report):
            return
        at = self._said_at(report)
        if not self.columns.active[number]:  # it has ended, and lets go
            self._hold(number, report.holding)
            return
        self.reports[job] = report
        self.columns.heard(number, report, self.time, settled=claims.settled(job))
        if self.estimates is not None:
            self.estimates.heard(number, report)
        if not report.ended:
            self._hold(number, report.holding)
            if report.training_on:
                self.database.trains(job, self.time)
        if before is None or report.applied > before.applied:
            self.database.applied(job, report.applied, at)
        note_events(self.database, at, before or JobReport(job), report)
        if report.ended:  # before it lets go: it does not wait for GPUs again
            self._end(number, report)
            self._hold(number, report.holding)
        elif claims.rolled_back(job, report.rolled_back):
            self._roll_back(job, report)

    def _said_at(self, report: JobReport) -> float:
        """When a report was made: after the last look, whatever the clock of its machine says, which may jump."""
        return min(max(self._clock.of(report.time), self._last_look), self.time)

    def _roll_back(self, job: str, report: JobReport) -> None:
        """A job's growth did not come up: its plan is what trains, so that others may have the rest."""
        before = self._commands.claims.entry(job).planned
        after = replace(before, nodes=report.training_on, servers=report.serving_on if before.servers else ())
        self._commands.plan({job: after}, self.time)
        self.columns.give_again(self._number[job], len(after.nodes))
        self._take_planned_types({job: after})
        self.database.event(self.time, "rolled_back", job, detail=last_line(report.failure))
        self.changed = True

    def _end(self, number: int, report: JobReport) -> None:
        """A job has finished, or will never."""
        job = self.ids[number]
        at = max(self._said_at(report), self.jobs[number].submit_time)
        if report.state == "finished":
            self.columns.finish(number, at, report.progress if report.note else None)
            self.database.set_job(job, finish_time=at)
        else:
            self.columns.fail(number)
        self._write(number, report)
        self.database.end(job, at, report.state, report.failure if report.state == "failed" else report.note)
        self._commands.end(job)
        self.changed = True
        if self.columns.failed.all() and not self.serves:
            # Raised once this look is in the database.
            reason = last_line(report.failure)
            self._fatal = JobError(f"all {len(self.jobs)} jobs have failed, the last one of: {reason}")

    def _controller_gone(self, job: str, reason: str) -> None:
        """A controller does not exist any more, and with it its workers: as it was told, or by a fault."""
        planned = self._commands.gone(job)
        number = self._number.get(job)
        if number is None:
            return
        self._hold(number, ())
        if not self.columns.active[number]:
            return
        progress, losses = self._losses.get(job, (-1.0, 0))
        known = float(self.store.progress[number])
        losses = 1 if known > progress else losses + 1
        self._losses[job] = (known, losses)
        self.reports.pop(job, None)
        self.database.event(self.time, "controller_lost", job, value=losses, detail=reason)
        if losses > self._specs[job].retries:
            self._end(
                number,
                JobReport(job, state="failed", failure=f"its controller was lost {losses} times in a row: {reason}"),
            )
        else:
            self._commands.plan({job: planned}, self.time)

    # what follows

    def _count(self) -> None:
        """GPUs and jobs as they stand now."""
        self.held_gpus = int(self.store.gpus.sum())
        self.active_jobs = int(np.count_nonzero(self.columns.active))

    def _give(self, targets: dict[str, Plan]) -> None:
        """Plan how jobs are to train from now on, and count other workers as a change of what they have."""
        present = {job: self._commands.claims.entry(job).planned for job in targets}
        moved = {
            job: plan.nodes
            for job, plan in targets.items()
            if (plan.nodes, plan.servers) != (present[job].nodes, present[job].servers)
        }
        self._commands.plan(targets, self.time)
        for job, nodes in moved.items():
            number = self._number[job]
            if self.columns.give(number, len(nodes), self.time):
                self.database.set_job(job, rescales=int(self.store.rescales[number]))

    def _tell_anew(self, estimates: OnlineEstimates) -> None:
        """Policies are told what is believed of each job now: jobs are of other types, by number."""
        self.store.believed_type[:] = estimates.type_of
        self.columns.delay = estimates.tables.rescale_delay[estimates.type_of]
        entries = self._commands.claims.entries
        self._take_planned_types({job: entries[job].planned for job in self.ids if job in entries})

    def _take_types(self, index: IntArray, types: IntArray) -> None:
        """What jobs number `index` [n] are told to be from now on: of types [n], by their batch sizes."""
        self.store.believed_type[index] = types
        if self.estimates is None:
            self.store.type_index[index] = types

    def _hold(self, number: int, holding: Nodes) -> None:
        """Note what a job's controller says it holds, if that is news."""
        if not self.columns.hold(number, len(holding), self.time):
            return
        job = self.ids[number]
        self.database.change(self.time, job, len(holding), self.columns.accuracy_of(number), holding)
        started = float(self.store.start_time[number])
        self.database.set_job(job, start_time=None if np.isnan(started) else started)

    def _write_all(self) -> None:
        """Bring the database up to date."""
        for number in np.flatnonzero(self.columns.active).tolist():
            report = self.reports.get(self.ids[number])
            if report is not None:
                self._write(number, report)
        self.database.set_fact("beat", repr(self.time))
        self._written = self.time

    def _write(self, number: int, report: JobReport) -> None:
        served = float(self.store.attained_service[number])
        reached = [None if np.isnan(at) else float(at) for at in self.store.reached[number]]
        self.database.note_report(report, served, int(self.store.peak_gpus[number]), reached)

    def _tell(self) -> None:
        for observer in self._observers:
            observer(self)

    def _reopen(self, controllers: Sequence[str]) -> None:
        """Take over what the database and the controllers say, and look at the cluster for the first time."""
        rows, held = self.database.jobs(), self.database.held()
        for number, row in enumerate(rows):
            self.columns.restore(number, row, held.get(row.id, 0))
        self._next = sum(row.state not in EXPECTED for row in rows)
        left, at = self.time, self._clock.now()
        for job in self._commands.reopen(controllers):
            self._hold(self._number[job], ())
            self.database.event(left, "controller_lost", job)
        for job in held.keys() - set(controllers):  # of jobs that are over: they let go while no scheduler was there
            self._hold(self._number[job], ())
        planned = {job: entry.planned for job, entry in self._commands.claims.entries.items()}
        for job, plan in planned.items():
            self.columns.give_again(self._number[job], len(plan.nodes))
        self._take_planned_types(planned)
        gone = {node for plan in planned.values() for node in plan.nodes} - self._commands.claims.capacity.keys()
        if gone:
            self._nodes_down(sorted(gone))
        heard = self._commands.first_reports(self._clock)
        self._look(heard, until=np.inf if self._rules.decide_on == "events" else self._rules.due(self.time))
        if any(row.state not in EXPECTED for row in rows):
            passed = self._clock.now() - at
            self.database.event(self.time, "scheduler_returned", value=passed, detail=f"left at {left:.3f}")

    def _take_planned_types(self, planned: Mapping[str, Plan]) -> None:
        """What jobs are by the batch sizes of their plans, as far as there are such sizes still."""
        index = np.array([self._number[job] for job in planned], dtype=np.int64)
        sizes = np.array([plan.batch_size or 0 for plan in planned.values()], dtype=np.int64)
        servers = np.array([len(plan.servers) for plan in planned.values()], dtype=np.int64)
        jobs = self.table_of(index)
        types = jobs.types_at(sizes, servers)
        types = np.where(types == NO_TYPE, jobs.type_index, types)
        on = [self._nodes.kind_of(plan.nodes[0]) if plan.nodes else None for plan in planned.values()]
        kind = np.array([NO_KIND if gpu is None else self.tables.kinds.index(gpu) for gpu in on], dtype=np.int64)
        self._take_types(index, jobs.types_on(types, kind, self.tables.kinds))
