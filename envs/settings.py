"""Settings of the environments."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlpto.io.paths import ConfigPath
from rlpto.io.settings import Settings


class EpisodeSettings(Settings):
    """What an episode is: a stretch of a window, entered while the cluster is already at work."""

    min_hours: float = Field(12.0, gt=0, le=10**6)
    """Shortest episode; a window that is over sooner ends it."""
    max_hours: float = Field(36.0, gt=0, le=10**6)
    """Longest episode; the length is drawn evenly between the two, so that no policy can know the end."""
    warm_start: float = Field(0.5, ge=0, le=1)
    """An episode begins after a part of its window that is drawn evenly from 0 to this share of it, scheduled by
    the heuristic that the agent starts from; 0: at the empty cluster."""

    @model_validator(mode="after")
    def _ordered(self) -> EpisodeSettings:
        if self.min_hours > self.max_hours:
            raise ValueError(f"min_hours {self.min_hours:g} is above max_hours {self.max_hours:g}")
        return self


class EnvSettings(Settings):
    """Observation, action and reward of the environment."""

    start: ConfigPath | None = None
    """YAML file of the heuristic that the agent starts from: weights of the index, as `rlpto train` writes
    them (agent.yaml); null: the two-parameter index. Action zero is this heuristic."""
    max_jobs: int = Field(32, ge=1, le=10_000)
    """Jobs an observation shows, the first in the queue; the others are summed up."""
    horizon: int = Field(6, ge=1, le=1000)
    """Intervals ahead that the forecast in an observation reaches."""
    hold: float = Field(0.0, ge=0)
    """Seconds for which an action stands: decisions in between repeat it; 0: an action for every decision."""
    baseline: Literal["none", "start_heuristic"] = "start_heuristic"
    """start_heuristic: subtract from every reward what a baseline rollout, the start heuristic on the same window,
    earns in the same time, which takes the workload's own ups and downs out of what is learned from; none: the plain
    reward."""
    reward_scale: float = Field(1.0, ge=1e-9)
    """The reward the agent learns from is divided by this; terms and results are not."""
    episode: EpisodeSettings = EpisodeSettings()
    """What an episode is."""
