"""The scheduler of a session on a real cluster, of `rlpto evaluate` and of a service: timing, predictions, and loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.core.loop import DecisionLoop, ProgressWatch
from rlpto.core.queues import QueueSettings
from rlpto.experiments.config import Config
from rlpto.experiments.switchable_policy import SwitchablePolicy
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import PolicyError
from rlpto.planning.predictor import BUSY_SHARE, INTERVAL_S, Predictions, Predictor, Sampled, prediction_settings
from rlpto.planning.snapshot import Snapshot
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_rules import Clock, SessionRules
from rlpto.store.database import StoreError
from rlpto.store.requests import Request, open_requests
from rlpto.store.rows import put_all
from rlpto.store.status import PredictionRow

HOUR = 3600.0
OUTLOOK_KEPT_S = 30.0
"""Seconds after which starts and finishes are predicted again although nothing was decided: jobs make progress."""
NO_PREDICTIONS = "no_predictions"
"""Key of the fact that says why the last prediction failed."""


def session_rules(config: Config, clock: Callable[[float | None, float], Clock] = Clock) -> SessionRules:
    """When the scheduler of an experiment's session decides, and what else it obeys. clock: as in `SessionRules`."""
    times = config.simulator
    limit = math.inf if times.max_hours is None else times.max_hours * HOUR
    return SessionRules(times.interval, times.decide_on, limit, config.ray, clock)


def session_predictor(
    config: Config,
    database: SessionDatabase,
    *,
    every: float = INTERVAL_S,
    executor: Executor | None = None,
    timer: Callable[[], float] = time.monotonic,
    share: float = BUSY_SHARE,
) -> Predictor:
    """Predicts next to the scheduler of a session, and writes that to its database. See `Predictor`."""

    def publish(found: Predictions) -> None:
        over = {job.id for job in database.jobs() if job.is_over}
        put_all(database, PredictionRow, [row for row in found.rows(database.wall) if row.job not in over])

    def failed(reason: str) -> None:
        put_all(database, PredictionRow, ())
        database.set_fact(NO_PREDICTIONS, reason)

    settings = prediction_settings(config.simulator)
    return Predictor(config.queue, settings, publish, failed, every, executor, timer, share)


class SessionLoop:
    """A scheduler at work: as `rlpto.core.loop.run`, but its policy is switched on request, and it predicts.

    predictor: None: nothing is predicted. forecaster, served: as in `DecisionLoop`.
    """

    def __init__(
        self,
        cluster: RayCluster,
        policy: SwitchablePolicy,
        queue: QueueSettings,
        predictor: Predictor | None = None,
        forecaster: Callable[[ClusterState], ClusterState] | None = None,
        served: Mapping[str, float] | None = None,
    ) -> None:
        self._cluster, self._policy, self._predictor = cluster, policy, predictor
        self._loop = DecisionLoop(cluster, queue, forecaster, served=served)
        self._watch = ProgressWatch(cluster, policy.in_force or policy.name)
        self._due, self._decide_at = True, -np.inf
        self._decisions = 0
        self._seen_ahead = (-1, -np.inf)

    def step(self) -> AnyArray:
        """Decide if that is due, and let time pass until it may be again: what happened, see `Cluster.advance`."""
        cluster = self._cluster
        for request in self.requests():
            if self._policy.obey(request, cluster.time):
                self._take_over()
        if self._due or cluster.changed or cluster.time >= self._decide_at:
            self._due = False
            self._decide()
        self._look_ahead()
        passed = cluster.advance(self._decide_at)
        self.check_progress(len(passed))
        return passed

    def requests(self) -> Iterable[Request]:
        """Requests for another policy."""
        return [request for request in open_requests(self._cluster.database) if request.kind == "policy"]

    def check_progress(self, points: int) -> None:
        """Let the fallback decide where jobs make no progress under the policy. Raises PolicyError without one."""
        try:
            self._watch.check(points)
        except PolicyError as error:
            self._fall_back(error)

    def _fall_back(self, error: Exception) -> None:
        self._policy.fall_back(error, self._cluster.time)
        self._take_over()

    def _take_over(self) -> None:
        """Another policy is in force."""
        self._due, self._watch = True, ProgressWatch(self._cluster, self._policy.in_force)

    def _decide(self) -> None:
        """Take a decision; where the policy fails, by the fallback instead."""
        if not self._cluster.active_jobs:
            self._decide_at = np.inf
            return
        try:
            self._decide_at = self.decide()
        except StoreError:  # that the database cannot be read is no fault of the policy
            raise
        except Exception as error:  # a policy may raise anything
            self._fall_back(error)
            self._decide_at = self.decide()
        self._decisions += 1

    def decide(self) -> float:
        """Ask the policy and carry out its decision: time [s] until which that stands."""
        state = self._loop.state()
        self._loop.carry_out(state, self._policy(state), self._policy.in_force)
        return self._loop.stands_until(state, self._policy.plan)

    def _look_ahead(self) -> None:
        """Publish predictions; predict again where something has been decided since."""
        if self._predictor is None:
            return
        self._predictor.publish()
        cluster, (decisions, at) = self._cluster, self._seen_ahead
        stale = decisions != self._decisions or cluster.time >= at + OUTLOOK_KEPT_S
        if stale and cluster.active_jobs and self._predictor.due:
            self._seen_ahead = self._decisions, cluster.time
            state, policy = self._loop.state(), self._policy
            self._predictor.begin(cluster, cluster.ids, policy.plan, state, policy.in_force, self.futures(state))

    def futures(self, state: ClusterState) -> Callable[[Snapshot], Sampled] | None:  # noqa: ARG002
        """Sampled futures of a snapshot of this state; None: without further arrivals."""
        return None
