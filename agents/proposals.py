"""Proposals of a network for the candidates of a plan, learnt by expert iteration and then by PPO.

Source: expert iteration (Anthony, Tian, Barber, arXiv:1705.08439) with advantage-weighted regression (Peng et al.,
arXiv:1910.00177). The expert is a planner with many candidates in one state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from rlpto.agents.network import JobSetPolicy
from rlpto.agents.proposer import mean_actions, network_inputs
from rlpto.core.rewards import RewardWeights
from rlpto.envs.plan_env import PERCENT, PlanEnv, proposed
from rlpto.io.arrays import FloatArray
from rlpto.planning.branching import Branch, cost_matrix
from rlpto.planning.planner import CHANGED_SHARE
from rlpto.planning.portfolio import always_tried


class Proposals:
    """A network that proposes candidates in a state, one around each anchor, and how it learns to.

    anchors: [K, STEERING_FEATURES]; the untrained network proposes them as they are.
    """

    def __init__(self, make_env: Callable[[], PlanEnv], anchors: FloatArray, seed: int, envs: int = 8) -> None:
        torch.set_num_threads(1)
        self.anchors = anchors
        self.ppo = PPO(
            JobSetPolicy,
            DummyVecEnv([make_env for _ in range(envs)]),
            learning_rate=3e-4,
            n_steps=512,
            batch_size=512,
            n_epochs=6,
            gamma=0.0,  # what a candidate saves counts for it alone
            gae_lambda=0.0,
            policy_kwargs={"log_std_init": -1.6},
            device="cpu",
            seed=seed,
        )

    @property
    def network(self) -> JobSetPolicy:
        """The network as it is by now."""
        assert isinstance(self.ppo.policy, JobSetPolicy)
        return self.ppo.policy

    def __call__(self, branches: Sequence[Branch]) -> FloatArray:
        """[S, K, STEERING_FEATURES] weights proposed in each of the states."""
        return proposed(self.anchors, self.actions(branches))

    def actions(self, branches: Sequence[Branch]) -> FloatArray:
        """[S, K, ACTION_FEATURES] the same, relative to the anchors."""
        with torch.no_grad():
            found = self._means(self._inputs(branches)).numpy().astype(np.float64)
        return found.reshape(len(branches), len(self.anchors), -1)

    def imitate(
        self, branches: Sequence[Branch], targets: FloatArray, weights: FloatArray, epochs: int, seed: int
    ) -> None:
        """Regress to actions [S, K, ACTION_FEATURES] with weights [S, K]."""
        rng, inputs = np.random.default_rng([seed, 3]), self._inputs(branches)
        weight = torch.as_tensor((weights / max(weights.mean(), 1e-12)).reshape(-1), dtype=torch.float32)
        wanted = torch.as_tensor(targets.reshape(-1, targets.shape[2]), dtype=torch.float32)
        optimizer = torch.optim.Adam(self.ppo.policy.parameters(), lr=3e-4)
        for _ in range(epochs):
            order = rng.permutation(len(wanted))
            for rows in np.array_split(order, max(len(order) // 512, 1)):
                some = {name: part[rows] for name, part in inputs.items()}
                error = (self._means(some) - wanted[rows]).square().sum(dim=1)
                loss = (weight[rows].clamp(max=10.0) * error).mean()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()

    def _inputs(self, branches: Sequence[Branch]) -> dict[str, Tensor]:
        return network_inputs([(one.seen, one.plan, one.base) for one in branches], len(self.anchors))

    def _means(self, inputs: dict[str, Tensor]) -> Tensor:
        return mean_actions(self.network, inputs)


def expert_iteration(
    proposals: Proposals,
    branches: Sequence[Branch],
    rounds: int,
    drawn: int,
    work: int,
    reward: RewardWeights,
    seed: int,
    spread: float = 0.25,
    epochs: int = 4,
) -> list[float]:
    """Draw candidates around the network's own, and regress to what they save beyond all that it proposes.

    drawn: candidates around each proposal in each round. Returns percent that the proposals save in the mean over
    states, before each round and at the end.
    """
    rng = np.random.default_rng([seed, 13])
    standing, course = always_tried(branches, work, reward), []
    for step in range(rounds + 1):
        actions = proposals.actions(branches)
        costs = cost_matrix(branches, proposed(proposals.anchors, actions), work, reward)
        best = np.minimum(costs.min(axis=1), standing)
        course.append(float(PERCENT * (standing - best).mean()))
        if step == rounds:
            break
        noise = spread * rng.standard_normal((len(branches), drawn, *actions.shape[1:]))
        tried = actions[:, None] + noise * (rng.random(noise.shape) < CHANGED_SHARE)
        weights = proposed(proposals.anchors, tried).reshape(len(branches), -1, proposals.anchors.shape[1])
        found = cost_matrix(branches, weights, work, reward).reshape(tried.shape[:3])
        saved = np.maximum(best[:, None, None] - found, 0.0)  # [S, drawn, K]
        mass = saved.sum(axis=1)
        step_to = np.einsum("sck,sckf->skf", saved, tried) / np.maximum(mass, 1e-12)[:, :, None]
        stay = 0.1 * mass.mean()  # where nothing saves more, proposals stay as they are
        targets = (mass[:, :, None] * step_to + stay * actions) / (mass + stay)[:, :, None]
        proposals.imitate(branches, targets, mass + stay, epochs, seed + step)
    return course
