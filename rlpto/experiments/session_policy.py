"""The policy of a session on a real cluster: other processes may ask for another one, and its switches are noted."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import Policy
from rlpto.io.errors import RlptoError
from rlpto.policies.switching import SwitchingPolicy
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase


class SessionPolicy:
    """Decides as `policy` does, which others may switch, and notes who decided.

    make: a policy by its spec. database: where other processes ask for one (`rlpto cluster switch`), and where switches
    are noted. deciding: is told the name of the policy that has just decided, and the seconds it took. ahead: is told
    what is about to be decided on.
    """

    def __init__(
        self,
        policy: SwitchingPolicy,
        make: Callable[[str], Policy],
        database: SessionDatabase,
        deciding: Callable[[str, float], None],
        ahead: Callable[[ClusterState], None] | None = None,
    ) -> None:
        self.name = policy.name
        self._policy = policy
        self._ahead = ahead
        self._make = make
        self._database = database
        self._deciding = deciding

    def reset(self, seed: int) -> None:
        """Forget everything; after a restart of the scheduler, take up the policy it was last asked for."""
        self._policy.reset(seed)
        asked, since = self._database.fact("policy"), self._database.fact("policy_since")
        if asked is not None:
            self._policy.switch(self._make(asked), float(since or 0.0))

    def switch(self, spec: str, now: float) -> None:
        """From the next decision on, let another policy decide. now: s of the session.

        Raises ConfigError for a policy that does not exist; the present one then stays.
        """
        policy = self._make(spec)
        with self._database.transaction():
            self._database.set_fact("policy", spec)
            self._database.set_fact("policy_since", repr(now))
            self._policy.switch(policy, now)
            self._note(now)

    def __call__(self, state: ClusterState) -> Allocation:
        """Decide, after looking whether another policy has been asked for."""
        request = self._database.policy_request()
        if request is not None:
            self._obey(*request, state.time)
        self._note(state.time)
        if self._ahead is not None:
            self._ahead(state)
        began = time.perf_counter()
        allocation = self._policy(state)
        self._deciding(self._policy.present(state.time).name, time.perf_counter() - began)
        return allocation

    def _obey(self, request: int, spec: str, now: float) -> None:
        """Switch as another process has asked; a wrong spec is its mistake, and does not end the run."""
        try:
            self.switch(spec, now)
        except RlptoError as error:
            self._database.answer(request, now, str(error))
        else:
            self._database.answer(request, now, "")

    def _note(self, now: float) -> None:
        """Note if another policy decides than the one noted last, be it by request or at a set time."""
        present, before = self._policy.present(now).name, self._database.fact("deciding")
        if present == before:
            return
        with self._database.transaction():
            self._database.set_fact("deciding", present)
            if before is not None:
                self._database.event(now, "policy", detail=f"{before} -> {present}")
