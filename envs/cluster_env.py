"""One environment for gymnasium, over any cluster: simulated, or real."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.batch import EnvBatch
from rlpto.envs.episodes import EnvSetup, ExternalSetup, draw_episode, episode_rng, fresh_seed
from rlpto.envs.observation import Observed
from rlpto.envs.rendering import METADATA, check_render_mode
from rlpto.envs.vector import one_row
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import ConfigError


class ClusterEnv(gymnasium.Env[Any, AnyArray]):
    """Schedule the jobs of one cluster for an episode. This is an `rlpto.envs.batch.EnvBatch` of one environment.

    Observation: a dictionary of the arrays of `rlpto.envs.observation.Observation`, which lists every entry with
    its unit and its fixed normalisation. With the default settings: jobs [32, JOB_FEATURES], mask [32],
    cluster [CLUSTER_FEATURES], forecast [6 x FORECAST_FEATURES], float32.

    Action: [ACTION_FEATURES] float32, steps from the start weights, cut to [-LARGEST, LARGEST]. The queue trims the
    resulting allocations to capacity by class.

    Reward: the sum of the terms of `rlpto.core.rewards`, such as accuracy gained and the cost of time; minus, with
    baseline `start_heuristic`, the reward of the baseline rollout in the same time; divided by `reward_scale`. `info`
    has the unscaled terms by name, and `elapsed`, the seconds of cluster time that the step covered.

    Termination: all jobs have finished, or the simulator's time limit is reached. Truncation: the episode's
    length is reached.

    setup: an `EnvSetup` (each episode is a part of one window, in virtual time) or an `ExternalSetup`.
    render_mode: `ansi`, `rgb_array` or None; it changes no episode and no reward.
    """

    metadata = METADATA
    batch_class: ClassVar[type[EnvBatch]] = EnvBatch

    def __init__(self, setup: EnvSetup | ExternalSetup, render_mode: str | None = None) -> None:
        if not setup.workloads:
            raise ConfigError("no workloads to learn from: expected training windows with jobs")
        self.setup = setup
        self.render_mode = check_render_mode(render_mode)
        self.batch = self.batch_class(setup, 1, None)
        self.observation_space = self.batch.observation_space
        self.action_space = self.batch.action_space
        self._under_way = False
        self._seed(fresh_seed())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Begin the next episode; the same seed gives the same episodes, bit for bit. Options are refused.

        `np_random_seed` is the last seed that was given, or else a random one, and repeats the episodes since then.
        Returns the observation, and the episode's workload, `began` (second of the workload) and length.
        """
        if options:
            raise ValueError(f"options {options!r}: expected none, episodes are drawn")
        if seed is not None:
            self._seed(seed)
        self.batch.begin(0, *draw_episode(self.np_random, self.setup))
        self._under_way = True
        began, length = float(self.batch.began[0]), float(self.batch.length[0])
        return one_row(self.batch.observe(), 0), {"workload": self.workload, "began": began, "length": length}

    def step(self, action: AnyArray) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        """Let one action schedule until the next one is due.

        Raises ValueError if the action has another shape or is not finite, ResetNeeded if the episode is over.
        """
        if not self._under_way:
            raise ResetNeeded("the episode is over, or none has begun: call reset")
        steps = self.batch.step(np.asarray(action)[None])
        self._under_way = not steps.ended[0]
        terms = dict(zip(REWARD_PARTS, steps.parts[0].tolist(), strict=True))
        info = {"terms": terms, "elapsed": float(steps.elapsed[0])}
        seen = one_row(steps.observation, 0)
        return seen, float(steps.reward[0]), bool(steps.ended[0]), bool(steps.cut[0]), info

    def render(self) -> str | NDArray[np.uint8] | None:
        """The cluster as text (`ansi`) or as a picture (`rgb_array`); None without a render mode."""
        return None if self.render_mode is None else self.batch.render(0, self.render_mode)

    @property
    def workload(self) -> str:
        """Name of the workload of the present episode."""
        return self.batch.names[0]

    def _seed(self, seed: int) -> None:
        self._np_random, self._np_random_seed = episode_rng(seed), int(seed)
