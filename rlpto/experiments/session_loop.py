"""Scheduler of a session on a real cluster, in `rlpto evaluate` and in a service: timing, predictions, switching the
policy between decisions, and the loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.loop import DecisionLoop, ProgressWatch
from rlpto.core.policy import Policy, naming_line
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
"""Seconds after which starts and finishes are predicted again without a decision, because jobs make progress."""
NO_PREDICTIONS = "no_predictions"
"""Key in the database's key-value table for the reason why the last prediction failed."""
SCHEDULER = "scheduler"
"""Author of policy switches that no user asked for."""


def session_rules(config: Config, clock: Callable[[float | None, float], Clock] = Clock) -> SessionRules:
    """Return the rules of an experiment's session: timing of decisions, time limit and Ray settings. clock: makes the
    session's clock, passed to `SessionRules`."""
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
    """Return a `Predictor` that runs in parallel to a session's scheduler and writes to the session's database."""

    def publish(found: Predictions) -> None:
        over = {job.id for job in database.jobs() if job.is_over}
        put_all(database, PredictionRow, [row for row in found.rows(database.wall) if row.job not in over])

    def failed(reason: str) -> None:
        put_all(database, PredictionRow, ())
        database.set_fact(NO_PREDICTIONS, reason)

    settings = prediction_settings(config.simulator)
    return Predictor(config.queue, settings, publish, failed, every, executor, timer, share)


class SwitchablePolicy:
    """Delegates to the policy in force. Every switch is recorded in the database with its author and reason.

    make: returns the policy of a name. first: policy name for the very first start; a restarted session uses the policy
    of its last switch. `first` may also be a schedule of policies; a policy requested by a user then decides until the
    next scheduled switch. deciding: called after each decision with the policy's name and the seconds it took. wall:
    returns the present time [s since 1970]. Default: the session's clock. fallback: name of the policy that takes over
    when another policy fails. Default: a failure ends the session.

    name: name of the policy in force; empty before the first decision of a schedule. plan: present and scheduled
    policies as one policy, for predictions.
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
        self.name = "" if last is None else last.policy
        if isinstance(first, SwitchingPolicy):
            self._asked, self.plan = first.name, first
            self.policy: Policy = first
            for asked in find(database, Switch, "WHERE by != ? ORDER BY number DESC LIMIT 1", (SCHEDULER,)):
                self._enter(asked.policy, self._made(asked.policy), asked.in_force - database.wall(0.0))
            return
        wanted = first if last is None else last.policy
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
        """Forget all jobs, for example when they are renumbered. The policy in force stays."""
        self._seed = self._seed if seed is None else seed
        self.plan.reset(self._seed)

    def __call__(self, state: ClusterState) -> Allocation:
        """Return the allocation of the policy in force."""
        if self._set_times:
            present = self.plan.present(state.time)
            name = self._asked if present is self.policy else present.name
            if name != self.name:
                self._note(name, state.time, SCHEDULER, "its set time" if self.name else "the first start")
        began = time.perf_counter()
        with naming_line(self.name, self.plan):
            allocation = self.plan(state)
        self.latency = time.perf_counter() - began
        self._deciding(self.name, self.latency)
        return allocation

    def stands_until(self, state: ClusterState) -> float:
        """Time [s] until which the decision on `state` is valid."""
        return self.plan.stands_until(state)

    def obey(self, request: Request, now: float) -> bool:
        """Switch to the requested policy at `now` [s of the session] and return True, or answer the request with the
        reason why not. A request that names a switch is refused once that switch is no longer the newest."""
        name, wanted = str(request.body.get("policy", "")), request.body.get("number")
        present = switch_in_force(self._database)
        if wanted is not None and (present is None or present.number != wanted):
            problem = f"the policy was switched before: {self.name} is in force"
            answer(self._database, request.seq, self._time(now), problem)
            return False
        try:
            policy = self._made(name)
        except Exception as error:  # the user gets an answer for every exception of a plug-in or a broken run
            problem = " ".join(str(error).split()) or type(error).__name__
            answer(self._database, request.seq, self._time(now), problem)
            return False
        with self._database.transaction():
            asked = get_request(self._database, request.seq)
            if asked is None or asked.done_at is not None:
                return False  # the request was cancelled
            self._enter(name, policy, now)
            self._note(name, now, request.by, str(request.body.get("reason", "")), request.at)
            answer(self._database, request.seq, self._time(now))
        return True

    @property
    def fell_back(self) -> bool:
        """True if the fallback is in force."""
        return self.name == self._fallback

    def fall_back(self, error: Exception, now: float) -> None:
        """Let the fallback decide from `now` on, since the policy in force has failed. Raises `error` if there is no
        fallback or the fallback itself failed."""
        if self._fallback is None or self.fell_back:
            raise error
        failed, name = self.name, self._fallback
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
        """Record that a policy is in force from `now` on. asked: time of the user's request [s since 1970], if any."""
        at, self.name = self._time(now), name
        with self._database.transaction():
            switch = add_switch(self._database, name, by, reason, at if asked is None else asked, at)
            body = {"number": switch.number, "policy": name, "before": switch.before, "by": by, "reason": reason}
            note_change(self._database, by, "policy.switch", name, at, body)
            if switch.before is None:
                add_event(self._database, "policy", at, body=body)
            else:  # also an event of the session
                what = {"what": "policy", "detail": f"{switch.before} -> {name}"}
                add_event(self._database, "policy", at, body=what | body, time=now)

    def _time(self, now: float) -> float:
        return self._database.wall(now) if self._wall is None else self._wall()


