"""The scheduler's loop: order the jobs, ask the policy, trim to capacity, carry out, advance time.

Simulated runs, predictions, environments and real clusters all call `DecisionLoop.decide`. A second implementation,
`rlpto.simulator.batch_loop`, runs the same steps in compiled code for many clusters at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from rlpto.core.cluster import Allocation, Cluster, ClusterState
from rlpto.core.gpu_types import room_of
from rlpto.core.policy import Policy
from rlpto.core.queue_order import UserService
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.records import INTERVAL, DecisionRecords, JobRecords, NodeRecords, RunRecord
from rlpto.core.rewards import TERMS, RewardWeights, reward_terms
from rlpto.core.sealed import SealedStates
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import ConfigError, PolicyError
from rlpto.performance.solo import alone_bound, requested_seconds

COPIED_COLUMNS = (
    "priority", "requested_gpus", "max_gpus", "rescales", "peak_gpus", "data_size", "epochs", "submit_time",
    "start_time", "finish_time",
)  # fmt: skip
"""Columns of jobs that the records of a run contain unchanged."""
MAX_IDLE_POINTS = 1000
"""Decision points after which a run is aborted if a policy leaves all GPUs unused throughout, or if jobs hold GPUs
without progress."""
LONGEST_WITHOUT_NODES_S = 30 * 86_400.0
"""Seconds after which a run is aborted if no job holds GPUs while some wait for rented nodes."""


class DecisionLoop:
    """Decisions on one cluster under one queue. Repeat `decide` and the cluster's `advance` until all jobs are done.

    forecaster: adds a forecast to every state. Default: no forecast. With a forecaster no decision remains valid,
    because the next forecast may differ. served: earlier GPU-seconds of each user, if the queue is fair between users.
    sealed: if true, policies get states that do not lead to the cluster (`rlpto.core.sealed`).

    valid_until: time [s] until which the last decision is valid, unless jobs or nodes come or go. decisions: number of
    decisions so far.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: QueueSettings,
        forecaster: Callable[[ClusterState], ClusterState] | None = None,
        served: Mapping[str, float] | None = None,
        sealed: bool = False,
    ) -> None:
        self.cluster = cluster
        self.valid_until, self.decisions = -math.inf, 0
        fair = settings.inside == "fair_users"
        self._users = UserService(cluster, served) if fair else None
        self._queue = Queue(settings, self._users)
        self._forecaster = forecaster
        self._sealed = SealedStates() if sealed else None

    @property
    def due(self) -> bool:
        """Whether a decision is due: there are jobs, and the last decision is no longer valid."""
        cluster = self.cluster
        return cluster.active_jobs > 0 and (cluster.changed or cluster.time >= self.valid_until)

    def state(self) -> ClusterState:
        """Return the state for the next decision: the jobs in queue order, with the forecast."""
        state = self._queue.order(self.cluster.state())
        return state if self._forecaster is None else self._forecaster(state)

    def decide(self, policy: Policy, state: ClusterState | None = None) -> Allocation | None:
        """If a decision is due, ask the policy, carry out its allocation, and note until when it is valid.

        state: jobs to decide on; if there are none, the policy is not asked. Default: `state()`. Returns the trimmed
        allocation, or None if no decision was due. Raises PolicyError if the policy returns no allocation, changes the
        list of jobs, or says that its decision is valid until NaN.
        """
        if not self.due:
            return None
        state = self.state() if state is None else state
        shown = state if self._sealed is None else self._sealed(state)
        allocation = Allocation(np.zeros(0, dtype=np.int64))
        if len(state.jobs):
            index = state.jobs.index.tobytes()  # compared in a tenth of the time that arrays take
            wish = policy(shown)
            if state.jobs.index.tobytes() != index:
                raise PolicyError(f"policy {policy.name} has written into state.jobs.index: expected a copy")
            allocation = self._queue.admit(state, wish, policy.name)
            self.cluster.apply(state, allocation)
        self.decisions, self.valid_until = self.decisions + 1, self.cluster.time
        stands_until = getattr(policy, "stands_until", None)  # isinstance takes long for a protocol
        if self._forecaster is None and stands_until is not None:
            until = stands_until(shown)
            if math.isnan(until):
                raise PolicyError(f"policy {policy.name}: stands_until is NaN, expected a time in seconds")
            self.valid_until = min(until, self._queue.stands_until(state))
        return allocation

    def invalidate(self) -> None:
        """Make a decision due, for example because another policy is in force."""
        self.valid_until = -math.inf

    def renumbered(self) -> None:
        """Adapt to a cluster that has removed ended jobs and renumbered the others."""
        self.invalidate()
        if self._users is not None:
            self._users.renumbered()


