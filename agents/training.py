"""Training by PPO from what follows each action, in simulated environments or on an external cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from stable_baselines3.common.buffers import DictRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.logger import Logger

from rlpto.agents import compat
from rlpto.agents.checkpoint import Identity, read_checkpoint, restore, save_checkpoint
from rlpto.agents.logs import EpisodeTerms, log_figures
from rlpto.agents.network import JobSetPolicy
from rlpto.agents.ppo import TimedPPO
from rlpto.agents.settings import LAST, AgentSettings
from rlpto.agents.trained import StartingAgent, TrainedAgent, load_weights
from rlpto.agents.training_loop import Status, TrainingLoop, TrainingResult
from rlpto.agents.validation import Validation, reward_per_job, validate
from rlpto.envs.episodes import EnvSetup, ExternalSetup
from rlpto.envs.sb3 import SB3ClusterEnv
from rlpto.io.errors import TrainingError


def train(
    setup: EnvSetup | ExternalSetup,
    settings: AgentSettings,
    folder: Path,
    identity: Identity,
    validation: EnvSetup | None = None,
    *,
    starting_agent: StartingAgent | None = None,
    resume: bool = False,
    on_progress: Callable[[Status], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> TrainingResult:
    """Train an agent on the workloads of `setup`; checkpoints, events and tables go to `folder`.

    validation: its workloads are the validation windows.
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
    run = Training(model, setup, settings, folder, identity, validation, on_progress)
    model.set_logger(run.logger)  # without one, an empty folder is left among the system's temporary ones
    callbacks: list[BaseCallback] = [run.terms]
    if stop is not None and isinstance(setup, ExternalSetup):
        callbacks.append(ConvertCallback(lambda *_: not stop()))
    run.report("starting")
    if archive is not None:  # the first observation comes with the checkpoint
        restore(model, archive, folder / LAST)
        run.remember(archive.manifest)
    run.callback = compat.begin_learning(model, settings.steps, callbacks, restored=archive is not None)
    return run.loop(stop, begun=archive is not None)


def check_device(settings: AgentSettings) -> None:
    """Raise TrainingError if the device is not there."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise TrainingError("agent.device: torch finds no CUDA device here, expected auto or cpu")


class Training(TrainingLoop):
    """One training by PPO under way. callback: is called at every step."""

    callback: BaseCallback

    def __init__(
        self,
        model: TimedPPO,
        setup: EnvSetup | ExternalSetup,
        settings: AgentSettings,
        folder: Path,
        identity: Identity,
        validation: EnvSetup | None,
        on_progress: Callable[[Status], None] | None,
    ) -> None:
        super().__init__(folder, identity, validation, on_progress)
        self.model, self.setup, self.settings = model, setup, settings
        self.total, self.every = settings.steps, settings.evaluate_every
        self.terms = EpisodeTerms()

    @property
    def steps(self) -> int:
        """Steps of the environments so far."""
        return self.model.num_timesteps

    def open_logger(self) -> Logger:
        """The logger of the run, which the model writes to as well."""
        logger = super().open_logger()
        self.model.set_logger(logger)
        return logger

    def update(self) -> bool:
        """One rollout and one update; False if the callback has ended the rollout, from which nothing is learned then.

        Raises TrainingError if a number is no longer finite.
        """
        model, before = self.model, self.steps
        assert model.env is not None
        try:
            if not model.collect_rollouts(model.env, self.callback, model.rollout_buffer, model.n_steps):
                model.num_timesteps = before
                return False
        except ValueError:
            self._check_finite()
            raise
        self._check_finite()
        compat.set_progress(model, self.total)
        model.train()
        self._check_finite()
        log_figures(self.logger, "episode", self.terms.figures())
        model.dump_logs()
        if isinstance(self.setup, ExternalSetup):
            self.save()
        return True

    def validate(self, setup: EnvSetup) -> tuple[Validation, dict[str, float]]:
        """The result on validation windows, and the reward per job."""
        assert isinstance(self.model.policy, JobSetPolicy)
        found = validate(setup, TrainedAgent(self.setup.settings, self.setup.start, self.model.policy))
        return found, {"reward_per_job": reward_per_job(setup, found.rewards)}

    def save(self, name: str = LAST) -> None:
        """Write a checkpoint."""
        save_checkpoint(self.folder / name, self.model, self.setup, self.settings, self.notes())

    def _check_finite(self) -> None:
        """Raise TrainingError if what was observed, or what was learned, holds NaN or infinity."""
        model, buffer = self.model, self.model.rollout_buffer
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
        kept = self.folder / LAST
        left = f"the last good checkpoint is {kept}" if kept.is_file() else "no checkpoint has been written yet"
        raise TrainingError(
            f"{self.folder}: {broken}: not all numbers are finite after {self.steps} steps; {left}. "
            "A smaller agent.ppo.learning_rate or a larger env.reward_scale may help"
        )
