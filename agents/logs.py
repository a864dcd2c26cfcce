"""What a training writes for people to look at: TensorBoard curves, and a table of its evaluations."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from rlpto.core.rewards import REWARD_PARTS

EVENTS = "tensorboard"
"""Folder of TensorBoard's events in a run."""
HISTORY = "validation.csv"
"""Table of a run's evaluations on validation windows."""


class EpisodeTerms(BaseCallback):
    """Keeps the reward's parts of the latest episodes, as they are: not scaled, nothing subtracted."""

    def __init__(self, latest: int = 100) -> None:
        super().__init__()
        self.terms: deque[dict[str, float]] = deque(maxlen=latest)

    def _on_step(self) -> bool:
        for b in np.flatnonzero(self.locals["dones"]):
            info = self.locals["infos"][b]
            hours = max(info["elapsed"] / 3600.0, 1e-9)
            self.terms.append({name: value / hours for name, value in info["terms"].items()})
        return True

    def figures(self) -> dict[str, float]:
        """Mean reward and parts per simulated hour; empty before an episode is over."""
        if not self.terms:
            return {}
        parts = {name: float(np.mean([terms[name] for terms in self.terms])) for name in REWARD_PARTS}
        return {
            "reward_per_hour": sum(parts.values()),
            **{f"{name}_per_hour": part for name, part in parts.items()},
        }


def log_figures(logger: Logger, group: str, figures: Mapping[str, float]) -> None:
    """Numbers; NaN is left out."""
    for name, value in figures.items():
        if np.isfinite(value):
            logger.record(f"{group}/{name}", value)
