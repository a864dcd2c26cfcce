"""PPO of stable-baselines3 on a case of rlpto-bench or on rented nodes."""

from __future__ import annotations

from _common import compare, make_env, options
from stable_baselines3 import PPO


def main() -> None:
    """Train, then compare with action zero."""
    agent = PPO("MlpPolicy", make_env(), n_steps=256, batch_size=64, seed=0, device="cpu")
    agent.learn(options().steps)
    compare("stable-baselines3", lambda observation: agent.predict(observation, deterministic=True)[0])


if __name__ == "__main__":
    main()
