"""A cluster in real time, as the scheduler sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState, Node, Placement, check_servers_fit
from rlpto.core.gpu_kinds import kinds_of
from rlpto.core.jobs import Job
from rlpto.core.records import AllocationChanges
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.errors import ClusterError, JobError
from rlpto.performance.tables import SpeedTables
from rlpto.ray_cluster.messages import JobReport, JobSpec, last_report
from rlpto.ray_cluster.scheduler.backend import Backend, NodeInfo
from rlpto.ray_cluster.scheduler.job_columns import ROUNDING
from rlpto.ray_cluster.scheduler.job_tracker import JobTracker, PolicyKnowledge
from rlpto.ray_cluster.scheduler.placement import (
    GpuRequests,
    NodeInventory,
    allocated_plans,
    known_placement,
    usable_nodes,
)
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_folder import refuse_lost_database
from rlpto.ray_cluster.scheduler.session_rules import OrderSource, Reclass, SessionRules, Withdraw
from rlpto.store.jobs import EXPECTED

POLL_S = 0.1
"""Longest time between two looks at the cluster [s]."""
WRITE_INTERVAL_S = 1.0
"""Longest interval between database writes of controllers' reports, and between calls of observers."""


class RayCluster(JobTracker):
    """Runs `jobs` on the nodes that `backend` finds. Implements the simulator's `Cluster` interface in wall-clock time.

    jobs, specs: sorted by submit time [s of the session]. database: if it is not empty, the session continues: running
    controllers are taken over, and jobs without a controller resume from their checkpoints. source: source of later
    jobs and orders; with a source, no failure of jobs or nodes ends the session. observers: called about once a second,
    and after every event and decision. reported: called with each written report, in the same transaction, and whether
    it is its job's last. possible: all possible nodes, if nodes are rented.

    wake_at: latest return of `advance` [s]. wants: returns the GPUs to request from Ray's autoscaler. Default: as many
    as jobs hold or ask for.

    A job keeps its GPUs where they are; added GPUs span few nodes. A shrinking job releases GPUs before another job
    gets them (`rlpto.ray_cluster.scheduler.gpu_claims`). Some of `held_gpus`, the GPUs given by the decision in force,
    may therefore not have arrived yet.

    Raises ClusterError if no node has GPUs, JobError for a job that wants more than all nodes have together; later
    ClusterError if all nodes are gone for too long, JobError once all jobs have failed.
    """

    def __init__(
        self,
        backend: Backend,
        jobs: Sequence[Job],
        specs: Sequence[JobSpec],
        tables: SpeedTables,
        database: SessionDatabase,
        rules: SessionRules,
        observers: Iterable[Callable[[RayCluster], None]] = (),
        knowledge: PolicyKnowledge | None = None,
        source: OrderSource | None = None,
        reported: Callable[[RayCluster, JobReport, bool], None] = lambda *_: None,
        possible: Sequence[Node] = (),
    ) -> None:
        self._source, scale = source, rules.ray.autoscale
        self._requests = None if scale is None else GpuRequests(scale, backend.request)
        found = usable_nodes(backend.nodes(), tables.kinds)
        nodes = NodeInventory(database, possible)
        self.wake_at, self._rents = np.inf, bool(possible)
        self.wants: Callable[[], float] | None = None
        whole = nodes.with_all(found)
        if whole.most_gpus == 0:
            raise ClusterError("no node of the Ray cluster has GPUs: expected at least one (`ray start --num-gpus`)")
        began, left = database.number("began"), database.number("beat") or 0.0
        super().__init__(jobs, specs, tables, database, nodes, backend, knowledge or PolicyKnowledge())
        if source is None:  # with a source such a job waits
            self._check_fit(whole, 0 if scale is None else scale.most_gpus)
        self._backend, self._rules, self.poll = backend, rules, POLL_S
        self._observers, self._reported = tuple(observers), reported
        self._policy = "", 0.0
        self._written = -np.inf
        self.held_gpus = self.active_jobs = 0
        controllers = backend.find()
        if not database.begun:
            refuse_lost_database(database.path, specs, controllers)
        submitted = [(spec, job.submit_time) for job, spec in zip(jobs, specs, strict=True)]
        database.enter_jobs(submitted, growing=source is not None)
        # Without controllers no job trained, so the session continues from the time it was left.
        self._clock = rules.clock(began if controllers else None, left)
        database.begin(self._clock.began)
        self.time = self._gpus_seen = left
        self._nodes.take_in(found, self.time)
        self._reopen(sorted(controllers))

    def _check_fit(self, shape: ClusterShape, on_demand: int) -> None:
        """Raise JobError for a job that needs more than the cluster can ever give. on_demand: most GPUs of nodes on
        demand."""
        most = max(shape.most_gpus, on_demand)
        for job in self.jobs:
            if job.requested_gpus > most:
                raise JobError(f"job {job.name} wants {job.requested_gpus} GPUs, but the Ray cluster has {most} in all")
        check_servers_fit(self.jobs, self.store, self.tables, shape)

    # what the scheduler sees

    @property
    def shape(self) -> ClusterShape:
        """The present nodes; capacity that was up before and is now missing counts as down."""
        return self._nodes.shape

    @property
    def up_gpus(self) -> int:
        """GPUs of nodes that are up."""
        return self._nodes.shape.up_gpus

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Ray's ids of the nodes that are up, in the order of `shape`."""
        return tuple(self._commands.claims.capacity)

    @property
    def gpus_asked(self) -> int:
        """GPUs requested from Ray's autoscaler; 0 without one."""
        return 0 if self._requests is None else self._requests.asked

    @property
    def done(self) -> bool:
        """True once every job has finished or failed, or the time limit is reached."""
        closed = self._source is None or self._source.closed
        over = closed and self._next == len(self.jobs) and not self.columns.active.any()
        return over or self.time >= self._rules.limit

    @property
    def rescale_delay(self) -> FloatArray:
        """Expected time without progress when a job's GPUs change [M, s]."""
        delay: FloatArray = self.tables.rescale_delay[self.store.type_index]
        return delay

    def state(self) -> ClusterState:
        """The table of active jobs as it stands now, in order of submission."""
        active = np.flatnonzero(self.columns.active)
        table, interval = self.table_of(active), self._rules.interval

        def notices() -> FloatArray:
            return self._nodes.leaves_in(self.database.wall(self.time))

        return ClusterState(self.time, table, self.shape, interval, placement=self.placement, notices=notices)

    def placement(self, index: IntArray) -> Placement:
        """Places of active jobs by the plan in force, and the part that already trains."""
        ids = [self.ids[number] for number in index.tolist()]
        trains = [self.reports[job].training_on if job in self.reports else () for job in ids]
        left = self.columns.left_of_rescale(index, self.time)
        return known_placement(self._commands.claims.capacity, list(map(self.nodes_of, ids)), trains, left)

    def changes(self) -> AllocationChanges:
        """All changes of the GPUs that controllers have reported, including before restarts of the scheduler."""
        rows = self.database.rows("SELECT job, time, gpus, accuracy FROM changes ORDER BY time, id")
        job = np.array([self._number[row[0]] for row in rows], dtype=np.int64)
        time, gpus, accuracy = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 3).T
        return AllocationChanges(time=time, job=job, gpus=gpus.astype(np.int64), accuracy=accuracy)

    # what the scheduler does

    def deciding(self, policy: str, latency: float) -> None:
        """Set the policy name and latency [s] of the next allocation, for the database."""
        self._policy = (policy, latency)

    def apply(self, state: ClusterState, allocation: Allocation) -> None:
        """Carry out an allocation that `rlpto.core.queues.Queue.admit` has accepted for the present state.

        It is written to the database before any controller gets a command. Releasing commands are sent now, growing
        ones as soon as there is room.
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
            noted = [job for job in ids if after[job] or present[job].nodes]  # thousands may wait for months
            self.database.decision(
                self.time,
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
        self._commands.send_due(self.time)
        self._notify()

    def advance(self, until: float = -np.inf) -> AnyArray:  # noqa: ARG002
        """Wait until the next decision is due: at the end of the interval, or when something happens."""
        rules, start = self._rules, self.time
        due = rules.due(self.time)
        end, on_events = min(due, self.wake_at), rules.decide_on == "events"
        self.changed = False
        while not self.done and self.time < end and not (self.changed and on_events):
            now = self._clock.now()
            ahead = [end - now, self.poll, rules.limit - now]
            if on_events and self._next < len(self.jobs):
                ahead.append(self.jobs[self._next].submit_time - now)
            self._look(self._backend.reports(max(min(ahead), 0.0)), until=np.inf if on_events else due)
        if self._written < self.time:  # the elapsed interval belongs to this decision
            with self.database.transaction():
                self._write_all()
        return self.columns.take(start, self.time)

    def close(self, keep: bool = False) -> None:
        """Leave the session. keep: controllers continue training; otherwise they write a checkpoint and end. Raises
        ClusterError if jobs remain and the disk is full, because a stopping scheduler does not wait for room."""
        if not self.done:
            self.database.on_wait = None
        try:
            with self.database.transaction():
                self._write_all()
                self.database.event(self.time, "scheduler_left", detail="its controllers go on" if keep else "")
        finally:
            if not keep:
                self._backend.end_all()

    def take_tables(self, tables: SpeedTables) -> None:
        """Replace the speed tables by ones that include more models."""
        self.tables = tables
        self.columns.take_tables(tables, self.jobs)
        self._work.take_tables(tables)
        if self.estimates is None:
            self.store.believed_type[:] = self.store.type_index
        self._take_beliefs()

    def forget_ended(self, kept: Collection[str] = ()) -> tuple[str, ...]:
        """Forget ended jobs whose controllers are gone, and return their ids. Remaining jobs are renumbered. kept: ids
        of jobs to remember. A policy that stores job numbers must be reset."""
        there = np.array([self._commands.has_controller(job) or job in kept for job in self.ids], dtype=np.bool_)
        ended = ~self.columns.active & (self.columns.held == 0) & ~there & (np.arange(len(self.ids)) < self._next)
        lost, left = tuple(self.ids[number] for number in np.flatnonzero(ended).tolist()), np.flatnonzero(~ended)
        if not lost:
            return ()
        self.database.forget(lost)
        self._commands.forget(lost)
        for job in lost:
            self._specs.pop(job)
            self.reports.pop(job, None)
            self._losses.pop(job, None)
        self._next -= len(lost)
        self.columns.keep(left)
        self._renumber(tuple(self.jobs[i] for i in left.tolist()), tuple(self.ids[i] for i in left.tolist()))
        if self.estimates is not None:
            self.estimates.keep(left)
        self._take_beliefs()
        return lost

    # looking at the cluster

    def _look(self, heard: Iterable[JobReport], until: float) -> None:
        """Process everything since the last look. until: earliest time at which new jobs join; infinity lets them join
        when submitted."""
        alive, heard = usable_nodes(self._backend.nodes(), self.tables.kinds), list(heard)
        gone = self._backend.gone()
        now = max(self._clock.now(), self.time)
        self.columns.pass_time(now - self.time)
        self._last_look, self.time = self.time, now
        with self.database.transaction():  # other writers wait meanwhile, hence Ray was asked before
            for seconds in self.database.take_waits():
                self.database.event(now, "disk_full", value=seconds)
            self._look_at_nodes(alive)
            for report in heard:
                self._hear(report)
            for job, reason in gone.items():
                self._controller_gone(job, reason)
            self._take_in()
            if now >= until or until == np.inf:
                self._let_in_until(now)
            self._count()
            if self.changed or now >= self._written + WRITE_INTERVAL_S:
                self._written = now
                self._write_all()
        self._commands.send_due(now)
        fitted = self.estimates is not None and self.estimates.learn()
        if fitted or self._learned:
            self._take_beliefs()
        if self._written == now:
            self._notify()
        if self._fatal is not None and self._source is None:
            raise self._fatal

    def look_at_nodes(self) -> None:
        """Update the nodes after some were given back."""
        alive = usable_nodes(self._backend.nodes(), self.tables.kinds)
        with self.database.transaction():
            self._look_at_nodes(alive)
        self._commands.send_due(self.time)

    def _look_at_nodes(self, alive: Sequence[NodeInfo]) -> None:
        self._nodes.announced = self._backend.announced
        if dead := self._nodes.missing(alive):
            self._nodes_down(dead)
        if self._nodes.take_in(alive, self.time):
            self.changed = True
        if self.up_gpus or not self.active_jobs or self._rents:
            self._gpus_seen = self.time
        elif self.time - self._gpus_seen > self._rules.ray.without_gpus:
            self._fatal = ClusterError(
                f"no node with GPUs has been alive for {self._rules.ray.without_gpus:.0f} s while "
                f"{self.active_jobs} jobs wait: expected one to come back"
            )

    def _take_in(self) -> None:
        """Take in new jobs and orders from the source."""
        if self._source is None:
            return
        if found := self._source.poll():
            self._append([job for job, _ in found], [spec for _, spec in found])
        for order in self._source.orders():
            self.changed = True
            if isinstance(order, Withdraw):
                self._withdraw(order.job)
            elif isinstance(order, Reclass):
                self._reclass(order.job, order.priority)

    def _append(self, jobs: Sequence[Job], specs: Sequence[JobSpec]) -> None:
        """Append jobs with their controllers' specifications."""
        self.columns.append(jobs)
        self._specs.update((spec.id, spec) for spec in specs)
        self._renumber((*self.jobs, *jobs), (*self.ids, *(spec.id for spec in specs)))
        self.database.add_jobs([(spec, job.submit_time) for job, spec in zip(jobs, specs, strict=True)])
        if self.estimates is not None:
            self.estimates.append(jobs, specs, self.tables)
        self._take_beliefs()

    def _count(self) -> None:
        """Update the counts of held GPUs and active jobs."""
        self.held_gpus = int(self.store.gpus.sum())
        self.active_jobs = int(np.count_nonzero(self.columns.active))

    def _write(self, number: int, report: JobReport) -> None:
        super()._write(number, report)
        self._reported(self, report, not bool(self.columns.active[number]))

    def _notify(self) -> None:
        if self._requests is not None:
            wanted = np.maximum(self.store.gpus, self.store.records["requested_gpus"])
            gpus = wanted[self.columns.active].sum() if self.wants is None else math.ceil(self.wants() - ROUNDING)
            self._requests.want(int(gpus), self.time)
        for observer in self._observers:
            observer(self)

    def _reopen(self, controllers: Sequence[str]) -> None:
        """Restore the state from the database and the controllers, then look at the cluster for the first time."""
        rows = self.database.jobs()
        counted = self.time if self.database.rows("SELECT 1 FROM decisions LIMIT 1") else -np.inf
        for number, row in enumerate(rows):
            improvements = self.database.rows(
                "SELECT time, accuracy FROM improvements WHERE job = ? ORDER BY id", (row.id,)
            )
            self.columns.restore(number, row, improvements, counted)
        self._next = sum(row.state not in EXPECTED for row in rows)
        left, at = self.time, self._clock.now()
        ended = list[JobReport]()
        for job in self._commands.reopen(rows, controllers):
            if (last := last_report(self._specs[job])) is not None:
                ended.append(last)
                continue
            self._hold(self._number[job], ())
            self.database.event(left, "controller_lost", job)
        for row in rows:  # ended jobs that released GPUs while no scheduler was running
            if row.gpus_held and row.id not in controllers:
                self._hold(self._number[row.id], ())
        planned = {job: entry.planned for job, entry in self._commands.claims.entries.items()}
        for job, plan in planned.items():
            self.columns.give_again(self._number[job], len(plan.nodes))
        self._take_planned_types(planned)
        gone = {node for plan in planned.values() for node in plan.nodes} - self._commands.claims.capacity.keys()
        self._nodes.announced = self._backend.announced
        if gone:
            self._nodes_down(sorted(gone))
        self._nodes.note_lost(left)
        heard = [*ended, *self._commands.first_reports(self._clock)]
        self._look(heard, until=np.inf if self._rules.decide_on == "events" else self._rules.due(self.time))
        if counted == left:  # already counted in the previous scheduler's newest decision
            self.columns.take(left, self.time)
        if any(row.state not in EXPECTED for row in rows):
            passed = self._clock.now() - at
            self.database.event(self.time, "scheduler_returned", value=passed, detail=f"left at {left:.3f}")
