"""The network: jobs are a set, so the same weights serve any number of them in any order.

Source: sets by a shared embedding and pooling, Zaheer et al., "Deep Sets" (arXiv:1703.06114);
SiLU, which costs a sixth of tanh on CPUs.

    jobs --embed--> mean and largest over jobs --+-- cluster, forecast --> policy layers, value layers
Mode index ends in one number for each steering weight; the head begins at zero, so that the untrained
agent is the heuristic it starts from. Modes levels and increment end in a choice for each job, from its
own embedding and the policy layers' output; rows without a job have no say in probabilities.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution, MultiCategoricalDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

WIDTH = 32


class JobSet(BaseFeaturesExtractor):
    """From an observation [B, ...] to [B, 2 x width + cluster + forecast], then [B, J x (width + 1)].

    The first part is all that is known of the state as a whole; the second, present only if `per_job`,
    holds each job's embedding and its mask.
    """

    def __init__(self, observation_space: spaces.Dict, width: int = WIDTH, per_job: bool = False) -> None:
        jobs, features = observation_space["jobs"].shape or (0, 0)
        around = sum((observation_space[name].shape or (0,))[0] for name in ("cluster", "forecast"))
        self.pooled = 2 * width + around
        self.per_job = per_job
        super().__init__(observation_space, self.pooled + (jobs * (width + 1) if per_job else 0))
        self.embed = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """See the class."""
        mask = observations["mask"].unsqueeze(-1)
        jobs = self.embed(observations["jobs"]) * mask
        mean = jobs.sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
        largest = jobs.amax(dim=1)
        state = torch.cat([mean, largest, observations["cluster"], observations["forecast"]], dim=1)
        if not self.per_job:
            return state
        return torch.cat([state, torch.cat([jobs, mask], dim=-1).flatten(1)], dim=1)


class Heads(nn.Module):
    """Policy and value layers over the state; each job's embedding is handed on to the action head."""

    def __init__(self, pooled: int, per_job: int, width: int) -> None:
        super().__init__()
        self.pooled = pooled
        self.latent_dim_pi = width + per_job
        self.latent_dim_vf = width
        self.policy = nn.Sequential(nn.Linear(pooled, 2 * width), nn.SiLU(), nn.Linear(2 * width, width), nn.SiLU())
        self.value = nn.Sequential(nn.Linear(pooled, 2 * width), nn.SiLU(), nn.Linear(2 * width, width), nn.SiLU())

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """[B, latent_dim_pi] and [B, latent_dim_vf]."""
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: Tensor) -> Tensor:
        """[B, latent_dim_pi]."""
        return torch.cat([self.policy(features[:, : self.pooled]), features[:, self.pooled :]], dim=1)

    def forward_critic(self, features: Tensor) -> Tensor:
        """[B, latent_dim_vf]."""
        value: Tensor = self.value(features[:, : self.pooled])
        return value


class JobChoices(nn.Module):
    """A choice for every job: logits [B, J x choices], then the mask [B, J]."""

    def __init__(self, width: int, choices: int) -> None:
        super().__init__()
        self.width = width
        self.of_state = nn.Linear(width, width)
        self.of_job = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, choices)

    def forward(self, latent: Tensor) -> Tensor:
        """latent: [B, width + J x (width + 1)], as `Heads` gives it."""
        rows = latent[:, self.width :].reshape(len(latent), -1, self.width + 1)
        jobs, mask = rows[..., :-1], rows[..., -1]
        hidden = nn.functional.silu(self.of_job(jobs) + self.of_state(latent[:, : self.width]).unsqueeze(1))
        return torch.cat([self.out(hidden).flatten(1), mask], dim=1)


class MaskedChoices(MultiCategoricalDistribution):
    """Independent choices of J jobs, of which those that are masked out do not count.

    All jobs at once: SB3 keeps a distribution object for each.
    """

    logits: Tensor
    mask: Tensor

    def proba_distribution(self, action_logits: Tensor) -> MaskedChoices:
        """action_logits: as `JobChoices` gives them."""
        jobs = len(self.action_dims)
        self.mask = action_logits[:, -jobs:]
        self.logits = action_logits[:, :-jobs].reshape(len(action_logits), jobs, -1)
        return self

    def log_prob(self, actions: Tensor) -> Tensor:
        """[B] of actions [B, J]."""
        each = torch.log_softmax(self.logits, dim=-1).gather(2, actions.long().unsqueeze(-1)).squeeze(-1)
        return (each * self.mask).sum(dim=1)

    def entropy(self) -> Tensor:
        """[B]."""
        each = torch.log_softmax(self.logits, dim=-1)
        return (-(each.exp() * each).sum(dim=-1) * self.mask).sum(dim=1)

    def sample(self) -> Tensor:
        """[B, J] choices."""
        jobs = self.logits.shape[1]
        drawn = torch.multinomial(torch.softmax(self.logits, dim=-1).flatten(0, 1), 1)
        return drawn.reshape(-1, jobs)

    def mode(self) -> Tensor:
        """[B, J] likeliest choices."""
        return self.logits.argmax(dim=-1)


class JobSetPolicy(ActorCriticPolicy):
    """SB3's actor-critic with the network above. Continuous actions: mode index; others: a choice for each job."""

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        lr_schedule: Any,
        width: int = WIDTH,
        **options: Any,
    ) -> None:
        self.width = width
        self.per_job = not isinstance(action_space, spaces.Box)
        options |= {
            "features_extractor_class": JobSet,
            "features_extractor_kwargs": {"width": width, "per_job": self.per_job},
            "activation_fn": nn.SiLU,
        }
        super().__init__(observation_space, action_space, lr_schedule, **options)

    def _build_mlp_extractor(self) -> None:
        extractor = self.features_extractor
        assert isinstance(extractor, JobSet)
        heads = Heads(extractor.pooled, extractor.features_dim - extractor.pooled, self.width)
        self.mlp_extractor = heads.to(self.device)  # type: ignore[assignment]

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        if isinstance(self.action_space, spaces.MultiDiscrete):
            choices = [int(n) for n in self.action_space.nvec]
            self.action_dist = MaskedChoices(choices)
            head = JobChoices(self.width, choices[0]).to(self.device)
            self.action_net, last = head, head.out
        else:
            assert isinstance(self.action_net, nn.Linear)
            last = self.action_net
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _get_action_dist_from_latent(self, latent_pi: Tensor) -> Distribution:
        if self.per_job:
            assert isinstance(self.action_dist, MaskedChoices)
            return self.action_dist.proba_distribution(self.action_net(latent_pi))
        return super()._get_action_dist_from_latent(latent_pi)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        for fixed in ("features_extractor_class", "features_extractor_kwargs", "activation_fn", "net_arch"):
            data.pop(fixed, None)
        return data | {"width": self.width}
