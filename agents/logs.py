"""What a training writes for people to look at: TensorBoard curves, and a table of its evaluations."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from rlpto.agents.compat import EventWriter
from rlpto.core.rewards import REWARD_PARTS
from rlpto.io.files import write_text

EVENTS = "tensorboard"
"""Folder of TensorBoard's events in a run."""
HISTORY = "validation.csv"
"""Table of a run's evaluations on validation windows."""


def make_logger(folder: Path, steps: int) -> Logger:
    """The logger of a run that stands at `steps`."""
    return Logger(str(folder), [EventWriter(folder / EVENTS, steps)])


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
            "episode/reward_per_hour": sum(parts.values()),
            **{f"episode/{name}_per_hour": part for name, part in parts.items()},
        }


def log_figures(logger: Logger, group: str, figures: Mapping[str, float]) -> None:
    """Numbers; a name that has a group of its own, as in wins/fifo, keeps it. NaN is left out."""
    for name, value in figures.items():
        if np.isfinite(value):
            logger.record(name if "/" in name else f"{group}/{name}", value)


def write_history(folder: Path, history: Sequence[Mapping[str, float]]) -> None:
    """One line for each evaluation. Raises CheckpointError if that is not possible."""
    text = pd.DataFrame(history).to_csv(index=False, lineterminator="\n")
    write_text(folder / HISTORY, text, "the table of evaluations")
