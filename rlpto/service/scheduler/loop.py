"""The scheduler's loop: as `rlpto.core.loop.run`, but it survives failures of policies, and forgets ended jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rlpto.arrivals.sampled import Futures, as_believed
from rlpto.arrivals.volume import VolumeForecast
from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.loop import DecisionLoop, ProgressWatch
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights, reward_terms
from rlpto.experiments.switchable_policy import SwitchablePolicy
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import PolicyError
from rlpto.planning.predictor import Predictor, Sampled
from rlpto.planning.snapshot import Snapshot
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.service.scheduler.admission import eligible, queue_rows
from rlpto.service.scheduler.catalogue import Catalogue
from rlpto.service.scheduler.policy_catalogue import FALLBACK
from rlpto.service.scheduler.retention import Retention
from rlpto.service.scheduler.source import JobQueueSource
from rlpto.service.scheduler.status_writer import StatusWriter
from rlpto.store.database import Store
from rlpto.store.status import DecisionRow, set_volume
from rlpto.store.users import all_users

OUTLOOK_KEPT_S = 30.0
"""Seconds after which starts and finishes are predicted again although nothing was decided: jobs make progress."""
GUESSED, MEASURED = 0.4, 0.05
"""Standard deviations of the logarithm of a program's speed compared with what is believed: before its jobs have
trained, as guesses are off by half, and after, as sizes that have not been measured are."""


@dataclass(frozen=True)
class SchedulerComponents:
    """What a scheduler is made of."""

    store: Store
    catalogue: Catalogue
    source: JobQueueSource
    cluster: RayCluster
    policy: SwitchablePolicy
    status: StatusWriter
    retention: Retention
    predictor: Predictor | None = None
    volume: VolumeForecast | None = None


class SchedulerLoop:
    """One scheduler at work.

    gpus_held: quota of users that have none of their own; None: no limit. wall: time [s] now. served: GPU-seconds that
    users have had, where the queue is fair between them.
    """

    def __init__(
        self,
        parts: SchedulerComponents,
        queue: QueueSettings,
        weights: RewardWeights,
        wall: Callable[[], float],
        gpus_held: int | None = None,
        served: Mapping[str, float] | None = None,
    ) -> None:
        self._parts, self._weights, self._wall, self._gpus_held = parts, weights, wall, gpus_held
        self._loop = DecisionLoop(parts.cluster, queue, served=served)
        self._decide_at = -np.inf
        self._due = True
        self._reward: FloatArray | None = None
        self._seen_ahead = (-1, -np.inf)
        self._watch = ProgressWatch(parts.cluster, parts.policy.in_force)

    def run(self, stopping: Callable[[], bool]) -> None:
        """Serve until `stopping`."""
        while not stopping():
            self.step()

    def step(self) -> None:
        """Decide if that is due, and let time pass until it may be again."""
        parts = self._parts
        cluster = parts.cluster
        self._switch()
        if self._due or cluster.changed or cluster.time >= self._decide_at:
            self._due = False
            self._decide()
        passed = self._loop.advance(self._decide_at)
        terms = reward_terms(passed, self._weights).sum(axis=0)
        self._reward = terms if self._reward is None else self._reward + terms
        self._look_for_starving(len(passed))
        self._keep_house()

    def _switch(self) -> None:
        """Put policies in force that were asked for."""
        source, policy = self._parts.source, self._parts.policy
        while source.switches:
            request = source.switches.popleft()
            self._due |= policy.obey(request, self._parts.cluster.time)
        if self._due:
            self._watch = ProgressWatch(self._parts.cluster, policy.in_force)

    def _look_for_starving(self, points: int) -> None:
        """Fall back where no job makes progress under the policy. In a drained service that is no fault."""
        if self._parts.source.drained or self._parts.policy.in_force == FALLBACK:
            return
        try:
            self._watch.check(points)
        except PolicyError as error:
            self._fall_back(error)

    def _fall_back(self, error: Exception) -> None:
        self._parts.policy.fall_back(error, self._parts.cluster.time)
        self._watch = ProgressWatch(self._parts.cluster, self._parts.policy.in_force)
        self._due = True

    def _decide(self) -> None:
        """Take a decision; where the policy fails, by fifo instead."""
        parts = self._parts
        if not parts.cluster.active_jobs:
            self._decide_at = np.inf
            parts.status.queued(())
            return
        try:
            self._decide_by_policy()
        except Exception as error:  # a policy may raise anything: the service goes on
            self._fall_back(error)
            self._decide_by_policy()

    def _decide_by_policy(self) -> None:
        parts, policy = self._parts, self._parts.policy
        cluster, source = parts.cluster, parts.source
        whole = self._loop.state()
        if parts.volume is not None:
            forecast, reserved = parts.volume(whole)
            whole = replace(whole, forecast=forecast, reserved=reserved)
        owners, quotas = self._owners(whole)
        state, hidden = eligible(whole, owners, quotas, self._gpus_held, source.drained)
        given = np.zeros(len(whole.jobs), dtype=np.int64)
        latency = 0.0
        if len(state.jobs):
            allocation, latency = policy(state), policy.latency
            shown = np.setdiff1d(np.arange(len(given)), list(hidden))
            given[shown] = self._loop.carry_out(state, allocation, policy.in_force).gpus
        self._decide_at = self._loop.stands_until(state, policy.standing)
        parts.status.queued(queue_rows(whole, cluster.ids, given, hidden, policy.in_force))
        self._record(whole, Allocation(given), latency, applied=bool(len(state.jobs)))

    def _owners(self, state: ClusterState) -> tuple[list[str], dict[str, int | None]]:
        """Owner of every row, and the quotas of users that have one of their own."""
        users = all_users(self._parts.store)
        quotas: dict[str, int | None] = {user.name: user.gpus_held for user in users if user.gpus_held is not None}
        jobs = self._parts.cluster.jobs
        return [jobs[number].user for number in state.jobs.index.tolist()], quotas

    def _record(self, state: ClusterState, allocation: Allocation, latency: float, applied: bool) -> None:
        waiting = int(np.count_nonzero(allocation.gpus == 0))
        held, active, name = int(allocation.gpus.sum()), len(state.jobs), self._parts.policy.in_force
        steering = dict(getattr(self._parts.policy.policy, "steering", {}))
        row = DecisionRow(self._wall(), name, latency, state.capacity, held, active, waiting, steering=steering)
        self._parts.status.decided(row, self._reward, state.time, applied)
        self._reward = None

    def _predict(self, now: float) -> None:
        """Publish predictions; predict again where something has been decided since."""
        parts, policy = self._parts, self._parts.policy
        if parts.predictor is None:
            return
        parts.predictor.publish()
        stale = parts.status.decisions != self._seen_ahead[0] or now >= self._seen_ahead[1] + OUTLOOK_KEPT_S
        if not (stale and parts.cluster.active_jobs and parts.predictor.due):
            return
        self._seen_ahead = parts.status.decisions, now
        state = self._loop.state()
        futures = None if parts.volume is None else parts.volume.futures(state.time)
        sampled = None if futures is None else partial(sampled_futures, futures, parts.cluster, state)
        parts.predictor.begin(parts.cluster, parts.cluster.ids, policy.policy, state, policy.in_force, sampled)

    def _keep_house(self) -> None:
        """What is done now and then: new programs, predictions, volume, and forgetting."""
        parts = self._parts
        if not parts.retention.due():
            return
        self._predict(parts.cluster.time)
        if parts.catalogue.changed():
            parts.cluster.take_tables(parts.catalogue.tables)
            parts.catalogue.write_previews()
        if parts.volume is not None:
            set_volume(parts.store, parts.volume.rows(parts.cluster.time))
        parts.status(parts.cluster)
        lost = parts.retention.keep(self._wall(), parts.cluster)
        if lost:
            parts.policy.reset()
            self._loop.renumbered()
            self._due = True


def sampled_futures(futures: Futures, cluster: RayCluster, state: ClusterState, snapshot: Snapshot) -> Sampled:
    """The futures as the predictor takes them. state: that the snapshot was taken of."""
    estimates = cluster.estimates
    measured = [estimates is None or estimates.is_measured(number) for number in snapshot.index.tolist()]
    found = as_believed(snapshot.tables.types, futures, cluster.jobs, state.jobs.store.believed_type)
    return Sampled(len(found.arrivals), found.jobs, np.where(measured, MEASURED, GUESSED))
