"""One environment as stable-baselines3 wants many: for a cluster of which there is only one, such as a real one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from rlpto.arrays import AnyArray, BoolArray, FloatArray
from rlpto.envs.cluster_env import ClusterEnv, Observed
from rlpto.envs.state import State
from rlpto.envs.vector import Observations
from rlpto.errors import CheckpointError
from rlpto.rewards import REWARD_PARTS

Indices = int | Iterable[int] | None


class LiveSB3Env(VecEnv):
    """A single `ClusterEnv` in the form, and with the infos, of `rlpto.envs.sb3.SB3ClusterEnv`.

    elapsed: [1] float64 seconds that the last step took, written in place.
    """

    def __init__(self, env: ClusterEnv, seed: int) -> None:
        self.render_mode = None
        self.env = env
        self.elapsed: FloatArray = np.zeros(1)
        self._seed: int | None = seed
        self._actions: AnyArray = np.zeros(0)
        self._made = time.perf_counter()
        super().__init__(1, env.observation_space, env.action_space)

    def reset(self) -> Observations:
        """Begin the next episode; the first one after `seed` draws from that."""
        observation, _ = self.env.reset(seed=self._seed)
        self._seed = None
        self._terms = np.zeros(len(REWARD_PARTS))
        self._reward, self._length, self._seconds = 0.0, 0, 0.0
        return _batched(observation)

    def step_async(self, actions: AnyArray) -> None:
        """Note the actions [1, ...]."""
        self._actions = actions

    def step_wait(self) -> tuple[Observations, NDArray[np.float32], BoolArray, list[dict[str, Any]]]:
        """Carry them out; where that ends the episode, the next one begins."""
        observation, reward, ended, cut, info = self.env.step(self._actions[0])
        self.elapsed[0] = info["elapsed"]
        self._terms += [info["terms"][name] for name in REWARD_PARTS]
        self._reward += reward
        self._seconds += info["elapsed"]
        self._length += 1
        rewards, over = np.array([reward], dtype=np.float32), np.array([ended or cut])
        if not over[0]:
            return _batched(observation), rewards, over, [{}]
        told = {
            "terminal_observation": observation,
            "TimeLimit.truncated": cut,
            "episode": {"r": self._reward, "l": self._length, "t": round(time.perf_counter() - self._made, 6)},
            "terms": dict(zip(REWARD_PARTS, self._terms.tolist(), strict=True)),
            "elapsed": self._seconds,
            "workload": self.env.workload,
        }
        return self.reset(), rewards, over, [told]

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Begin other episodes at the next reset."""
        self._seed = seed
        return [seed]

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
        self._seed = None
        self.env.np_random.bit_generator.state = numbers
        return self.reset()

    def close(self) -> None:
        """The environment belongs to whoever made it."""

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of this object."""
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of this object."""
        if list(self._get_indices(indices)):
            setattr(self, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of this object."""
        return [getattr(self, method_name)(*method_args, **method_kwargs) for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Whether this object is one of those wrappers."""
        return [isinstance(self, wrapper_class) for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """None: `rlpto.envs.cluster_env.ClusterEnv` draws."""
        return [None]


def _batched(observation: Observed) -> Observations:
    """The observation as a batch of one."""
    return {name: part[None].copy() for name, part in observation.items()}
