"""Many clusters at once: the same compiled code as `SimulatedCluster`, looped over the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from rlpto.arrays import IntArray
from rlpto.cluster import Node, total_gpus
from rlpto.jobs import Job, JobStore
from rlpto.performance.tables import SpeedTables
from rlpto.queues import QueueSettings, order_rows, trim
from rlpto.simulator.arrays import JOB, World, build_world
from rlpto.simulator.cluster import check_jobs_fit, shared_store
from rlpto.simulator.failures import schedule_failures
from rlpto.simulator.kernels import advance, apply_allocation, clear_sums
from rlpto.simulator.settings import SimulatorSettings


class BatchSimulator:
    """B equal clusters, each with a workload of its own, that take decisions in step.

    A cluster whose jobs are all finished (or whose time is up) begins its workload anew.
    workloads: B job lists, each sorted by submit time; cluster b draws node failures from seed + b.
    """

    def __init__(
        self,
        nodes: tuple[Node, ...],
        workloads: Sequence[Sequence[Job]],
        tables: SpeedTables,
        settings: SimulatorSettings,
        queue: QueueSettings | None = None,
        seed: int = 0,
    ) -> None:
        for jobs in workloads:
            check_jobs_fit(jobs, total_gpus(nodes))
        records = np.zeros((len(workloads), max(len(jobs) for jobs in workloads)), dtype=JOB)
        for b, jobs in enumerate(workloads):
            records[b, : len(jobs)] = shared_store(JobStore.from_jobs(jobs, tables))[1]
        node_gpus = np.array([node.gpus for node in nodes], dtype=np.int64)
        self.world = build_world(records, node_gpus, tables, settings, seed, keep_log=False)
        self.world.clusters["jobs"] = [len(jobs) for jobs in workloads]
        self._queue = queue or QueueSettings()
        if self._queue.inside != "fifo":
            raise ValueError(f"a batch serves each class first in, first out: queue.inside is {self._queue.inside}")
        self._promoted = np.zeros(records.shape, dtype=np.int64)
        self._start = World._make(part.copy() for part in self.world)
        for b in range(len(workloads)):
            begin(self.world, self._start, self._promoted, b)

    def run_requested(self, decisions: int) -> int:
        """Take `decisions` decisions in every cluster with a trivial policy: every job wishes for its
        requested GPUs, and wishes are trimmed in queue order.

        Returns how many of them had an active job, over all clusters.
        """
        queue = self._queue
        aging = (queue.aging_normal, queue.aging_low)
        return int(run_requested(self.world, self._start, self._promoted, *aging, queue.shrink_lower, decisions))


@njit(cache=True)
def begin(w: World, start: World, promoted: IntArray, b: int) -> None:
    """Put cluster b back to the start of its workload and run it to its first decision."""
    w.jobs[b] = start.jobs[b]
    w.clusters[b] = start.clusters[b]
    w.machines[b] = start.machines[b]
    w.free[b] = start.free[b]
    promoted[b] = 0
    clear_sums(w, b)
    schedule_failures(w, b)
    advance(w, b)


@njit(cache=True, inline="always")
def admit_wishes(
    w: World,
    promoted: IntArray,
    b: int,
    wishes: IntArray,
    aging_normal: float,
    aging_low: float,
    shrink_lower: bool,
) -> None:
    """Carry out wishes[i] GPUs for the i-th active job of cluster b, trimmed in queue order."""
    cluster, jobs = w.clusters[b], w.jobs[b]
    index = w.active[b, : cluster.active]
    first_aging = min(aging_normal, aging_low)
    total, aged = 0, False
    for i in range(len(index)):
        total += wishes[i]
        aged = aged or cluster.time - jobs[index[i]].wait_start >= first_aging
    order = np.arange(len(index))
    if total > cluster.capacity or aged or shrink_lower:  # else all fits, and nobody's turn matters
        priority = np.empty(len(index), dtype=np.int64)
        wait_start = np.empty(len(index))
        for i in range(len(index)):
            job = jobs[index[i]]
            priority[i] = job.priority
            wait_start[i] = job.wait_start
        rows, effective = order_rows(index, priority, wait_start, cluster.time, aging_normal, aging_low, promoted[b])
        lowest = np.empty(len(index), dtype=np.int64)
        for i in range(len(index)):
            lowest[i] = jobs[index[rows[i]]].min_gpus
        wishes = trim(wishes[rows], lowest, effective[rows], cluster.capacity, shrink_lower)
        index = index[rows]
    apply_allocation(w, b, index, wishes, order)


@njit(cache=True)
def run_requested(
    w: World,
    start: World,
    promoted: IntArray,
    aging_normal: float,
    aging_low: float,
    shrink_lower: bool,
    decisions: int,
) -> int:
    """See `BatchSimulator.run_requested`."""
    taken = 0
    for b in range(len(w.clusters)):
        cluster, jobs, active = w.clusters[b], w.jobs[b], w.active[b]
        wishes = np.empty(len(jobs), dtype=np.int64)
        for _ in range(decisions):
            if (cluster.active == 0 and cluster.arrived == cluster.jobs) or cluster.time >= w.rules[0].limit:
                begin(w, start, promoted, b)
            if cluster.active > 0:
                for i in range(cluster.active):
                    wishes[i] = jobs[active[i]].requested_gpus
                admit_wishes(w, promoted, b, wishes[: cluster.active], aging_normal, aging_low, shrink_lower)
                taken += 1
            clear_sums(w, b)
            advance(w, b)
    return taken
