"""Many simulated environments that step together, as stable-baselines3 wants them: no subprocesses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.batch import EnvBatch
from rlpto.envs.setup import EnvSetup, action_space, observation_space
from rlpto.envs.state import State, batch_state, check_same_form, restore_batch
from rlpto.envs.vector import Observations, one_row
from rlpto.io.arrays import AnyArray, BoolArray, FloatArray

Indices = int | Iterable[int] | None


class SB3ClusterEnv(VecEnv):
    """B environments, the same as those of `rlpto.envs.vector.ClusterVectorEnv`.

    elapsed: [B] float64 seconds that the last step took: always the same array, written in place, so
    that a rollout buffer can keep it and discount per unit of time.

    When the episode of environment i is over, infos[i] holds: terminal_observation, TimeLimit.truncated,
    episode (r: sum of rewards, l: steps, t: seconds since this object was made), terms (sums of the
    reward's terms, by name), elapsed (simulated seconds) and workload (its name). Otherwise it is
    empty. All arrays that are returned are fresh.

    setup, num_envs, seed: as those of `rlpto.envs.vector.ClusterVectorEnv`.
    """

    def __init__(self, setup: EnvSetup, num_envs: int, seed: int | None = None) -> None:
        self.render_mode = None
        self.batch = EnvBatch(setup, num_envs, seed)
        self.elapsed: FloatArray = np.zeros(num_envs)
        self._terms: FloatArray = np.zeros((num_envs, len(REWARD_PARTS)))
        self._reward: FloatArray = np.zeros(num_envs)
        self._seconds: FloatArray = np.zeros(num_envs)
        self._next_seed: int | None = None
        self._actions: AnyArray = np.zeros(0)
        self._made = time.perf_counter()
        super().__init__(num_envs, observation_space(setup.settings), action_space())

    def reset(self) -> Observations:
        """Begin a new episode everywhere: those of the seed if `seed` was called, else the next ones."""
        if self._next_seed is not None:
            self.batch.seed(self._next_seed)
            self._next_seed = None
        for sums in (self._terms, self._reward, self._seconds, self.elapsed):
            sums[:] = 0.0
        return self.batch.reset()._asdict()

    def step_async(self, actions: AnyArray) -> None:
        """Note the actions [B, ...]."""
        self._actions = actions

    def step_wait(self) -> tuple[Observations, NDArray[np.float32], BoolArray, list[dict[str, Any]]]:
        """Carry them out. Raises ValueError if they have another shape or are not finite."""
        batch = self.batch
        length, workloads = batch.steps + 1, batch.fleet.loop.current.copy()
        observation, steps = batch.step(self._actions)
        self.elapsed[:] = steps.elapsed
        self._terms += steps.parts
        self._reward += steps.reward
        self._seconds += steps.elapsed
        over = steps.ended | steps.cut
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for b in np.flatnonzero(over):
            infos[b] = {
                "terminal_observation": one_row(steps.last, int(b)),
                "TimeLimit.truncated": bool(steps.cut[b]),
                "episode": {
                    "r": float(self._reward[b]),
                    "l": int(length[b]),
                    "t": round(time.perf_counter() - self._made, 6),
                },
                "terms": dict(zip(REWARD_PARTS, self._terms[b].tolist(), strict=True)),
                "elapsed": float(self._seconds[b]),
                "workload": batch.setup.workloads[workloads[b]].name,
            }
        for sums in (self._terms, self._reward, self._seconds):
            sums[over] = 0.0
        return observation._asdict(), steps.reward.astype(np.float32), over, infos

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Begin other episodes at the next reset; None: whichever the present ones are followed by."""
        self._next_seed = seed
        replay = self.batch.setup.settings.episode.replay
        return [None if seed is None else seed + b // replay for b in range(self.num_envs)]

    def get_state(self) -> State:
        """All that changes, as arrays and (under `rngs`) plain data: see `set_state`."""
        return batch_state(self.batch) | {name: array.copy() for name, array in self._own().items()}

    def set_state(self, state: Mapping[str, Any]) -> Observations:
        """Go on where `get_state` was called, bit for bit; returns the last observation.

        Raises CheckpointError, and changes nothing, if the state is of other environments.
        """
        for name, array in self._own().items():
            check_same_form(state, name, array)
        restore_batch(self.batch, state)
        for name, array in self._own().items():
            array[...] = state[name]
        self._next_seed = None
        return {name: part.copy() for name, part in self.batch.observation._asdict().items()}

    def _own(self) -> dict[str, FloatArray]:
        """What changes in this object beyond its batch."""
        return {
            "elapsed": self.elapsed,
            "sums.terms": self._terms,
            "sums.reward": self._reward,
            "sums.seconds": self._seconds,
        }

    def close(self) -> None:
        """There is nothing to close."""

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of this object, once for each environment: they share all there is."""
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of this object. Raises ValueError if only some environments were to have it."""
        if set(self._get_indices(indices)) != set(range(self.num_envs)):
            raise ValueError(f"{attr_name}: the environments share their attributes, expected indices None")
        setattr(self, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of this object, once; its answer is that of each environment."""
        answer = getattr(self, method_name)(*method_args, **method_kwargs)
        return [answer for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """False for each: a wrapper of single environments is around none of them."""
        return [isinstance(self, wrapper_class) for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """None for each: `rlpto.envs.cluster_env.ClusterEnv` draws."""
        return [None] * self.num_envs
