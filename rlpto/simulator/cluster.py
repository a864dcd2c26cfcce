"""A cluster in virtual time, with the interface that the scheduler uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlpto.core.cluster import (
    Allocation,
    ClusterShape,
    ClusterState,
    HeldByOthers,
    Node,
    Placement,
    background_at,
    check_servers_fit,
)
from rlpto.core.gpu_types import gpu_types_of
from rlpto.core.job_store import JobStore
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import Job
from rlpto.core.records import INTERVAL, AllocationChanges
from rlpto.core.renting import LOOK, RentPlan
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.errors import ConfigError, JobError
from rlpto.knowledge.known import TRUTH, Knowledge
from rlpto.knowledge.remaining import RemainingWork
from rlpto.performance.tables import SpeedTables
from rlpto.simulator.allocating import apply_placement, choose_types, restart_jobs
from rlpto.simulator.arrays import CHANGE, build_world, with_jobs
from rlpto.simulator.failures import noticed
from rlpto.simulator.job_kernels import take_rows
from rlpto.simulator.kernels import Outlook, advance_until, apply_and_look, begin, outlook, take_up_all
from rlpto.simulator.online import ROWS_PER_JOB, OnlineJobs, group_sizes, with_own_rows
from rlpto.simulator.renting import advance_renting, look_at_nodes, rent_and_look, work_done
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

LONGEST_RUN = 256
"""Largest number of decision points that compiled code passes in one call."""


class SimulatedCluster:
    """Runs `jobs` on `nodes` in virtual time: the same jobs, settings, seed and decisions give the same result.

    jobs: sorted by submit time. tables: contain the types of all jobs. seed: fixes node failures.
    knowledge: what policies and jobs know. background: background load on the nodes, and when it ends.
    Raises JobError for a job that wants more GPUs than the cluster has, ConfigError for a cluster without GPUs.
    """

    def __init__(
        self,
        nodes: tuple[Node, ...],
        jobs: Sequence[Job],
        tables: SpeedTables,
        settings: SimulatorSettings,
        seed: int = 0,
        knowledge: Knowledge = TRUTH,
        background: Sequence[HeldByOthers] = (),
    ) -> None:
        tables = tables.with_rescale_delay(settings.rescale_delay)
        shape = nodes if isinstance(nodes, ClusterShape) else ClusterShape(nodes)  # which has computed some properties
        check_jobs_fit(jobs, shape.most_gpus)
        store = JobStore.from_jobs(jobs, tables)
        check_servers_fit(jobs, store, tables, shape)
        self._set_up(shape, jobs, store, tables, settings, seed, knowledge, background)
        self._see(begin(self._world, 0))
        self._learn()

    def _set_up(
        self,
        shape: ClusterShape,
        jobs: Sequence[Job],
        store: JobStore,
        tables: SpeedTables,
        settings: SimulatorSettings,
        seed: int,
        knowledge: Knowledge,
        background: Sequence[HeldByOthers] = (),
    ) -> None:
        """Set the state before any time has passed."""
        self._background = tuple(background)
        if background:
            shape = shape.with_background(*background_at(background, 0.0, len(shape)))
        self._shape, self._up = shape, b""
        self.jobs = tuple(jobs)
        self.tables = tables
        self._settings = settings
        self._noise, left, performance = knowledge.noise, knowledge.remaining, knowledge.performance
        self.store = store
        remaining = RemainingWork(left, knowledge.tail, store, tables, self._accuracy_at, knowledge.history)
        self._left = None if left == "declared" else remaining
        self._online: OnlineJobs | None = None
        if performance is not None:
            above = settings.change_batch_above
            self._online = OnlineJobs(jobs, store, tables, performance, knowledge.rules, remaining, above)
        rows = tables if self._online is None else with_own_rows(tables, len(store))
        self._world = build_world(
            store.records[None],
            *(shape, rows, settings, seed),
            keep_log=True,
            follow_accuracy=True,
            background=self._background,
        )
        self._may_fail = bool(self._world.rules["may_fail"][0])  # read several times per decision
        self._may_change = self._may_fail or bool(shape.rented_groups)
        self._logs: list[AnyArray] = []
        self._passed = np.zeros(LONGEST_RUN, dtype=INTERVAL)
        self._order = np.arange(len(jobs))
        self.time, self._logged = 0.0, 0
        self._types_chosen = bool((tables.own[store.type_index] != store.type_index).any())

    def _see(self, seen: Outlook) -> None:
        """Copy the state that the compiled code reports."""
        self.time, self.up_gpus, self.held_gpus, self.active_jobs, changed, self._logged, self.done = seen
        self.changed = bool(changed)

    def append(self, jobs: Sequence[Job]) -> None:
        """Add jobs, sorted by submit time, submitted neither before the present jobs nor before the present time.

        Raises JobError for other submit times, and for a job that the cluster or the tables cannot serve.
        """
        earliest = max(float(self.store.records["submit_time"].max(initial=0.0)), self.time)
        if jobs and jobs[0].submit_time < earliest:
            raise JobError(
                f"job {jobs[0].name}: submitted at {jobs[0].submit_time:g} s, expected {earliest:g} or later"
            )
        check_jobs_fit(jobs, self._shape.most_gpus)
        store = JobStore.from_jobs(jobs, self.tables)
        check_servers_fit(jobs, store, self.tables, self._shape)
        self._drain_log()
        self.store.append(store.records)
        self.jobs = (*self.jobs, *jobs)
        most = int(min(self._shape.most_gpus, self.store.records["max_gpus"].max(initial=1)))
        self._world = with_jobs(self._world, self.store.room[None], len(self.store), most)
        self._order = np.arange(len(self.store))

    @property
    def rescale_delay(self) -> FloatArray:
        """[M] seconds without progress after a change of each job's GPUs."""
        delay: FloatArray = self._world.types["delay"][self.store.type_index]
        return delay

    @property
    def shape(self) -> ClusterShape:
        """The nodes in their present state, in the given order."""
        nodes = len(self._shape)
        if self._may_change:
            up = self._world.machines["up"][0, :nodes]
            if (seen := up.tobytes()) != self._up:
                self._up, self._shape = seen, self._shape.with_up(up == 1)
        if self._background:
            held = background_at(self._background, self.time, nodes)
            if held != ([node.background for node in self._shape], [node.background_cpus for node in self._shape]):
                self._shape = self._shape.with_background(*held)
        return self._shape

    def nodes_of(self, job: int) -> IntArray:
        """Node of each GPU that job number `job` of the workload holds now."""
        held: IntArray = self._world.nodes[0, job, : self.store.gpus[job]].astype(np.int64)
        return held

    def state(self) -> ClusterState:
        """Return the present state, with active jobs in order of submission."""
        active = self._world.active[0, : self.active_jobs].copy()
        table, notices = self.table_of(active), self.leaves_in if self._may_fail else None
        interval = self._settings.interval
        return ClusterState(self.time, table, self.shape, interval, placement=self.placement, notices=notices)

    def rent(self, nodes: IntArray) -> None:
        """Request or return rented nodes until there are nodes[g] in every group of `shape.rented_groups`.

        Call it at `next_rent`.
        """
        self._see(rent_and_look(self._world, 0, nodes))

    @property
    def next_rent(self) -> float:
        """Time [s] of the next decision on the number of rented nodes; infinity if none may be rented."""
        return float(self._world.clusters["next_rent"][0])

    def look_at_nodes(self) -> AnyArray:
        """[G] `rlpto.core.renting.LOOK` of the groups of rented nodes."""
        seen = np.zeros(len(self._shape.rented_groups), dtype=LOOK)
        look_at_nodes(self._world, 0, seen)
        return seen

    def work_done(self) -> tuple[float, float]:
        """Return `rlpto.simulator.renting.work_done` of this cluster."""
        return work_done(self._world, 0, -np.inf)

    def leaves_in(self) -> FloatArray:
        """[N] seconds until spot nodes are reclaimed, from their notice on; infinity elsewhere."""
        return noticed(self._world.machines[0, : len(self._shape)], self.time, int(self._world.clusters["seed"][0]))

    def placement(self, index: IntArray) -> Placement:
        """Return where active jobs hold their GPUs."""
        records = self.store.records[index]
        held, most = records["gpus"], int(records["gpus"].max(initial=0))
        places = self._world.nodes[0, index, :most].astype(np.int64)
        nodes = tuple(row[:count] for row, count in zip(places, held.tolist(), strict=True))
        joining = records["grow_left"] > 0
        begins = np.diff(places, axis=1, prepend=-1) != 0  # a node's GPUs are together
        spans = np.count_nonzero(begins & (np.arange(most) < held[:, None]), axis=1)
        rows = self._world.row[records["type_index"], :, records["training_gpus"]]
        found = np.argmax(rows == records["row"][:, None], axis=1) + 1
        return Placement(
            nodes=nodes,
            training=np.where(joining, records["training_gpus"], records["gpus"]),
            spanned=np.where(joining, found, spans),
            pausing=records["rescale_left"].copy(),
            starting=records["grow_left"].copy(),
        )

    def table_of(self, index: IntArray) -> JobTable:
        """Return the table of any jobs of the workload, including finished ones."""
        shown = self.tables if self._online is None else self._online.estimates.tables
        gpus_per_node, classes = self._shape.gpus_per_node, self.store.priority[index]
        return JobTable(self.store, shown, index, classes, gpus_per_node, self._noise, self._left)

    def _accuracy_at(self, index: IntArray, progress: FloatArray) -> FloatArray:
        """Implement `rlpto.knowledge.remaining.AccuracyAt`."""
        return self.tables.accuracy_at(self.store.type_index[index], progress)

    def apply(self, state: ClusterState, allocation: Allocation) -> None:
        """Carry out an allocation for the present state that `rlpto.core.queues.Queue.admit` has returned."""
        self._keep_log_room()
        index, restarted = state.jobs.index, self._take_types(state, allocation)
        rescales = self.store.rescales[restarted]
        if allocation.placement is not None:
            apply_placement(self._world, 0, index, allocation.placement)
            self._see(outlook(self._world, 0))
        else:
            order = self._order[: len(allocation.gpus)] if allocation.order is None else allocation.order
            self._see(apply_and_look(self._world, 0, index, allocation.gpus, order))
        if len(restarted):
            restart_jobs(self._world, 0, restarted, rescales)
        if self._online is not None:
            self._start_own_rows(index)

    def _take_types(self, state: ClusterState, allocation: Allocation) -> IntArray:
        """Change jobs to their chosen types; return the jobs that keep running, but with other servers."""
        none, index = np.zeros(0, dtype=np.int64), state.jobs.index
        if self._online is not None:  # jobs choose their batches themselves
            if allocation.placement is not None and len(self.tables.gpu_types) > 1:
                chosen = gpu_types_of(allocation.placement, self._shape)
                types = self.tables.types_on(self.store.type_index[index], chosen)
                choose_types(self._world, 0, index, types)
                for job in index.tolist():
                    self._online.estimates.show_gpu_type(job)
            return none
        on_gpu_types = allocation.placement is not None and len(self.tables.gpu_types) > 1
        own = allocation.batch_size is None and allocation.servers is None
        if own and not (self._types_chosen or on_gpu_types):
            return none
        chosen = np.zeros_like(allocation.gpus) if allocation.batch_size is None else allocation.batch_size
        types, tables = state.jobs.types_at(chosen, allocation.servers), self.tables
        if allocation.placement is not None and on_gpu_types:
            types = state.jobs.types_on(types, gpu_types_of(allocation.placement, self._shape), self._shape.gpu_types)
        runs_on = (allocation.gpus > 0) & (self.store.gpus[index] > 0)
        differs = tables.servers[types] != tables.servers[self.store.type_index[index]]
        others: IntArray = index[runs_on & differs]
        choose_types(self._world, 0, index, types)
        self._types_chosen = bool((types != self.tables.own[types]).any())
        return others

    def advance(self, until: float = -np.inf) -> AnyArray:
        """Run through decision points until the first one not before `until`, or at which something has changed, or
        `LONGEST_RUN` of them (`rlpto.core.cluster.Cluster.advance`). Sums cover the time since the previous one."""
        if self._online is not None:
            until = -np.inf  # jobs learn from their observations at every decision point
        count, seen = advance_until(self._world, 0, until, self._passed)
        self._see(seen)
        self._keep_log_room()
        self._learn()
        return self._passed[:count]

    def advance_renting(self, until: float, plan: RentPlan, kept: FloatArray) -> tuple[AnyArray, FloatArray]:
        """Call `advance`, and decide on rented nodes on the way, by `rlpto.simulator.renting.advance_renting`.

        Returns the intervals [P] INTERVAL and the rows [D, 9] of decisions. Jobs may not learn from observations.
        """
        rows = np.empty((LONGEST_RUN, 9))
        count, decisions, seen = advance_renting(self._world, 0, until, plan, self._passed, kept, rows)
        self._see(seen)
        self._keep_log_room()
        return self._passed[:count], rows[:decisions]

    @property
    def learns(self) -> bool:
        """Whether jobs learn from observations at every decision point."""
        return self._online is not None

    def _start_own_rows(self, index: IntArray) -> None:
        """Let jobs number `index` that have just got GPUs choose their batches, and set their speeds accordingly."""
        assert self._online is not None
        records, rows = self.store.records, len(self.tables.rates)
        holds, growing = records["gpus"][index] > 0, records["grow_left"][index] > 0
        self._online.stop(index[~holds])
        started = holds & (np.where(growing, records["next_row"][index], records["row"][index]) < rows)
        written: list[tuple[int, int, bool]] = []
        for job, joining in zip(index[started].tolist(), growing[started].tolist(), strict=True):
            spare = rows + ROWS_PER_JOB * job
            spare += int(self.store.records["row"][job] == spare)
            groups = group_sizes(self.nodes_of(job))
            self._write_row(spare, self._online.start(job, groups, joining))
            written.append((job, spare, joining))
        if written:
            jobs, own, waits = (np.array(column) for column in zip(*written, strict=True))
            take_rows(self._world, 0, jobs, own, waits)

    def _learn(self) -> None:
        """Let running jobs learn from their observations, and update the tables that policies see."""
        if self._online is None:
            return
        active, records = self._world.active[0, : self.active_jobs], self.store.records
        self._online.follow(active)
        trained, changed = self._online.observe(active)
        for job, rates in changed:
            self._write_row(int(records["row"][job]), rates)
        if len(trained):
            take_rows(self._world, 0, trained, records["row"][trained], np.zeros(len(trained), dtype=bool))
        self._online.estimates.refresh()

    def _write_row(self, row: int, rates: FloatArray) -> None:
        """Write a job's row of the speed tables: epochs per second in every epoch."""
        world = self._world
        world.rates[row, : len(rates)], world.rates[row, len(rates) :] = rates, rates[-1]
        world.elapsed[row, 1:] = np.cumsum(1.0 / world.rates[row])

    def changes(self) -> AllocationChanges:
        """Return every change of a job's GPUs so far."""
        self._drain_log()
        log = np.concatenate(self._logs)
        return AllocationChanges(**{name: log[name].copy() for name in ("time", "job", "gpus", "accuracy")})

    def _keep_log_room(self) -> None:
        """Empty the log if it is half full: compiled code writes unchecked, at most half of it between two calls."""
        if 2 * self._logged > self._world.log.shape[1]:
            self._drain_log()

    def _drain_log(self) -> None:
        """Move the compiled code's log into `_logs`, in order of time."""
        log = self._world.log[0, : self._logged]
        self._logs.append(log[np.argsort(log["time"], kind="stable")].astype(CHANGE))
        self._world.clusters["logged"] = 0
        self._logged = 0


