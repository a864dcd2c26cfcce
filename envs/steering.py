"""How an agent of the environment decides for a cluster: look, act, steer the index."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.envs.actions import ACTION_FEATURES, action_weights
from rlpto.envs.observation import Observation, observe
from rlpto.envs.settings import EnvSettings
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import PolicyError
from rlpto.policies.index import steer


class Steering:
    """Decides in a cluster what the environment does with the same action.

    name: of the policy, in errors.
    act: gives the action [ACTION_FEATURES] for an observation.
    settings, start: of the environment; start [S] are the weights of action zero.
    action: the one that stands, empty before the first decision.
    """

    def __init__(
        self, name: str, act: Callable[[Observation], AnyArray], settings: EnvSettings, start: FloatArray
    ) -> None:
        self._name, self._act, self._settings, self._start = name, act, settings, start
        self.reset()

    def reset(self) -> None:
        """Forget the action that stands."""
        self._until = -np.inf
        self.action: AnyArray = np.zeros(0)

    def __call__(self, state: ClusterState) -> Allocation:
        """The GPUs of every job. Raises PolicyError if the action has another shape or is not finite."""
        jobs, settings = state.jobs, self._settings
        if state.time >= self._until:
            seen = observe(state, int(jobs.gpus.sum()), settings.max_jobs, settings.horizon)
            self.action = np.asarray(self._act(seen))
            self._until = state.time + settings.hold
        try:
            weights = action_weights(self._start, self.action, (len(ACTION_FEATURES),))
        except ValueError as wrong:
            raise PolicyError(f"policy {self._name}: {wrong}") from None
        return Allocation(steer(state.time, state.capacity, jobs.records, jobs.speed, weights[None]))
