"""A cluster in real time, as the scheduler sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState, Node, Placement, check_servers_fit
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import Job
from rlpto.core.records import AllocationChanges
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.errors import ClusterError, JobError
from rlpto.performance.tables import SpeedTables
from rlpto.ray_cluster.messages import JobReport, JobSpec
from rlpto.ray_cluster.scheduler.backend import NodeInfo, RayBackend
from rlpto.ray_cluster.scheduler.gpu_claims import CommandSender
from rlpto.ray_cluster.scheduler.job_columns import ROUNDING
from rlpto.ray_cluster.scheduler.job_knowledge import PolicyKnowledge
from rlpto.ray_cluster.scheduler.job_tracker import JobTracker
from rlpto.ray_cluster.scheduler.placement import (
    GpuRequests,
    NodeInventory,
    allocated_plans,
    known_placement,
    shape_with,
    usable_nodes,
)
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_folder import refuse_lost_database
from rlpto.ray_cluster.scheduler.session_rules import SessionRules

POLL_S = 0.1
"""Longest time between two looks at the cluster [s]."""
WRITE_INTERVAL_S = 1.0
"""Longest interval between database writes of controllers' reports, and between calls of observers."""


class JobSource(Protocol):
    """Source of later jobs, and of orders about jobs. A session with an open source is never done, however idle it
    is."""

    @property
    def closed(self) -> bool:
        """True once no more jobs or orders will come."""

    def poll(self) -> list[tuple[Job, JobSpec]]:
        """Return new jobs since the last call, with their controllers' specifications. None was submitted before
        earlier ones."""

    def direct(self, tracker: JobTracker) -> None:
        """Carry out new orders on the jobs. An order about anything else sets `tracker.changed`: a decision is due."""


