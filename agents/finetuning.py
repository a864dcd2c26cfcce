"""Training that goes on where the cluster is real: one environment, in wall-clock time, from a good agent.

What is learned is the same, by the same updates (`rlpto.agents.training`). There is no evolution and no
validation: they take thousands of episodes, and an episode here takes as long as its jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from rlpto.agents import compat
from rlpto.agents.archive import KINDS, Archive, read_archive
from rlpto.agents.checkpoint import Identity, read_checkpoint, restore
from rlpto.agents.logs import EpisodeTerms
from rlpto.agents.network import JobSetPolicy
from rlpto.agents.ppo import TimedPPO
from rlpto.agents.settings import LAST, AgentSettings, NetworkSettings
from rlpto.agents.trained import TrainedAgent, agent_of, load_weights
from rlpto.agents.training import Status, Training, TrainingResult, check_device
from rlpto.envs.cluster_env import ClusterEnv, LiveSetup
from rlpto.envs.live import LiveSB3Env
from rlpto.envs.settings import EnvSettings
from rlpto.io.errors import ConfigError


class StopRollout(BaseCallback):
    """Ends a rollout after the present step once it is asked for: here a rollout takes minutes."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        super().__init__()
        self._asked = asked

    def _on_step(self) -> bool:
        return not self._asked()


class StartingAgent:
    """The agent that fine-tuning starts from. file: a checkpoint, or an exported agent.

    Raises CheckpointError if it cannot be used.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.archive: Archive = read_archive(file, KINDS)
        self.trained: TrainedAgent = agent_of(self.archive, file)

    def settings(self, wanted: AgentSettings) -> AgentSettings:
        """The settings wanted, with one environment and the agent's own network."""
        network = NetworkSettings.model_validate(self.archive.manifest["network"])
        ppo = wanted.ppo.model_copy(update={"smooth_noise": bool(self.archive.manifest["smooth_noise"])})
        return wanted.model_copy(update={"envs": 1, "network": network, "ppo": ppo})

    def env(self, wanted: EnvSettings) -> EnvSettings:
        """What the agent sees and does as it is used to; scale, hold and episodes as wanted, and the plain reward.

        Raises ConfigError if something else is asked for that an agent cannot change.
        """
        own = self.trained.env
        for key in ("max_jobs", "horizon"):
            there, asked = getattr(own, key), getattr(wanted, key)
            if key in wanted.model_fields_set and there != asked:
                raise ConfigError(f"env.{key}: {asked}, but the agent of {self.file} was trained with {there}")
        given = {key: getattr(wanted, key) for key in ("episode", "reward_scale", "hold")}
        return own.model_copy(update={**given, "baseline": "none", "start": None})


def fine_tune(
    setup: LiveSetup,
    settings: AgentSettings,
    folder: Path,
    identity: Identity,
    starting_agent: StartingAgent,
    interval: float,
    *,
    resume: bool = False,
    texts: Mapping[str, str] | None = None,
    on_progress: Callable[[Status], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> TrainingResult:
    """Let an agent go on learning on the clusters of `setup`, for `settings.steps` decisions (`rlpto.agents.training`).

    setup, settings: as `starting_agent` makes them. interval: seconds between regular decisions. resume: from the last
    checkpoint of `folder`; the episode that was under way begins anew. stop: asked after every step; True: what was
    learned by then is kept, the steps since the last update are not.

    Raises TrainingError and CheckpointError as `train` does.
    """
    torch.set_num_threads(settings.threads)
    check_device(settings)
    archive = read_checkpoint(folder / LAST, identity) if resume else None
    env = LiveSB3Env(ClusterEnv(setup), identity.seed)
    model = TimedPPO.make(env, settings, interval, identity.seed)
    assert isinstance(model.policy, JobSetPolicy)
    load_weights(model.policy, starting_agent.archive, starting_agent.file)
    model.set_logger(Logger(str(folder), []))  # without one, an empty folder is left among the system's temporary ones
    terms = EpisodeTerms()
    run = Training(setup, settings, folder, identity, model, terms, None, on_progress)
    if archive is None:
        run.tell("starting")
        total, callback = compat.begin_learning(model, settings.steps, [terms, StopRollout(stop or _never)])
    else:
        # Its first observation comes with the checkpoint: a second reset would begin a second episode.
        run.notes = restore(model, archive, folder / LAST, new_episode=True)
        total, callback = compat.resume_learning(model, settings.steps, [terms, StopRollout(stop or _never)])
    return run.loop(callback, total, texts or {}, stop, begun=archive is not None, save_each_update=True)


def _never() -> bool:
    return False
