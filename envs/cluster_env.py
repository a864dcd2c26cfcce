"""One environment over any cluster: simulated, or real."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.random import Generator
from numpy.typing import NDArray

from rlpto.core.cluster import Allocation, Cluster
from rlpto.core.loop import DecisionLoop
from rlpto.core.queues import QueueSettings
from rlpto.core.records import INTERVAL, add_interval
from rlpto.core.rewards import REWARD_PARTS, RewardWeights, weigh
from rlpto.envs.actions import ACTION_FEATURES, action_weights
from rlpto.envs.batch import NO_BASELINE, BaselineRollout, baseline_reward, baseline_rollout
from rlpto.envs.fleet import PARTS, build_fleet
from rlpto.envs.observation import observe
from rlpto.envs.rendering import Trail, draw, tell
from rlpto.envs.settings import EnvSettings
from rlpto.envs.setup import HOUR, EnvSetup, Episode, action_space, draw_episode, episode_rng, observation_space
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import ConfigError
from rlpto.knowledge.known import Knowledge
from rlpto.policies.steering import steer
from rlpto.simulator.cluster import SimulatedCluster

Observed = dict[str, NDArray[np.float32]]
"""The parts of `rlpto.envs.observation.Observation` by name."""

OPTIONS = ("workload", "warm_up", "length")
"""Options of `ClusterEnv.reset`."""


@dataclass(frozen=True)
class LiveSetup:
    """An environment over clusters that somebody else makes, such as a real one.

    cluster: gives the cluster of the next episode. start: as in `rlpto.envs.setup.EnvSetup`.
    No baseline rollout is subtracted: what the start heuristic would earn there is not known.
    """

    cluster: Callable[[], Cluster]
    queue: QueueSettings
    reward: RewardWeights
    settings: EnvSettings
    start: FloatArray


class ClusterEnv(gymnasium.Env[Any, AnyArray]):
    """Schedule the jobs of one cluster for an episode.

    Observation: a dictionary of the arrays of `rlpto.envs.observation.Observation`, which lists every entry with
    its unit and its fixed normalisation. With the default settings: jobs [32, JOB_FEATURES], mask [32],
    cluster [CLUSTER_FEATURES], forecast [6 x FORECAST_FEATURES], float32.

    Action: [ACTION_FEATURES] float32, steps from the start weights, cut to [-LARGEST, LARGEST]. Whatever they come
    to, the queue trims to capacity by class.

    Reward: accuracy gained minus the cost of time, resources and rescales (`rlpto.core.rewards`), minus, with
    baseline `start_heuristic`, what the baseline rollout earns in the same time; divided by `reward_scale`. `info` has
    the terms as they are, by name, and `elapsed`, the seconds that the step took.

    Termination: all jobs have finished, or the simulator's time limit is reached. Truncation: the episode's
    length is reached.

    setup: see `EnvSetup` (each episode is a stretch of a workload, in virtual time) or `LiveSetup` (the length
    is drawn, nothing is warmed up unless asked for).
    """

    def __init__(self, setup: EnvSetup | LiveSetup, render_mode: str | None = None) -> None:
        self.metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 10}
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode {render_mode}: expected rgb_array, ansi or None")
        if isinstance(setup, EnvSetup) and not setup.workloads:
            raise ConfigError("no workloads to learn from: expected training windows with jobs")
        self.setup = setup
        self.render_mode = render_mode
        self.observation_space = observation_space(setup.settings)
        self.action_space = action_space()
        self._weights = setup.reward.record()
        self._baselines: dict[int, BaselineRollout] = {}
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        """The cluster of the present episode. Raises ResetNeeded before the first one."""
        if self._cluster is None:
            raise ResetNeeded("call reset before anything else")
        return self._cluster

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Begin the next episode; the same seed gives the same episodes, bit for bit.

        options: `workload` (name or number), `warm_up` and `length` (seconds) of the episode, in place of what
        would be drawn. Raises ValueError for others. Returns the observation, and the
        episode's workload, `began` (second of the workload) and length.
        """
        super().reset(seed=seed)
        if seed is not None:
            self.np_random = episode_rng(seed)
        self._episode = self._chosen(self._drawn(self.np_random), options or {})
        self._begin()
        if self.cluster.time < self._episode.warm_up:
            self._run(self.setup.start, self._episode.warm_up)
            if self.cluster.done:  # over before the episode could begin
                self._begin()
        self._began = self.cluster.time
        self.trail.began = self._began
        info = {"workload": self.workload, "began": self._began, "length": self._episode.length}
        return self._observation(), info

    def step(self, action: AnyArray) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        """Let one action schedule until the next one is due.

        Raises ValueError if the action has another shape or is not finite, ResetNeeded if the
        episode is over.
        """
        settings, cluster = self.setup.settings, self.cluster
        if cluster.done:
            raise ResetNeeded("the episode is over: call reset")
        weights = action_weights(self.setup.start, action, (len(ACTION_FEATURES),))
        start = cluster.time
        parts = self._run(weights, start + settings.hold)
        ended = cluster.done
        cut = not ended and cluster.time - self._began >= self._episode.length
        usual = float(baseline_reward(self._baseline, 0, start, cluster.time, ended))
        reward = (sum(parts.tolist()) - usual) / settings.reward_scale
        self.trail.reward += sum(parts.tolist())
        info = {"terms": dict(zip(REWARD_PARTS, parts.tolist(), strict=True)), "elapsed": cluster.time - start}
        return self._observation(), reward, ended, cut, info

    def render(self) -> NDArray[np.uint8] | str | None:
        """A picture [height, width, 3] (`rgb_array`), a text (`ansi`), or None without a render mode."""
        if self.render_mode == "rgb_array":
            return draw(self.cluster, self.trail)
        return tell(self.cluster, self._state.jobs, self.trail) if self.render_mode == "ansi" else None

    @property
    def workload(self) -> str:
        """Name of the workload of the present episode."""
        return self.setup.workloads[self._episode.workload].name if isinstance(self.setup, EnvSetup) else "live"

    def _drawn(self, rng: Generator) -> Episode:
        """The next episode by the random numbers alone."""
        if isinstance(self.setup, EnvSetup):
            return draw_episode(rng, self.setup)
        lengths = self.setup.settings.episode
        return Episode(0, 0.0, float(rng.uniform(lengths.min_hours, lengths.max_hours) * HOUR))

    def _chosen(self, episode: Episode, options: Mapping[str, Any]) -> Episode:
        """The episode with what the options say in place of what was drawn."""
        if not isinstance(options, Mapping):
            raise ValueError(f"options: expected a mapping with {', '.join(OPTIONS)}, got {options!r}")
        if unknown := [key for key in options if key not in OPTIONS]:
            raise ValueError(f"options: unknown key {unknown[0]!r}, expected {', '.join(OPTIONS)}")
        for key in ("warm_up", "length"):
            seconds = options.get(key, 0.0)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.0 <= seconds < np.inf:
                raise ValueError(f"options: {key}: expected seconds, 0 or more, got {seconds!r}")
        return Episode(
            self._number_of(options["workload"]) if "workload" in options else episode.workload,
            float(options.get("warm_up", episode.warm_up)),
            float(options.get("length", episode.length)),
        )

    def _number_of(self, workload: object) -> int:
        """Number of a workload that is given by name or number."""
        names = [entry.name for entry in self.setup.workloads] if isinstance(self.setup, EnvSetup) else []
        if workload in names:
            return names.index(str(workload))
        if isinstance(workload, int | np.integer) and 0 <= workload < len(names):
            return int(workload)
        known = f"a number below {len(names)}, or a name such as {names[0]}" if names else "none: there is one cluster"
        raise ValueError(f"options: workload: {workload!r} is unknown, expected {known}")

    def _begin(self) -> None:
        """Take a fresh cluster, at the beginning of its workload."""
        setup = self.setup
        if isinstance(setup, EnvSetup):
            own = setup.workloads[self._episode.workload]
            known = Knowledge(own.noise)
            cluster: Cluster = SimulatedCluster(setup.shape, own.jobs, setup.tables, setup.simulator, own.seed, known)
            self._baseline = self._baseline_on(self._episode.workload)
        else:
            cluster, self._baseline = setup.cluster(), NO_BASELINE
        self._cluster = cluster
        self._loop = DecisionLoop(cluster, setup.queue, reserve=self._reserved)
        self.trail = Trail(self.workload)
        self._look()

    def _baseline_on(self, number: int) -> BaselineRollout:
        """What the start heuristic earns on a workload; it is computed once."""
        setup = self.setup
        if not isinstance(setup, EnvSetup) or setup.settings.baseline == "none":
            return NO_BASELINE
        if number not in self._baselines:
            own = (setup.workloads[number],)
            fleet = build_fleet(1, setup.shape, own, setup.tables, setup.simulator, setup.queue, setup.reward)
            self._baselines[number] = baseline_rollout(fleet, np.atleast_2d(setup.start))
        return self._baselines[number]

    def _run(self, weights: FloatArray, until: float) -> FloatArray:
        """Decide with weights [STEERING_FEATURES] until `until` (at least once) or the end; returns the terms [TERMS].

        To the last bit what `rlpto.envs.fleet.run_hold` does.
        """
        cluster, total = self.cluster, np.zeros(1, dtype=INTERVAL)
        while True:
            state = self._state
            if cluster.active_jobs:
                wish = steer(state.time, state.capacity, state.jobs.records, state.jobs.speed, weights[None])
                self._loop.carry_out(state, Allocation(wish), "agent")
            add_interval(total, self._loop.advance())
            self._look()
            if cluster.done or cluster.time >= until:
                break
        terms = np.zeros(PARTS)
        weigh(total, self._weights, terms)
        return terms

    def _look(self) -> None:
        """Take over how the cluster stands now."""
        self._state = self._loop.state()
        if self.render_mode is not None:
            self.trail.note(self.cluster, self._state.jobs)

    def _reserved(self, time: float) -> int:
        """GPUs to hold back at a time [s]."""
        if not isinstance(self.setup, EnvSetup):
            return 0
        own = self.setup.workloads[self._episode.workload]
        at = min(int(time / own.forecast_step), len(own.reserve) - 1)
        return int(own.reserve[at]) if len(own.reserve) else 0

    def _observation(self) -> Observed:
        """What the agent sees now."""
        settings, setup = self.setup.settings, self.setup
        seen = observe(self._state, self.cluster.held_gpus, settings.max_jobs, settings.horizon)
        if isinstance(setup, EnvSetup):
            own = setup.workloads[self._episode.workload]
            if own.forecast.size:
                seen.forecast[:] = own.forecast[min(int(self._state.time / own.forecast_step), len(own.forecast) - 1)]
        return seen._asdict()
