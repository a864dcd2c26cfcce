"""The two sides of a scheduling decision: the state that a policy sees, and the allocation that it returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import getitem
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from rlpto.core.job_store import JobStore
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import Job
from rlpto.core.placement import NOWHERE, take
from rlpto.core.records import AllocationChanges
from rlpto.core.renting import RentedSettings
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.errors import ConfigError, JobError
from rlpto.io.settings import Settings
from rlpto.performance.tables import ANY_GPU, SpeedTables


class SpotSettings(Settings):
    """Spot nodes, which their owner reclaims after exponentially distributed times and returns after others."""

    mean_hours: float = Field(ge=0.01, le=10**9)
    """Mean hours until a node is reclaimed."""
    away_hours: float = Field(1.0, ge=0.0001, le=10**9)
    """Mean hours until a reclaimed node returns."""
    notice_seconds: float = Field(120.0, ge=0, le=10**6)
    """Seconds of notice before a node is reclaimed. Jobs keep training meanwhile and write a last checkpoint if that
    takes no longer than the notice (`simulator.failures.checkpoint_seconds`); otherwise they lose as much work as in a
    failure."""


class BackgroundLoad(Settings):
    """GPUs and CPU slots that other processes hold from the start of the workload until they end for good."""

    gpus: int = Field(0, ge=0, le=10**6)
    """GPUs that they hold, on as few nodes as possible."""
    cpus: int = Field(0, ge=0, le=10**7)
    """CPU slots that they hold, on as few nodes as possible."""
    until: float = Field(gt=0, le=10**9)
    """Seconds from the start of the workload until they end."""

    @model_validator(mode="after")
    def _hold_something(self) -> Self:
        if not (self.gpus or self.cpus):
            raise ValueError("expected gpus or cpus of 1 or more: background load that holds nothing is none")
        return self


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that offers `gpus` GPUs of type `gpu` and `cpus` CPU slots to jobs; `up`: whether it works.

    background, background_cpus: GPUs and CPU slots that other processes hold now.
    price: price of a GPU-hour. A rented node is charged for all its GPUs from request to return, any other node for the
    GPUs that jobs hold. spot: how its owner reclaims it. Default: it stays. rented: how it is rented. Default: it is
    always there.
    """

    gpus: int
    cpus: int = 0
    gpu: str = ANY_GPU
    up: bool = True
    background: int = 0
    background_cpus: int = 0
    price: float = 0.0
    spot: SpotSettings | None = None
    rented: RentedSettings | None = None

    def __post_init__(self) -> None:
        if self.gpus < 0 or self.cpus < 0:
            raise ConfigError(f"a node cannot have {self.gpus} GPUs and {self.cpus} CPUs: expected 0 or more")


_OF_THE_STATE = ("offered", "up_gpus", "up_cpu_slots")
"""Properties of a shape that depend on which nodes are up and on the background load."""
_OF_THE_BACKGROUND = ("_not_held_by_others", "_down_and_up")
"""Properties of a shape that depend on the background load alone."""


