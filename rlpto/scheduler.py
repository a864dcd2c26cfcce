"""The scheduler loop: one visible function for every cluster and every policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rlpto.cluster import Allocation, Cluster, ClusterState, Progress
from rlpto.errors import PolicyError
from rlpto.performance.solo import alone_bound, seconds_to_finish
from rlpto.policies.base import Policy, StandingPolicy
from rlpto.queues import Queue, QueueSettings
from rlpto.records import DecisionRecords, JobRecords, RunRecord
from rlpto.rewards import RewardWeights, reward_parts

PATIENCE = 1000
"""Decision points at which a policy may leave all GPUs unused, between two that see some in use; and at which jobs may
hold GPUs without one of them getting on."""


def run(
    cluster: Cluster,
    policy: Policy,
    queue_settings: QueueSettings,
    weights: RewardWeights,
    *,
    window: str = "",
    seed: int = 0,
    foresee: Callable[[ClusterState], ClusterState] | None = None,
) -> RunRecord:
    """Let `policy` schedule the cluster's jobs until all are finished (or its time limit is reached).

    foresee: adds a forecast to every state that is decided on, such as a new `task_volume.online.StateForecaster`;
        None: no forecast. With one, no decision stands: the next forecast may be another.

    Raises PolicyError if the policy returns something that is not an allocation, or lets jobs starve.
    """
    started = time.perf_counter()
    queue = Queue(queue_settings)
    policy.reset(seed)
    log = DecisionLog()
    decide_at = -np.inf
    idle = 0
    standstill = Standstill(cluster)
    while not cluster.done:
        if cluster.active_jobs and (cluster.changed or cluster.time >= decide_at):
            asked = time.perf_counter()
            state = queue.order(cluster.state())
            if foresee is not None:
                state = foresee(state)
            allocation = queue.admit(state, policy(state), policy.name)
            latency = time.perf_counter() - asked
            cluster.apply(state, allocation)
            log.decided(cluster, latency, allocation)
            decide_at = cluster.time
            if foresee is None and isinstance(policy, StandingPolicy):
                decide_at = min(policy.stands_until(state), queue.stands_until(state))
        idle = 0 if cluster.held_gpus else idle + starved(cluster)
        if idle > PATIENCE:
            raise PolicyError(
                f"policy {policy.name} leaves {cluster.active_jobs} jobs without GPUs for ever "
                f"(at {cluster.time:.0f} s): expected some to get GPUs"
            )
        log.advanced(cluster.advance())
        if standstill.lasts():
            raise PolicyError(
                f"policy {policy.name}: no job got on in {PATIENCE} decision points although {cluster.held_gpus} GPUs "
                f"are held (at {cluster.time:.0f} s): expected GPUs to stay longer than a rescale takes"
            )
    return RunRecord(
        policy=policy.name,
        window=window,
        seed=seed,
        capacity=cluster.capacity,
        jobs=job_records(cluster),
        decisions=log.records(weights),
        changes=cluster.changes(),
        wall_seconds=time.perf_counter() - started,
    )


def starved(cluster: Cluster) -> bool:
    """True if no job holds GPUs although every active one could have those it asked for."""
    if cluster.held_gpus or not cluster.active_jobs:
        return False
    return int(cluster.state().jobs.requested_gpus.max()) <= cluster.up_gpus


class Standstill:
    """Watches whether jobs that hold GPUs get on, once in PATIENCE decision points: a look costs a sum over jobs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._points, self._held = 0, False
        self._progress, self._rescales = -1.0, 0

    def lasts(self) -> bool:
        """True if at all of the last PATIENCE points GPUs have been held, rescales have gone on, and no job got on."""
        self._points += 1
        self._held = self._held and self._cluster.held_gpus > 0
        if self._points % PATIENCE:
            return False
        progress, rescales = float(self._cluster.store.progress.sum()), int(self._cluster.store.rescales.sum())
        stuck = self._held and progress == self._progress and rescales > self._rescales
        self._held, self._progress, self._rescales = True, progress, rescales
        return stuck


@dataclass
class DecisionLog:
    """Collects decisions, and for each what happened until the next one."""

    rows: list[tuple[float, float, int, int, int, int]] = field(default_factory=list)
    sums: list[tuple[float, ...]] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)

    def decided(self, cluster: Cluster, latency: float, allocation: Allocation) -> None:
        """Note a decision that has just been applied."""
        self.rows.append(
            (
                cluster.time,
                latency,
                cluster.up_gpus,
                cluster.held_gpus,
                cluster.active_jobs,
                len(allocation.gpus) - int(np.count_nonzero(allocation.gpus)),
            )
        )

    def advanced(self, progress: Progress) -> None:
        """Add what happened since to the last decision (or to the first one to come)."""
        self.owner.append(max(len(self.rows) - 1, 0))
        self.sums.append((*progress.accuracy_gain, progress.unfinished, progress.gpu_seconds, progress.rescale_seconds))

    def records(self, weights: RewardWeights) -> DecisionRecords:
        """All decisions as arrays, rewards computed with `weights`."""
        rows = np.array(self.rows, dtype=np.float64).reshape(-1, 6)
        reward = np.zeros((len(rows), 4))
        if len(rows):
            sums = np.array(self.sums, dtype=np.float64)
            parts = reward_parts(sums[:, :-3], sums[:, -3], sums[:, -2], sums[:, -1], weights)
            np.add.at(reward, np.array(self.owner), parts)
        return DecisionRecords.from_rows(rows, reward)


def job_records(cluster: Cluster) -> JobRecords:
    """What became of every job of the cluster's workload: copies, which outlive the cluster."""
    store, tables = cluster.store, cluster.tables
    everything = np.arange(len(store))
    table = cluster.table_of(everything)
    solo = (tables, store.type_index, store.scale, store.epochs)
    delay = cluster.rescale_delay
    return JobRecords(
        names=tuple(job.name for job in cluster.jobs),
        models=tuple(job.model for job in cluster.jobs),
        priority=store.priority.copy(),
        requested_gpus=store.requested_gpus.copy(),
        max_gpus=store.max_gpus.copy(),
        rescales=store.rescales.copy(),
        peak_gpus=store.peak_gpus.copy(),
        data_size=store.data_size.copy(),
        epochs=store.epochs.copy(),
        submit_time=store.submit_time.copy(),
        start_time=store.start_time.copy(),
        finish_time=store.finish_time.copy(),
        gpu_seconds=store.attained_service.copy(),
        final_accuracy=table.accuracy,
        alone_time=delay + alone_bound(*solo, np.minimum(store.max_gpus, cluster.capacity)),
        requested_time=delay + seconds_to_finish(*solo, store.requested_gpus, cluster.gpus_per_node),
    )
