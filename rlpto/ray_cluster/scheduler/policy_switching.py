"""Another policy while jobs run: between two decisions, all at once, and on record."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from rlpto.cluster import Allocation, ClusterState
from rlpto.errors import RlptoError
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase


class Decides(Protocol):
    """What a policy is here (`rlpto.policies.base.Policy`): this room knows no policies."""

    name: str

    def reset(self, seed: int) -> None:
        """Forget everything."""

    def __call__(self, state: ClusterState) -> Allocation:
        """Decide."""


class SwitchablePolicy:
    """Asks `policy`, or whichever one has taken its place.

    make: a policy by its spec. database: where other processes ask for one (`rlpto cluster switch`), and where switches
    are noted. deciding: is told the name of the policy that has just decided, and the seconds it took.
    name stays that of the first policy: it is the one that was to be evaluated.
    """

    def __init__(
        self,
        policy: Decides,
        make: Callable[[str], Decides],
        database: SessionDatabase,
        deciding: Callable[[str, float], None],
    ) -> None:
        self.name = policy.name
        self._policy = policy
        self._make = make
        self._database = database
        self._deciding = deciding
        self._seed = 0

    @property
    def present(self) -> str:
        """Name of the policy that decides now."""
        return self._policy.name

    def reset(self, seed: int) -> None:
        """Forget everything; after a restart of the scheduler, take up the policy it was switched to."""
        self._seed = seed
        self._policy.reset(seed)
        switched = self._database.fact("policy")
        if switched is not None:
            self._policy = self._prepared(switched)

    def switch(self, spec: str, now: float) -> None:
        """From the next decision on, let another policy decide. now: s of the session.

        Raises ConfigError for a policy that does not exist; the present one then stays.
        """
        policy = self._prepared(spec)
        with self._database.transaction():
            self._database.set_fact("policy", spec)
            self._database.event(now, "policy", detail=f"{self._policy.name} -> {policy.name}")
        self._policy = policy

    def _prepared(self, spec: str) -> Decides:
        policy = self._make(spec)
        policy.reset(self._seed)
        return policy

    def __call__(self, state: ClusterState) -> Allocation:
        """Decide, after looking whether another policy has been asked for."""
        request = self._database.policy_request()
        if request is not None:
            self._obey(*request, state.time)
        began = time.perf_counter()
        allocation = self._policy(state)
        self._deciding(self._policy.name, time.perf_counter() - began)
        return allocation

    def _obey(self, request: int, spec: str, now: float) -> None:
        """Switch as another process has asked; a wrong spec is its mistake, and does not end the run."""
        try:
            self.switch(spec, now)
        except RlptoError as error:
            self._database.answer(request, now, str(error))
        else:
            self._database.answer(request, now, "")
