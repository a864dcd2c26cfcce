"""How an agent of the environment decides for a cluster: observe, act, and set the index weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.envs.actions import ACTION_FEATURES, action_weights
from rlpto.envs.observation import Observation, observe
from rlpto.envs.settings import EnvSettings
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import PolicyError
from rlpto.io.reading import one_line
from rlpto.policies.index import steer


class ActionPolicy:
    """Makes the decisions in a cluster that the environment makes for the same actions.

    name: name of the policy, for errors.
    act: gives the action [ACTION_FEATURES] for an observation.
    settings, start: settings of the environment, and its weights of action zero [S].
    action: the valid action; empty before the first decision.
    """

    def __init__(
        self, name: str, act: Callable[[Observation], AnyArray], settings: EnvSettings, start: FloatArray
    ) -> None:
        self._name, self._act, self._settings, self._start = name, act, settings, start
        self.reset()

    def reset(self) -> None:
        """Forget the valid action."""
        self._until = -np.inf
        self.action: AnyArray = np.zeros(0)

    def __call__(self, state: ClusterState) -> Allocation:
        """The GPUs of every job. Raises PolicyError if the action cannot be converted to an array, has another shape,
        or is not finite."""
        jobs, settings = state.jobs, self._settings
        if state.time >= self._until:
            seen = observe(state, int(jobs.gpus.sum()), settings.max_jobs, settings.horizon)
            acted = self._act(seen)
            try:
                self.action = np.asarray(acted)
            except (RuntimeError, TypeError, ValueError) as wrong:  # RuntimeError: a torch tensor with a gradient
                expected = f"action: expected {len(ACTION_FEATURES)} numbers"
                raise PolicyError(f"policy {self._name}: {expected}: {one_line(wrong)}") from None
            self._until = state.time + settings.hold
        try:
            weights = action_weights(self._start, self.action, (len(ACTION_FEATURES),))
        except (TypeError, ValueError) as wrong:
            raise PolicyError(f"policy {self._name}: {wrong}") from None
        return Allocation(steer(state.time, state.capacity, jobs.records, jobs.speed, weights[None]))