class RayCluster:
    """Runs `jobs` on the nodes that `backend` finds. Implements the simulator's `Cluster` interface in wall-clock time.

    jobs, specs: sorted by submit time [s of the session]. database: if it is not empty, the session continues: running
    controllers are taken over, and jobs without a controller resume from their checkpoints. source: source of later
    jobs and orders; with a source, no failure of jobs or nodes ends the session. observers: called about once a second,
    and after every event and decision. on_report: called with each written report, in the same transaction, and whether
    it is its controller's last. possible: all possible nodes, if nodes are rented.

    tracker: its jobs. wake_at: latest return of `advance` [s]. wanted_gpus: returns the GPUs to request from Ray's
    autoscaler. Default: as many as active jobs hold or ask for.

    A job keeps its GPUs where they are; added GPUs span few nodes. A shrinking job releases GPUs before another job
    gets them (`rlpto.ray_cluster.scheduler.gpu_claims`). Some of `held_gpus`, the GPUs given by the decision in force,
    may therefore not have arrived yet.

    Raises ClusterError if no node has GPUs, JobError for a job that wants more than all nodes have together; later
    ClusterError if all nodes are gone for too long, JobError once all jobs have failed.
    """

    def __init__(
        self,
        backend: RayBackend,
        jobs: Sequence[Job],
        specs: Sequence[JobSpec],
        tables: SpeedTables,
        database: SessionDatabase,
        rules: SessionRules,
        observers: Iterable[Callable[[RayCluster], None]] = (),
        knowledge: PolicyKnowledge | None = None,
        source: JobSource | None = None,
        on_report: Callable[[JobTracker, JobReport, bool], None] = lambda *_: None,
        possible: Sequence[Node] = (),
    ) -> None:
        self._source, scale = source, rules.ray.autoscale
        self._requests = None if scale is None else GpuRequests(scale, backend.request)
        found = usable_nodes(backend.nodes(), tables.gpu_types)
        nodes = NodeInventory(database, possible)
        nodes.join = backend.join if scale is None else ""
        self.wake_at, self._rents = np.inf, bool(possible)
        self.wanted_gpus: Callable[[], float] = self._gpus_of_jobs
        whole = shape_with(nodes.shape, [node.offered for node in found])
        if whole.most_gpus == 0:
            raise ClusterError("no node of the Ray cluster has GPUs: expected at least one (`ray start --num-gpus`)")
        began, left = database.number("began"), database.number("beat") or 0.0
        by_id = {spec.id: spec for spec in specs}
        self._commands = CommandSender(backend, database, by_id, nodes.claims)
        known = knowledge or PolicyKnowledge()
        self.tracker = JobTracker(jobs, by_id, tables, database, nodes, self._commands, known, on_report)
        self.database, self.columns, self.store = database, self.tracker.columns, self.tracker.store
        self._nodes = nodes
        if source is None:  # with a source such a job waits
            self._check_fit(whole, 0 if scale is None else scale.most_gpus)
        self._backend, self._rules, self.poll = backend, rules, POLL_S
        self._observers = tuple(observers)
        self._policy = "", 0.0
        self._written = -np.inf
        self.held_gpus = self.active_jobs = 0
        controllers = backend.find()
        if not database.begun:
            refuse_lost_database(database.path, specs, controllers)
        # Without controllers no job trained, so the session continues from the time it was left.
        self._clock = rules.clock(began if controllers else None, left)
        submitted = [(spec, job.submit_time) for job, spec in zip(jobs, specs, strict=True)]
        database.enter_jobs(submitted, self._clock.began, growing=source is not None)
        self._gpus_seen = left
        self._nodes.take_in(found, left)
        self._reopen(sorted(controllers), left)

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
    def time(self) -> float:
        """The present second of the session."""
        return self.tracker.time

    @property
    def changed(self) -> bool:
        """True if something has happened since the last decision."""
        return self.tracker.changed

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs, by number."""
        return self.tracker.jobs

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the jobs, by number."""
        return self.tracker.ids

    @property
    def tables(self) -> SpeedTables:
        """Speed tables of the jobs' profiles."""
        return self.columns.tables

    def table_of(self, index: IntArray) -> JobTable:
        """The table of any jobs of the workload, including finished ones. Measured accuracies are used if available."""
        return self.tracker.knowledge.table_of(index)

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
        return tuple(self._nodes.claims.capacity)

    @property
    def gpus_asked(self) -> int:
        """GPUs requested from Ray's autoscaler; 0 without one."""
        return 0 if self._requests is None else self._requests.asked

    @property
    def done(self) -> bool:
        """True once every job has finished or failed, or the time limit is reached."""
        closed = self._source is None or self._source.closed
        return (closed and self.tracker.all_ended) or self.time >= self._rules.limit

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
        reports = self.tracker.reports
        trains = [reports[job].training_on if job in reports else () for job in ids]
        left = self.columns.left_of_rescale(index, self.time)
        return known_placement(self._nodes.claims.capacity, list(map(self.tracker.nodes_of, ids)), trains, left)

    def changes(self) -> AllocationChanges:
        """All changes of the GPUs that controllers have reported, including before restarts of the scheduler."""
        rows = self.database.rows("SELECT job, time, gpus, accuracy FROM changes ORDER BY time, id")
        number = {job: number for number, job in enumerate(self.ids)}
        job = np.array([number[row[0]] for row in rows], dtype=np.int64)
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
        claims = self._nodes.claims
        ids = [self.ids[number] for number in state.jobs.index.tolist()]
        present = {job: claims.entry(job).planned for job in ids}
        after = dict(zip(ids, allocation.gpus.tolist(), strict=True))
        with self.database.transaction():
            plans = allocated_plans(claims, present, allocation)
            self.tracker.give({job: plan for job, plan in plans.items() if plan != present[job]})
            self.tracker.knowledge.take_choices(state, allocation)
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
        self.tracker.changed = False
        while not self.done and self.time < end and not (self.changed and on_events):
            now = self._clock.now()
            ahead = [end - now, self.poll, rules.limit - now]
            if on_events:
                ahead.append(self.tracker.next_submit - now)
            self._look(self._backend.reports(max(min(ahead), 0.0)), until=np.inf if on_events else due)
        if self._written < self.time:  # the elapsed interval belongs to this decision
            with self.database.transaction():
                self.tracker.write_all()
        return self.columns.take(start, self.time)

    def close(self, keep: bool = False) -> None:
        """Leave the session. keep: controllers continue training; otherwise they write a checkpoint and end. Raises
        ClusterError if jobs remain and the disk is full, because a stopping scheduler does not wait for room."""
        if not self.done:
            self.database.on_wait = None
        try:
            with self.database.transaction():
                self.tracker.write_all()
                self.database.event(self.time, "scheduler_left", detail="its controllers go on" if keep else "")
        finally:
            if not keep:
                self._backend.end_all()

    # looking at the cluster

    def _look(self, reports: Sequence[JobReport], until: float) -> None:
        """Process reports, and all changes of nodes and jobs since the last look. until: earliest time at which new
        jobs join; infinity lets them join when submitted."""
        alive = usable_nodes(self._backend.nodes(), self.tables.gpu_types)
        gone = self._backend.gone()
        now = max(self._clock.now(), self.time)
        self.tracker.pass_time(now)
        with self.database.transaction():  # other writers wait meanwhile, hence Ray was asked before
            for seconds in self.database.take_waits():
                self.database.event(now, "disk_full", value=seconds)
            self._look_at_nodes(alive)
            for report in reports:
                self.tracker.take_report(report)
            for job, reason in gone.items():
                self.tracker.controller_gone(job, reason)
            self._take_in()
            if now >= until or until == np.inf:
                self.tracker.let_in_until(now)
            self._count()
            if self.changed or now >= self._written + WRITE_INTERVAL_S:
                self._written = now
                self.tracker.write_all()
        self._commands.send_due(now)
        self.tracker.learn()
        if self._written == now:
            self._notify()
        if self.tracker.fatal is not None and self._source is None:
            raise self.tracker.fatal

    def look_at_nodes(self) -> None:
        """Update the nodes after some were given back."""
        alive = usable_nodes(self._backend.nodes(), self.tables.gpu_types)
        with self.database.transaction():
            self._look_at_nodes(alive)
        self._commands.send_due(self.time)

    def _look_at_nodes(self, alive: Sequence[NodeInfo]) -> None:
        self._nodes.announced, self._nodes.silent = self._backend.announced, self._backend.silent
        if dead := self._nodes.missing(alive):
            self.tracker.nodes_down(dead)
        if self._nodes.take_in(alive, self.time):
            self.tracker.changed = True
        self._nodes.note_silence(self._backend.cut_off, self.time)
        if self.up_gpus or not self.active_jobs or self._rents:
            self._gpus_seen = self.time
        elif self.time - self._gpus_seen > self._rules.ray.without_gpus:
            self.tracker.fatal = ClusterError(
                f"no node with GPUs has been alive for {self._rules.ray.without_gpus:.0f} s while "
                f"{self.active_jobs} jobs wait: expected one to come back"
            )

    def _take_in(self) -> None:
        """Take in new jobs from the source, and let it direct the others."""
        if self._source is None:
            return
        if found := self._source.poll():
            self.tracker.append([job for job, _ in found], [spec for _, spec in found])
        self._source.direct(self.tracker)

    def _count(self) -> None:
        """Update the counts of held GPUs and active jobs."""
        self.held_gpus = int(self.store.gpus.sum())
        self.active_jobs = int(np.count_nonzero(self.columns.active))

    def _notify(self) -> None:
        if self._requests is not None:
            self._requests.want(math.ceil(self.wanted_gpus() - ROUNDING), self.time)
        for observer in self._observers:
            observer(self)

    def _gpus_of_jobs(self) -> float:
        """GPUs that active jobs hold or ask for; of each job, the larger number."""
        wanted = np.maximum(self.store.gpus, self.store.records["requested_gpus"])
        return float(wanted[self.columns.active].sum())

    def _reopen(self, controllers: Sequence[str], left: float) -> None:
        """Restore the state from the database and the controllers, then look at the cluster for the first time."""
        counted = left if self.database.rows("SELECT 1 FROM decisions LIMIT 1") else -np.inf
        at, self._nodes.announced = self._clock.now(), self._backend.announced
        reports = self.tracker.restore(self._clock, left, controllers, counted)
        returned = self.tracker.submitted > 0
        self._look(reports, until=np.inf if self._rules.decide_on == "events" else self._rules.due(self.time))
        if counted == left:  # already counted in the previous scheduler's newest decision
            self.columns.take(left, self.time)
        if returned:
            passed = self._clock.now() - at
            self.database.event(self.time, "scheduler_returned", value=passed, detail=f"left at {left:.3f}")
