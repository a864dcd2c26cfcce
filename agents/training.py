"""Training by PPO on the reward after each action, in simulated environments or on an external cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from rlpto.agents.archive import check_meaning
from rlpto.agents.checkpoint import Identity, read_checkpoint, restore, save_checkpoint
from rlpto.agents.nodes_agent import nodes_manifest, nodes_meaning, trained_nodes
from rlpto.agents.ppo import JobSetPolicy, NodesPolicy, TimedPPO
from rlpto.agents.settings import LAST, AgentSettings
from rlpto.agents.trained import StartingAgent, TrainedAgent, agent_manifest, load_weights, meaning
from rlpto.agents.training_loop import Status, TrainingLoop, TrainingResult, log_figures
from rlpto.agents.validation import Validation, reward_per_job, validate
from rlpto.core.renting import TICK_S
from rlpto.core.rewards import HOUR, REWARD_PARTS
from rlpto.envs.episodes import EnvSetup, ExternalSetup
from rlpto.envs.nodes import NodesSetup, SB3NodesEnv, play_windows
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
    """Train an agent on the workloads of `setup`. Checkpoints, events and tables go to `folder`.

    validation: its workloads are the validation windows.
    starting_agent: agent from whose weights training continues. Default: the start heuristic.
    resume: continue from `folder`'s last checkpoint, bit for bit as if the training had never stopped. On an external
    cluster the interrupted episode begins again.
    on_progress: called after every update. stop: called after every update; if it returns True, a checkpoint is written
    and the training returns. On an external cluster, where a rollout takes minutes, `stop` is called after every step,
    nothing is learned from the rollout that it ends, and every update is followed by a checkpoint.

    Raises TrainingError if the device is missing, or if numbers are no longer finite (the last checkpoint is then
    older), CheckpointError if there is nothing to resume or it belongs to another training.
    """
    torch.set_num_threads(settings.threads)
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise TrainingError("agent.device: torch finds no CUDA device here, expected auto or cpu")
    kind = NodesTraining if isinstance(setup, NodesSetup) else Training
    archive = read_checkpoint(folder / LAST, identity) if resume else None
    if archive is not None:
        check_meaning(folder / LAST, archive.manifest, kind.meaning())
    run = kind(setup, settings, folder, identity, validation, on_progress)
    model = run.model
    if starting_agent is not None:
        load_weights(model.policy, starting_agent.archive, starting_agent.file)
    run.report("starting")
    if archive is not None:  # the first observation comes with the checkpoint
        restore(model, archive, folder / LAST)
        run.remember(archive.manifest)
    asked = None if stop is None or isinstance(setup, EnvSetup) else lambda *_: not stop()
    run.callback = model.begin_learning(settings.steps, asked, restored=archive is not None)
    return run.loop(stop, begun=archive is not None)


@dataclass
class Training(TrainingLoop):
    """One training by PPO under way. callback: is called at every step."""

    callback: BaseCallback = field(init=False)
    meaning: ClassVar[Callable[[], dict[str, Any]]] = staticmethod(meaning)

    def __post_init__(self) -> None:
        super().__post_init__()
        settings, seed = self.settings, self.identity.seed
        self.total, self.every = settings.steps, settings.evaluate_every
        self.model = self.learner(seed)
        self.model.set_logger(self.logger)  # else stable-baselines3 leaves an empty folder in the temporary directory

    def learner(self, seed: int) -> TimedPPO:
        """A new, untrained learner."""
        env = SB3ClusterEnv(self.setup, self.settings.envs, seed)
        return TimedPPO.make(env, self.settings, self.setup.interval, seed)

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
        """Do one rollout and one update. Returns False if the callback ended the rollout; nothing is learned then.

        Raises TrainingError if a number is no longer finite.
        """
        model, before = self.model, self.steps
        try:
            if not model.collect_rollouts(model.env, self.callback, model.rollout_buffer, model.n_steps):
                model.num_timesteps = before
                return False
        except ValueError:
            self._check_finite()
            raise
        self._check_finite()
        model.set_progress(self.total)
        model.train()
        self._check_finite()
        log_figures(self.logger, "rollout", self.episode_figures())
        model.dump_logs()
        if isinstance(self.setup, ExternalSetup):
            self.save()
        return True

    def episode_figures(self) -> dict[str, float]:
        """Mean reward and its parts, unscaled, per simulated hour of the latest episodes; empty before one ends."""
        episodes = self.model.ep_info_buffer
        if not episodes:
            return {}
        parts = {
            name: float(np.mean([one["terms"][name] / max(one["elapsed"] / HOUR, 1e-9) for one in episodes]))
            for name in REWARD_PARTS
        }
        return {"reward_per_hour": sum(parts.values()), **{f"{name}_per_hour": part for name, part in parts.items()}}

    def validate(self, setup: EnvSetup) -> tuple[Validation, dict[str, float]]:
        """The result on validation windows, and the reward per job."""
        network = self.model.policy
        assert isinstance(network, JobSetPolicy)
        found = validate(setup, TrainedAgent(self.setup.settings, self.setup.start, network))
        return found, {"reward_per_job": reward_per_job(setup, found.rewards)}

    def manifest(self) -> dict[str, Any]:
        """Entries of the manifest that are needed to use the agent's weights."""
        return agent_manifest(self.setup, self.settings)

    def save(self, name: str = LAST) -> None:
        """Write a checkpoint."""
        save_checkpoint(self.folder / name, self.model, self.manifest(), self.notes())

    def _check_finite(self) -> None:
        """Raise TrainingError if observations, rewards, the loss or weights hold NaN or infinity."""
        broken = self.model.not_finite()
        if broken is None:
            return
        kept = self.folder / LAST
        left = f"the last good checkpoint is {kept}" if kept.is_file() else "no checkpoint has been written yet"
        raise TrainingError(
            f"{self.folder}: {broken}: not all numbers are finite after {self.steps} steps; {left}. "
            "A smaller agent.ppo.learning_rate or a larger env.reward_scale may help"
        )


class NodesTraining(Training):
    """A training of an agent that sets the number of rented nodes."""

    meaning = staticmethod(nodes_meaning)
    setup: NodesSetup

    def learner(self, seed: int) -> TimedPPO:
        """A new, untrained learner."""
        env = SB3NodesEnv(self.setup, self.settings.envs, seed)
        return TimedPPO.make(env, self.settings, TICK_S, seed, NodesPolicy)

    def manifest(self) -> dict[str, Any]:
        """Entries of the manifest that are needed to use the agent's weights."""
        return nodes_manifest(self.setup, self.settings)

    def validate(self, setup: EnvSetup) -> tuple[Validation, dict[str, float]]:
        """The result on validation windows, and the reward per job."""
        assert isinstance(setup, NodesSetup)
        parts = play_windows(setup, trained_nodes(self.setup, self.model.policy))
        found = Validation(parts, {})
        return found, {"reward_per_job": reward_per_job(setup, found.rewards)}

    def draw_baselines(self) -> None:
        """Write the reward of the heuristic, which action zero reproduces, as a horizontal line."""
        if isinstance(self.validation, NodesSetup):
            reward = play_windows(self.validation, self.setup.heuristic).sum(axis=1).mean()
            self.draw_line(type(self.setup.heuristic).name, float(reward))
