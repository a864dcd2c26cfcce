"""Growth of a job that trains: whether workers and servers that are to join it come up in time, and what if not."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from rlpto.ray_cluster.job.worker_actors import ParameterServers
from rlpto.ray_cluster.job.worker_roster import WorkerRoster
from rlpto.ray_cluster.messages import Plan


class Growth:
    """The growth that the newest command asks for, until all of it trains or it is given up.

    timeout: s after which it is given up. why: of the last one that was.
    """

    def __init__(self, roster: WorkerRoster, servers: ParameterServers, timeout: float) -> None:
        self._roster, self._servers, self._timeout = roster, servers, timeout
        self._since: float | None = None
        self.why = ""

    def begin(self, plan: Plan) -> None:
        """A plan has been commanded."""
        self._since = time.monotonic() if self._is_ahead(plan) else None

    def cancel(self) -> None:
        """A fault came between: what is missing now is no growth."""
        self._since = None

    def _is_ahead(self, plan: Plan) -> bool:
        """True if all workers and servers that train have a place in the plan, which asks for more."""
        present = Counter(self._roster.training_on), Counter(self._servers.nodes)
        wanted = Counter(plan.nodes), Counter(self._servers.wanted(plan))
        return bool(present[0]) and present != wanted and all(a <= b for a, b in zip(present, wanted, strict=True))

    def given_up(self, plan: Plan, gave_up: bool) -> Plan | None:
        """Let go of what has not come up in time; returns the plan of what trains. None: there is no reason to.

        gave_up: starts have failed so often that there will be no other attempt.
        """
        if self._since is None or not self._roster.training:
            return None
        if not self._is_ahead(plan):
            self._since = None
            return None
        waited = time.monotonic() - self._since
        if waited <= self._timeout and not gave_up:
            return None
        self._since = None
        for worker in list(self._roster.starting):
            self._roster.release(worker)
        self._servers.drop_starting()
        training, serving = self._roster.training_on, self._servers.nodes
        left = f"{len(training)} workers" + (f" and {len(serving)} servers" if serving else "")
        self.why = f"new workers or servers did not come up within {waited:.0f} s: the job goes on with {left}"
        return replace(plan, nodes=training, servers=serving if plan.servers else ())