class SessionLoop:
    """Runs a scheduler like `rlpto.core.loop.run`, but switches the policy on request and publishes predictions.

    predictor: predicts starts and finishes, if given. nodes: decides on rented nodes. decide: lets the policy decide if
    a decision of `loop` is due. futures: returns a function that samples futures of a snapshot of this state. Default:
    nothing is predicted of jobs to come. requests: returns requests for another policy. Default: the open ones in the
    cluster's database.
    """

    def __init__(
        self,
        cluster: RayCluster,
        policy: SwitchablePolicy,
        loop: DecisionLoop,
        predictor: Predictor | None = None,
        nodes: SessionNodes | None = None,
        decide: Callable[[SwitchablePolicy], Allocation | None] | None = None,
        futures: Callable[[ClusterState], Callable[[Snapshot], Sampled] | None] = lambda _: None,
        requests: Callable[[], Iterable[Request]] | None = None,
    ) -> None:
        self._cluster, self._policy, self._loop, self._predictor = cluster, policy, loop, predictor
        self._nodes, self._ask, self._futures = nodes, decide or loop.decide, futures
        self._requests = requests or self._open_requests
        self._watch = ProgressWatch(cluster, policy.name or policy.plan.name)
        self._shown, self._seen_ahead = 0, (-1, -np.inf)

    def step(self) -> AnyArray:
        """Decide if a decision is due, let time pass until the next may be due, and return what `Cluster.advance`
        reports."""
        cluster = self._cluster
        for request in self._requests():
            if self._policy.obey(request, cluster.time):
                self._take_over()
        if self._nodes is not None:
            self._nodes.decide()
        self._decide()
        self._look_ahead()
        passed = cluster.advance(self._loop.valid_until)
        if self._nodes is not None:
            self._nodes.passed(passed)
        self._check_progress(passed)
        return passed

    def _open_requests(self) -> list[Request]:
        return [request for request in open_requests(self._cluster.database) if request.kind == "policy"]

    def _check_progress(self, passed: AnyArray) -> None:
        """Switch to the fallback if jobs make no progress under the policy. Raises PolicyError without a fallback. A
        policy that is shown no job is not at fault."""
        if not self._shown or self._policy.fell_back:
            return
        try:
            self._watch.check(passed)
        except PolicyError as error:
            self._fall_back(error)

    def _fall_back(self, error: Exception) -> None:
        self._policy.fall_back(error, self._cluster.time)
        self._take_over()

    def _take_over(self) -> None:
        """Decide soon and watch progress from now, because another policy is in force."""
        self._loop.invalidate()
        self._watch = ProgressWatch(self._cluster, self._policy.name)

    def _decide(self) -> None:
        """Decide if a decision is due. If the policy fails, the fallback decides."""
        try:
            allocation = self._ask(self._policy)
        except StoreError:  # an unreadable database is no fault of the policy
            raise
        except Exception as error:  # a policy may raise anything
            self._fall_back(error)
            allocation = self._ask(self._policy)
        self._shown = self._shown if allocation is None else len(allocation.gpus)

    def _look_ahead(self) -> None:
        """Publish finished predictions; start the next one after a decision or OUTLOOK_KEPT_S."""
        if self._predictor is None:
            return
        self._predictor.publish()
        cluster, (decisions, at) = self._cluster, self._seen_ahead
        stale = decisions != self._loop.decisions or cluster.time >= at + OUTLOOK_KEPT_S
        if stale and cluster.active_jobs and self._predictor.due:
            self._seen_ahead = self._loop.decisions, cluster.time
            state, policy = self._loop.state(), self._policy
            self._predictor.begin(cluster, cluster.ids, policy.plan, state, policy.name, self._futures(state))
