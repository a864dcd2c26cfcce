"""The scheduler of a session on a real cluster, of `rlpto evaluate` and of a service: timing, predictions, the policy,
which is switched between two decisions, and the loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.loop import DecisionLoop, ProgressWatch
from rlpto.core.policy import Policy, naming_line
from rlpto.core.queues import QueueSettings
from rlpto.experiments.config import Config
from rlpto.experiments.nodes_on_ray import SessionNodes
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import PolicyError, RlptoError
from rlpto.planning.predictor import BUSY_SHARE, INTERVAL_S, Predictions, Predictor, Sampled, prediction_settings
from rlpto.planning.snapshot import Snapshot
from rlpto.policies.switching import SwitchingPolicy
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_rules import Clock, SessionRules
from rlpto.store.database import StoreError
from rlpto.store.events import add_event
from rlpto.store.requests import (
    Request,
    Switch,
    add_switch,
    answer,
    get_request,
    open_requests,
    switch_in_force,
)
from rlpto.store.rows import find, put_all
from rlpto.store.status import PredictionRow
from rlpto.store.users import note_change

HOUR = 3600.0
OUTLOOK_KEPT_S = 30.0
"""Seconds after which starts and finishes are predicted again although nothing was decided: jobs make progress."""
NO_PREDICTIONS = "no_predictions"
"""Key of the fact that says why the last prediction failed."""
SCHEDULER = "scheduler"
"""Who has switched where no user asked for it."""


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


class SwitchablePolicy:
    """Decides as the policy in force does. Every change of it is noted in the database with who asked and why.

    make: a policy by its name. first: name of the policy of the very first start; later the one of the last switch is
    in force. Or policies at set times: one that is asked for decides until the next set time. deciding: notified of the
    name of the policy that has just decided, and the seconds it took. wall: time [s since 1970] now; None: that of the
    session. fallback: name of the policy that decides where another one fails; None: a failure ends the session.

    name: of `first`. in_force: name of the policy in force; empty before the first decision of those at set times.
    plan: the policies as one, to look ahead with.
    """

    def __init__(
        self,
        database: SessionDatabase,
        make: Callable[[str], Policy],
        first: str | SwitchingPolicy,
        deciding: Callable[[str, float], None] = lambda *_: None,
        *,
        wall: Callable[[], float] | None = None,
        seed: int = 0,
        fallback: str | None = None,
    ) -> None:
        self._database, self._make, self._deciding = database, make, deciding
        self._wall, self._seed, self._fallback = wall, seed, fallback
        self._set_times = isinstance(first, SwitchingPolicy)
        self.latency = 0.0
        last = switch_in_force(database)
        self.in_force = "" if last is None else last.policy
        if isinstance(first, SwitchingPolicy):
            self.name, self._asked, self.plan = first.name, first.name, first
            self.policy: Policy = first
            for asked in find(database, Switch, "WHERE by != ? ORDER BY number DESC LIMIT 1", (SCHEDULER,)):
                self._enter(asked.policy, self._made(asked.policy), asked.in_force - database.wall(0.0))
            return
        self.name, wanted = first, first if last is None else last.policy
        try:
            self._enter(wanted, self._made(wanted), -np.inf)
        except RlptoError as error:
            if fallback is None:
                raise
            self._enter(fallback, self._made(fallback), -np.inf)
            self._note(fallback, 0.0, SCHEDULER, f"{wanted} cannot be used: {error}")
        else:
            if last is None:
                self._note(wanted, 0.0, SCHEDULER, "the first start")

    def reset(self, seed: int | None = None) -> None:
        """Forget the jobs, as when they have new numbers. The policy in force stays."""
        self._seed = self._seed if seed is None else seed
        self.plan.reset(self._seed)

    def __call__(self, state: ClusterState) -> Allocation:
        """Decide."""
        if self._set_times:
            present = self.plan.present(state.time)
            name = self._asked if present is self.policy else present.name
            if name != self.in_force:
                self._note(name, state.time, SCHEDULER, "its set time" if self.in_force else "the first start")
        began = time.perf_counter()
        with naming_line(self.in_force, self.plan):
            allocation = self.plan(state)
        self.latency = time.perf_counter() - began
        self._deciding(self.in_force, self.latency)
        return allocation

    def obey(self, request: Request, now: float) -> bool:
        """Put another policy in force from `now` [s of the session] on, as asked for, or answer why not; True if it is
        in force. A request that names a switch is refused once that switch is no longer the newest."""
        name, wanted = str(request.body.get("policy", "")), request.body.get("number")
        present = switch_in_force(self._database)
        if wanted is not None and (present is None or present.number != wanted):
            problem = f"the policy was switched before: {self.in_force} is in force"
            answer(self._database, request.seq, self._time(now), problem)
            return False
        try:
            policy = self._made(name)
        except Exception as error:  # the user who asked is answered for every exception of a plug-in or a broken run
            problem = " ".join(str(error).split()) or type(error).__name__
            answer(self._database, request.seq, self._time(now), problem)
            return False
        with self._database.transaction():
            asked = get_request(self._database, request.seq)
            if asked is None or asked.done_at is not None:
                return False  # it was withdrawn
            self._enter(name, policy, now)
            self._note(name, now, request.by, str(request.body.get("reason", "")), request.at)
            answer(self._database, request.seq, self._time(now))
        return True

    def fall_back(self, error: Exception, now: float) -> None:
        """The policy in force has failed: the fallback decides from `now` on. Raises the error if it is what failed."""
        if self._fallback in (None, self.in_force):
            raise error
        failed, name = self.in_force, str(self._fallback)
        self._enter(name, self._made(name), now)
        said = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        self._note(name, now, SCHEDULER, f"{failed} failed: {said}")

    def _made(self, name: str) -> Policy:
        policy = self._make(name)
        policy.reset(self._seed)
        return policy

    def _enter(self, name: str, policy: Policy, now: float) -> None:
        self._asked, self.policy = name, policy
        if self._set_times:
            self.plan.switch(policy, now)
        else:
            self.plan = SwitchingPolicy(name, policy)

    def _note(self, name: str, now: float, by: str, reason: str, asked: float | None = None) -> None:
        """Note that a policy is in force from `now` on. asked [s since 1970]: when; None: no user did."""
        at, self.in_force = self._time(now), name
        with self._database.transaction():
            switch = add_switch(self._database, name, by, reason, at if asked is None else asked, at)
            body = {"number": switch.number, "policy": name, "before": switch.before, "by": by, "reason": reason}
            note_change(self._database, by, "policy.switch", name, at, body)
            if switch.before is None:
                add_event(self._database, "policy", at, body=body)
            else:  # also one of the session
                what = {"what": "policy", "detail": f"{switch.before} -> {name}"}
                add_event(self._database, "policy", at, body=what | body, time=now)

    def _time(self, now: float) -> float:
        return self._database.wall(now) if self._wall is None else self._wall()


class SessionLoop:
    """A scheduler at work: as `rlpto.core.loop.run`, but its policy is switched on request, and it predicts.

    predictor: None: nothing is predicted. forecaster, served: as in `DecisionLoop`. nodes: decides on rented nodes.
    """

    def __init__(
        self,
        cluster: RayCluster,
        policy: SwitchablePolicy,
        queue: QueueSettings,
        predictor: Predictor | None = None,
        forecaster: Callable[[ClusterState], ClusterState] | None = None,
        served: Mapping[str, float] | None = None,
        nodes: SessionNodes | None = None,
    ) -> None:
        self._nodes = nodes
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
        if self._nodes is not None:
            self._nodes.decide()
        if self._due or cluster.changed or cluster.time >= self._decide_at:
            self._due = False
            self._decide()
        self._look_ahead()
        passed = cluster.advance(self._decide_at)
        if self._nodes is not None:
            self._nodes.passed(passed)
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
