"""Speed of training: environment steps per CPU-second of PPO from end to end, and where the time goes.

The default network and learning settings on 64 clusters with about 32 visible jobs; every decision is a step. The
same network is trained on an environment that costs nothing, which hands out one fixed observation.
Not counted: compilation, evaluation, checkpoints.
"""

from __future__ import annotations

import time
from typing import Any

import _common
import numpy as np
import speed
import torch
from stable_baselines3.common.logger import configure

from rlpto.agents.compat import begin_learning
from rlpto.agents.ppo import TimedPPO
from rlpto.agents.settings import AgentSettings
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.envs.compiled_batch import Workload
from rlpto.envs.episodes import EnvSetup
from rlpto.envs.sb3 import SB3ClusterEnv
from rlpto.envs.settings import EnvSettings
from rlpto.io.arrays import FloatArray
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


class MeasuredTrainer:
    """PPO on an environment, a rollout and an update at a time."""

    def __init__(self, env: Any, settings: AgentSettings) -> None:
        self._model = TimedPPO.make(env, settings, 60.0, 0)
        self._model.set_logger(configure(None, []))
        _, self._callback = begin_learning(self._model, 10**9, None)
        self._inside, self._step_wait = 0.0, env.step_wait
        env.step_wait = self._timed_step

    def _timed_step(self) -> Any:
        start = time.process_time()
        result = self._step_wait()
        self._inside += time.process_time() - start
        return result

    def step(self) -> FloatArray:
        """[3] CPU seconds: of the environment in a rollout, of the rest of the rollout, of an update."""
        model, self._inside = self._model, 0.0
        start = time.process_time()
        model.collect_rollouts(model.env, self._callback, model.rollout_buffer, model.n_steps)
        rolled = time.process_time()
        model.train()
        return np.array([self._inside, rolled - start - self._inside, time.process_time() - rolled])


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
    trainers = MeasuredTrainer(FreeEnv(setup, settings.envs), settings), MeasuredTrainer(env, settings)
    for trainer in trainers:
        trainer.step()
    # In turns: the machine may be faster at one time than at another.
    free, real, loops = [], [], []
    for repeat in range(options.repeats):
        _common.progress(f"training: {repeat + 1} of {options.repeats}")
        of_free, of_real = (trainer.step() for trainer in trainers)
        free.append(of_free.sum())
        real.append(of_real)
        loops.append(of_real.sum() / _common.seconds_of(_common.calibration))
    steps, taken = settings.envs * settings.ppo.rollout, np.sum(real, axis=1)
    checks = [
        _common.Check(
            f"{COUNTED:,} steps of PPO", float(np.median(loops)) * COUNTED / steps, "calibration loops", LOOPS, False
        ),
        _common.Check("of the speed with a free environment", float(np.median(free / taken)), "", SHARE, True),
    ]
    shares = np.median(real / taken[:, None], axis=0)
    jobs = f"{env.batch.clusters.batch.world.clusters['active'].mean():.1f} on average"
    _common.finish(
        checks,
        options.json,
        **{"active jobs": jobs, "steps per CPU-second": round(steps / np.median(taken))},
        **dict(zip(("environment", "rest of the rollout", "update"), map("{:.0%}".format, shares), strict=True)),
    )


if __name__ == "__main__":
    main()
