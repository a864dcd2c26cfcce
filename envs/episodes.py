"""Setups of environments: clusters and workloads, episodes and spaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from gymnasium import spaces
from numpy.random import Generator

from rlpto.core.cluster import Cluster, ClusterShape
from rlpto.core.queues import QueueSettings
from rlpto.core.renting import NO_RENT, RentPlan
from rlpto.core.rewards import HOUR, RewardWeights
from rlpto.envs.actions import ACTION_FEATURES, LARGEST
from rlpto.envs.compiled_batch import CompiledBatch, Workload, build_batch, joint_history
from rlpto.envs.features import CLUSTER_FEATURES, JOB_FEATURES
from rlpto.envs.observation import FORECAST_FEATURES, LIMIT
from rlpto.envs.settings import EnvSettings
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ConfigError
from rlpto.io.settings import LARGEST_SEED
from rlpto.knowledge.by_size import CompiledEstimates
from rlpto.knowledge.known import TRUTH, Knowledge
from rlpto.performance.tables import SpeedTables
from rlpto.policies.index_weights import SIZES
from rlpto.provisioning.base import Provisioner, planned
from rlpto.provisioning.control import SimulatedNodes, plan_of
from rlpto.provisioning.demand import KnownDemand
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

MOST_ENVS = 10_000
"""Most environments that step together."""


@dataclass(frozen=True, eq=False)
class EnvSetup:
    """Everything a simulated environment needs. Two setups are equal only if they are one object.

    workloads: episodes are drawn from them. start: index weights [S] of the heuristic that the agent starts
    from. Action zero is this heuristic; it also warms up episodes and plays the baseline rollouts.
    knowledge: the knowledge of policies, with its noise replaced by the noise of each workload.
    renting: arguments of `SimulatedNodes` for each workload, whose provisioner decides on the rented nodes. Default: no
    nodes are rented, or actions set their number (`rents`).
    """

    shape: ClusterShape
    workloads: tuple[Workload, ...]
    tables: SpeedTables
    simulator: SimulatorSettings
    queue: QueueSettings
    reward: RewardWeights
    settings: EnvSettings
    start: FloatArray
    knowledge: Knowledge = TRUTH
    renting: tuple[tuple[Provisioner, KnownDemand, float], ...] = ()

    rents: ClassVar[bool] = False
    """Whether actions set the number of rented nodes."""

    def __post_init__(self) -> None:
        if self.shape.rented_groups and not (self.rents or self.renting):
            raise ConfigError(
                "cluster.nodes: nodes are rented, but here the agent allocates GPUs; expected rlpto/Nodes-v1 "
                "(agent.learns: nodes), learning from whole windows (agent.learns: windows), or nodes that are always "
                "there"
            )
        if self.start.ndim != 1 or len(self.start) not in SIZES:
            raise ValueError(f"start: expected {SIZES} index weights, got shape {self.start.shape}")

    @property
    def interval(self) -> float:
        """Seconds between regular decisions."""
        return self.simulator.interval

    def compiled(self, count: int = 1) -> CompiledBatch:
        """A compiled batch of `count` clusters. Raises ConfigError or JobError if a workload cannot run on them."""
        parts = (self.tables, self.simulator, self.queue, self.reward)
        return build_batch(count, self.shape, self.workloads, *parts, estimates=self._estimates, rent=self._plan)

    @cached_property
    def _plan(self) -> RentPlan:
        """Decisions on the rented nodes of all workloads; those of shorter ones are repeated at the end."""
        plans = [plan_of(self.shape, planned(own), demand, start) for own, demand, start in self.renting]
        if not plans:
            return NO_RENT
        longest = max(plan.further.shape[1] for plan in plans)
        rows = [np.pad(plan.further, ((0, 0), (0, longest - plan.further.shape[1]), (0, 0)), "edge") for plan in plans]
        return plans[0]._replace(further=np.concatenate(rows))

    def node_control(self, workload: int, cluster: SimulatedCluster) -> SimulatedNodes | None:
        """Return the control of a cluster's rented nodes; None if no nodes are rented."""
        return SimulatedNodes(cluster, *self.renting[workload]) if self.renting else None

    @cached_property
    def _estimates(self) -> CompiledEstimates:
        """Estimates that policies get; computed once, since this takes longer than all the rest."""
        return CompiledEstimates.of(self.knowledge, self.tables, self.shape.gpus_per_node)

    def make_cluster(self, workload: int) -> SimulatedCluster:
        """A simulated cluster at the start of workload number `workload`."""
        own = self.workloads[workload]
        knowledge = replace(self.knowledge, noise=own.noise, history=joint_history([own], self.tables))
        return SimulatedCluster(self.shape, own.jobs, self.tables, self.simulator, own.seed, knowledge)


