"""PPO of RLlib (new API stack) on a case of rlpto-bench or on rented nodes, in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _common import compare, make_env, options

from rlpto.io.extras import extras

with extras("tree"):
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.tune.registry import register_env


def main() -> None:
    """Train, then compare with action zero."""
    steps = options().steps
    ray.init(address="local", num_cpus=1, include_dashboard=False)  # never on a cluster that happens to run here
    register_env("rlpto", lambda _: make_env())
    config = (
        PPOConfig()
        .environment("rlpto", normalize_actions=False)  # zero stays zero
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=256, minibatch_size=64, num_epochs=10)
        .debugging(seed=0)
    )
    agent = config.build_algo()
    for _ in range(max(1, steps // 256)):
        agent.train()
    module = agent.get_module()

    def act(observation: np.ndarray[Any, Any]) -> Any:
        with torch.no_grad():
            found = module.forward_inference({"obs": torch.as_tensor(observation)[None]})["action_dist_inputs"][0]
        return found[: len(found) // 2].numpy()  # the means; the rest are spreads

    compare("rllib", act)
    agent.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
