"""B environments that step together: the one engine of the environments for gymnasium and stable-baselines3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlpto.envs.actions import ACTION_FEATURES, action_weights
from rlpto.envs.clusters import OneCluster, SimulatedClusters
from rlpto.envs.compiled_batch import PARTS, look_around_all
from rlpto.envs.episodes import (
    MOST_ENVS,
    EnvSetup,
    ExternalSetup,
    action_space,
    check_integer,
    draw_episode,
    episode_rng,
    observation_space,
)
from rlpto.envs.observation import Observation
from rlpto.envs.whole_windows import NO_BASELINE, Baseline, above_baseline, baseline_of
from rlpto.io.arrays import AnyArray, BoolArray, FloatArray, IntArray
from rlpto.io.errors import CheckpointError, ConfigError


class BatchSteps(NamedTuple):
    """The result of one step of all environments. parts: [B, PARTS] the reward's terms, unscaled.

    reward: [B] training signal. elapsed: [B] seconds that passed. ended: [B] whether all jobs of the episode have
    finished (or the simulator's time limit was reached). cut: [B] whether the episode's length (or the largest number
    of steps) was reached. observation: fresh arrays, after the step.
    """

    reward: FloatArray
    parts: FloatArray
    elapsed: FloatArray
    ended: BoolArray
    cut: BoolArray
    observation: Observation

    @property
    def over(self) -> BoolArray:
        """[B] whether the episode is over."""
        return self.ended | self.cut


class EnvBatch:
    """B environments over simulated clusters, or one over an external cluster, such as a real one.

    Environment b draws its episodes from (seed, b). An episode that is over stays so until `begin`.
    terms, reward, seconds, steps: [B, ...] sums since the episodes began. elapsed: [B] seconds that the last step
    took. It is always the same array, written in place; a rollout buffer may keep it.
    max_steps: an episode is cut after this number of steps. Default: only its length cuts it. compiled: if False, use
    one Python cluster under the scheduler's own loop, which policies can inspect; no baseline is subtracted. Other
    results are identical, unless speeds are fitted for each job: compiled clusters look up the fits in a table.
    """

    def __init__(
        self,
        setup: EnvSetup | ExternalSetup,
        count: int = 1,
        seed: int | None = 0,
        max_steps: int | None = None,
        *,
        compiled: bool = True,
    ) -> None:
        check_integer("num_envs", count, 1, MOST_ENVS)
        self.setup, self.count, self.max_steps = setup, count, max_steps
        self.baseline: Baseline | None = None
        self.clusters: SimulatedClusters | OneCluster
        if isinstance(setup, EnvSetup) and compiled:
            self.clusters = SimulatedClusters(setup, count)
            if setup.settings.baseline == "start_heuristic":
                self.baseline = baseline_of(setup)
        elif count > 1:
            raise ConfigError(f"num_envs: {count}, but there is one external cluster; expected 1")
        else:
            self.clusters = OneCluster(setup)
        self.began, self.length = np.zeros(count), np.zeros(count)
        self.steps = np.zeros(count, dtype=np.int64)
        self.terms, self.reward, self.seconds = np.zeros((count, PARTS)), np.zeros(count), np.zeros(count)
        self.elapsed = np.zeros(count)
        self.seed(seed)

    @property
    def observation_space(self) -> spaces.Dict:
        """The space of one observation."""
        return observation_space(self.setup.settings)

    @property
    def action_space(self) -> spaces.Box:
        """The space of one action."""
        return action_space()

    @property
    def names(self) -> list[str]:
        """[B] names of the workloads of the present episodes."""
        return [self.setup.workloads[number].name for number in self.clusters.current]

    def seed(self, seed: int | None) -> None:
        """Begin the episodes' random numbers again."""
        self.rngs = [episode_rng(seed, b) for b in range(self.count)]

    def reset(self) -> Observation:
        """Begin a new episode everywhere; returns fresh arrays [B, ...]."""
        return self.begin_next(range(self.count))

    def begin_next(self, which: Sequence[int] | IntArray) -> Observation:
        """Begin the next episodes of some environments; returns fresh arrays [B, ...] for all."""
        for b in which:
            self.begin(int(b), *draw_episode(self.rngs[b], self.setup))
        return self.observe()

    def begin(self, b: int, workload: int, warm_up: float = 0.0, length: float = np.inf) -> None:
        """Begin an episode of environment b. workload: number in the pool. warm_up, length: seconds."""
        self.began[b] = self.clusters.begin(b, workload, warm_up)
        self.length[b] = length
        for sums in (self.steps, self.terms, self.reward, self.seconds):
            sums[b] = 0

    def step(self, actions: AnyArray) -> BatchSteps:
        """Carry out actions [B, ...]. Raises ValueError if they have another shape or are not finite."""
        settings, clusters = self.setup.settings, self.clusters
        weights = action_weights(self.setup.start, actions, (self.count, len(ACTION_FEATURES)))
        start = clusters.time
        parts, ended = clusters.run(weights, settings.hold)
        end = clusters.time
        baseline = NO_BASELINE if self.baseline is None else self.baseline.rollout(clusters.current)
        reward = np.empty(self.count)
        above_baseline(baseline, clusters.current, start, end, ended, parts, reward)
        reward /= settings.reward_scale
        self.elapsed[:] = end - start
        return self._add_step(reward, parts, ended, end - self.began)

    def _add_step(self, reward: FloatArray, parts: FloatArray, ended: BoolArray, passed: FloatArray) -> BatchSteps:
        """Add a step to the sums, and return it. passed: [B] seconds since the episodes began."""
        self.steps += 1
        self.terms += parts
        self.reward += reward
        self.seconds += self.elapsed
        cut = passed >= self.length
        if self.max_steps is not None:
            cut |= self.steps >= self.max_steps
        return BatchSteps(reward, parts, self.elapsed.copy(), ended, cut & ~ended, self.observe())

    def observe(self) -> Observation:
        """The present observation as fresh arrays [B, ...]."""
        return Observation(*(part.copy() for part in self.clusters.observation))

    def render(self, b: int, mode: str) -> str | NDArray[np.uint8]:
        """Environment b as text (`ansi`) or as a picture (`rgb_array`)."""
        scene = self.clusters.scene(b)
        draw = scene.text if mode == "ansi" else scene.picture
        return draw(self.names[b], float(self.reward[b]))

    def state(self) -> dict[str, Any]:
        """A copy of all that changes: arrays of numbers by name, and the random generators under `rngs`."""
        state: dict[str, Any] = {name: array.copy() for name, array in self._columns().items()}
        state["rngs"] = [rng.bit_generator.state for rng in self.rngs]
        return state

    def restore(self, state: Mapping[str, Any]) -> Observation:
        """Continue from the state of a batch of the same setup and size; returns the last observation.

        An external cluster's progress cannot be saved: its next episode begins. Raises CheckpointError, and changes
        nothing, if the state belongs to another batch.
        """
        arrays = self._columns()
        for name, array in arrays.items():
            _check_same_form(state, name, array)
        if len(state.get("rngs", ())) != self.count:
            raise CheckpointError(f"state of environments: rngs: expected {self.count} random number generators")
        for name, array in arrays.items():
            array[...] = state[name]
        for rng, numbers in zip(self.rngs, state["rngs"], strict=True):
            rng.bit_generator.state = numbers
        if isinstance(self.clusters, OneCluster):
            return self.reset()
        look_around_all(self.clusters.batch)
        return self.observe()

    def _arrays(self) -> dict[str, AnyArray]:
        """The arrays that change, by name."""
        own = ("elapsed", "began", "length", "steps", "terms", "reward", "seconds")
        arrays = {name: getattr(self, name) for name in own}
        return arrays if isinstance(self.clusters, OneCluster) else arrays | self.clusters.arrays()

    def _columns(self) -> dict[str, AnyArray]:
        """The arrays of numbers that change, by name: of an array of records, a view of each column."""
        columns: dict[str, AnyArray] = {}
        for name, array in self._arrays().items():
            names = array.dtype.names
            columns |= {f"{name}.{column}": array[column] for column in names} if names else {name: array}
        return columns


def _check_same_form(state: Mapping[str, Any], name: str, array: AnyArray) -> None:
    """Raise CheckpointError unless `state` has an array of the same shape and type under `name`."""
    if name not in state:
        raise CheckpointError(f"state of environments: {name}: missing, expected an array of shape {array.shape}")
    saved = state[name]
    if saved.shape != array.shape or saved.dtype != array.dtype:
        raise CheckpointError(
            f"state of environments: {name}: shape {saved.shape}, expected {array.shape}: "
            "it was saved with other workloads, nodes or number of environments"
        )
