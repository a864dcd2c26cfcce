"""The loop of both ways of training: updates with occasional evaluations on validation windows, which can be
interrupted and resumed at any time.

TensorBoard's tags have the names of stable-baselines3: rollout/ep_rew_mean, train/loss, time/fps, eval/mean_reward. The
step of all curves is the number of `TrainingLoop.unit` so far.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat
from torch.utils.tensorboard.writer import SummaryWriter

from rlpto import __version__
from rlpto.agents.archive import CHECKPOINT
from rlpto.agents.checkpoint import Identity
from rlpto.agents.settings import BEST, LAST, AgentSettings
from rlpto.agents.validation import Validation, baselines
from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.episodes import EnvSetup, ExternalSetup
from rlpto.io.files import write_text

EVENTS, BASELINES, HISTORY = "events.out.tfevents.*", "baselines", "validation.csv"
"""In the folder of a run: TensorBoard's files, which it names after the folder; the folder of the baselines' lines; the
table of the evaluations on validation windows that choose a checkpoint."""


@dataclass(frozen=True)
class Status:
    """Progress of a training. doing: activity. steps, total: steps or windows. best: largest validation figure."""

    doing: str
    steps: int
    total: int
    best: float | None = None


@dataclass(frozen=True)
class TrainingResult:
    """Outcome of a training. finished: False if it was asked to stop. best: largest validation figure.

    best_steps: steps after which `best` was reached; if 0, the best checkpoint is the untrained start.
    unit: unit of the steps.
    """

    steps: int
    finished: bool
    best: float | None
    best_steps: int | None = None
    unit: str = "steps"


class EventWriter(TensorBoardOutputFormat):
    """TensorBoard events. In a resumed training, events written after its checkpoint are hidden."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.writer = SummaryWriter(log_dir=str(folder), purge_step=steps + 1 if steps else None)
        self._is_closed = False


