"""PPO that discounts per unit of time, since decisions are due at events, and its network over the set of jobs.

Jobs are a set: the same weights serve any number of them in any order. Source: sets by a shared embedding and
pooling, Zaheer et al., "Deep Sets" (arXiv:1703.06114); SiLU, which costs a sixth of tanh on CPUs.

    jobs --embed--> mean and largest over jobs --+-- cluster, forecast --> policy layers, value layers
The output is one number for each index weight. The last layer starts at zero, hence the untrained agent is the
heuristic it starts from.

This module has all uses of non-public parts of stable-baselines3, except for the writer of TensorBoard events
(`rlpto.agents.training_loop.EventWriter`); tested with version 2.9.2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import DictRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor
from stable_baselines3.common.type_aliases import MaybeCallback
from torch import Tensor, nn

from rlpto.agents.settings import AgentSettings
from rlpto.core.rewards import HOUR
from rlpto.envs.sb3 import SB3ClusterEnv
from rlpto.io.arrays import AnyArray, FloatArray


class JobSet(BaseFeaturesExtractor):
    """Extracts [B, 2 x width + all entries but jobs and mask] from an observation [B, ...]."""

    def __init__(self, observation_space: spaces.Dict, width: int) -> None:
        features = (observation_space["jobs"].shape or (0, 0))[1]
        around = [name for name in observation_space.spaces if name not in ("jobs", "mask")]
        size = sum((observation_space[name].shape or (0,))[0] for name in around)
        super().__init__(observation_space, 2 * width + size)
        self.around = around
        self.embed = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Return the mean and the largest embedding of the jobs, and the other entries."""
        mask = observations["mask"].unsqueeze(-1)
        jobs = self.embed(observations["jobs"]) * mask
        mean = jobs.sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
        largest = jobs.amax(dim=1)
        return torch.cat([mean, largest, *(observations[name] for name in self.around)], dim=1)


class FromStart(ActorCriticPolicy):
    """SB3's actor-critic whose first actions are zero: an untrained agent acts as its start heuristic."""

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        assert isinstance(self.action_net, nn.Linear)
        nn.init.zeros_(self.action_net.weight)
        nn.init.zeros_(self.action_net.bias)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def best(self, observation: Mapping[str, AnyArray]) -> AnyArray:
        """[B, A] most probable actions for a batch of observations, not clipped."""
        seen = {name: torch.as_tensor(part, device=self.device) for name, part in observation.items()}
        self.set_training_mode(False)
        with torch.inference_mode():
            features = self.extract_features(seen, self.pi_features_extractor)
            assert isinstance(features, Tensor)
            actions: AnyArray = self.action_net(self.mlp_extractor.forward_actor(features)).cpu().numpy()
        return actions


class NodesPolicy(FromStart):
    """A `FromStart` with two layers, for observations that are one vector."""

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        lr_schedule: Any,
        width: int,
        **options: Any,
    ) -> None:
        options |= {"features_extractor_class": CombinedExtractor, "net_arch": [width, width]}
        super().__init__(observation_space, action_space, lr_schedule, **options)


class JobSetPolicy(FromStart):
    """A `FromStart` with the network over the set of jobs."""

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        lr_schedule: Any,
        width: int,
        **options: Any,
    ) -> None:
        options |= {
            "features_extractor_class": JobSet,
            "features_extractor_kwargs": {"width": width},
            "activation_fn": nn.SiLU,
            "net_arch": [2 * width, width],
        }
        super().__init__(observation_space, action_space, lr_schedule, **options)


class TimedRolloutBuffer(DictRolloutBuffer):
    """A rollout buffer whose discount and trace decay depend on the time that each step took.

    elapsed: [B] seconds of the latest step of each environment, which the environment writes in place.
    half_life, trace_half_life: hours, explained in `PpoSettings`.
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
        """Add a step, and the time that it took."""
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
    """SB3's PPO with the project's fixed choices, made from its settings."""

    policy: FromStart
    env: SB3ClusterEnv
    rollout_buffer: TimedRolloutBuffer

    @classmethod
    def make(
        cls,
        env: SB3ClusterEnv,
        settings: AgentSettings,
        interval: float,
        seed: int,
        policy: type[FromStart] = JobSetPolicy,
    ) -> TimedPPO:
        """Make an untrained agent. interval: seconds between regular decisions."""
        ppo, network = settings.ppo, settings.network
        return cls(
            policy,
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
        )

    def begin_learning(self, steps: int, callback: MaybeCallback, *, restored: bool = False) -> BaseCallback:
        """Begin to learn until `steps` in all. Returns the callback to call at every step.

        restored: begin at the last observation of a restored model. The public `learn` is a loop of its own, which can
        neither be left nor resumed between two updates.
        """
        _, called = self._setup_learn(steps - self.num_timesteps, callback, reset_num_timesteps=not restored)
        called.on_training_start(locals(), globals())
        return called

    def set_progress(self, total: int) -> None:
        """Lower the learning rate to its value at the present step."""
        self._update_current_progress_remaining(self.num_timesteps, total)

    def not_finite(self) -> str | None:
        """Name of an observed or learned array that holds NaN or infinity, if there is one."""
        buffer, seen = self.rollout_buffer, self._last_obs if isinstance(self._last_obs, dict) else {}
        rows = slice(None) if buffer.full else slice(buffer.pos)
        numbers = [
            *((f"observation {key}", part[rows]) for key, part in buffer.observations.items()),
            ("reward", buffer.rewards[rows]),
            ("value", buffer.values[rows]),
            *((f"observation {key}", part) for key, part in seen.items()),
            ("loss", np.asarray(self.logger.name_to_value.get("train/loss", 0.0))),
            *((f"weights {name}", tensor.detach().cpu().numpy()) for name, tensor in self.policy.named_parameters()),
        ]
        return next((name for name, part in numbers if not np.isfinite(part).all()), None)

    def progress(self) -> dict[str, Any]:
        """Updates so far, and the latest episodes."""
        return {"updates": int(self._n_updates), "episodes": list(self.ep_info_buffer or ())}

    def go_on(self, updates: int, episodes: Sequence[dict[str, Any]], observation: dict[str, AnyArray]) -> None:
        """Continue from another model's `progress`. The environments are restored; observation: their last one."""
        self._n_updates = updates
        self._last_obs = observation
        self._last_episode_starts = self.env.batch.steps == 0
        self.ep_info_buffer = deque(episodes, maxlen=self._stats_window_size)
        self.ep_success_buffer = deque(maxlen=self._stats_window_size)


def falling(first: float, share: float) -> Callable[[float], float]:
    """A schedule from `first` down to `share` of it; its argument falls from 1 to 0, and below 0 in a last rollout that
    goes on after the last step. A rate is never negative: its step would undo what was learned."""
    return lambda left: first * max(share + (1.0 - share) * left, 0.0)
