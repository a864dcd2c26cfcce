"""PPO that discounts per unit of time: decisions are due at events, so steps are of unequal length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import DictRolloutBuffer

from rlpto.agents.network import JobSetPolicy
from rlpto.agents.settings import AgentSettings
from rlpto.envs.sb3 import SB3ClusterEnv
from rlpto.io.arrays import FloatArray

HOUR = 3600.0


class TimedRolloutBuffer(DictRolloutBuffer):
    """A rollout buffer whose discount and trace decay depend on the time that each step took.

    elapsed: [B] seconds of the latest step of each environment, which the environment writes in place.
    half_life, trace_half_life: hours, see `PpoSettings`.
    """

    def __init__(
        self, *args: Any, elapsed: FloatArray, half_life: float, trace_half_life: float, **kwargs: Any
    ) -> None:
        self._elapsed = elapsed
        self._half_life, self._trace_half_life = half_life * HOUR, trace_half_life * HOUR
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        """Empty the buffer."""
        super().reset()
        self.seconds = np.zeros((self.buffer_size, self.n_envs))

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Keep a step, and how long it took."""
        self.seconds[self.pos] = self._elapsed
        super().add(*args, **kwargs)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: np.ndarray[Any, Any]) -> None:
        """Generalised advantages (Schulman et al., arXiv:1506.02438), with both factors to the power of the time."""
        discount = 0.5 ** (self.seconds / self._half_life)
        decay = discount * 0.5 ** (self.seconds / self._trace_half_life)
        values = np.concatenate([self.values, last_values.detach().cpu().numpy().reshape(1, -1)])
        goes_on = 1.0 - np.concatenate([self.episode_starts[1:], np.asarray(dones, dtype=np.float32).reshape(1, -1)])
        advantage = np.zeros(self.n_envs)
        for step in reversed(range(self.buffer_size)):
            td_error = self.rewards[step] + discount[step] * values[step + 1] * goes_on[step] - values[step]
            advantage = td_error + decay[step] * goes_on[step] * advantage
            self.advantages[step] = advantage
        self.returns = self.advantages + self.values


class TimedPPO(PPO):
    """SB3's PPO with what this project fixes, from its settings."""

    @classmethod
    def make(cls, env: SB3ClusterEnv, settings: AgentSettings, interval: float, seed: int, **options: Any) -> TimedPPO:
        """An agent that has learned nothing yet. interval: seconds between regular decisions."""
        ppo, network = settings.ppo, settings.network
        return cls(
            JobSetPolicy,
            env,
            learning_rate=falling(ppo.learning_rate, ppo.final_rate),
            n_steps=ppo.rollout,
            batch_size=min(ppo.batch_size, ppo.rollout * env.num_envs),
            n_epochs=ppo.epochs,
            gamma=0.5 ** (interval / (ppo.half_life * HOUR)),  # of the state that a cut episode ends in
            clip_range=ppo.clip,
            rollout_buffer_class=TimedRolloutBuffer,
            rollout_buffer_kwargs={
                "elapsed": env.batch.elapsed,
                "half_life": ppo.half_life,
                "trace_half_life": ppo.trace_half_life,
            },
            policy_kwargs={"width": network.width, "log_std_init": network.log_std},
            device=settings.device,
            seed=seed,
            **options,
        )


def falling(first: float, share: float) -> Callable[[float], float]:
    """A schedule from `first` down to `share` of it; its argument falls from 1 to 0."""
    return lambda left: first * (share + (1.0 - share) * left)
