"""Settings of the environments."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlpto.io.paths import ConfigPath
from rlpto.io.settings import Settings


class EpisodeSettings(Settings):
    """Episodes: each is a stretch of a window, entered while the cluster is already at work."""

    min_hours: float = Field(12.0, gt=0, le=10**6)
    """Shortest episode [h]. An episode ends sooner if its window is over."""
    max_hours: float = Field(36.0, gt=0, le=10**6)
    """Longest episode [h]. The length is drawn evenly between the two, hence no policy can know the end."""
    warm_start: float = Field(0.5, ge=0, le=1)
    """Largest share of the window that the start heuristic schedules before the episode begins; the share is drawn
    evenly from 0 to this. With 0, episodes begin at the empty cluster."""

    @model_validator(mode="after")
    def _ordered(self) -> EpisodeSettings:
        if self.min_hours > self.max_hours:
            raise ValueError(f"min_hours {self.min_hours:g} is above max_hours {self.max_hours:g}")
        return self


class EnvSettings(Settings):
    """Observation, action and reward of the environment."""

    start: ConfigPath | None = None
    """YAML file of the heuristic that the agent starts from: index weights, as `rlpto train` writes them
    (agent.yaml). Action zero is this heuristic. Default (null): the two-parameter index."""
    max_jobs: int = Field(32, ge=1, le=10_000)
    """Number of jobs that an observation shows, from the head of the queue; the others are summed up."""
    horizon: int = Field(6, ge=1, le=1000)
    """Number of intervals ahead that the forecast in an observation covers."""
    hold: float = Field(0.0, ge=0)
    """Seconds for which an action is valid: decisions in between repeat it. With 0, every decision takes an action."""
    baseline: Literal["none", "start_heuristic"] = "start_heuristic"
    """start_heuristic: subtract from every reward the reward of a baseline rollout, the start heuristic on the same
    window in the same time, which removes the workload's own ups and downs from the training signal. none: use the
    plain reward."""
    reward_scale: float = Field(1.0, ge=1e-9)
    """Divisor of the reward that the agent learns from. Terms and results are not divided."""
    episode: EpisodeSettings = EpisodeSettings()
    """Length and start of episodes."""
