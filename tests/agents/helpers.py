"""A small cluster to learn on, and a training of a few hundred steps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rlpto.agents.checkpoint import Identity
from rlpto.agents.settings import AgentSettings
from rlpto.agents.training import train
from rlpto.agents.training_loop import TrainingResult
from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.policy import Policy
from rlpto.core.queues import QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.envs.compiled_batch import Workload
from rlpto.envs.episodes import EnvSetup
from rlpto.envs.settings import EnvSettings
from rlpto.policies.index_weights import IndexWeights
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings
from tests.builders import random_jobs, random_tables

NODES = ClusterShape((Node(4), Node(4)))
TABLES = random_tables(3, 8, 20.0)
QUEUE, REWARD = QueueSettings(), RewardWeights()
SIMULATOR = SimulatorSettings(interval=120.0, decide_on="events")
IDENTITY = Identity(digest="d", seed=5, provenance={"config": "a test"})


def workload(seed: int) -> Workload:
    """Twelve jobs that arrive within an hour and a half."""
    jobs = sorted(random_jobs(seed, 12, 8, 8), key=lambda job: job.submit_time)
    return Workload(f"w{seed}", tuple(jobs), seed, 1.5)


def make_setup(seeds: tuple[int, ...] = (1, 2, 3), **env: Any) -> EnvSetup:
    """Three workloads on two nodes of four GPUs."""
    given = {"max_jobs": 6, "horizon": 2, **env}
    settings = EnvSettings.model_validate(given | {"episode": {"min_hours": 0.3, "max_hours": 1.0}})
    start = IndexWeights().array()
    return EnvSetup(NODES, tuple(map(workload, seeds)), TABLES, SIMULATOR, QUEUE, REWARD, settings, start)


def make_settings(**more: Any) -> AgentSettings:
    """Five rollouts of 64 steps."""
    given: dict[str, Any] = {
        "steps": 320,
        "envs": 4,
        "evaluate_every": 128,
        "ppo": {"rollout": 16, "batch_size": 32, "epochs": 2, "learning_rate": 3e-3, **more.pop("ppo", {})},
        "network": {"width": 8},
        "device": "cpu",
    }
    return AgentSettings.model_validate(given | more)


def validation_of(setup: EnvSetup) -> EnvSetup:
    """Two other workloads."""
    return replace(setup, workloads=(workload(8), workload(9)))


def schedule(policy: Policy, jobs: tuple[Job, ...], seed: int = 8) -> RunRecord:
    """The schedule of a policy for some jobs, by the loop that every policy goes through."""
    cluster = SimulatedCluster(NODES, jobs, TABLES, SIMULATOR, seed)
    return run(cluster, policy, QUEUE, REWARD)


def train_small(
    folder: Path, setup: EnvSetup | None = None, settings: AgentSettings | None = None, **more: Any
) -> TrainingResult:
    """A training of a second or two."""
    setup = setup or make_setup()
    return train(
        setup, settings or make_settings(), folder, more.pop("identity", IDENTITY), validation_of(setup), **more
    )