class ClusterShape(tuple[Node, ...]):
    """The nodes of a cluster, with properties computed from them once."""

    @cached_property
    def capacity(self) -> int:
        """GPUs of all nodes, up or down. `ClusterState.capacity` counts only GPUs that jobs may hold now."""
        return sum(node.gpus for node in self)

    @cached_property
    def up_gpus(self) -> int:
        """GPUs that jobs may hold now: GPUs on nodes that are up, without background load."""
        return int(self.offered.sum())

    @cached_property
    def cpu_slots(self) -> int:
        """CPU slots of all nodes, up or down. `ClusterState.cpu_slots` counts only slots that jobs may hold."""
        return sum(node.cpus for node in self)

    @cached_property
    def up_cpu_slots(self) -> int:
        """CPU slots that jobs may hold now."""
        return sum(node.cpus - node.background_cpus for node in self if node.up)

    @cached_property
    def offered(self) -> IntArray:
        """[N] GPUs of each node that jobs may hold now."""
        return np.where([node.up for node in self], self._not_held_by_others, 0)

    @cached_property
    def _not_held_by_others(self) -> IntArray:
        """[N] GPUs of each node, up or down, that other processes do not hold."""
        return np.array([node.gpus - node.background for node in self], dtype=np.int64)

    @cached_property
    def gpus_per_node(self) -> int:
        """GPUs of the largest node; 0 without nodes."""
        return max((node.gpus for node in self), default=0)

    @cached_property
    def gpu_types(self) -> tuple[str, ...]:
        """Names of the GPU types, in the order of the nodes."""
        return tuple(dict.fromkeys(node.gpu for node in self if node.gpus))

    @cached_property
    def node_gpu_types(self) -> IntArray:
        """[N] index into `gpu_types` of each node's GPU type; 0 for a node without GPUs."""
        return np.array([self.gpu_types.index(node.gpu) if node.gpus else 0 for node in self], dtype=np.int64)

    @cached_property
    def gpus_by_type(self) -> dict[str, int]:
        """GPUs of all nodes of each GPU type, by name."""
        return {gpu: sum(node.gpus for node in self if node.gpu == gpu) for gpu in self.gpu_types}

    @cached_property
    def most_gpus(self) -> int:
        """GPUs that one job can hold with all nodes up: the largest number of GPUs of one type."""
        return max(self.gpus_by_type.values(), default=0)

    @cached_property
    def node_sizes(self) -> dict[str, int]:
        """GPUs of the largest node of each GPU type, by name."""
        return {gpu: max(node.gpus for node in self if node.gpu == gpu) for gpu in self.gpu_types}

    @cached_property
    def rented_groups(self) -> tuple[IntArray, ...]:
        """Node numbers of each group of identical rented nodes."""
        alike: dict[Node, list[int]] = {}
        for number, node in enumerate(self):
            if node.rented is not None:
                alike.setdefault(replace(node, up=True, background=0, background_cpus=0), []).append(number)
        return tuple(np.array(group, dtype=np.int64) for group in alike.values())

    @cached_property
    def node_gpus(self) -> IntArray:
        """[N] GPUs of each node."""
        return np.array([node.gpus for node in self], dtype=np.int64)

    @cached_property
    def _down_and_up(self) -> tuple[tuple[Node, Node], ...]:
        """[N] each node in both states."""
        return tuple((replace(node, up=False), replace(node, up=True)) for node in self)

    def with_up(self, up: ArrayLike) -> ClusterShape:
        """Return the same nodes; `up` [N] says which of them are up."""
        works = np.asarray(up, dtype=bool)
        found = self._changed(map(getitem, self._down_and_up, works.tolist()))
        found.__dict__["offered"] = np.where(works, self._not_held_by_others, 0)
        return found

    def with_background(self, gpus: Iterable[int], cpus: Iterable[int]) -> ClusterShape:
        """Return the same nodes with GPUs and CPU slots held by other processes, [N] each."""
        found = self._changed(
            replace(node, background=int(held), background_cpus=int(slots))
            for node, held, slots in zip(self, gpus, cpus, strict=True)
        )
        for fact in _OF_THE_BACKGROUND:
            found.__dict__.pop(fact, None)
        return found

    def _changed(self, nodes: Iterable[Node]) -> ClusterShape:
        """Return a shape of the same nodes in another state, keeping all computed properties independent of it."""
        found = ClusterShape(nodes)
        found.__dict__.update((name, fact) for name, fact in self.__dict__.items() if name not in _OF_THE_STATE)
        return found


class HeldByOthers(NamedTuple):
    """Part of the background load: `gpus` and `cpus` on one node, until a time [s]."""

    node: int
    gpus: int
    cpus: int
    until: float