class ResumedCluster(SimulatedCluster):
    """A cluster that continues at `time` [s] with the jobs of `store` and `placement`.

    shape: none of its nodes fails or returns, and background load stays. jobs: M, all submitted and not finished, in
    the order of the store, which is modified in place. tables: contain a type for every `store.type_index`. Raises
    ConfigError if no GPU is up.
    """

    def __init__(
        self,
        time: float,
        shape: ClusterShape,
        jobs: Sequence[Job],
        store: JobStore,
        placement: Placement,
        tables: SpeedTables,
        settings: SimulatorSettings,
    ) -> None:
        check_jobs_fit((), shape.up_gpus)
        settings = settings.model_copy(update={"failures": FailureSettings()})
        shape = ClusterShape(replace(node, rented=None) for node in shape)
        self._set_up(shape, jobs, store, tables, settings, 0, TRUTH)
        take_up_all(self._world, time, shape, placement)
        self._see(outlook(self._world, 0))


def check_jobs_fit(jobs: Sequence[Job], capacity: int) -> None:
    """Raise ConfigError if there are no GPUs, JobError for a job that wants more than `capacity`."""
    if capacity == 0:
        raise ConfigError("the cluster has no GPUs: expected nodes with at least one")
    for job in jobs:
        if job.requested_gpus > capacity:
            raise JobError(
                f"job {job.name} wants {job.requested_gpus} GPUs, but the cluster has {capacity} in all for one job"
            )
