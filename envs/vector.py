"""Many simulated environments that step together, as gymnasium wants them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.batch import BatchSteps, EnvBatch
from rlpto.envs.episodes import EnvSetup, action_space, check_integer, episode_rng, observation_space
from rlpto.envs.observation import Observation, Observed
from rlpto.io.arrays import AnyArray, BoolArray, FloatArray
from rlpto.io.errors import ConfigError
from rlpto.io.settings import LARGEST_SEED

MODES = (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)


class ClusterVectorEnv(VectorEnv[Observed, AnyArray, AnyArray]):
    """B environments in one process; they go through what as many `ClusterEnv` do, the first with the seed of a reset,
    the next ones with the seeds that follow, as in gymnasium's `SyncVectorEnv`.

    Observation and action spaces are those of `ClusterEnv`, with a leading axis [B]. An environment
    whose episode is over begins the next one by autoreset_mode: in the same step (SAME_STEP), when `infos` has
    `final_obs` (objects [B], dictionaries where there is one) and `final_info`; or in the next one (NEXT_STEP), which
    heeds no action and gives no reward. `infos` further holds, each with a mask
    under the same name with an underscore: terms (accuracy, time, resources, rescale, [B] each: the
    reward's terms as they are) and elapsed ([B] seconds that passed).

    setup: see `rlpto.envs.episodes.EnvSetup`. num_envs: B. seed: of the episodes; reset(seed=) begins them again.
    max_episode_steps: an episode is cut after that many steps; None: when its length is reached.
    """

    def __init__(
        self,
        setup: EnvSetup,
        num_envs: int,
        seed: int | None = None,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    ) -> None:
        if max_episode_steps is not None:
            check_integer("max_episode_steps", max_episode_steps, 1, 10**9)
        if autoreset_mode not in (*MODES, *(mode.value for mode in MODES)):
            raise ConfigError(f"autoreset_mode: expected SameStep or NextStep, got {autoreset_mode!r}")
        mode = AutoresetMode(autoreset_mode)
        self.metadata = {"autoreset_mode": mode, "render_modes": []}
        self.batch = EnvBatch(setup, num_envs, None, max_episode_steps)
        self.num_envs = num_envs
        self._waiting = np.zeros(num_envs, dtype=np.bool_)  # over, and begins again in the next step
        self._seed_each(seed)
        self.single_observation_space = observation_space(setup.settings)
        self.single_action_space = action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Begin a new episode everywhere; with a seed, the episodes that belong to it. Options are refused."""
        if options:
            raise ValueError(f"options {sorted(options)}: environments that step together draw their own episodes")
        if seed is not None:
            self._seed_each(seed)
        self._waiting[:] = False
        return self.batch.reset()._asdict(), {}

    def _seed_each(self, seed: int | list[int | None] | None) -> None:
        """Seed the episodes of every environment."""
        if seed is not None and not isinstance(seed, list | tuple | np.ndarray):
            check_integer("seed", seed, 0, LARGEST_SEED)
            seed = [int(seed) + b for b in range(self.num_envs)]
        seeds = [None] * self.num_envs if seed is None else seed
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: {len(seeds)} of them, expected one for each of {self.num_envs} environments")
        self.batch.rngs = [episode_rng(own) for own in seeds]

    def step(self, actions: AnyArray) -> tuple[Observed, FloatArray, BoolArray, BoolArray, dict[str, Any]]:
        """Carry out actions [B, ...]. Raises ValueError if they have another shape or are not finite."""
        steps = self.batch.step(actions)
        if self._waiting.any():
            steps = self._without(steps, self._waiting)
        infos, over = masked(step_info(steps), np.ones(self.num_envs, dtype=np.bool_)), steps.over
        observation = steps.observation
        if self.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP:
            self._waiting = over
        elif over.any():
            final = [one_row(observation, b) if ended else None for b, ended in enumerate(over.tolist())]
            infos |= masked({"final_obs": np.array(final, dtype=object), "final_info": step_info(steps)}, over)
            observation = self.batch.begin_next(np.flatnonzero(over))
        return observation._asdict(), steps.reward, steps.ended, steps.cut, infos

    def _without(self, steps: BatchSteps, waiting: BoolArray) -> BatchSteps:
        """The steps, with the first observation of a new episode in place of those of some environments."""
        for part in (steps.reward, steps.parts, steps.elapsed, steps.ended, steps.cut):
            part[waiting] = 0
        return steps._replace(observation=self.batch.begin_next(np.flatnonzero(waiting)))


def step_info(steps: BatchSteps) -> dict[str, Any]:
    """The infos of a step: terms by name [B], elapsed [B]."""
    return {"terms": dict(zip(REWARD_PARTS, steps.parts.T.copy(), strict=True)), "elapsed": steps.elapsed.copy()}


def masked(info: dict[str, Any], mask: BoolArray) -> dict[str, Any]:
    """`info` with the mask of its environments for every entry, under its name with an underscore, at every depth."""
    found: dict[str, Any] = {}
    for name, value in info.items():
        found[name] = masked(value, mask) if isinstance(value, dict) else value
        found[f"_{name}"] = mask.copy()
    return found


def one_row(observation: Observation, b: int) -> Observed:
    """A copy of the observation of environment b."""
    return {name: part[b].copy() for name, part in observation._asdict().items()}
