"""Environments in which an action sets the number of rented nodes: the engine behind `rlpto/Nodes-v1`.

An episode is a whole window and a step is one minute. Each step requests or returns nodes; the start heuristic
schedules the jobs in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from rlpto.core.loop import LONGEST_WITHOUT_NODES_S
from rlpto.core.renting import LOOK, TICK_S, NodesState
from rlpto.core.rewards import HOUR, REWARD_PARTS
from rlpto.envs.batch import BatchSteps, EnvBatch
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.clusters import SimulatedClusters
from rlpto.envs.compiled_batch import PARTS
from rlpto.envs.compiled_nodes import NODE_SUMS, run_minutes
from rlpto.envs.episodes import EnvSetup
from rlpto.envs.sb3 import SB3ClusterEnv
from rlpto.envs.vector import ClusterVectorEnv
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.provisioning.base import Provisioner, checked_gpus
from rlpto.provisioning.control import NodeGroups
from rlpto.provisioning.demand import Demand
from rlpto.provisioning.features import (
    FEATURES,
    LARGEST_ACTION,
    LEAST_ACTION,
    LIMIT,
    gpus_of_action,
    node_features,
)
from rlpto.provisioning.rules import Reactive

GOES_ON, WAITS = -1, -2
"""Sentinels for the workload number of a cluster: run for one minute, or leave the cluster alone."""


class NodesObservation(NamedTuple):
    """An observation. nodes: [B, G x features] float32 features of each group, in the order of the groups."""

    nodes: AnyArray


@dataclass(frozen=True, eq=False)
class NodesSetup(EnvSetup):
    """Everything that environments with rented nodes need. The start heuristic of `EnvSetup` schedules the jobs.

    demands: demand of each workload. heuristic: provisioner whose decision action zero repeats. forecasts: for each
    workload, [T + 1, G, F] forecast features by minute (`rlpto.provisioning.features`). Default: no forecasts.
    """

    demands: tuple[Demand, ...] = ()
    heuristic: Provisioner = field(default_factory=Reactive)
    forecasts: tuple[FloatArray, ...] = ()

    rents = True

    @property
    def width(self) -> int:
        """Numbers in an observation."""
        extra = self.forecasts[0].shape[2] if self.forecasts else 0
        return len(self.shape.rented_groups) * (len(FEATURES) + extra)

    @cached_property
    def averages(self) -> list[FloatArray]:
        """[T + 1, G, 2, A] averages of the demand of each workload."""
        return [demand.averages() for demand in self.demands]


class NodesBatch(EnvBatch):
    """B environments that step together, a minute at a time.

    The reward of a step has two of the config's terms, less the unavoidable cost of the work done. `time` counts the
    job-seconds in excess of the time that this work takes with the requested GPUs, and `money` the cost in excess of
    the price of these GPUs. The sum over a workload in which all jobs finish differs from the config's own `time` and
    `money` by a constant.
    """

    setup: NodesSetup

    def __init__(self, setup: NodesSetup, count: int = 1, seed: int | None = 0, max_steps: int | None = None) -> None:
        groups = len(setup.shape.rented_groups)
        self._groups = NodeGroups(setup.shape, count)
        self._look, self._sums = np.zeros((count, groups), dtype=LOOK), np.zeros((count, len(NODE_SUMS)))
        super().__init__(setup, count, seed, max_steps)
        assert isinstance(self.clusters, SimulatedClusters)
        self._batch, self._weights = self.clusters.batch, np.atleast_2d(setup.start)
        self.elapsed[:] = TICK_S

    @property
    def observation_space(self) -> spaces.Dict:
        """The space of `NodesObservation`."""
        return spaces.Dict({"nodes": spaces.Box(-LIMIT, LIMIT, (self.setup.width,), np.float32)})

    @property
    def action_space(self) -> spaces.Box:
        """[G] numbers. `rlpto.provisioning.features.gpus_of_action` converts them to GPUs."""
        return spaces.Box(LEAST_ACTION, LARGEST_ACTION, self._look.shape[1:], np.float32)

    def begin(self, b: int, workload: int, warm_up: float = 0.0, length: float = np.inf) -> None:
        """Begin an episode of environment b, which lasts until the workload's jobs are over."""
        del warm_up, length
        begins = np.full(self.count, WAITS)
        begins[b] = workload
        self._run(begins, np.zeros(self._look.shape, dtype=np.int64))
        # Past the window's end, as an evaluation, until all jobs are over or the simulator's limit; not for ever.
        self.length[b] = HOUR * self.setup.workloads[workload].hours + LONGEST_WITHOUT_NODES_S
        for sums in (self.steps, self.terms, self.reward, self.seconds):
            sums[b] = 0

    def _run(self, workload: IntArray, nodes: IntArray) -> None:
        run_minutes(self._batch, workload, nodes, self._weights, self._look, self._sums)

    def state_of_nodes(self) -> NodesState:
        """The present state, [B x G] rows."""
        minute, setup = self.steps.tolist(), self.setup
        pairs = list(zip(self.clusters.current.tolist(), minute, strict=True))
        averages = np.concatenate([_row(setup.averages[number], at) for number, at in pairs])
        rows, groups = len(averages), len(averages) // self.count
        forecast = np.zeros((rows, 0))
        if setup.forecasts:
            forecast = np.concatenate([_row(setup.forecasts[number], at) for number, at in pairs])
        time = TICK_S * self.steps
        clock = np.array([setup.demands[number].start for number in self.clusters.current]) + time
        parts = np.repeat(time, groups), np.repeat(clock, groups)
        return self._groups.state(*parts, self._look.reshape(-1), averages, forecast)

    def observe(self) -> NodesObservation:  # type: ignore[override]
        """The present observation as fresh arrays [B, ...]."""
        state = self.state_of_nodes()
        seen = node_features(state, self._spare(state))
        return NodesObservation(seen.reshape(self.count, -1))

    def _spare(self, state: NodesState) -> FloatArray:
        """[R] GPUs that the heuristic wants in excess of the GPUs that jobs hold or wait for."""
        heuristic = self.setup.heuristic
        return checked_gpus(heuristic.name, heuristic(state), state) - state.demand

    def step(self, actions: AnyArray) -> BatchSteps:
        """Carry out actions [B, G]. Raises ValueError if they have another shape or are not finite."""
        wanted = np.asarray(actions, dtype=np.float64)
        if wanted.shape != self._look.shape or not np.isfinite(wanted).all():
            raise ValueError(f"actions of shape {wanted.shape}: expected finite numbers of shape {self._look.shape}")
        state = self.state_of_nodes()
        return self.rent(state, gpus_of_action(state, self._spare(state), wanted.reshape(-1)))

    def rent(self, state: NodesState, gpus: FloatArray) -> BatchSteps:
        """Take a step in which `gpus` [B x G] are wanted in the given state."""
        over, weights = np.full(self.count, GOES_ON), self.setup.reward
        self._run(over, self._groups.nodes(state, gpus).reshape(self._look.shape))
        parts = np.zeros((self.count, PARTS))
        parts[:, REWARD_PARTS.index("time")] = -weights.time * self._sums[:, 0] / HOUR
        parts[:, REWARD_PARTS.index("money")] = -weights.money * self._sums[:, 1]
        reward = parts.sum(axis=1) / self.setup.settings.reward_scale
        return self._add_step(reward, parts, over == 1, self.seconds + TICK_S)

    def _arrays(self) -> dict[str, AnyArray]:
        """The arrays that change, by name."""
        world = {f"world.{name}": getattr(self._batch.world, name) for name in ("rentals", "worked")}
        return super()._arrays() | world | {"look": self._look}


