"""What a training writes for people to look at: TensorBoard events, and a table of its evaluations."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Figure as LoggedFigure
from stable_baselines3.common.logger import HParam, Logger

from rlpto.agents.compat import EventWriter
from rlpto.agents.settings import AgentSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import REWARD_PARTS
from rlpto.evaluation.timeline import gpus_by_accuracy
from rlpto.io.files import write_text

EVENTS = "tensorboard"
"""Folder of TensorBoard's events in a run."""
HISTORY = "validation.csv"
"""Table of a run's evaluations on validation windows."""
STAGES = 4
"""Stages of a job's convergence, by the share of its accuracy gain that is reached."""


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


def log_texts(logger: Logger, texts: Mapping[str, str]) -> None:
    """Texts, such as the configuration, as they are."""
    for name, text in texts.items():
        logger.record(f"text/{name}", f"```\n{text}\n```")


def log_figures(logger: Logger, group: str, figures: Mapping[str, float]) -> None:
    """Numbers; a name that has a group of its own, as in wins/fifo, keeps it. NaN is left out."""
    for name, value in figures.items():
        if np.isfinite(value):
            logger.record(name if "/" in name else f"{group}/{name}", value)


def log_record(logger: Logger, record: RunRecord) -> dict[str, float]:
    """A picture of one window's schedule; returns the GPUs a job holds by stage of its convergence."""
    from rlpto.evaluation.plots import allocation_over_time

    logger.record("validation/schedule", LoggedFigure(allocation_over_time(record), close=True))
    sums, weights = gpus_by_accuracy(record, STAGES)
    held = np.divide(sums, weights, out=np.full(STAGES, np.nan), where=weights > 0)
    edges = [round(100 * i / STAGES) for i in range(STAGES + 1)]
    return {
        f"gpus_by_stage/{low}_to_{high}_percent": float(gpus)
        for low, high, gpus in zip(edges[:-1], edges[1:], held, strict=True)
    }


def log_outcome(logger: Logger, settings: AgentSettings, more: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
    """Hyper-parameters with what came of them, for TensorBoard's table of runs."""
    given: dict[Any, Any] = {**pd.json_normalize(settings.model_dump(mode="json")).to_dict("records")[0], **more}
    plain = {key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in given.items()}
    known = {f"final/{key}": value for key, value in metrics.items() if np.isfinite(value)}
    if not known:
        return
    for key, value in known.items():
        logger.record(key, value)
    logger.record("hparams", HParam(plain, dict.fromkeys(known, 0.0)))


def write_history(folder: Path, history: Sequence[Mapping[str, float]]) -> None:
    """One line for each evaluation. Raises CheckpointError if that is not possible."""
    text = pd.DataFrame(history).to_csv(index=False, lineterminator="\n")
    write_text(folder / HISTORY, text, "the table of evaluations")
