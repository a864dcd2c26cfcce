"""A batch of one environment over a cluster of which there is only one, such as a real one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.batch import State, Steps
from rlpto.envs.cluster_env import ClusterEnv, Observed
from rlpto.envs.observation import Observation
from rlpto.envs.setup import episode_rng
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import CheckpointError


class LiveBatch:
    """A single `ClusterEnv` in the form of `rlpto.envs.batch.EnvBatch`; the next episode begins in the same step."""

    RESUMES = False
    """What a cluster is at cannot be kept: an episode that is restored begins again."""

    def __init__(self, env: ClusterEnv, seed: int | None = 0) -> None:
        self.env, self.setup = env, env.setup
        self.count = 1
        self.steps = np.zeros(1, dtype=np.int64)
        self.seed(seed)

    def seed(self, seed: int | None) -> None:
        """Begin the episodes' random numbers again."""
        self.env.np_random = episode_rng(seed)

    @property
    def names(self) -> list[str]:
        """Name of the workload of the present episode."""
        return [self.env.workload]

    def reset(self) -> Observation:
        """Begin the next episode."""
        self.steps[:] = 0
        return _batched(self.env.reset()[0])

    def step(self, actions: AnyArray) -> tuple[Observation, Steps]:
        """Carry out actions [1, ...]."""
        seen, reward, ended, cut, info = self.env.step(actions[0])
        self.steps += 1
        last = _batched(seen)
        parts = np.array([[info["terms"][name] for name in REWARD_PARTS]])
        steps = Steps(np.array([reward]), parts, np.array([info["elapsed"]]), np.array([ended]), np.array([cut]), last)
        return self.reset() if ended or cut else last, steps

    def state(self) -> State:
        """The random numbers of the episodes."""
        return {"rngs": [self.env.np_random.bit_generator.state]}

    def restore(self, state: Mapping[str, Any]) -> Observation:
        """Draw episodes as they would have gone on to be drawn; the present one begins again.

        Raises CheckpointError if the state is of other environments.
        """
        if len(state.get("rngs", ())) != 1:
            raise CheckpointError("state of environments: expected that of a single one")
        self.env.np_random.bit_generator.state = state["rngs"][0]
        return self.reset()


def _batched(observed: Observed) -> Observation:
    """An observation with a leading axis [1]."""
    return Observation(**{name: part[None] for name, part in observed.items()})
