"""A cluster in virtual time, as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Self

import numpy as np

from rlpto.arrays import AnyArray, FloatArray, IntArray
from rlpto.cluster import Allocation, ClusterState, Node, Placement, Progress, total_gpus
from rlpto.errors import ConfigError, JobError
from rlpto.jobs import EstimateNoise, Job, JobStore, JobTable
from rlpto.performance.tables import SpeedTables
from rlpto.records import AllocationChanges
from rlpto.simulator.arrays import CHANGE, JOB, build_world
from rlpto.simulator.failures import schedule_failures
from rlpto.simulator.kernels import advance, advance_and_look, apply_and_look, outlook
from rlpto.simulator.resuming import take_up
from rlpto.simulator.settings import FailureSettings, SimulatorSettings


class SimulatedCluster:
    """Runs `jobs` on `nodes` in virtual time: same jobs, settings, seed and decisions, same result.

    jobs: sorted by submit time. tables must hold the types of all jobs. seed fixes node failures.
    noise: errors of what policies are told, or None. Raises JobError for a job that wants more GPUs
    than the cluster has, ConfigError for a cluster without GPUs.
    """

    def __init__(
        self,
        nodes: tuple[Node, ...],
        jobs: Sequence[Job],
        tables: SpeedTables,
        settings: SimulatorSettings,
        seed: int = 0,
        noise: EstimateNoise | None = None,
    ) -> None:
        check_jobs_fit(jobs, total_gpus(nodes))
        tables = tables.with_rescale_delay(settings.rescale_delay)
        self._build(
            [node.gpus for node in nodes], jobs, JobStore.from_jobs(jobs, tables), tables, settings, seed, noise
        )
        schedule_failures(self._world, 0)
        advance(self._world, 0)
        self._see(outlook(self._world, 0))

    @classmethod
    def resume(
        cls,
        time: float,
        jobs: Sequence[Job],
        store: JobStore,
        placement: Placement,
        tables: SpeedTables,
        settings: SimulatorSettings,
        noise: EstimateNoise | None = None,
    ) -> Self:
        """A cluster in which `time` [s] has come and jobs are as `store` and `placement` say; no node of it fails.

        jobs: M, all submitted and not finished, in the order of the store, which is taken over. tables: hold a type for
        every `store.type_index`. Raises ConfigError without GPUs.
        """
        if not placement.node_gpus.sum():
            raise ConfigError("the cluster has no GPUs: expected nodes with at least one")
        self = cls.__new__(cls)
        settings = settings.model_copy(update={"failures": FailureSettings()})
        self._build(placement.node_gpus.tolist(), jobs, store, tables, settings, 0, noise)
        held = self._world.nodes[0]
        for job, nodes in enumerate(placement.nodes):
            held[job, : len(nodes)] = nodes
        take_up(self._world, 0, time, placement.training, placement.spanned, placement.starting)
        self._see(outlook(self._world, 0))
        return self

    def _build(
        self,
        node_gpus: Sequence[int],
        jobs: Sequence[Job],
        store: JobStore,
        tables: SpeedTables,
        settings: SimulatorSettings,
        seed: int,
        noise: EstimateNoise | None,
    ) -> None:
        """The state before any time has passed."""
        self.capacity = sum(node_gpus)
        self.gpus_per_node = max(node_gpus)
        self.jobs = tuple(jobs)
        self.tables = tables
        self._settings = settings
        self._noise = noise
        self.store, records = shared_store(store)
        self._world = build_world(
            records[None], np.array(node_gpus, dtype=np.int64), tables, settings, seed, keep_log=True
        )
        self._logs: list[AnyArray] = []
        self._limit = float(self._world.rules[0]["limit"])
        self._order = np.arange(len(jobs))

    def _see(self, outlook: tuple[float, int, int, int, int, int]) -> None:
        """Take over where the compiled code stands."""
        self.time, self.up_gpus, self.held_gpus, self.active_jobs, changed, self._logged = outlook
        self.changed = bool(changed)

    @property
    def done(self) -> bool:
        """True once every job has finished, or the time limit is reached."""
        if self.active_jobs and self.time < self._limit:
            return False
        cluster = self._world.clusters[0]
        return bool(cluster["arrived"] == cluster["jobs"] or self.time >= self._limit)

    @property
    def rescale_delay(self) -> FloatArray:
        """[M] seconds without progress that a change of each job's GPUs costs."""
        delay: FloatArray = self._world.types["delay"][self.store.type_index]
        return delay

    def nodes_of(self, job: int) -> IntArray:
        """Node of each GPU that job number `job` of the workload holds now."""
        held: IntArray = self._world.nodes[0, job, : self.store.gpus[job]].astype(np.int64)
        return held

    def state(self) -> ClusterState:
        """The table of active jobs as it stands now, in order of submission."""
        active = self._world.active[0, : self.active_jobs].copy()
        return ClusterState(self.time, self.table_of(active), self.up_gpus, self.gpus_per_node, self._settings.interval)

    def placement(self, index: IntArray) -> Placement:
        """Where active jobs hold their GPUs; nodes that are down are left out."""
        machines, records = self._world.machines[0], self._world.jobs[0][index]
        up = np.flatnonzero(machines["up"])
        number = np.zeros(len(machines), dtype=np.int64)
        number[up] = np.arange(len(up))
        nodes = tuple(number[self.nodes_of(int(job))] for job in index)
        joining = records["grow_left"] > 0
        spans = np.array([len(np.unique(held)) for held in nodes], dtype=np.int64)
        rows = self._world.row[records["type_index"], :, records["training_gpus"]]
        found = np.argmax(rows == records["row"][:, None], axis=1) + 1
        return Placement(
            node_gpus=machines["size"][up],
            nodes=nodes,
            training=np.where(joining, records["training_gpus"], records["gpus"]),
            spanned=np.where(joining, found, spans),
            pausing=records["rescale_left"].copy(),
            starting=records["grow_left"].copy(),
        )

    def table_of(self, index: IntArray) -> JobTable:
        """The table of any jobs of the workload, finished ones too."""
        return JobTable(self.store, self.tables, index, self.store.priority[index], self.gpus_per_node, self._noise)

    def apply(self, state: ClusterState, allocation: Allocation) -> None:
        """Carry out an allocation that `rlpto.queues.Queue.admit` has let through for the present state."""
        self._keep_log_room()
        order = self._order[: len(allocation.gpus)] if allocation.order is None else allocation.order
        self._see(apply_and_look(self._world, 0, state.jobs.index, allocation.gpus, order))

    def advance(self) -> Progress:
        """Run until the next decision is due. Sums cover the time since the previous one."""
        start = self.time
        seen, gains, sums = advance_and_look(self._world, 0)
        self._see(seen)
        self._keep_log_room()
        unfinished, gpu_seconds, rescale_seconds, rescales, arrived, finished = sums
        return Progress(
            start, self.time, np.array(gains), unfinished, gpu_seconds, rescales, rescale_seconds, arrived, finished
        )

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
    """Raise ConfigError if there are no GPUs, JobError for a job that wants more than there are."""
    if capacity == 0:
        raise ConfigError("the cluster has no GPUs: expected nodes with at least one")
    for job in jobs:
        if job.requested_gpus > capacity:
            raise JobError(f"job {job.name} wants {job.requested_gpus} GPUs, but the cluster has {capacity} in all")


def shared_store(store: JobStore) -> tuple[JobStore, AnyArray]:
    """The store with its columns moved into an array of records [M] that compiled code works on."""
    records = np.zeros(len(store), dtype=JOB)
    records["finish_at"] = np.inf
    for column in fields(store):
        records[column.name] = getattr(store, column.name)
        setattr(store, column.name, records[column.name])
    return store, records
