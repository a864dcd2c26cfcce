"""One environment as stable-baselines3 wants many: for a cluster of which there is only one, such as a real one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv

from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.state import State
from rlpto.envs.vector import Observations
from rlpto.io.arrays import BoolArray, FloatArray
from rlpto.io.errors import CheckpointError


class LiveSB3Env(DummyVecEnv):
    """A single `ClusterEnv` in the form, and with the infos, of `rlpto.envs.sb3.SB3ClusterEnv`.

    elapsed: [1] float64 seconds that the last step took, written in place.
    """

    def __init__(self, env: ClusterEnv, seed: int) -> None:
        super().__init__([lambda: env])
        self.env = env
        self.elapsed: FloatArray = np.zeros(1)
        self._made = time.perf_counter()
        self.seed(seed)

    def reset(self) -> Observations:
        """Begin the next episode; the first one after `seed` draws from that."""
        self._begin_sums()
        observation: Observations = super().reset()  # type: ignore[assignment]
        return observation

    def _begin_sums(self) -> None:
        self._terms = np.zeros(len(REWARD_PARTS))
        self._reward, self._length, self._seconds = 0.0, 0, 0.0

    def step_wait(self) -> tuple[Observations, NDArray[np.float32], BoolArray, list[dict[str, Any]]]:
        """Carry the actions out; where that ends the episode, the next one begins."""
        workload = self.env.workload
        observation, rewards, over, (info,) = super().step_wait()
        self.elapsed[0] = info["elapsed"]
        self._terms += [info["terms"][name] for name in REWARD_PARTS]
        self._reward += float(rewards[0])
        self._seconds += info["elapsed"]
        self._length += 1
        told: dict[str, Any] = {}
        if over[0]:
            told = {name: info[name] for name in ("terminal_observation", "TimeLimit.truncated")} | {
                "episode": {"r": self._reward, "l": self._length, "t": round(time.perf_counter() - self._made, 6)},
                "terms": dict(zip(REWARD_PARTS, self._terms.tolist(), strict=True)),
                "elapsed": self._seconds,
                "workload": workload,
            }
            self._begin_sums()
        return observation, rewards, over, [told]  # type: ignore[return-value]

    def get_state(self) -> State:
        """The random numbers of the episodes: what a cluster is at cannot be kept."""
        return {"elapsed": self.elapsed.copy(), "rngs": [self.env.np_random.bit_generator.state]}

    def set_state(self, state: Mapping[str, Any]) -> Observations:
        """Draw episodes as they would have gone on to be drawn; the present one begins anew.

        Raises CheckpointError if the state is of other environments.
        """
        try:
            (numbers,) = state["rngs"]
            self.elapsed[:] = state["elapsed"]
        except (KeyError, ValueError, TypeError):
            raise CheckpointError("state of environments: expected that of a single one") from None
        self._reset_seeds()
        self.env.np_random.bit_generator.state = numbers
        return self.reset()