@dataclass(frozen=True)
class ExternalSetup:
    """An environment over clusters that the caller makes one after the other, such as real ones.

    next_cluster: makes the cluster of the next episode. interval: seconds between regular decisions. start: index
    weights [S] of the heuristic that the agent starts from. Episodes are not warmed up by default. No baseline rollout
    is subtracted, because the start heuristic's reward on such clusters is not known.
    """

    next_cluster: Callable[[], Cluster]
    queue: QueueSettings
    reward: RewardWeights
    settings: EnvSettings
    start: FloatArray
    interval: float = 60.0
    workloads: tuple[Workload, ...] = (Workload("external", jobs=(), seed=0, hours=0.0),)

    def make_cluster(self, workload: int) -> Cluster:  # noqa: ARG002  there is one
        """The cluster of the next episode."""
        return self.next_cluster()


def draw_episode(rng: Generator, setup: EnvSetup | ExternalSetup) -> tuple[int, float, float]:
    """Draw the next episode of an environment from its own random numbers. Returns the index of the workload, and the
    lengths of warm-up and episode [s]."""
    settings = setup.settings.episode
    workload = int(rng.integers(len(setup.workloads)))
    warm_up = rng.uniform(0.0, settings.warm_start) * setup.workloads[workload].hours * HOUR
    length = rng.uniform(settings.min_hours, settings.max_hours) * HOUR
    return workload, float(warm_up), float(length)


def episode_rng(seed: int | None, slot: int = 0) -> Generator:
    """Random numbers for the episodes of an environment. slot: the environment's number under a shared seed.

    Raises ConfigError for an invalid seed.
    """
    if seed is not None:
        check_integer("seed", seed, 0, LARGEST_SEED)
    return np.random.default_rng(None if seed is None else [seed, slot])


def fresh_seed() -> int:
    """A random seed, small enough that the seeds counted up from it for more environments are valid too."""
    return int(np.random.SeedSequence().generate_state(1)[0]) >> 1


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raise ConfigError, naming the argument, unless it is an integer from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise ConfigError(f"{name}: expected an integer, {low:,} to {high:,}, got {value!r}")


def observation_space(settings: EnvSettings) -> spaces.Dict:
    """The space of `rlpto.envs.observation.Observation`."""

    def box(low: float, high: float, *shape: int) -> spaces.Box:
        return spaces.Box(low, high, shape, np.float32)

    return spaces.Dict(
        {
            "jobs": box(-LIMIT, LIMIT, settings.max_jobs, len(JOB_FEATURES)),
            "mask": box(0.0, 1.0, settings.max_jobs),
            "cluster": box(-LIMIT, LIMIT, len(CLUSTER_FEATURES)),
            "forecast": box(0.0, LIMIT, settings.horizon * FORECAST_FEATURES),
        }
    )


def action_space() -> spaces.Box:
    """The space of an action: [ACTION_FEATURES] numbers, explained in `rlpto.envs.actions`."""
    return spaces.Box(-LARGEST, LARGEST, (len(ACTION_FEATURES),), np.float32)
