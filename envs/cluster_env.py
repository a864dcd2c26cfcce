"""One environment as gymnasium wants it, over any cluster: simulated, or real."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.batch import EnvBatch
from rlpto.envs.clusters import OneCluster
from rlpto.envs.episodes import (
    EnvSetup,
    ExternalSetup,
    action_space,
    draw_episode,
    episode_rng,
    observation_space,
)
from rlpto.envs.observation import Observation
from rlpto.envs.rendering import describe
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import ConfigError

Observed = dict[str, NDArray[np.float32]]
"""The parts of `rlpto.envs.observation.Observation` by name."""


class ClusterEnv(gymnasium.Env[Any, AnyArray]):
    """Schedule the jobs of one cluster for an episode: the batch of one, `rlpto.envs.batch.EnvBatch`.

    Observation: a dictionary of the arrays of `rlpto.envs.observation.Observation`, which lists every entry with
    its unit and its fixed normalisation. With the default settings: jobs [32, JOB_FEATURES], mask [32],
    cluster [CLUSTER_FEATURES], forecast [6 x FORECAST_FEATURES], float32.

    Action: [ACTION_FEATURES] float32, steps from the start weights, cut to [-LARGEST, LARGEST]. The queue trims the
    resulting wishes to capacity by class.

    Reward: accuracy gained minus the cost of time, resources and rescales (`rlpto.core.rewards`), minus, with
    baseline `start_heuristic`, the reward of the baseline rollout in the same time; divided by `reward_scale`. `info`
    has the terms as they are, by name, and `elapsed`, the seconds that the step took.

    Termination: all jobs have finished, or the simulator's time limit is reached. Truncation: the episode's
    length is reached.

    setup: see `EnvSetup` (each episode is a stretch of a workload, in virtual time) or `ExternalSetup`.
    """

    def __init__(self, setup: EnvSetup | ExternalSetup, render_mode: str | None = None) -> None:
        self.metadata = {"render_modes": ["ansi"], "render_fps": 10}
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode {render_mode}: expected ansi or None")
        if not setup.workloads:
            raise ConfigError("no workloads to learn from: expected training windows with jobs")
        self.setup = setup
        self.render_mode = render_mode
        self.observation_space = observation_space(setup.settings)
        self.action_space = action_space()
        self.batch = EnvBatch(setup, 1, None, compiled=render_mode is None)
        self._under_way = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Begin the next episode; the same seed gives the same episodes, bit for bit. Options are refused.

        Returns the observation, and the episode's workload, `began` (second of the workload) and length.
        """
        if options:
            raise ValueError(f"options {options!r}: expected none, episodes are drawn")
        super().reset(seed=seed)
        if seed is not None:
            self.np_random = episode_rng(seed)
        episode = draw_episode(self.np_random, self.setup)
        self.batch.begin(0, episode)
        self._under_way = True
        info = {"workload": self.workload, "began": float(self.batch.began[0]), "length": episode.length}
        return _first(self.batch.observe()), info

    def step(self, action: AnyArray) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        """Let one action schedule until the next one is due.

        Raises ValueError if the action has another shape or is not finite, ResetNeeded if the
        episode is over.
        """
        if not self._under_way:
            raise ResetNeeded("the episode is over, or none has begun: call reset")
        steps = self.batch.step(np.asarray(action)[None])
        self._under_way = not steps.ended[0]
        terms = dict(zip(REWARD_PARTS, steps.parts[0].tolist(), strict=True))
        info = {"terms": terms, "elapsed": float(steps.elapsed[0])}
        return _first(steps.observation), float(steps.reward[0]), bool(steps.ended[0]), bool(steps.cut[0]), info

    def render(self) -> str | None:
        """The cluster as text (`ansi`), or None without a render mode."""
        shown = self.batch.clusters
        if self.render_mode is None or not isinstance(shown, OneCluster):
            return None
        return describe(shown.cluster, shown.state.jobs, self.workload, shown.reward)

    @property
    def workload(self) -> str:
        """Name of the workload of the present episode."""
        return self.batch.names[0]


def _first(observation: Observation) -> Observed:
    """The observation of the first environment."""
    return {name: part[0] for name, part in observation._asdict().items()}