class NodeControl(Protocol):
    """Decides how many nodes are rented, for example `RentedNodes` of `rlpto.provisioning.control`. due: next decision
    [s].
    """

    due: float

    def decide(self) -> None:
        """Request or return nodes, at `due`."""

    def advance(self, until: float) -> AnyArray:
        """Advance the cluster as `Cluster.advance` does, at most to a decision that `decide` has to take."""

    def records(self) -> NodeRecords:
        """Return the decisions and their consequences."""


def run(
    cluster: Cluster,
    policy: Policy,
    queue_settings: QueueSettings,
    weights: RewardWeights,
    *,
    window: str = "",
    seed: int = 0,
    forecaster: Callable[[ClusterState], ClusterState] | None = None,
    nodes: NodeControl | None = None,
    sealed: bool = False,
) -> RunRecord:
    """Let `policy` schedule the cluster's jobs until all are finished (or its time limit is reached).

    forecaster: adds a forecast to every state, such as a new `rlpto.arrivals.online.WindowForecasts`. nodes: decides on
    rented nodes; required if there are any. forecaster, sealed: passed to `DecisionLoop`.

    Raises PolicyError if the policy returns something that is not an allocation, changes the list of jobs, or lets jobs
    starve, also for lack of rented nodes.
    """
    if nodes is None and cluster.shape.rented_groups:
        raise ConfigError("nodes of the cluster are rented: expected what decides on them, `nodes`")
    started = time.perf_counter()
    loop = DecisionLoop(cluster, queue_settings, forecaster, sealed=sealed)
    policy.reset(seed)
    log = DecisionLog()
    progress, used_until = ProgressWatch(cluster, policy.name), cluster.time
    while not cluster.done:
        if nodes is not None and cluster.time >= nodes.due:
            nodes.decide()
        asked = time.perf_counter()
        allocation = loop.decide(policy)
        if allocation is not None:
            log.decided(cluster, time.perf_counter() - asked, allocation)
        passed = (cluster if nodes is None else nodes).advance(loop.valid_until)
        log.advanced(passed)
        if nodes is not None:
            if passed["gpu_seconds"].any() or not cluster.active_jobs:
                used_until = cluster.time
            elif cluster.time - used_until > LONGEST_WITHOUT_NODES_S:
                raise PolicyError(
                    f"no job has had GPUs for {LONGEST_WITHOUT_NODES_S / 86_400:g} days, and {cluster.active_jobs} "
                    f"wait (at {cluster.time:.0f} s): expected a provisioner that rents nodes for them"
                )
        progress.check(passed)
    return RunRecord(
        policy=policy.name,
        window=window,
        seed=seed,
        capacity=cluster.shape.capacity,
        jobs=job_records(cluster),
        decisions=log.records(weights),
        changes=cluster.changes(),
        wall_seconds=time.perf_counter() - started,
        end=cluster.time,
        rented=NodeRecords() if nodes is None else nodes.records(),
    )


class ProgressWatch:
    """Detects that no job progresses: none has GPUs, or jobs take turns faster than they can start."""

    def __init__(self, cluster: Cluster, policy: str) -> None:
        self._cluster, self._policy = cluster, policy
        self._idle = self._points = 0
        self._held = False
        self._progress, self._rescales = -1.0, 0

    def check(self, passed: AnyArray) -> None:
        """Count decision points without progress. Raises PolicyError after MAX_IDLE_POINTS of them.

        passed: [P] INTERVAL since the last check, each up to a decision point.
        """
        cluster, points = self._cluster, len(passed)
        # GPUs that are free now may have been used until the jobs that held them finished.
        used = cluster.held_gpus > 0 or bool(passed["gpu_seconds"].any())
        self._idle = 0 if used else self._idle + points * starved(cluster)
        if self._idle > MAX_IDLE_POINTS:
            raise PolicyError(
                f"policy {self._policy} leaves {cluster.active_jobs} jobs without GPUs for ever "
                f"(at {cluster.time:.0f} s): expected some to get GPUs"
            )
        self._points += points
        self._held = self._held and cluster.held_gpus > 0
        if self._points < MAX_IDLE_POINTS:
            return
        # Each check sums over all jobs, so it is made only once in a number of points.
        progress, rescales = float(cluster.store.progress.sum()), int(cluster.store.rescales.sum())
        if self._held and progress == self._progress and rescales > self._rescales:
            raise PolicyError(
                f"policy {self._policy}: no job progressed in {MAX_IDLE_POINTS} decision points although "
                f"{cluster.held_gpus} GPUs are held (at {cluster.time:.0f} s): "
                "expected GPUs to stay longer than a rescale takes"
            )
        self._points, self._held, self._progress, self._rescales = 0, True, progress, rescales


