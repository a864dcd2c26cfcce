"""Many clusters at once: the same compiled code as `SimulatedCluster`, looped over the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlpto.arrays import FloatArray, IntArray
from rlpto.cluster import Node, total_gpus
from rlpto.compiled import kernel, njit
from rlpto.errors import ConfigError
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
        tables = tables.with_rescale_delay(settings.rescale_delay)
        records = np.zeros((len(workloads), max(len(jobs) for jobs in workloads)), dtype=JOB)
        for b, jobs in enumerate(workloads):
            records[b, : len(jobs)] = shared_store(JobStore.from_jobs(jobs, tables))[1]
        node_gpus = np.array([node.gpus for node in nodes], dtype=np.int64)
        self.world = build_world(records, node_gpus, tables, settings, seed, keep_log=False)
        self.world.clusters["jobs"] = [len(jobs) for jobs in workloads]
        self._queue = queue or QueueSettings()
        if self._queue.inside != "fifo":
            raise ConfigError(f"queue.inside: a batch serves each class fifo, not {self._queue.inside}")
        if self._queue.converging.gained < 1:
            raise ConfigError("queue.converging: a batch shrinks no jobs as they converge, expected gained of 1")
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
        jobs = self.world.jobs.shape[1]
        return int(
            run_requested(
                self.world,
                self._start,
                self._promoted,
                queue.aging_normal,
                queue.aging_low,
                queue.shrink_lower,
                decisions,
                np.empty((8, jobs), dtype=np.int64),
                np.empty(jobs),
            )
        )


@njit()
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


@kernel()
def admit_wishes(
    w: World,
    promoted: IntArray,
    b: int,
    aging_normal: float,
    aging_low: float,
    shrink_lower: bool,
    scratch: IntArray,
    since: FloatArray,
) -> None:
    """Carry out the wishes of cluster b's active jobs, trimmed in queue order.

    scratch: [8, M], row 0 the wish of each active job; the other rows, and since [M], are overwritten
    (memory of their own would cost each decision half a microsecond).
    """
    cluster, jobs, count = w.clusters[b], w.jobs[b], w.clusters[b].active
    active = w.active[b, :count]
    wishes, priority, rows, effective = scratch[0], scratch[1], scratch[2], scratch[3]
    index, sorted_wishes, lowest, classes = scratch[4], scratch[5], scratch[6], scratch[7]
    total = 0
    for i in range(count):
        job = jobs[active[i]]
        priority[i] = job.priority
        since[i] = job.wait_start
        total += wishes[i]
    order_rows(active, priority, since, cluster.time, aging_normal, aging_low, promoted[b], rows, effective)
    for i in range(count):
        row = rows[i]
        index[i] = active[row]
        sorted_wishes[i] = wishes[row]
        lowest[i] = jobs[index[i]].min_gpus
        classes[i] = effective[row]
    gpus = sorted_wishes
    if total > cluster.capacity or shrink_lower:
        gpus = wishes
        trim(sorted_wishes[:count], lowest, classes[:count], cluster.capacity, shrink_lower, gpus[:count])
    for i in range(count):
        rows[i] = i
    apply_allocation(w, b, index[:count], gpus[:count], rows[:count])


@kernel()
def run_requested(
    w: World,
    start: World,
    promoted: IntArray,
    aging_normal: float,
    aging_low: float,
    shrink_lower: bool,
    decisions: int,
    scratch: IntArray,
    since: FloatArray,
) -> int:
    """See `BatchSimulator.run_requested`; scratch, since: as in `admit_wishes`."""
    taken = 0
    for b in range(len(w.clusters)):
        cluster, jobs, active = w.clusters[b], w.jobs[b], w.active[b]
        for _ in range(decisions):
            if (cluster.active == 0 and cluster.arrived == cluster.jobs) or cluster.time >= w.rules[0].limit:
                begin(w, start, promoted, b)
            if cluster.active > 0:
                for i in range(cluster.active):
                    scratch[0, i] = jobs[active[i]].requested_gpus
                admit_wishes(w, promoted, b, aging_normal, aging_low, shrink_lower, scratch, since)
                taken += 1
            clear_sums(w, b)
            advance(w, b)
    return taken
