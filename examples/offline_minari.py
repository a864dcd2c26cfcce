"""An offline data set of the index by Minari, then behaviour cloning on it in torch."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import minari
import numpy as np
import torch
from _common import compare, make_env, steps_wanted
from torch import nn


def record(steps: int) -> list[Any]:
    """Whole episodes of the index, action zero, with at least that number of steps, by way of a data set."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder  # leave this line out to keep the data set
        env, taken, seed = minari.DataCollector(make_env()), 0, 0
        while taken < steps:
            env.reset(seed=seed)
            seed, over = seed + 1, False
            while not over:
                _, _, ended, cut, _ = env.step(np.zeros(env.action_space.shape or (), dtype=np.float32))
                taken, over = taken + 1, ended or cut
        data = env.create_dataset("rlpto/index-v0", algorithm_name="index")
        print(f"{data.total_episodes} episodes, {data.total_steps} steps")
        return list(data.iterate_episodes())


def main() -> None:
    """Record the index, clone it, compare the clone with it."""
    torch.manual_seed(0)
    episodes = record(steps_wanted())
    observations = torch.as_tensor(np.concatenate([episode.observations[:-1] for episode in episodes]))
    actions = torch.as_tensor(np.concatenate([episode.actions for episode in episodes]))
    policy = nn.Sequential(nn.Linear(observations.shape[1], 64), nn.Tanh(), nn.Linear(64, actions.shape[1]))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for _ in range(200):
        rows = torch.randint(len(actions), (64,))
        loss = (policy(observations[rows]) - actions[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    compare("minari", lambda observation: policy(torch.as_tensor(observation)).detach().numpy())


if __name__ == "__main__":
    main()
