"""Training: one visible loop of rollouts and updates, looked at now and then, that can be left and resumed anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from stable_baselines3.common.buffers import DictRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.logger import Logger

from rlpto.agents import compat
from rlpto.agents.checkpoint import Identity, Notes, read_checkpoint, restore, save_checkpoint
from rlpto.agents.logs import EpisodeTerms, log_figures, make_logger, write_history
from rlpto.agents.network import JobSetPolicy
from rlpto.agents.ppo import TimedPPO
from rlpto.agents.settings import BEST, LAST, AgentSettings
from rlpto.agents.trained import StartingAgent, TrainedAgent, load_weights
from rlpto.agents.validation import Evaluator, reward_per_job, standing, validate
from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.episodes import EnvSetup, ExternalSetup
from rlpto.envs.sb3 import SB3ClusterEnv
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import TrainingError


@dataclass(frozen=True)
class Status:
    """Where a training stands. doing: what it is at. steps, total: or windows. best: largest validation figure."""

    doing: str
    steps: int
    total: int
    best: float | None = None


@dataclass(frozen=True)
class TrainingResult:
    """How a training ended. finished: False if it was asked to stop. best: largest validation reward per job.

    best_steps: steps after which it was reached; 0: the best checkpoint is the start, not trained.
    metrics: of the last evaluation. unit: of the steps.
    """

    steps: int
    finished: bool
    best: float | None
    best_steps: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    unit: str = "steps"


def train(
    setup: EnvSetup | ExternalSetup,
    settings: AgentSettings,
    folder: Path,
    identity: Identity,
    evaluator: Evaluator | None = None,
    *,
    starting_agent: StartingAgent | None = None,
    resume: bool = False,
    on_progress: Callable[[Status], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> TrainingResult:
    """Train an agent on the workloads of `setup`; checkpoints, events and tables go to `folder`.

    starting_agent: whose weights are trained further; None: the start heuristic. On an external
    cluster a rollout takes minutes: there a checkpoint follows every update, and `stop` ends a rollout, which is not
    learned from.
    resume: go on from `folder`'s last checkpoint, bit for bit as if the training had never stopped; on an external
    cluster the episode that was under way begins again.
    on_progress: is called after every update. stop: asked after every update (on an external cluster: every step);
    True: write a checkpoint and return.

    Raises TrainingError if there is no such device, or numbers are no longer finite (the last checkpoint is
    then from before), CheckpointError if there is nothing to resume or it belongs to another training.
    """
    torch.set_num_threads(settings.threads)
    check_device(settings)
    archive = read_checkpoint(folder / LAST, identity) if resume else None
    env = SB3ClusterEnv(setup, settings.envs, identity.seed)
    model = TimedPPO.make(env, settings, setup.interval, identity.seed)
    assert isinstance(model.policy, JobSetPolicy)
    if starting_agent is not None:
        load_weights(model.policy, starting_agent.archive, starting_agent.file)
    model.set_logger(Logger(str(folder), []))  # without one, an empty folder is left among the system's temporary ones
    run = Training(setup, settings, folder, identity, model, evaluator, on_progress)
    callbacks: list[BaseCallback] = [run.terms]
    if stop is not None and isinstance(setup, ExternalSetup):
        callbacks.append(ConvertCallback(lambda *_: not stop()))
    run.report("starting")
    if archive is not None:  # the first observation comes with the checkpoint
        run.notes = restore(model, archive, folder / LAST)
    total, callback = compat.begin_learning(model, settings.steps, callbacks, restored=archive is not None)
    return run.loop(callback, total, stop, begun=archive is not None)


def check_device(settings: AgentSettings) -> None:
    """Raise TrainingError if the device is not there."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise TrainingError("agent.device: torch finds no CUDA device here, expected auto or cpu")


def learn(model: TimedPPO, callback: BaseCallback, total: int, folder: Path) -> bool:
    """One rollout and one update; False if the callback has ended the rollout, from which nothing is learned then.

    Raises TrainingError if a number is no longer finite.
    """
    assert model.env is not None
    try:
        if not model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=model.n_steps):
            return False
    except ValueError:
        _check_finite(model, folder)
        raise
    _check_finite(model, folder)
    compat.set_progress(model, total)
    model.train()
    _check_finite(model, folder)
    return True


