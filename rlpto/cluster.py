"""The two sides of a scheduling decision: what a policy sees, and what a cluster is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rlpto.arrays import FloatArray, IntArray
from rlpto.errors import ConfigError
from rlpto.jobs import JobTable


@dataclass(frozen=True, slots=True)
class Node:
    """A machine: `gpus` and `cpus` it offers to jobs."""

    gpus: int
    cpus: int = 0

    def __post_init__(self) -> None:
        if self.gpus < 0 or self.cpus < 0:
            raise ConfigError(f"a node cannot have {self.gpus} GPUs and {self.cpus} CPUs: expected 0 or more")


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted task volume: jobs arriving in each of the next H intervals, by priority class.

    mean, low, high: [H, classes] float64; low and high bound 80 % of the outcomes.
    """

    mean: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True)
class ClusterState:
    """What a policy decides on.

    time: seconds since the start of the workload.
    jobs: the n active jobs (waiting or running), in queue order: row 0 is served first.
    capacity: GPUs on nodes that are up.
    gpus_per_node: GPUs of the largest node.
    interval: seconds between regular decisions.
    forecast: predicted task volume, or None.
    """

    time: float
    jobs: JobTable
    capacity: int
    gpus_per_node: int
    interval: float
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a policy decides: GPUs for every row of `ClusterState.jobs`.

    gpus: [n] integers; 0 leaves or puts the job in the queue.
    order: [n] row numbers, the order in which changed jobs are placed on nodes; None: queue order.
    """

    gpus: IntArray
    order: IntArray | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """What happened between two decisions, summed over jobs. Times in seconds.

    start, end: the two decision times.
    accuracy_gain: [classes] sum over jobs of (accuracy gained / accuracy the job can gain in all).
    unfinished: job-seconds spent in the system (submitted, not finished).
    gpu_seconds: GPU-seconds held by jobs.
    rescales: changes of a running or starting job's GPUs applied at `start`.
    rescale_seconds: seconds of delay those changes cost, summed over jobs.
    arrived, finished: numbers of jobs.
    """

    start: float
    end: float
    accuracy_gain: FloatArray
    unfinished: float
    gpu_seconds: float
    rescales: int
    rescale_seconds: float
    arrived: int
    finished: int


class Cluster(Protocol):
    """Where jobs run: in virtual time (`rlpto.simulator`) or for real."""

    @property
    def done(self) -> bool:
        """True once every job of the workload has finished."""

    def state(self) -> ClusterState:
        """The table of active jobs as it stands now."""

    def apply(self, state: ClusterState, allocation: Allocation) -> None:
        """Carry out an allocation for the rows of `state`, which must be the present state."""

    def advance(self) -> Progress:
        """Run until the next decision is due."""


def total_gpus(nodes: tuple[Node, ...]) -> int:
    """GPUs of all nodes together."""
    return sum(node.gpus for node in nodes)
