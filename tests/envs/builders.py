"""Small setups that all tests of the environments share, so that code is compiled once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.jobs import EstimateNoise, Job
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.envs.compiled_batch import Workload
from rlpto.envs.episodes import EnvSetup
from rlpto.envs.settings import EnvSettings, EpisodeSettings
from rlpto.performance.tables import SpeedTables
from rlpto.policies.index_weights import IndexWeights
from rlpto.simulator.settings import SimulatorSettings

from ..builders import random_jobs, random_tables

NODES = ClusterShape((Node(4, price=3.0), Node(4), Node(2)))
TABLES = random_tables(1, 8, 20.0)
START = IndexWeights().array()
SHORT = EpisodeSettings(min_hours=0.2, max_hours=0.8)
WHOLE = EpisodeSettings(min_hours=1e6, max_hours=1e6, warm_start=0.0)
"""Episodes that go from the first job to the last."""


def make_setup(
    jobs: Sequence[Sequence[Job]] | None = None,
    *,
    tables: SpeedTables = TABLES,
    noisy: bool = False,
    simulator: SimulatorSettings | None = None,
    queue: QueueSettings | None = None,
    episode: EpisodeSettings = SHORT,
    shape: ClusterShape = NODES,
    **settings: Any,
) -> EnvSetup:
    """Workloads w0, w1, ... on ten GPUs; without jobs three busy ones. settings: of the environment."""
    lists = [random_jobs(i, 20 + 5 * i, 8, 10) for i in range(3)] if jobs is None else jobs
    return EnvSetup(
        shape=shape,
        workloads=tuple(
            Workload(f"w{i}", tuple(own), seed=i, hours=2.0, noise=make_noise(i, len(own)) if noisy else None)
            for i, own in enumerate(lists)
        ),
        tables=tables,
        simulator=simulator or SimulatorSettings(),
        queue=queue or QueueSettings(aging_normal=400, aging_low=600),
        reward=RewardWeights(money=0.1),
        settings=EnvSettings(**{"max_jobs": 8, "episode": episode} | settings),
        start=START,
    )


def make_noise(seed: int, jobs: int) -> EstimateNoise:
    """Errors of all three kinds."""
    rng = np.random.default_rng(seed)
    return EstimateNoise(np.exp(rng.normal(0, 0.3, jobs)), np.exp(rng.normal(0, 0.2, jobs)), rng.normal(0, 0.1, jobs))
