"""The clusters that environments step: many simulated ones in compiled code, or one `Cluster` object."""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import Cluster
from rlpto.core.loop import DecisionLoop
from rlpto.core.records import INTERVAL, add_interval
from rlpto.core.rewards import weigh
from rlpto.envs.compiled_batch import NO_TRACE, PARTS, run_clusters
from rlpto.envs.episodes import EnvSetup, ExternalSetup
from rlpto.envs.observation import empty_observation, observe
from rlpto.envs.rendering import Scene
from rlpto.io.arrays import AnyArray, BoolArray, FloatArray, IntArray
from rlpto.policies.index import Index

WORLD_PARTS = ("jobs", "nodes", "clusters", "active", "sums", "machines", "free")
"""Arrays of `rlpto.simulator.arrays.World` that change; the others are tables."""


class SimulatedClusters:
    """B simulated clusters in compiled code.

    batch: the compiled clusters. observation: observations of all clusters, updated in place.
    """

    def __init__(self, setup: EnvSetup, count: int) -> None:
        self._setup = setup
        self.batch = setup.compiled(count)
        self.observation = empty_observation(count, setup.settings.max_jobs, setup.settings.horizon)
        self._start = np.atleast_2d(setup.start)

    @property
    def time(self) -> FloatArray:
        """[B] s."""
        time: FloatArray = self.batch.world.clusters["time"].copy()
        return time

    @property
    def current(self) -> IntArray:
        """[B] number of the workload."""
        return self.batch.loop.current

    def begin(self, b: int, workload: int, warm_up: float) -> float:
        """Put cluster b into a workload after `warm_up` seconds under the start heuristic, or at the workload's start
        if it would be over by then. Returns the time [s]."""
        for until in (warm_up, -np.inf):
            arrays = np.array([until]), np.zeros((1, PARTS)), self.observation, NO_TRACE
            if not run_clusters(self.batch, b, workload, self._start, *arrays)[0]:
                break
        return float(self.batch.world.clusters["time"][b])

    def run(self, weights: FloatArray, hold: float) -> tuple[FloatArray, BoolArray]:
        """Let weights [B, WEIGHT_NAMES] decide in every cluster for `hold` seconds (at least once).

        Returns the terms of the reward [B, PARTS], and [B] whether the workloads are over.
        """
        parts = np.zeros((len(weights), PARTS))
        over = run_clusters(self.batch, 0, -1, weights, self.time + hold, parts, self.observation, NO_TRACE)
        return parts, over

    def scene(self, b: int) -> Scene:
        """The scene of cluster b, for rendering."""
        loop, nodes = self.batch.loop, self._setup.shape.node_gpus
        world, jobs = loop.world, self._setup.workloads[loop.current[b]].jobs
        view = loop.shown.jobs[b, : world.clusters["active"][b]]
        return Scene(
            time=float(world.clusters["time"][b]),
            names=[jobs[index].name for index in view["index"]],
            view=view,
            speed=loop.shown.speed[b, : len(view)],
            places=tuple(world.nodes[b, job["index"], : job["gpus"]] for job in view),
            sizes=nodes,
            offered=nodes * world.machines["up"][b, : len(nodes)],
        )

    def jobs(self, b: int) -> AnyArray:
        """A copy of the job records [M] of cluster b."""
        jobs: AnyArray = self.batch.world.jobs[b, : self.batch.counts[self.current[b]]].copy()
        return jobs

    def arrays(self) -> dict[str, AnyArray]:
        """The arrays that change, by name."""
        return {
            **{f"world.{name}": getattr(self.batch.world, name) for name in WORLD_PARTS},
            **{f"observation.{name}": part for name, part in self.observation._asdict().items()},
            "current": self.current,
            "seen": self.batch.loop.estimates.seen,
        }


class OneCluster:
    """One cluster under the scheduler's own loop. Results equal those of `SimulatedClusters` to the last bit.

    cluster: cluster of the present episode. state: state that the next decision is based on.
    """

    cluster: Cluster

    def __init__(self, setup: EnvSetup | ExternalSetup) -> None:
        self._setup = setup
        self._weights, self._policy = setup.reward.record(), Index()
        self._policy.name = "agent"  # in errors: its weights are an agent's actions
        self.observation = empty_observation(1, setup.settings.max_jobs, setup.settings.horizon)
        self.current: IntArray = np.zeros(1, dtype=np.int64)

    @property
    def time(self) -> FloatArray:
        """[1] s."""
        return np.array([self.cluster.time])

    def begin(self, b: int, workload: int, warm_up: float) -> float:
        """Take a fresh cluster, and let the start heuristic schedule it for `warm_up` seconds; returns the time [s]."""
        self.current[b] = workload
        self._take_cluster()
        if self.cluster.time < warm_up:
            self._run(self._setup.start, warm_up)
            if self.cluster.done:  # over before the episode could begin
                self._take_cluster()
        self._observe()
        return self.cluster.time

    def run(self, weights: FloatArray, hold: float) -> tuple[FloatArray, BoolArray]:
        """Decide with weights [1, WEIGHT_NAMES]; returns terms [1, PARTS], and [1] whether the workload ended."""
        parts = self._run(weights[0], self.cluster.time + hold)
        self._observe()
        return parts, np.array([self.cluster.done])

    def scene(self, b: int) -> Scene:  # noqa: ARG002  there is one
        """The scene of the cluster, for rendering."""
        cluster, jobs = self.cluster, self.state.jobs
        return Scene(
            time=cluster.time,
            names=[cluster.jobs[index].name for index in jobs.index],
            view=jobs.records,
            speed=jobs.speed,
            places=cluster.placement(jobs.index).nodes,
            sizes=cluster.shape.node_gpus,
            offered=cluster.shape.offered,
        )

    def _take_cluster(self) -> None:
        self.cluster = self._setup.make_cluster(int(self.current[0]))
        self._loop = DecisionLoop(self.cluster, self._setup.queue)
        self.state = self._loop.state()

    def _run(self, weights: FloatArray, until: float) -> FloatArray:
        """Decide with weights [WEIGHT_NAMES] until `until` (at least once) or the end; returns [1, PARTS]."""
        cluster, total = self.cluster, np.zeros(1, dtype=INTERVAL)
        self._policy.weights = weights
        while True:
            self._loop.decide(self._policy, self.state)
            add_interval(total, cluster.advance())
            self.state = self._loop.state()
            if cluster.done or cluster.time >= until:
                break
        parts = np.zeros((1, PARTS))
        weigh(total, self._weights, parts[0])
        return parts

    def _observe(self) -> None:
        settings, own = self._setup.settings, self._setup.workloads[self.current[0]]
        seen = observe(self.state, self.cluster.held_gpus, settings.max_jobs, settings.horizon)
        if own.forecast.size:
            seen.forecast[:] = own.forecast[min(int(self.state.time / own.forecast_step), len(own.forecast) - 1)]
        for part, now in zip(self.observation, seen, strict=True):
            part[0] = now