@dataclass
class TrainingLoop(ABC):
    """One training under way: when to evaluate, what to keep, what to report.

    validation: its workloads are the validation windows. total: steps (or windows) in all. every: steps between two
    evaluations that choose a checkpoint. points: number of additional evaluations, only for the curves. best: largest
    `figure` so far. history: a row of figures for each evaluation that chooses.
    """

    unit: ClassVar[str] = "steps"
    figure: ClassVar[str] = "reward_per_job"
    """Name of the figure that chooses among checkpoints."""
    points: ClassVar[int] = 0

    setup: EnvSetup | ExternalSetup
    settings: AgentSettings
    folder: Path
    identity: Identity
    validation: EnvSetup | None
    on_progress: Callable[[Status], None] | None
    total: int = field(init=False)
    every: int = field(init=False)
    best: float | None = field(default=None, init=False)
    history: list[Mapping[str, float]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.logger = Logger(str(self.folder), [])

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps so far."""

    @abstractmethod
    def update(self) -> bool:
        """Do one rollout and one update. Returns False if the rollout was stopped; nothing is learned from it then."""

    @abstractmethod
    def validate(self, setup: EnvSetup) -> tuple[Validation, dict[str, float]]:
        """Return the result on validation windows, and figures of this way of training, including `figure`."""

    @abstractmethod
    def save(self, name: str = LAST) -> None:
        """Write a checkpoint."""

    def open_logger(self) -> Logger:
        """A logger that continues at the present step."""
        return Logger(str(self.folder), [EventWriter(self.folder, self.steps)])

    def loop(self, stop: Callable[[], bool] | None, *, begun: bool) -> TrainingResult:
        """Roll out and update until `total` steps, or until `stop` returns True between two updates.

        begun: whether this continues from a checkpoint. If a rollout is stopped, the training is back at its last
        checkpoint.
        """
        self.logger = self.open_logger()
        try:
            if not begun:
                self.logger.record("step", f"The step of every curve is the number of {self.unit} so far.")
                self.draw_baselines()
                self.evaluate()
                self.logger.dump(self.steps)
                self.save()
            self.report("training")
            while self.steps < self.total:
                if stop is not None and stop():
                    self.save()
                    return self.outcome(finished=False)
                before = self.steps
                if not self.update():
                    return self.outcome(finished=False)
                if before // self.every < self.steps // self.every:
                    self.evaluate()
                    self.save()
                elif before * self.points // self.total < self.steps * self.points // self.total < self.points:
                    self.look()
                self.logger.dump(self.steps)
                self.report("training")
            if not self.history or self.history[-1]["steps"] != self.steps:
                self.evaluate()
            self.save()
            self.logger.dump(self.steps)
            self.report("done")
        finally:
            self.logger.close()
        return self.outcome(finished=True)

    def draw_baselines(self) -> None:
        """Write a horizontal line for each baseline, which TensorBoard shows as a run of its own."""
        for name, reward in ({} if self.validation is None else baselines(self.validation)).items():
            self.draw_line(name, reward)

    def draw_line(self, name: str, reward: float) -> None:
        """Write a horizontal line for one baseline."""
        with closing(SummaryWriter(log_dir=str(self.folder / BASELINES / name))) as line:
            for step in (0, self.total):
                line.add_scalar("eval/mean_reward", reward, step)

    def look(self) -> dict[str, float]:
        """Record the agent's figures on the validation windows, and return them; empty without validation windows."""
        if self.validation is None:
            return {}
        self.report("evaluating")
        found, own = self.validate(self.validation)
        parts = dict(zip(REWARD_PARTS, found.parts.mean(axis=0), strict=True))
        figures = {
            **own,
            "reward": float(found.rewards.mean()),
            **{f"reward_{name}": float(part) for name, part in parts.items()},
            **found.metrics,
        }
        log_figures(
            self.logger, "eval", {"mean_reward" if name == "reward" else name: figures[name] for name in figures}
        )
        return figures

    def evaluate(self) -> None:
        """Evaluate the agent on the validation windows, and keep it if it is the best so far."""
        if not (figures := self.look()):
            return
        self.history.append({"steps": float(self.steps), **figures})
        table = pd.DataFrame(self.history).to_csv(index=False, lineterminator="\n")
        write_text(self.folder / HISTORY, table, "the table of evaluations")
        if self.best is None or figures[self.figure] > self.best:
            self.best = figures[self.figure]
            self.save(BEST)

    def notes(self) -> dict[str, Any]:
        """Entries of a checkpoint's manifest that any training has."""
        return {
            "format": CHECKPOINT,
            "rlpto": __version__,
            "digest": self.identity.digest,
            "seed": self.identity.seed,
            "provenance": dict(self.identity.provenance),
            "steps": self.steps,
            "best": self.best,
            "history": [
                {key: float(value) if np.isfinite(value) else None for key, value in row.items()}
                for row in self.history
            ],
        }

    def remember(self, manifest: Mapping[str, Any]) -> None:
        """Restore the evaluations so far from the manifest of a checkpoint."""
        self.best = manifest["best"]
        self.history = [
            {key: np.nan if value is None else float(value) for key, value in row.items()}
            for row in manifest["history"]
        ]

    def outcome(self, finished: bool) -> TrainingResult:
        """The result at the present step."""
        best_steps = (int(row["steps"]) for row in self.history if row[self.figure] == self.best)
        return TrainingResult(self.steps, finished, self.best, next(best_steps, None), self.unit)

    def report(self, doing: str) -> None:
        """Report the progress of the training."""
        if self.on_progress is not None:
            self.on_progress(Status(doing, self.steps, self.total, self.best))


def log_figures(logger: Logger, group: str, figures: Mapping[str, float]) -> None:
    """Log figures, except for NaN and infinity."""
    for name, value in figures.items():
        if np.isfinite(value):
            logger.record(f"{group}/{name}", value)