def starved(cluster: Cluster) -> bool:
    """True if no job holds GPUs although each active job could have its requested GPUs of one type, and its servers."""
    if cluster.held_gpus or not cluster.active_jobs:
        return False
    state = cluster.state()
    asked, floor_size = state.jobs.requested_gpus, state.jobs.floor_size_on(state.shape.gpu_types)
    if int(state.jobs.own_servers.max()) > state.cpu_slots or int(asked.max()) > cluster.up_gpus:
        return False
    enough = room_of(state.shape)[:, None] >= asked
    if floor_size is not None:
        enough &= floor_size[:, np.arange(len(asked)), asked] > 0
    return bool(enough.any(axis=0).all())


class DecisionLog:
    """Collects decisions, and the intervals after each until the next one."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, float, int, int, int, int]] = []
        self._passed = bytearray()  # of INTERVAL; a list of arrays would take longer to join than to run
        self._owners: list[tuple[int, int]] = []

    def decided(self, cluster: Cluster, latency: float, allocation: Allocation) -> None:
        """Record a decision that has just been applied."""
        waiting = len(allocation.gpus) - int(np.count_nonzero(allocation.gpus))
        self._rows.append((cluster.time, latency, cluster.up_gpus, cluster.held_gpus, cluster.active_jobs, waiting))

    def advanced(self, passed: AnyArray) -> None:
        """Add the intervals since, [P] INTERVAL, to the last decision (or to the first one to come)."""
        self._passed += passed.tobytes()
        self._owners.append((max(len(self._rows) - 1, 0), len(passed)))

    def records(self, weights: RewardWeights) -> DecisionRecords:
        """Return all decisions as arrays, with rewards computed by `weights`."""
        rows = np.array(self._rows, dtype=np.float64).reshape(-1, 6)
        reward, (shortfall, cost) = np.zeros((len(rows), len(TERMS))), np.zeros((2, len(rows)))
        if len(rows):
            passed, owner = np.frombuffer(self._passed, dtype=INTERVAL), np.repeat(*np.array(self._owners).T)
            np.add.at(reward, owner, reward_terms(passed, weights))
            np.add.at(shortfall, owner, passed["shortfall"].sum(axis=1))
            np.add.at(cost, owner, passed["cost"])
        return DecisionRecords.from_rows(rows, reward, shortfall, cost)


def job_records(cluster: Cluster) -> JobRecords:
    """Return the outcome of every job of the cluster's workload, as copies that outlive the cluster."""
    store, tables, shape = cluster.store, cluster.tables, cluster.shape
    everything = np.arange(len(store))
    table = cluster.table_of(everything)
    trained = np.where(np.isfinite(store.finish_time), store.progress, store.epochs)  # fewer where it stopped early
    solo = (tables, store.type_index, store.scale, trained)
    kept = store.kept + store.trained * (1.0 - store.writing)
    may_stop = np.array([job.stop is not None for job in cluster.jobs], dtype=np.bool_)
    delay = cluster.rescale_delay
    return JobRecords(
        names=tuple(job.name for job in cluster.jobs),
        models=tuple(job.model for job in cluster.jobs),
        **{name: getattr(store, name).copy() for name in COPIED_COLUMNS},
        gpu_seconds=store.attained_service.copy(),
        final_accuracy=table.accuracy,
        reached_90=store.reached[:, 0].copy(),
        reached_95=store.reached[:, 1].copy(),
        reached_99=store.reached[:, 2].copy(),
        alone_time=delay + alone_bound(*solo, np.minimum(store.max_gpus, shape.capacity)),
        requested_time=delay + requested_seconds(*solo, store.requested_gpus, shape.gpus_per_node),
        trained_epochs=store.progress.copy(),
        full_accuracy=np.where(may_stop, table.accuracy_at(store.epochs), np.nan),
        kept_seconds=np.where(kept > 0, kept, np.nan),
        lost_gpu_seconds=store.lost.copy(),
    )
