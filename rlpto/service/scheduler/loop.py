"""The loop of a service's scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rlpto.arrivals.sampled import Futures, as_believed
from rlpto.arrivals.volume import VolumeForecast
from rlpto.core.cluster import ClusterState
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import REWARD_PARTS, RewardWeights, reward_terms
from rlpto.experiments.session_loop import SessionLoop, SwitchablePolicy
from rlpto.io.arrays import AnyArray, IntArray
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
from rlpto.store.events import add_event
from rlpto.store.jobs import on_hold
from rlpto.store.requests import Request, answer, get_request
from rlpto.store.status import DecisionRow, note_leaving, set_volume
from rlpto.store.users import all_users

GUESSED, MEASURED = 0.4, 0.05
"""Standard deviations of the logarithm of a program's speed compared with what is believed: before its jobs have
trained, as guesses are off by half, and after, as sizes that have not been measured are."""


@dataclass(frozen=True)
class SchedulerComponents:
    """What a scheduler is made of. drain: announces that a node goes in some seconds; what there is against it."""

    store: Store
    catalogue: Catalogue
    source: JobQueueSource
    cluster: RayCluster
    policy: SwitchablePolicy
    status: StatusWriter
    retention: Retention
    predictor: Predictor | None = None
    volume: VolumeForecast | None = None
    drain: Callable[[str, float], str] = lambda *_: ""


class SchedulerLoop(SessionLoop):
    """The scheduler of a service: it keeps to quotas, writes down what users see, and forgets ended jobs.

    gpus_held: quota of users that have none of their own; None: no limit. wall: time [s] now. served: GPU-seconds that
    users have had, where the queue is fair between users.
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
        super().__init__(parts.cluster, parts.policy, queue, parts.predictor, served=served)
        self._parts, self._weights, self._wall, self._gpus_held = parts, weights, wall, gpus_held
        self._reward = np.zeros(len(REWARD_PARTS))
        self._shown = 0

    def step(self) -> AnyArray:
        """Decide if that is due, let time pass, and see to what is done now and then."""
        if not self._parts.cluster.active_jobs:
            self._parts.status.queued(())
        while self._parts.source.leaving:
            self._announce(self._parts.source.leaving.popleft())
        passed = super().step()
        self._reward += reward_terms(passed, self._weights).sum(axis=0)
        self._keep_house()
        return passed

    def requests(self) -> Iterator[Request]:
        """Requests for another policy that is ready to decide."""
        switches = self._parts.source.switches
        while switches:
            yield switches.popleft()

    def _announce(self, request: Request) -> None:
        """Announce that a node goes. Ray is asked outside of any transaction, for which others would wait."""
        node, seconds, store = str(request.body["node"]), float(request.body["seconds"]), self._parts.store
        asked = get_request(store, request.seq)
        if asked is None or asked.done_at is not None:
            return  # it was withdrawn
        problem = self._parts.drain(node, seconds)
        with store.transaction():
            if not problem:
                note_leaving(store, node, request.at + seconds)
                add_event(store, "nodes", self._wall(), body={"what": "leaves", "node": node, "by": request.by})
            answer(store, request.seq, self._wall(), problem)

    def check_progress(self, points: int) -> None:
        """Fall back where no job makes progress under the policy. It is no fault of a policy that is shown no job."""
        if self._shown and self._policy.in_force != FALLBACK:
            super().check_progress(points)

    def decide(self) -> float:
        """Ask the policy about the jobs that may be decided on, and carry that out: time [s] until which it stands."""
        parts, policy = self._parts, self._policy
        whole = self._loop.state()
        if parts.volume is not None:
            whole = replace(whole, forecast=parts.volume(whole.time))
        owners, quotas = self._owners(whole)
        by, ids = on_hold(parts.store), parts.cluster.ids
        held = {row: by[ids[number]] for row, number in enumerate(whole.jobs.index.tolist()) if ids[number] in by}
        state, hidden = eligible(whole, owners, quotas, self._gpus_held, parts.source.drained, held)
        self._shown = len(state.jobs)
        given = np.zeros(len(whole.jobs), dtype=np.int64)
        latency = 0.0
        if len(state.jobs):
            allocation, latency = policy(state), policy.latency
            shown = np.setdiff1d(np.arange(len(given)), list(hidden))
            given[shown] = self._loop.carry_out(state, allocation, policy.in_force).gpus
        parts.status.queued(queue_rows(whole, parts.cluster.ids, given, hidden, policy.in_force))
        self._record(whole, given, latency, applied=bool(len(state.jobs)))
        return self._loop.stands_until(state, policy.plan)

    def _owners(self, state: ClusterState) -> tuple[list[str], dict[str, int | None]]:
        """Owner of every row, and the quotas of users that have one of their own."""
        users = all_users(self._parts.store)
        quotas: dict[str, int | None] = {user.name: user.gpus_held for user in users if user.gpus_held is not None}
        jobs = self._parts.cluster.jobs
        return [jobs[number].user for number in state.jobs.index.tolist()], quotas

    def _record(self, state: ClusterState, given: IntArray, latency: float, applied: bool) -> None:
        waiting, held = int(np.count_nonzero(given == 0)), int(given.sum())
        active, name = len(state.jobs), self._policy.in_force
        steering = dict(getattr(self._policy.policy, "steering", {}))
        row = DecisionRow(self._wall(), name, latency, state.capacity, held, active, waiting, steering=steering)
        self._parts.status.decided(row, self._reward, state.time, applied)
        self._reward = np.zeros(len(REWARD_PARTS))

    def futures(self, state: ClusterState) -> Callable[[Snapshot], Sampled] | None:
        """Futures by the forecast of arrivals; None: there is none, or too little is known."""
        volume, cluster = self._parts.volume, self._parts.cluster
        futures = None if volume is None else volume.futures(state.time)
        return None if futures is None else partial(sampled_futures, futures, cluster, state)

    def _keep_house(self) -> None:
        """What is done now and then: new programs, volume, and forgetting."""
        parts = self._parts
        if not parts.retention.due():
            return
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
