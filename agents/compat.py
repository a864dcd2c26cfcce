"""What is used of stable-baselines3 beyond its public interface: all of it stands here. Tested with version 2.9.2."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import TensorBoardOutputFormat
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback
from torch.utils.tensorboard.writer import SummaryWriter

from rlpto.io.arrays import AnyArray

Observations = dict[str, AnyArray]


def begin_learning(
    model: OnPolicyAlgorithm, steps: int, callback: MaybeCallback, *, restored: bool = False
) -> BaseCallback:
    """Begin to learn until `steps` in all. Returns the callback to call at every step.

    restored: at the last observation of a model that has been restored. The public `learn` is a loop of its own, which
    can neither be left nor resumed between two updates.
    """
    _, called = model._setup_learn(steps - model.num_timesteps, callback, reset_num_timesteps=not restored)
    called.on_training_start(locals(), globals())
    return called


def set_progress(model: OnPolicyAlgorithm, total: int) -> None:
    """Let the learning rate fall as far as the present step says."""
    model._update_current_progress_remaining(model.num_timesteps, total)


def last_observation(model: OnPolicyAlgorithm) -> Observations:
    """The observation that the next rollout begins with."""
    return model._last_obs if isinstance(model._last_obs, dict) else {}


def updates(model: OnPolicyAlgorithm) -> int:
    """Passes over rollouts so far."""
    return int(model._n_updates)


def episode_starts(model: OnPolicyAlgorithm) -> AnyArray:
    """[B] where the next step is the first one of its episode."""
    return np.asarray(model._last_episode_starts)


def restore(
    model: OnPolicyAlgorithm,
    updates: int,
    observation: Observations,
    episode_starts: AnyArray,
    episodes: Sequence[dict[str, Any]],
) -> None:
    """Put a new model where these functions were asked. episodes: the latest ones."""
    model._n_updates = updates
    model._last_obs = observation
    model._last_episode_starts = episode_starts
    model.ep_info_buffer = deque(episodes, maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(maxlen=model._stats_window_size)


class EventWriter(TensorBoardOutputFormat):
    """TensorBoard events; where a training is resumed, what was written after its checkpoint is hidden."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.writer = SummaryWriter(log_dir=str(folder), purge_step=steps + 1 if steps else None)
        self._is_closed = False
