"""An offline data set of the planner by Minari, then behaviour cloning on it in torch."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import torch
from _common import CASE, SETTINGS, compare, options
from torch import nn

from rlpto.bench.dataset import record
from rlpto.io.extras import extras

with extras():
    import minari

NAME = "rlpto/planner-v1"


def main() -> None:
    """Record the planner, clone it, compare the clone with the index."""
    if options().env != "cluster":
        raise SystemExit("--env nodes: the planner allocates GPUs, expected --env cluster")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder  # without this line the data set is kept, and its name is taken
        steps, _ = record(CASE, "planner", NAME, episodes=max(1, options().steps // 64), **SETTINGS)
        print(steps, "steps")
        episodes = list(minari.load_dataset(NAME).iterate_episodes())
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