def place_background(loads: Sequence[BackgroundLoad], shape: ClusterShape) -> list[HeldByOthers]:
    """Place the background load on the nodes of a cluster, in order of the list.

    Each load goes to the node with the fewest free GPUs, or CPU slots, that can hold it all. If none can, the node with
    most room is filled first. Raises ConfigError if the nodes together lack room.
    """
    placed = []
    gpus, cpus = shape.node_gpus.copy(), np.array([node.cpus for node in shape], dtype=np.int64)
    for load in loads:
        for unit, free, count in (("GPUs", gpus, load.gpus), ("CPU slots", cpus, load.cpus)):
            if count > free.sum():
                raise ConfigError(
                    f"workload.background: {count} {unit} until {load.until:g} s, but the nodes have {free.sum()} left"
                )
            nodes = np.zeros(count, dtype=np.int32)
            take(nodes, count, free, NOWHERE, 0)
            for node, held in Counter(nodes.tolist()).items():
                of_gpus = held if unit == "GPUs" else 0
                placed.append(HeldByOthers(node, of_gpus, held - of_gpus, load.until))
    return placed


def background_at(held: Sequence[HeldByOthers], time: float, nodes: int) -> tuple[list[int], list[int]]:
    """[N] GPUs, and [N] CPU slots, of each node that other processes hold at a time [s]."""
    gpus, cpus = [0] * nodes, [0] * nodes
    for part in held:
        if time < part.until:
            gpus[part.node] += part.gpus
            cpus[part.node] += part.cpus
    return gpus, cpus


