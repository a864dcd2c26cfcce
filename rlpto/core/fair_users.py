"""Fair order between users: users with the least recent GPU time come first, and take turns.

GPU time that a user has had counts half after a half-life. A user's second job in the queue counts as if the first had
run for `TURN_S` already, and so on: of two new users, neither has all jobs served before the other's
first. As the multifactor fair share of batch systems, per job rather than per user; no job is ever stopped by it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlpto.core.cluster import Cluster, ClusterState
from rlpto.io.arrays import FloatArray, IntArray

TURN_S = 600.0
"""Seconds for which a user's jobs that run, or wait before another one, are taken to hold what they ask for."""
LEAST_GPU_S = 1.0
"""GPU-seconds below which a user counts as new."""


class UserService:
    """GPU time that the users of a cluster have had. half_life [s]. before: GPU-seconds at the start, by user."""

    def __init__(self, cluster: Cluster, half_life: float, before: Mapping[str, float] | None = None) -> None:
        self._cluster, self._half_life = cluster, half_life
        self._had = dict(before or {})
        self._time = cluster.time
        self._jobs: IntArray = np.zeros(0, dtype=np.int64)
        self._users: list[str] = []
        self._seen: FloatArray = np.zeros(0)

    def __call__(self, state: ClusterState) -> FloatArray:
        """[n] GPU-seconds that the user of every row has had, and will by the time that the row is served."""
        self._count(state)
        keys, ahead = np.zeros(len(state.jobs)), dict(self._had)
        asked = np.where(state.jobs.waiting, state.jobs.requested_gpus, state.jobs.gpus).tolist()
        # Running jobs are ahead of waiting ones.
        rows = np.argsort(state.jobs.waiting, kind="stable").tolist()
        for row in rows:
            user = self._cluster.jobs[int(state.jobs.index[row])].user
            keys[row] = ahead.get(user, 0.0)
            ahead[user] = keys[row] + asked[row] * TURN_S
        return keys

    def _count(self, state: ClusterState) -> None:
        """Bring what users have had up to date."""
        service = self._cluster.store.attained_service
        keep = 0.5 ** ((state.time - self._time) / self._half_life)
        had = {user: keep * seconds for user, seconds in self._had.items()}
        for user, more in zip(self._users, (service[self._jobs] - self._seen).tolist(), strict=True):
            had[user] = had.get(user, 0.0) + more
        self._had = {user: seconds for user, seconds in had.items() if seconds >= LEAST_GPU_S}
        self._time = state.time
        self._watch(state.jobs.index)

    def _watch(self, jobs: IntArray) -> None:
        """Count the GPU time of these jobs from now on."""
        self._jobs = jobs.copy()
        self._users = [self._cluster.jobs[job].user for job in jobs.tolist()]
        self._seen = self._cluster.store.attained_service[jobs].copy()

    def renumbered(self) -> None:
        """The cluster has removed ended jobs and renumbered the others."""
        self._watch(self._cluster.state().jobs.index)
