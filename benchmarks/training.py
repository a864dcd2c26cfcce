"""Speed of training: environment steps per CPU-second of PPO from end to end.

The default network and learning settings on 64 clusters with about 32 visible jobs; every decision is a step. The
same network is trained on an environment that costs nothing, which hands out one fixed observation.
Not counted: compilation, evaluation, checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _common
import numpy as np
import speed
import torch
from stable_baselines3.common.logger import configure

from rlpto.agents.ppo import TimedPPO
from rlpto.agents.settings import AgentSettings
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.envs.compiled_batch import Workload
from rlpto.envs.episodes import EnvSetup
from rlpto.envs.sb3 import SB3ClusterEnv
from rlpto.envs.settings import EnvSettings
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.tables import JobType
from rlpto.policies.index_weights import IndexWeights
from rlpto.simulator.settings import SimulatorSettings

COUNTED = 1000
LOOPS = 7.0
"""Calibration loops that COUNTED steps may take."""
SHARE = 0.6
WINDOW = 33.0
"""Hours in which the 400 jobs of a workload are submitted."""


class FreeEnv(SB3ClusterEnv):
    """The same environments, whose steps cost nothing: every observation is the first one."""

    def __init__(self, setup: EnvSetup, num_envs: int) -> None:
        super().__init__(setup, num_envs, 0)
        self._seen = super().reset()
        self.batch.elapsed[:] = 60.0
        self._free_reward = np.random.default_rng(0).normal(size=num_envs).astype(np.float32)
        self._infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]

    def reset(self) -> Any:
        return self._seen

    def step_wait(self) -> Any:
        return self._seen, self._free_reward.copy(), np.zeros(self.num_envs, dtype=np.bool_), self._infos


def rollouts_and_updates(env: SB3ClusterEnv, settings: AgentSettings) -> Callable[[], None]:
    """A call that lets PPO play a rollout in the environments and learn from it."""
    model = TimedPPO.make(env, settings, 60.0, 0)
    model.set_logger(configure(None, []))
    callback = model.begin_learning(10**9, None)

    def step() -> None:
        model.collect_rollouts(env, callback, model.rollout_buffer, model.n_steps)
        model.train()

    return step


def make_setup() -> EnvSetup:
    """Clusters with about as many jobs as can be seen."""
    profiles = load_profiles(None)
    tables = compile_tables(profiles, [JobType(model) for model in profiles.models], 16, 4)
    workloads = tuple(
        Workload(f"{seed}", tuple(speed.workload(tables, 400, 300.0, seed)), seed, WINDOW) for seed in range(16)
    )
    parts = (SimulatorSettings(), QueueSettings(), RewardWeights(), EnvSettings(hold=0.0), IndexWeights().vector())
    return EnvSetup(speed.NODES, workloads, tables, *parts)


def main() -> None:
    arguments = _common.parser(__doc__)
    arguments.add_argument("--repeats", type=_common.positive, default=9, help="rollouts and updates that are timed")
    options = arguments.parse_args()
    settings = AgentSettings()
    setup = make_setup()
    env = SB3ClusterEnv(setup, settings.envs, 0)
    torch.set_num_threads(1)
    envs = {"free": FreeEnv(setup, settings.envs), "real": env}
    calls = {name: rollouts_and_updates(each, settings) for name, each in envs.items()}
    taken = _common.calibrated("training", calls, options.repeats)
    steps, seconds = settings.envs * settings.ppo.rollout, taken["real"].seconds
    counted = taken["real"].loops * COUNTED / steps
    checks = [
        _common.Check(f"{COUNTED:,} steps of PPO", counted, "calibration loops", LOOPS, False),
        _common.Check("of the speed with a free environment", taken["free"].seconds / seconds, "", SHARE, True),
    ]
    jobs = f"{env.batch.clusters.batch.world.clusters['active'].mean():.1f} on average"
    _common.finish(checks, **{"active jobs": jobs, "steps per CPU-second": round(steps / seconds)})


if __name__ == "__main__":
    main()
