"""An agent of stable-baselines3 as a policy: train it, then compare it with any other policy.

python examples/sb3_policy.py --steps 4096
rlpto evaluate quickstart --policies examples/sb3_policy.py:Learnt,fifo --windows test
rlpto bench run examples/sb3_policy.py:Learnt --case microsoft04-0.9
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

import rlpto.envs  # noqa: F401  registers the environment
from rlpto.experiments.environments import EnvPolicy

FILE = Path("runs/sb3_policy.zip")


class Learnt(EnvPolicy):
    """Decides in a cluster as the agent of `FILE` does in the environment."""

    summary = "PPO of stable-baselines3 that steers the index, elastic"

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.model = PPO.load(FILE, device="cpu")

    def act(self, observation: Any) -> Any:
        """The action that the agent finds best."""
        return self.model.predict(observation, deterministic=True)[0]


def main() -> None:
    """Train, and save the agent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4096, help="steps of the environment to learn from")
    options = parser.parse_args()
    environments = make_vec_env("rlpto/Cluster-v0", n_envs=4, seed=0)
    agent = PPO("MultiInputPolicy", environments, n_steps=64, policy_kwargs={"log_std_init": -2.0}, device="cpu")
    agent.learn(options.steps)
    FILE.parent.mkdir(exist_ok=True)
    agent.save(FILE)
    print(FILE)


if __name__ == "__main__":
    main()
