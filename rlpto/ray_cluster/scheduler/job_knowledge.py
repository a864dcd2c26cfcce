"""Speeds, start delays and remaining work of a session's jobs, as policies see them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.gpu_types import NO_GPU_TYPE, gpu_types_of
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import EstimateNoise, FinishedJob, Job
from rlpto.io.arrays import IntArray
from rlpto.knowledge.history import compile_history
from rlpto.knowledge.known import UNSEEN_HOURS
from rlpto.knowledge.remaining import AccuracyAt, RemainingKnowledge, RemainingWork
from rlpto.performance.tables import NO_TYPE
from rlpto.ray_cluster.messages import JobReport, JobSpec, Plan
from rlpto.ray_cluster.scheduler.job_columns import JobColumns
from rlpto.ray_cluster.scheduler.online_estimates import OnlineEstimates
from rlpto.ray_cluster.scheduler.placement import NodeInventory
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase

STARTS = "starts"
"""Database key of the newest start delays: seconds from the decision that gave a job its first GPUs to its first
step."""
STARTS_KEPT = 20
MOST_PAST = 20_000
"""Newest finished jobs from which the lengths of others are learnt, in addition to those of the session."""


@dataclass(frozen=True)
class PolicyKnowledge:
    """Knowledge of policies about jobs. noise: errors of speeds, or None. estimates: estimates learned from reports.
    Default: the speed tables are used. remaining, tail: knowledge of remaining work (`rlpto.knowledge.known`).
    unseen_hours: hours on one GPU that a job of unknown speed seems to need. past: jobs that finished and are not in
    the session, oldest first; None: such jobs do not count."""

    noise: EstimateNoise | None = None
    estimates: OnlineEstimates | None = None
    remaining: RemainingKnowledge = "declared"
    tail: float = 1.0
    unseen_hours: float = UNSEEN_HOURS
    past: tuple[FinishedJob, ...] | None = None


class JobKnowledge:
    """The speed tables that policies use for the jobs of a session, and each job's row in them.

    columns: with the tables of the jobs' profiles. accuracy_at: measured accuracies (`rlpto.knowledge.remaining`).

    estimated: tables that policies and predictions use. estimates: estimates learned from reports, or None. Methods
    that take `planned` get the plans in force by job number, and set the types of these jobs by them.
    """

    def __init__(
        self,
        known: PolicyKnowledge,
        columns: JobColumns,
        database: SessionDatabase,
        nodes: NodeInventory,
        accuracy_at: AccuracyAt,
    ) -> None:
        self.estimated, self.estimates = columns.tables, known.estimates
        self._columns, self._store, self._database, self._nodes = columns, columns.store, database, nodes
        self._noise, self._unseen_hours = known.noise, known.unseen_hours
        self._past = None if known.past is None else list(known.past)
        self._remaining = RemainingWork(known.remaining, known.tail, self._store, columns.tables, accuracy_at)
        self._take_history()
        self._remaining_shown = None if known.remaining == "declared" else self._remaining
        self._starts: list[float] = json.loads(database.fact(STARTS) or "[]")
        self._has_news = False
        self.refresh({})

    def table_of(self, index: IntArray) -> JobTable:
        """The table of any jobs of the workload, including finished ones. Measured accuracies are used if available."""
        gpus_per_node, classes = self._nodes.shape.gpus_per_node, self._store.priority[index]
        return JobTable(self._store, self.estimated, index, classes, gpus_per_node, self._noise, self._remaining_shown)

    def largest_size(self, number: int, gpus: int) -> int:
        """Largest size up to `gpus` that a job may have on its present GPU type; 0 if none."""
        floor_size = self.estimated.floor_size
        size = int(floor_size[self._store.estimated_type[number], gpus]) if floor_size.size else gpus
        return size if size >= self._store.min_gpus[number] else 0

    def take_report(self, number: int, report: JobReport) -> None:
        """Use a job's report as evidence of its speed."""
        if self.estimates is not None:
            self.estimates.take_report(number, report)

    def note_start(self, delay: float) -> None:
        """Note the start delay of a job [s]."""
        self._starts = [*self._starts, delay][-STARTS_KEPT:]
        self._database.set_fact(STARTS, json.dumps(self._starts))
        self._has_news = True

    def note_finish(self) -> None:
        """Note that a job has finished, which may change the estimated length of others."""
        self._has_news = True

    def learn(self) -> bool:
        """Update the estimates by new evidence. Returns whether `refresh` is due."""
        fitted = self.estimates is not None and self.estimates.learn()
        return fitted or self._has_news

    def refresh(self, planned: Mapping[int, Plan]) -> None:
        """Update the tables that policies use: estimates if there are any, and measured start delays."""
        own, types = self._columns.tables, self._store.type_index
        if self.estimates is not None:
            if len(unseen := self.estimates.unseen):
                hours = self._unseen_hours * self._store.scale[unseen]
                self.estimates.show_unseen(self._remaining(unseen) / (3600 * hours))
            own, types = self.estimates.tables, self.estimates.type_of
        self.estimated = own
        if self._starts:  # median of measured start delays and the tables' delay
            seen = np.repeat(np.array(self._starts)[:, None], len(own.types), axis=1)
            self.estimated = replace(own, rescale_delay=np.median(np.vstack([own.rescale_delay, seen]), axis=0))
        self._columns.delay[:] = self.estimated.rescale_delay[types]
        self._has_news = False
        self._store.estimated_type[:] = types
        self.take_plans(planned)

    def take_plans(self, planned: Mapping[int, Plan]) -> None:
        """Set job types by the batch sizes of their plans, if the tables still have these sizes."""
        index = np.array(list(planned), dtype=np.int64)
        sizes = np.array([plan.batch_size or 0 for plan in planned.values()], dtype=np.int64)
        servers = np.array([len(plan.servers) for plan in planned.values()], dtype=np.int64)
        jobs, names = self.table_of(index), self._columns.tables.gpu_types
        types = jobs.types_at(sizes, servers)
        types = np.where(types == NO_TYPE, jobs.type_index, types)
        on = [self._nodes.gpu_type_of(plan.nodes[0]) if plan.nodes else None for plan in planned.values()]
        gpu_type = np.array([NO_GPU_TYPE if gpu is None else names.index(gpu) for gpu in on], dtype=np.int64)
        self._take_types(index, jobs.types_on(types, gpu_type, names))

    def take_choices(self, state: ClusterState, allocation: Allocation) -> None:
        """Set the types of jobs by the batch sizes, servers and nodes of an allocation."""
        chosen = np.zeros_like(allocation.gpus) if allocation.batch_size is None else allocation.batch_size
        types = state.jobs.types_at(chosen, allocation.servers)
        if allocation.placement is not None:
            gpu_type = gpu_types_of(allocation.placement, self._nodes.shape)
            types = state.jobs.types_on(types, gpu_type, self._nodes.shape.gpu_types)
        self._take_types(state.jobs.index, types)

    def _take_types(self, index: IntArray, types: IntArray) -> None:
        """Set the types [n] that policies see for jobs `index` [n]; without estimates, also the jobs' actual types."""
        self._store.estimated_type[index] = types
        if self.estimates is None:
            self._store.type_index[index] = types

    # changes of the workload; each ends with `refresh`

    def append(self, jobs: Sequence[Job], specs: Sequence[JobSpec], planned: Mapping[int, Plan]) -> None:
        """Append jobs, which are in the columns already."""
        if self.estimates is not None:
            self.estimates.append(jobs, specs, self._columns.tables)
        self.refresh(planned)

    def keep(self, left: IntArray, planned: Mapping[int, Plan], finished: Sequence[FinishedJob]) -> None:
        """Keep jobs number `left`, as the columns do already. planned: by their new numbers. finished: those of the
        others that had finished."""
        if self._past is not None:
            self._past = [*self._past, *finished][-MOST_PAST:]
        self._take_history()
        if self.estimates is not None:
            self.estimates.keep(left)
        self.refresh(planned)

    def take_tables(self, planned: Mapping[int, Plan]) -> None:
        """Use the tables that the columns have now, which include more models."""
        self._take_history()
        self.refresh(planned)

    def _take_history(self) -> None:
        """Learn the remaining work from the finished jobs that there are now, by the present tables."""
        tables = self._columns.tables
        self._remaining.take_tables(tables, compile_history([self._past or ()], tables))