def check_servers_fit(jobs: Sequence[Job], store: JobStore, tables: SpeedTables, shape: ClusterShape) -> None:
    """Raise JobError for a job of the store whose default parameter servers exceed the CPU slots of all nodes."""
    needed = tables.servers[tables.own[store.type_index]]
    for number in np.flatnonzero(needed > shape.cpu_slots)[:1].tolist():
        raise JobError(
            f"job {jobs[number].name} trains through {int(needed[number])} parameter servers, but the nodes have "
            f"{shape.cpu_slots} CPU slots in all: expected at least one for each (`cpus` of nodes)"
        )


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted number of jobs that arrive in each of the next H intervals, by priority class.

    mean, low, high: [H, classes] float64; low and high bound 80 % of the outcomes.
    """

    mean: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True)
class Placement:
    """The nodes on which n jobs hold GPUs, as far as the cluster knows.

    nodes: node numbers of the GPUs that each job holds, grouped by node.
    training: [n] GPUs that train now; all GPUs of the job unless added ones are still starting.
    spanned: [n] nodes of the training GPUs. pausing: [n] seconds until each trains, 0 if it does. starting: [n] seconds
    until all GPUs train, 0 where no added GPUs are starting.
    """

    nodes: tuple[IntArray, ...]
    training: IntArray
    spanned: IntArray
    pausing: FloatArray
    starting: FloatArray

    def take(self, rows: IntArray) -> Placement:
        """Return the placement of the jobs in these rows [n]."""
        return Placement(
            tuple(self.nodes[row] for row in rows.tolist()),
            self.training[rows],
            self.spanned[rows],
            self.pausing[rows],
            self.starting[rows],
        )


def nowhere(index: IntArray) -> Placement:
    """Return the placement of n jobs that hold no GPUs."""
    count = len(index)
    none, never = np.zeros(count, dtype=np.int64), np.zeros(count)
    return Placement((np.zeros(0, dtype=np.int64),) * count, none, none, never, never)


@dataclass(frozen=True)
class ClusterState:
    """The state of a cluster on which a policy decides.

    time: seconds since the start of the workload.
    jobs: the n active jobs (waiting or running), in queue order: row 0 is served first.
    shape: the nodes, up and down.
    interval: seconds between regular decisions.
    forecast: predicted task volume. Default: no forecast.
    placement: function that returns the `Placement` of jobs number [n]. notices: function that returns `leaves_in`.
    Default: no node is ever reclaimed with notice.
    """

    time: float
    jobs: JobTable
    shape: ClusterShape
    interval: float
    forecast: Forecast | None = None
    placement: Callable[[IntArray], Placement] = nowhere
    notices: Callable[[], FloatArray] | None = None

    @cached_property
    def leaves_in(self) -> FloatArray:
        """[N] seconds until each node is reclaimed, as its owner has announced; infinity without an announcement."""
        return np.full(len(self.shape), np.inf) if self.notices is None else self.notices()

    @cached_property
    def held_nodes(self) -> IntArray:
        """[n, N] GPUs that each job holds on each node now."""
        held = np.zeros((len(self.jobs), len(self.shape)), dtype=np.int64)
        nodes = self.placement(self.jobs.index).nodes
        rows = np.repeat(np.arange(len(nodes)), [len(row) for row in nodes])
        np.add.at(held, (rows, np.concatenate(nodes or (rows,))), 1)
        return held

    @property
    def capacity(self) -> int:
        """GPUs that jobs may hold: GPUs on nodes that are up, without background load."""
        return self.shape.up_gpus

    @property
    def cpu_slots(self) -> int:
        """CPU slots that parameter servers may hold, on nodes that are up and without background load."""
        return self.shape.up_cpu_slots

    @property
    def gpus_per_node(self) -> int:
        """GPUs of the largest node."""
        return self.shape.gpus_per_node


@dataclass(frozen=True, slots=True)
class Allocation:
    """A policy's decision for each row of `ClusterState.jobs`. GPUs alone are enough.

    gpus: [n] integers; with 0 GPUs a job waits in the queue.
    order: [n] row numbers, the order in which changed jobs are placed on nodes. Default: queue order.
        A cluster may use another order: under `placement: pack` large jobs go first.
    batch_size: [n] samples of a training step, from `JobTable.batch_sizes`; 0 (default) is the job's own choice.
        A change of batch size alone costs a running job nothing.
    placement: [n, N] GPUs of each job on each node of the shape, `gpus` in total. Default: the cluster places them.
        A job that already holds exactly these GPUs is not restarted.
    servers: [n] parameter servers, 1 to `JobTable.most_servers`; 0 (default) is the job's default number.
        A change of this number restarts a running job.
    """

    gpus: IntArray
    order: IntArray | None = None
    batch_size: IntArray | None = None
    placement: IntArray | None = None
    servers: IntArray | None = None


class Cluster(Protocol):
    """A cluster that runs jobs, in virtual time (`rlpto.simulator`) or for real.

    store: state of the jobs. held_gpus: GPUs held by jobs. active_jobs: jobs submitted and not finished.
    """

    store: JobStore
    held_gpus: int
    active_jobs: int

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The workload."""

    @property
    def tables(self) -> SpeedTables:
        """Speed tables of the job types."""

    @property
    def time(self) -> float:
        """Seconds since the start of the workload."""

    @property
    def changed(self) -> bool:
        """True if a job arrived or finished or a node changed in the last `advance`."""

    @property
    def shape(self) -> ClusterShape:
        """The nodes in their present state."""

    @property
    def up_gpus(self) -> int:
        """GPUs that jobs may hold now."""

    @property
    def done(self) -> bool:
        """True once every job has finished, or the time limit is reached."""

    @property
    def rescale_delay(self) -> FloatArray:
        """[M] seconds without progress after a change of a job's GPUs, for all M jobs."""

    def state(self) -> ClusterState:
        """Return the present state, with active jobs in order of submission."""

    def table_of(self, index: IntArray) -> JobTable:
        """Return the table of any jobs of the workload, including finished ones."""

    def placement(self, index: IntArray) -> Placement:
        """Return where active jobs hold their GPUs."""

    def apply(self, state: ClusterState, allocation: Allocation) -> None:
        """Carry out an allocation for the present state that `rlpto.core.queues.Queue.admit` has returned."""

    def advance(self, until: float = -np.inf) -> AnyArray:
        """Run to the next decision point, or through more of them before `until` [s] as long as nothing changes.

        Returns [P] `rlpto.core.records.INTERVAL`, one for each decision point, valid until the next call. A cluster may
        stop earlier, at any decision point: real clusters stop at the first.
        """

    def changes(self) -> AllocationChanges:
        """Return every change of a job's GPUs so far."""
