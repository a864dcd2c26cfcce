"""Common parts of the examples with other libraries: their environment, their options and the score at the end."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Act = Callable[[NDArray[np.float32]], Any]
CASE = "microsoft04-0.9-exact"
SETTINGS: dict[str, Any] = {"max_jobs": 32, "episode": {"min_hours": 1, "max_hours": 4}}
RENTED = {
    "provision": "average:factor=2,half_life=60",
    "workload.windows": {"hours": 6, "limit": 8},
    "simulator.max_hours": 6,
}
ZERO = {"cluster": "index", "nodes": "heuristic"}
"""Environments by their short names, and the name of action zero in them."""


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4096, help="steps of the environment to learn from")
    parser.add_argument("--env", choices=list(ZERO), default="cluster", help="allocate GPUs, or rent nodes")
    return parser.parse_args()


def make_env(**settings: Any) -> gymnasium.Env[Any, Any]:
    """Training windows of a case of rlpto-bench in short episodes, or six hours of rented nodes. The observation is one
    vector."""
    if options().env == "nodes":
        return gymnasium.wrappers.FlattenObservation(gymnasium.make("rlpto.envs:rlpto/Nodes-v1", overrides=RENTED))
    env_id = f"rlpto.bench:rlpto/Bench-{CASE}-v1"
    return gymnasium.wrappers.FlattenObservation(gymnasium.make(env_id, **SETTINGS, **settings))


def compare(library: str, act: Act, episodes: int = 10) -> None:
    """Print the mean total reward of the policy, and of action zero on the same episodes."""
    env = make_env(baseline="none")
    policy, zero = total(env, act, episodes), total(env, lambda _: np.zeros(env.action_space.shape or ()), episodes)
    print(f"{library}: reward {policy:.3f}, {ZERO[options().env]} {zero:.3f} over {episodes} episodes")


def total(env: gymnasium.Env[Any, Any], act: Act, episodes: int) -> float:
    """Mean over episodes of the sum of rewards; episode i begins with seed 1000 + i."""
    rewards = 0.0
    for seed in range(1000, 1000 + episodes):
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            observation, reward, ended, cut, _ = env.step(np.asarray(act(observation), dtype=np.float32))
            rewards, over = rewards + float(reward), ended or cut
    return rewards / episodes
