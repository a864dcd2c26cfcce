"""A cluster in virtual time, as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from rlpto.arrays import AnyArray, FloatArray, IntArray
from rlpto.cluster import Allocation, ClusterShape, ClusterState, JobSource, Node, Placement, Progress
from rlpto.errors import ConfigError, JobError
from rlpto.job_table import JobTable
from rlpto.jobs import EstimateNoise, Job, JobStore
from rlpto.kinds import kinds_of
from rlpto.performance.tables import SpeedTables
from rlpto.records import INTERVAL, AllocationChanges
from rlpto.simulator.arrays import CHANGE, build_world, with_jobs
from rlpto.simulator.failures import schedule_failures
from rlpto.simulator.job_kernels import choose_types
from rlpto.simulator.kernels import advance, advance_until, apply_and_look, next_point, outlook
from rlpto.simulator.placing import apply_placement
from rlpto.simulator.resuming import take_up
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

LONGEST_RUN = 256
"""Decision points that are passed at most without looking up."""


class SimulatedCluster:
    """Runs `jobs` on `nodes` in virtual time: same jobs, settings, seed and decisions, same result.

    jobs: sorted by submit time. tables must hold the types of all jobs. seed fixes node failures.
    noise: errors of what policies are told, or None. source: where further jobs come from while time passes, submitted
    no earlier than `jobs`; time waits for it, so that the result is what it would be had all been known.
    Raises JobError for a job that wants more GPUs than the cluster has, ConfigError for a cluster without GPUs.
    """

    def __init__(
        self,
        nodes: tuple[Node, ...],
        jobs: Sequence[Job],
        tables: SpeedTables,
        settings: SimulatorSettings,
        seed: int = 0,
        noise: EstimateNoise | None = None,
        source: JobSource | None = None,
    ) -> None:
        tables = tables.with_rescale_delay(settings.rescale_delay)
        shape = ClusterShape(nodes)
        check_jobs_fit(jobs, shape.most_gpus)
        self._build(shape, jobs, JobStore.from_jobs(jobs, tables), tables, settings, seed, noise)
        self._source: JobSource | None = source
        schedule_failures(self._world, 0)
        self._await_jobs()
        advance(self._world, 0)
        self._see(outlook(self._world, 0))

    @classmethod
    def resume(
        cls,
        time: float,
        shape: ClusterShape,
        jobs: Sequence[Job],
        store: JobStore,
        placement: Placement,
        tables: SpeedTables,
        settings: SimulatorSettings,
        noise: EstimateNoise | None = None,
    ) -> Self:
        """A cluster in which `time` [s] has come and jobs are as `store` and `placement` say.

        shape: no node of it fails or comes back. jobs: M, all submitted and not finished, in the order of the store,
        which is taken over. tables: hold a type for every `store.type_index`. Raises ConfigError if no GPU is up.
        """
        check_jobs_fit((), shape.up_gpus)
        self = cls.__new__(cls)
        settings = settings.model_copy(update={"failures": FailureSettings()})
        self._build(shape, jobs, store, tables, settings, 0, noise)
        self._source = None
        world, up = self._world, np.array([node.up for node in shape])
        world.machines["up"][0], world.free[0] = up, np.where(up, shape.node_gpus, 0)
        world.clusters["capacity"] = shape.up_gpus
        for job, nodes in enumerate(placement.nodes):
            world.nodes[0, job, : len(nodes)] = nodes
        take_up(world, 0, time, placement.training, placement.spanned, placement.starting)
        self._see(outlook(world, 0))
        return self

    def _build(
        self,
        shape: ClusterShape,
        jobs: Sequence[Job],
        store: JobStore,
        tables: SpeedTables,
        settings: SimulatorSettings,
        seed: int,
        noise: EstimateNoise | None,
    ) -> None:
        """The state before any time has passed."""
        self._shape = shape
        self.jobs = tuple(jobs)
        self.tables = tables
        self._settings = settings
        self._noise = noise
        self.store = store
        self._world = build_world(store.records[None], shape.node_gpus, tables, settings, seed, keep_log=True)
        self._logs: list[AnyArray] = []
        self._passed = np.zeros(LONGEST_RUN, dtype=INTERVAL)
        self._order = np.arange(len(jobs))
        self.time, self._logged = 0.0, 0
        self._batches_chosen = bool(tables.batch_size[store.type_index].any())

    def _see(self, outlook: tuple[float, int, int, int, int, int, bool]) -> None:
        """Take over where the compiled code stands."""
        self.time, self.up_gpus, self.held_gpus, self.active_jobs, changed, self._logged, self.done = outlook
        self.changed = bool(changed)
        if self._source is not None and self.time < self._world.rules[0]["limit"]:
            self.done = self.done and self._source.closed

    def _await_jobs(self) -> None:
        """Take in jobs until all that are submitted by the next decision point are known."""
        while self._source is not None and not self._source.closed:
            known_until = self.store.records["submit_time"][-1] if len(self.store) else 0.0
            if next_point(self._world, 0) < known_until:
                return
            added = self._source.poll()
            if added:
                self.append(added)
            elif not self._source.closed:
                self._source.wait()

    def append(self, jobs: Sequence[Job]) -> None:
        """Add jobs, sorted by submit time, submitted neither before those there are nor before the present time.

        Raises JobError for others, and for a job that the cluster or the tables cannot serve.
        """
        earliest = max(float(self.store.records["submit_time"].max(initial=0.0)), self.time)
        if jobs and jobs[0].submit_time < earliest:
            raise JobError(
                f"job {jobs[0].name}: submitted at {jobs[0].submit_time:g} s, expected {earliest:g} or later"
            )
        check_jobs_fit(jobs, self._shape.most_gpus)
        self._drain_log()
        self.store.append(JobStore.from_jobs(jobs, self.tables).records)
        self.jobs = (*self.jobs, *jobs)
        most = int(min(self._shape.most_gpus, self.store.records["max_gpus"].max(initial=1)))
        self._world = with_jobs(self._world, self.store.room[None], len(self.store), most)
        self._order = np.arange(len(self.store))

    @property
    def rescale_delay(self) -> FloatArray:
        """[M] seconds without progress that a change of each job's GPUs costs."""
        delay: FloatArray = self._world.types["delay"][self.store.type_index]
        return delay

    @property
    def shape(self) -> ClusterShape:
        """The nodes as they are now, in the order they were given in."""
        if self._settings.failures.mtbf_hours:
            up = self._world.machines["up"][0] == 1
            if not np.array_equal(up, [node.up for node in self._shape]):
                self._shape = self._shape.with_up(up)
        return self._shape

    def nodes_of(self, job: int) -> IntArray:
        """Node of each GPU that job number `job` of the workload holds now."""
        held: IntArray = self._world.nodes[0, job, : self.store.gpus[job]].astype(np.int64)
        return held

    def _nodes_of_all(self, index: IntArray) -> tuple[IntArray, ...]:
        """The same for jobs number `index` [n]."""
        return tuple(self.nodes_of(job) for job in index.tolist())

    def state(self) -> ClusterState:
        """The table of active jobs as it stands now, in order of submission."""
        active = self._world.active[0, : self.active_jobs].copy()
        interval, nodes_of = self._settings.interval, self._nodes_of_all
        return ClusterState(self.time, self.table_of(active), self.shape, interval, nodes_of=nodes_of)

    def placement(self, index: IntArray) -> Placement:
        """Where active jobs hold their GPUs."""
        records = self.store.records[index]
        nodes = self._nodes_of_all(index)
        joining = records["grow_left"] > 0
        spans = np.array([len(np.unique(held)) for held in nodes], dtype=np.int64)
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
        """The table of any jobs of the workload, finished ones too."""
        return JobTable(
            self.store, self.tables, index, self.store.priority[index], self._shape.gpus_per_node, self._noise
        )

    def apply(self, state: ClusterState, allocation: Allocation) -> None:
        """Carry out an allocation that `rlpto.queues.Queue.admit` has let through for the present state."""
        self._keep_log_room()
        several_kinds = allocation.placement is not None and len(self.tables.kinds) > 1
        if allocation.batch_size is not None or self._batches_chosen or several_kinds:
            chosen = np.zeros_like(allocation.gpus) if allocation.batch_size is None else allocation.batch_size
            types = state.jobs.types_at(chosen)
            if allocation.placement is not None and several_kinds:
                kind = kinds_of(allocation.placement, self._shape)
                types = state.jobs.types_on(types, kind, self._shape.kinds)
            choose_types(self._world, 0, state.jobs.index, types)
            self._batches_chosen = bool(chosen.any())
        if allocation.placement is not None:
            apply_placement(self._world, 0, state.jobs.index, allocation.placement)
            self._see(outlook(self._world, 0))
            return
        order = self._order[: len(allocation.gpus)] if allocation.order is None else allocation.order
        self._see(apply_and_look(self._world, 0, state.jobs.index, allocation.gpus, order))

    def advance(self) -> Progress:
        """Run until the next decision is due. Sums cover the time since the previous one."""
        return Progress.of(self.advance_until(-np.inf)[0])

    def advance_until(self, until: float) -> AnyArray:
        """Run through decision points till the first one not before `until`, or at which something has changed.

        Returns [P] `rlpto.records.INTERVAL`, one for each of them, which is good until the next call. It may be fewer.
        """
        self._await_jobs()
        if self._source is not None and not self._source.closed:
            until = -np.inf  # what is known by now is enough for one decision point
        count, seen = advance_until(self._world, 0, until, self._passed)
        self._see(seen)
        self._keep_log_room()
        return self._passed[:count]

    def changes(self) -> AllocationChanges:
        """Every change of a job's GPUs so far."""
        self._drain_log()
        log = np.concatenate(self._logs)
        return AllocationChanges(
            time=log["time"].copy(), job=log["job"].copy(), gpus=log["gpus"].copy(), accuracy=log["accuracy"].copy()
        )

    def _keep_log_room(self) -> None:
        """Compiled code writes to the log unchecked: between two calls it may fill half of it, no more."""
        if 2 * self._logged > self._world.log.shape[1]:
            self._drain_log()

    def _drain_log(self) -> None:
        """Move the compiled code's log into `_logs`, in order of time."""
        log = self._world.log[0, : self._logged]
        self._logs.append(log[np.argsort(log["time"], kind="stable")].astype(CHANGE))
        self._world.clusters["logged"] = 0
        self._logged = 0


def check_jobs_fit(jobs: Sequence[Job], capacity: int) -> None:
    """Raise ConfigError if there are no GPUs, JobError for a job that wants more than `capacity`."""
    if capacity == 0:
        raise ConfigError("the cluster has no GPUs: expected nodes with at least one")
    for job in jobs:
        if job.requested_gpus > capacity:
            raise JobError(
                f"job {job.name} wants {job.requested_gpus} GPUs, but the cluster has {capacity} in all for one job"
            )
