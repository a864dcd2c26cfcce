"""B simulated environments that step together: the engine of the vector environments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.envs.actions import ACTION_FEATURES, action_weights
from rlpto.envs.fleet import PARTS, Fleet, begin, build_fleet, observe_one, play, run_hold
from rlpto.envs.observation import Observation, empty_observation
from rlpto.envs.setup import MOST_ENVS, EnvSetup, check_integer, draw_episode, episode_rng
from rlpto.io.arrays import AnyArray, BoolArray, FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.planning.compiled_loop import look_around
from rlpto.simulator.kernels import is_over


class BaselineRollout(NamedTuple):
    """What the start heuristic earns in each workload, which it plays once.

    time [s], total: [W, L] at its decisions. decisions: [W].
    """

    time: FloatArray
    total: FloatArray
    decisions: IntArray


class BatchSteps(NamedTuple):
    """What one step of all environments gave. parts: [B, 4] the reward's terms, as they are.

    reward: [B] what is learned from. elapsed: [B] seconds that passed. ended, cut: [B] episode over
    because all jobs have finished (or the time limit was reached), or because its length was reached
    (or the most steps there may be).
    last: observations before the reset of those that are over (rows of others mean nothing).
    """

    reward: FloatArray
    parts: FloatArray
    elapsed: FloatArray
    ended: BoolArray
    cut: BoolArray
    last: Observation


class EnvBatch:
    """B environments with the workloads of `setup`; environment b draws its episodes from (seed, b // replay).

    An environment whose episode is over begins the next one in the same step, or with next_step in the one that
    follows, whose action counts for nothing. max_steps: an episode is cut
    after so many; None: when its length is reached.
    """

    def __init__(
        self,
        setup: EnvSetup,
        count: int,
        seed: int | None = 0,
        max_steps: int | None = None,
        *,
        next_step: bool = False,
    ) -> None:
        check_integer("num_envs", count, 1, MOST_ENVS)
        self.setup = setup
        self.count = count
        self.max_steps = max_steps
        self._next_step = next_step
        self._waiting = np.zeros(count, dtype=np.bool_)  # over, and not begun anew
        self.fleet = build_fleet(
            count, setup.shape, setup.workloads, setup.tables, setup.simulator, setup.queue, setup.reward
        )
        self.weights = np.atleast_2d(setup.start)
        self.baseline = (
            baseline_rollout(self.fleet, self.weights) if setup.settings.baseline == "start_heuristic" else NO_BASELINE
        )
        self.observation = empty_observation(count, setup.settings.max_jobs, setup.settings.horizon)
        self.began = np.zeros(count)
        self.length = np.zeros(count)
        self.steps = np.zeros(count, dtype=np.int64)
        self.seed(seed)

    def seed(self, seed: int | None) -> None:
        """Begin the episodes' random numbers anew."""
        replay = self.setup.settings.episode.replay
        self.rngs = [episode_rng(seed, b // replay) for b in range(self.count)]

    def reset(self) -> Observation:
        """Begin a new episode everywhere; returns fresh arrays [B, ...]."""
        self._waiting[:] = False
        for b in range(self.count):
            self._begin(b)
        return self._copy()

    def step(self, actions: AnyArray) -> tuple[Observation, BatchSteps]:
        """Carry out actions [B, ...]. Raises ValueError if they have another shape or are not finite."""
        weights = action_weights(self.setup.start, actions, (self.count, len(ACTION_FEATURES)))
        parts, reward = np.zeros((self.count, PARTS)), np.zeros(self.count)
        elapsed, ended = np.zeros(self.count), np.zeros(self.count, dtype=np.bool_)
        step_all(
            self.fleet,
            weights,
            self.setup.settings.hold,
            self.baseline,
            self.observation,
            parts,
            reward,
            elapsed,
            ended,
        )
        reward /= self.setup.settings.reward_scale
        self.steps += 1
        for b in np.flatnonzero(self._waiting):
            self._begin(int(b))
            parts[b], reward[b], elapsed[b], ended[b] = 0.0, 0.0, 0.0, False
        cut = (self.fleet.world.clusters["time"] - self.began >= self.length) & ~ended
        if self.max_steps is not None:
            cut |= (self.steps >= self.max_steps) & ~ended
        last = self._copy()
        if self._next_step:
            self._waiting = ended | cut
            return last, BatchSteps(reward, parts, elapsed, ended, cut, last)
        over = np.flatnonzero(ended | cut)
        for b in over:
            self._begin(int(b))
        return self._copy() if len(over) else last, BatchSteps(reward, parts, elapsed, ended, cut, last)

    def _begin(self, b: int) -> None:
        """Begin the next episode of environment b."""
        episode = draw_episode(self.rngs[b], self.setup)
        self.began[b] = begin_episode(self.fleet, b, episode.workload, episode.warm_up, self.weights, self.observation)
        self.length[b] = episode.length
        self.steps[b] = 0

    def _copy(self) -> Observation:
        return Observation(*(part.copy() for part in self.observation))


NO_BASELINE = BaselineRollout(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0, dtype=np.int64))
"""No baseline is subtracted."""


def baseline_rollout(fleet: Fleet, weights: FloatArray) -> BaselineRollout:
    """Let index weights [1, STEERING_FEATURES] schedule every workload of the pool once."""
    size = 4096
    while True:
        time = np.zeros((len(fleet.pool), size))
        total, count = np.zeros_like(time), np.zeros(len(fleet.pool), dtype=np.int64)
        for workload in range(len(fleet.pool)):
            count[workload] = play(fleet, 0, workload, weights, time[workload], total[workload])
        if count.max() < size:
            keep = int(count.max())
            return BaselineRollout(time[:, :keep].copy(), total[:, :keep].copy(), count)
        size *= 2


@njit()
def earned(baseline: BaselineRollout, workload: int, time: float) -> float:
    """Reward of the baseline rollout up to `time`, linear between its decisions."""
    n = baseline.decisions[workload]
    times, totals = baseline.time[workload, :n], baseline.total[workload, :n]
    at = np.searchsorted(times, time)
    if at == 0:
        return 0.0
    if at == n:
        return float(totals[n - 1])
    share = (time - times[at - 1]) / (times[at] - times[at - 1])
    return float(totals[at - 1] + share * (totals[at] - totals[at - 1]))


@njit()
def baseline_reward(baseline: BaselineRollout, workload: int, start: float, end: float, last: bool) -> float:
    """Reward of the baseline rollout from `start` to `end`, and all that is still to come if the episode ends there."""
    if len(baseline.decisions) == 0:
        return 0.0
    return earned(baseline, workload, np.inf if last else end) - earned(baseline, workload, start)


@njit()
def step_all(
    f: Fleet,
    weights: FloatArray,
    hold: float,
    baseline: BaselineRollout,
    out: Observation,
    parts: FloatArray,
    reward: FloatArray,
    elapsed: FloatArray,
    ended: BoolArray,
) -> None:
    """Step every cluster; fills observations, parts [B, 4], reward, elapsed and ended [B]."""
    clusters = f.loop.world.clusters
    for b in range(len(clusters)):
        start = clusters[b].time
        run_hold(f, b, weights[b : b + 1], start + hold, parts[b])
        observe_one(f, b, out)
        end = clusters[b].time
        elapsed[b] = end - start
        ended[b] = is_over(f.loop.world, b)
        reward[b] = parts[b].sum() - baseline_reward(baseline, f.loop.current[b], start, end, ended[b])


@njit()
def begin_episode(f: Fleet, b: int, workload: int, warm_up: float, weights: FloatArray, out: Observation) -> float:
    """Put cluster b into a workload after `warm_up` seconds under index weights; returns the time.

    Where the workload is over by then, the episode begins at its start.
    """
    begin(f, b, workload)
    if f.loop.world.clusters[b].time < warm_up:
        run_hold(f, b, weights, warm_up, np.zeros(PARTS))
        if is_over(f.loop.world, b):
            begin(f, b, workload)
    observe_one(f, b, out)
    return float(f.loop.world.clusters[b].time)


@njit()
def look_around_all(f: Fleet) -> None:
    """Look around in every cluster, after their worlds were restored."""
    f.loop.ordered_until[:] = -np.inf
    for b in range(len(f.loop.world.clusters)):
        look_around(f.loop, b)
