"""The policy of a session on a real cluster, of `rlpto evaluate` and of a service: switched between two decisions."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import Policy
from rlpto.io.errors import RlptoError
from rlpto.policies.switching import SwitchingPolicy
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.store.events import add_event
from rlpto.store.requests import Request, Switch, add_switch, answer, get_request, switch_in_force
from rlpto.store.rows import find
from rlpto.store.users import note_change

SCHEDULER = "scheduler"
"""Who has switched where no user asked for it."""


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
        except Exception as error:  # the user who asked is answered whatever a plug-in or a broken run raises
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
