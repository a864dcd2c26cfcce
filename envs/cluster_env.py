"""One environment as gymnasium wants it, over any cluster: simulated, or real."""

from __future__ import annotations

from collections.abc import Mapping
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
    Episode,
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

OPTIONS = ("workload", "warm_up", "length")
"""Options of `ClusterEnv.reset`."""


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
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Begin the next episode; the same seed gives the same episodes, bit for bit.

        options: `workload` (name or number), `warm_up` and `length` (seconds) of the episode, in place of what
        would be drawn. Raises ValueError for others. Returns the observation, and the
        episode's workload, `began` (second of the workload) and length.
        """
        super().reset(seed=seed)
        if seed is not None:
            self.np_random = episode_rng(seed)
        episode = self._chosen(draw_episode(self.np_random, self.setup), options or {})
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

    def _chosen(self, episode: Episode, options: Mapping[str, Any]) -> Episode:
        """The episode with what the options say in place of what was drawn."""
        if not isinstance(options, Mapping):
            raise ValueError(f"options: expected a mapping with {', '.join(OPTIONS)}, got {options!r}")
        if unknown := [key for key in options if key not in OPTIONS]:
            raise ValueError(f"options: unknown key {unknown[0]!r}, expected {', '.join(OPTIONS)}")
        for key in ("warm_up", "length"):
            seconds = options.get(key, 0.0)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.0 <= seconds < np.inf:
                raise ValueError(f"options: {key}: expected seconds, 0 or more, got {seconds!r}")
        return Episode(
            self._number_of(options["workload"]) if "workload" in options else episode.workload,
            float(options.get("warm_up", episode.warm_up)),
            float(options.get("length", episode.length)),
        )

    def _number_of(self, workload: object) -> int:
        """Number of a workload that is given by name or number."""
        names = [entry.name for entry in self.setup.workloads]
        if workload in names:
            return names.index(str(workload))
        if isinstance(workload, int | np.integer) and 0 <= workload < len(names):
            return int(workload)
        known = f"a number below {len(names)}, or a name such as {names[0]}"
        raise ValueError(f"options: workload: {workload!r} is unknown, expected {known}")


def _first(observation: Observation) -> Observed:
    """The observation of the first environment."""
    return {name: part[0] for name, part in observation._asdict().items()}
