"""A batch of environments for stable-baselines3, in this process, without subprocesses."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.batch import BatchSteps, EnvBatch
from rlpto.envs.episodes import EnvSetup, ExternalSetup
from rlpto.envs.observation import Observed
from rlpto.envs.vector import one_row
from rlpto.io.arrays import AnyArray, BoolArray

Indices = int | Iterable[int] | None


class SB3ClusterEnv(VecEnv):
    """B environments in one process, or one over an external cluster.

    Environment b draws its episodes from (seed, b), not from seed + b as in `rlpto.envs.vector.ClusterVectorEnv`.

    When the episode of environment i is over, infos[i] holds: terminal_observation, TimeLimit.truncated, terms (sums of
    the reward's terms, by name), elapsed (simulated seconds), workload (its name) and episode (r: sum of rewards, l:
    steps, t: seconds since this object was made, terms and elapsed). Otherwise it is empty. All arrays that are
    returned are fresh.

    setup, num_envs, seed: arguments of `rlpto.envs.batch.EnvBatch`.
    """

    batch_class: ClassVar[type[EnvBatch]] = EnvBatch

    def __init__(self, setup: EnvSetup | ExternalSetup, num_envs: int = 1, seed: int | None = None) -> None:
        self.render_mode = None
        self.batch = self.batch_class(setup, num_envs, seed)
        self._actions: AnyArray = np.zeros(0)
        self._made = time.perf_counter()
        super().__init__(num_envs, self.batch.observation_space, self.batch.action_space)

    def reset(self) -> Observed:
        """Begin the next episode everywhere."""
        return self.batch.reset()._asdict()

    def step_async(self, actions: AnyArray) -> None:
        """Keep the actions [B, ...] for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Observed, NDArray[np.float32], BoolArray, list[dict[str, Any]]]:
        """Carry out the kept actions. Raises ValueError if they have another shape or are not finite."""
        steps = self.batch.step(self._actions)
        over, seen = steps.over, steps.observation
        infos = [self._summary(b, steps) if ended else {} for b, ended in enumerate(over.tolist())]
        if over.any():
            seen = self.batch.begin_next(np.flatnonzero(over))
        return seen._asdict(), steps.reward.astype(np.float32), over, infos

    def _summary(self, b: int, steps: BatchSteps) -> dict[str, Any]:
        """The info of an environment whose episode is over."""
        batch, passed = self.batch, time.perf_counter() - self._made
        terms = dict(zip(REWARD_PARTS, batch.terms[b].tolist(), strict=True))
        simulated = {"terms": terms, "elapsed": float(batch.seconds[b])}
        return {
            "terminal_observation": one_row(steps.observation, b),
            "TimeLimit.truncated": bool(steps.cut[b]),
            "episode": {"r": float(batch.reward[b]), "l": int(batch.steps[b]), "t": round(passed, 6), **simulated},
            **simulated,
            "workload": batch.names[b],
        }

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Draw the next episodes from a seed, or continue with the present one if it is None."""
        if seed is not None:
            self.batch.seed(seed)
        return [None if seed is None else seed + b for b in range(self.num_envs)]

    def close(self) -> None:
        """There is nothing to close."""

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of this object, once for each environment, since they share all attributes."""
        return self._each(getattr(self, attr_name), indices)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of this object. Raises ValueError if only some environments were to have it."""
        if len(self._each(None, indices)) != self.num_envs:
            raise ValueError(f"{attr_name}: the environments share their attributes, expected indices None")
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Indices = None, **options: Any) -> list[Any]:
        """Call a method of this object once, and return its answer for each environment."""
        return self._each(getattr(self, method_name)(*args, **options), indices)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """False for each environment: none is wrapped on its own."""
        return self._each(isinstance(self, wrapper_class), indices)

    def _each(self, value: Any, indices: Indices) -> list[Any]:
        """The value once for each of the requested environments."""
        if indices is None:
            return [value] * self.num_envs
        return [value for _ in ((indices,) if isinstance(indices, int) else indices)]
