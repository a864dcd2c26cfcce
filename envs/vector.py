"""Many simulated environments that step together, as gymnasium wants them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.batch import BatchSteps, EnvBatch
from rlpto.envs.episodes import EnvSetup, check_integer, episode_rng, fresh_seed
from rlpto.envs.observation import Observation, Observed
from rlpto.envs.rendering import METADATA, check_render_mode
from rlpto.io.arrays import AnyArray, BoolArray, FloatArray
from rlpto.io.errors import ConfigError
from rlpto.io.settings import LARGEST_SEED


class ClusterVectorEnv(VectorEnv[Observed, AnyArray, AnyArray]):
    """B environments in one process. They produce the same episodes as B separate `ClusterEnv`, the first with the seed
    of a reset, the next ones with the seeds that follow, as in gymnasium's `SyncVectorEnv`.

    Observation and action spaces have the form of `ClusterEnv`, with a leading axis [B]. Every entry of `infos` has a
    mask, under its name with an underscore in front. Environments that stepped have `terms` (unscaled terms of the
    reward by name, [B] each) and `elapsed` ([B] seconds that passed). Environments whose episodes begin have
    `workload`, `began` and `length`.

    setup: an `rlpto.envs.episodes.EnvSetup`.
    num_envs: B.
    seed: seed of the episodes; reset(seed=) begins them again.
    max_episode_steps: an episode is cut after this number of steps. Default: only its length cuts it.
    autoreset_mode: how the next episode begins, as in gymnasium. NEXT_STEP: in the next step, which ignores the action
    and has reward 0. SAME_STEP: in the same step, and `infos` has `final_obs` ([B] objects, a dictionary for each ended
    episode) and `final_info`. DISABLED: the caller resets by `options={"reset_mask": mask}`, [B] booleans.
    render_mode: `ansi`, `rgb_array` or None.
    """

    batch_class: ClassVar[type[EnvBatch]] = EnvBatch

    def __init__(
        self,
        setup: EnvSetup,
        num_envs: int,
        seed: int | None = None,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ) -> None:
        if max_episode_steps is not None:
            check_integer("max_episode_steps", max_episode_steps, 1, 10**9)
        try:
            self._mode = AutoresetMode(autoreset_mode)
        except ValueError:
            expected = ", ".join(mode.value for mode in AutoresetMode)
            raise ConfigError(f"autoreset_mode: expected one of {expected}, got {autoreset_mode!r}") from None
        self.metadata = METADATA | {"autoreset_mode": self._mode}
        self.render_mode = check_render_mode(render_mode)
        self.batch = self.batch_class(setup, num_envs, None, max_episode_steps)
        self.num_envs = num_envs
        self._over = np.zeros(num_envs, dtype=np.bool_)  # in the last step, and not begun again
        self._begun = np.zeros(num_envs, dtype=np.bool_)  # by a reset
        self._seeds = [0] * num_envs
        self._seed_each(np.ones_like(self._over), fresh_seed() if seed is None else seed)
        self.single_observation_space = self.batch.observation_space
        self.single_action_space = self.batch.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Begin a new episode everywhere, or where `options["reset_mask"]` [B] is True.

        seed: environment b draws its episodes by seed + b from now on; or a list [B], with None for unchanged seeds.
        """
        mask = np.ones(self.num_envs, dtype=np.bool_)
        if options:
            mask = np.asarray(options.get("reset_mask"))
            if set(options) != {"reset_mask"} or mask.shape != self._over.shape or mask.dtype != bool or not mask.any():
                raise ValueError(
                    f"options {options}: expected none, or reset_mask with {self.num_envs} booleans, one of them True"
                )
        self._seed_each(mask, seed)
        return self._begin(mask)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # as gymnasium's own vector environments
        """[B] seeds of the environments, given or drawn."""
        return tuple(self._seeds)

    def render(self) -> tuple[str | NDArray[np.uint8], ...] | None:
        """Every cluster as text or as a picture; None without a render mode."""
        mode = self.render_mode
        return None if mode is None else tuple(self.batch.render(b, mode) for b in range(self.num_envs))

    def _seed_each(self, mask: BoolArray, seed: int | list[int | None] | None) -> None:
        """Seed the episodes of the environments in a mask [B]."""
        if seed is not None and not isinstance(seed, list | tuple | np.ndarray):
            check_integer("seed", seed, 0, LARGEST_SEED)
            seed = [int(seed) + b for b in range(self.num_envs)]
        seeds = [None] * self.num_envs if seed is None else seed
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: {len(seeds)} of them, expected one for each of {self.num_envs} environments")
        for b, own in enumerate(seeds):
            if mask[b] and own is not None:
                self.batch.rngs[b], self._seeds[b] = episode_rng(own), int(own)

    def _begin(self, mask: BoolArray) -> tuple[Observed, dict[str, Any]]:
        """Begin the next episodes of the environments in a mask [B]; returns all observations, and the infos."""
        seen, batch = self.batch.begin_next(np.flatnonzero(mask)), self.batch
        self._over[mask], self._begun[mask] = False, True
        begun = {"workload": np.array(batch.names, object), "began": batch.began.copy(), "length": batch.length.copy()}
        return seen._asdict(), masked(begun, mask)

    def step(self, actions: AnyArray) -> tuple[Observed, FloatArray, BoolArray, BoolArray, dict[str, Any]]:
        """Carry out actions [B, ...].

        Raises ValueError if they have another shape or are not finite, and ResetNeeded before the first reset, or if
        an episode is over and the caller has to reset it.
        """
        if not self._begun.all():
            raise ResetNeeded(f"environments {np.flatnonzero(~self._begun).tolist()}: no episode yet: call reset")
        again = self._over.copy()
        if again.any() and self._mode is AutoresetMode.DISABLED:
            raise ResetNeeded(f"environments {np.flatnonzero(again).tolist()}: the episode is over: call reset")
        steps = self.batch.step(actions)
        for part in (steps.reward, steps.parts, steps.elapsed, steps.ended, steps.cut):
            part[again] = 0
        self._over = over = steps.over
        seen, infos = steps.observation._asdict(), masked(step_info(steps), ~again)
        if self._mode is AutoresetMode.SAME_STEP and over.any():
            final = [one_row(steps.observation, b) if ended else None for b, ended in enumerate(over.tolist())]
            infos |= masked({"final_obs": np.array(final, dtype=object), "final_info": step_info(steps)}, over)
            again = over.copy()
        if again.any():
            seen, begun = self._begin(again)
            infos |= begun
        return seen, steps.reward, steps.ended, steps.cut, infos


def step_info(steps: BatchSteps) -> dict[str, Any]:
    """The infos of a step: terms by name [B], elapsed [B]."""
    return {"terms": dict(zip(REWARD_PARTS, steps.parts.T.copy(), strict=True)), "elapsed": steps.elapsed.copy()}


def masked(info: dict[str, Any], mask: BoolArray) -> dict[str, Any]:
    """Add to every entry, at every depth, the mask of its environments, under its name with an underscore in front."""
    found: dict[str, Any] = {}
    for name, value in info.items():
        found[name] = masked(value, mask) if isinstance(value, dict) else value
        found[f"_{name}"] = mask.copy()
    return found


def one_row(observation: Observation, b: int) -> Observed:
    """A copy of the observation of environment b."""
    return {name: part[b].copy() for name, part in observation._asdict().items()}