def _row(table: FloatArray, at: int) -> FloatArray:
    """Row `at` of a table by minute, or the last row if the table is shorter."""
    return np.asarray(table[min(at, len(table) - 1)])


def play_windows(setup: NodesSetup, provisioner: Provisioner) -> FloatArray:
    """[W, PARTS] terms of the reward if a provisioner decides in every workload, from its start to its end."""
    windows = len(setup.workloads)
    batch, parts = NodesBatch(setup, windows), np.zeros((windows, PARTS))
    for b in range(windows):
        batch.begin(b, b)
    running = np.ones(windows, dtype=np.bool_)
    while running.any():
        state = batch.state_of_nodes()
        steps = batch.rent(state, checked_gpus(provisioner.name, provisioner(state), state))
        parts[running] += steps.parts[running]
        running &= ~steps.over
    return parts


class NodesEnv(ClusterEnv):
    """Choose the number of rented nodes once a minute for a window. This is a `NodesBatch` of one environment.

    Observation: a dictionary with the entry `nodes` of `NodesObservation`. Action: [G] float32, one for each group of
    rented nodes: spare GPUs relative to the heuristic, which is zero (`rlpto.provisioning.features.gpus_of_action`).
    `NodesBatch` defines reward, termination and truncation. An episode is a whole window.
    """

    batch_class = NodesBatch


class NodesVectorEnv(ClusterVectorEnv):
    """B environments with rented nodes in one process, with the options of `ClusterVectorEnv`."""

    batch_class = NodesBatch


class SB3NodesEnv(SB3ClusterEnv):
    """B environments with rented nodes for stable-baselines3."""

    batch_class = NodesBatch