def _check_finite(model: TimedPPO, folder: Path) -> None:
    """Raise TrainingError if what was observed, or what was learned, holds NaN or infinity."""
    buffer = model.rollout_buffer
    assert isinstance(buffer, DictRolloutBuffer)
    rows = slice(None) if buffer.full else slice(buffer.pos)
    numbers = [
        *((f"observation {key}", part[rows]) for key, part in buffer.observations.items()),
        ("reward", buffer.rewards[rows]),
        ("value", buffer.values[rows]),
        *((f"observation {key}", part) for key, part in compat.last_observation(model).items()),
        ("loss", np.asarray(model.logger.name_to_value.get("train/loss", 0.0))),
        *((f"weights {name}", tensor.detach().cpu().numpy()) for name, tensor in model.policy.named_parameters()),
    ]
    broken = next((name for name, part in numbers if not np.isfinite(part).all()), None)
    if broken is None:
        return
    kept = folder / LAST
    left = f"the last good checkpoint is {kept}" if kept.is_file() else "no checkpoint has been written yet"
    raise TrainingError(
        f"{folder}: {broken}: not all numbers are finite after {model.num_timesteps} steps; {left}. "
        "A smaller agent.ppo.learning_rate or a larger env.reward_scale may help"
    )


@dataclass
class Training:
    """One training under way: when to evaluate, what to keep, what to report."""

    setup: EnvSetup | ExternalSetup
    settings: AgentSettings
    folder: Path
    identity: Identity
    model: TimedPPO
    evaluator: Evaluator | None
    on_progress: Callable[[Status], None] | None
    terms: EpisodeTerms = field(default_factory=EpisodeTerms)
    notes: Notes = field(default_factory=Notes)

    @cached_property
    def _baselines(self) -> Mapping[str, FloatArray]:
        """Rewards of the policies to compare with; they run once."""
        return {} if self.evaluator is None else self.evaluator.baselines()

    def loop(
        self,
        callback: BaseCallback,
        total: int,
        stop: Callable[[], bool] | None,
        *,
        begun: bool,
    ) -> TrainingResult:
        """Roll out and update until `total` steps, or until `stop` says so between two rollouts.

        begun: it goes on from a checkpoint. A rollout that the callback ends is not learned
        from: the training then stands where its last checkpoint does.
        """
        model = self.model
        model.set_logger(make_logger(self.folder, model.num_timesteps))
        try:
            if not begun:
                self.evaluate()
                self.model.logger.dump(model.num_timesteps)
                self.save()
            callback.on_training_start(locals(), globals())
            self.report("training")
            while model.num_timesteps < total:
                if stop is not None and stop():
                    self.save()
                    return self.outcome(finished=False)
                before = model.num_timesteps
                if not learn(model, callback, total, self.folder):
                    model.num_timesteps = before
                    return self.outcome(finished=False)
                self.look(before)
                if isinstance(self.setup, ExternalSetup):
                    self.save()
            self.save()
            self.conclude()
        finally:
            model.logger.close()
        return self.outcome(finished=True)

    def look(self, before: int) -> None:
        """After an update, of a rollout since `before` steps: log it, and evaluate or save where that is due."""
        model = self.model
        log_figures(model.logger, "episode", self.terms.figures())
        every = self.settings.evaluate_every
        if before // every < model.num_timesteps // every:
            self.evaluate()
            self.save()
        model.dump_logs()
        self.report("training")

    def evaluate(self) -> None:
        """Look at the agent on the validation windows, and keep it if it is the best so far."""
        if self.evaluator is None:
            return
        self.report("evaluating")
        assert isinstance(self.model.policy, JobSetPolicy)
        trained = TrainedAgent(self.setup.settings, self.setup.start, self.model.policy)
        found = validate(self.evaluator.setup, trained)
        parts = dict(zip(REWARD_PARTS, found.parts.mean(axis=0), strict=True))
        figures = {
            "reward": float(found.rewards.mean()),
            "reward_per_job": reward_per_job(self.evaluator.setup, found.rewards),
            **{f"reward_{name}": float(part) for name, part in parts.items()},
            **found.metrics,
            **standing(found.rewards, self._baselines),
        }
        log_figures(self.model.logger, "validation", figures)
        row = {"steps": float(self.model.num_timesteps), **figures}
        history = (*self.notes.history, row)
        score = figures["reward_per_job"]
        best = self.notes.best is None or score > self.notes.best
        self.notes = Notes(score if best else self.notes.best, history)
        write_history(self.folder, history)
        if best:
            self.save(BEST)

    def save(self, name: str = LAST) -> None:
        """Write a checkpoint."""
        save_checkpoint(self.folder / name, self.model, self.setup, self.settings, self.identity, self.notes)

    def conclude(self) -> None:
        """A last look."""
        seen = self.notes.history[-1]["steps"] if self.notes.history else -1
        if seen != self.model.num_timesteps:
            self.evaluate()
            self.save()
        self.model.logger.dump(self.model.num_timesteps)
        self.report("done")

    def outcome(self, finished: bool) -> TrainingResult:
        """How the training stands."""
        notes = self.notes
        return TrainingResult(self.model.num_timesteps, finished, notes.best, notes.best_steps, self._last_row())

    def _last_row(self) -> Mapping[str, float]:
        return self.notes.history[-1] if self.notes.history else {}

    def report(self, doing: str) -> None:
        """Report where the training stands."""
        if self.on_progress is not None:
            self.on_progress(Status(doing, self.model.num_timesteps, self.settings.steps, self.notes.best))
