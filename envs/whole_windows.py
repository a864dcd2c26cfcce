"""Whole workloads under constant index weights: what searches of weights try, and the baseline of rewards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.envs.compiled_batch import PARTS, CompiledBatch, begin, run_hold
from rlpto.io.arrays import AnyArray, BoolArray, FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.simulator.kernels import is_over


class Played(NamedTuple):
    """A workload that was played. reward: in all. end [s]. finished: False if jobs were left when it was stopped."""

    reward: float
    end: float
    finished: bool


class WindowPlayer:
    """Lets constant weights schedule whole workloads in the first cluster of a batch."""

    def __init__(self, batch: CompiledBatch) -> None:
        self.batch = batch
        self._limit = float(batch.world.rules["limit"][0])

    def play(self, workload: int, weights: FloatArray, limit: float = np.inf) -> Played:
        """Run a workload with index weights [STEERING_FEATURES]; it is stopped after `limit` s."""
        self.batch.world.rules["limit"] = min(limit, self._limit)
        time, total = _play(self.batch, workload, np.atleast_2d(weights))
        cluster = self.batch.world.clusters[0]
        finished = cluster["active"] == 0 and cluster["arrived"] == cluster["jobs"]
        return Played(float(total[-1]), float(time[-1]), bool(finished))


def per_job(values: AnyArray, jobs: AnyArray, group: AnyArray) -> float:
    """Sum of values [W] per job over workloads with `jobs` [W] jobs, where every group [W] (load) counts alike.

    Totals differ by windows much more than by policies: the mean of them is decided by a few windows with long queues.
    """
    each = [values[group == at].sum() / max(jobs[group == at].sum(), 1) for at in np.unique(group)]
    return float(np.mean(each))


class BaselineRollout(NamedTuple):
    """The reward of the start heuristic in each workload, which it plays once.

    time [s], total: [W, L] at its decisions. decisions: [W].
    """

    time: FloatArray
    total: FloatArray
    decisions: IntArray


NO_BASELINE = BaselineRollout(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0, dtype=np.int64))
"""No baseline is subtracted."""


def baseline_rollout(batch: CompiledBatch, weights: FloatArray) -> BaselineRollout:
    """Let index weights [1, STEERING_FEATURES] schedule every workload of the pool once."""
    played = [_play(batch, workload, weights) for workload in range(len(batch.pool))]
    decisions = np.array([len(time) for time, _ in played], dtype=np.int64)
    time = np.zeros((len(played), decisions.max()))
    total = np.zeros_like(time)
    for workload, (at, earned) in enumerate(played):
        time[workload, : len(at)] = at
        total[workload, : len(at)] = earned
    return BaselineRollout(time, total, decisions)


@njit()
def above_baseline(
    baseline: BaselineRollout,
    workload: IntArray,
    start: FloatArray,
    end: FloatArray,
    ended: BoolArray,
    parts: FloatArray,
) -> FloatArray:
    """[B] sums of parts [B, 4], minus the reward of the baseline rollout from start [B] to end [B].

    Where the episode has ended, all the rollout still earns is subtracted at once.
    """
    reward = np.zeros(len(parts))
    for b in range(len(parts)):
        reward[b] = parts[b].sum()
        if len(baseline.decisions):
            until = np.inf if ended[b] else end[b]
            reward[b] -= _earned(baseline, workload[b], until) - _earned(baseline, workload[b], start[b])
    return reward


@njit()
def _earned(baseline: BaselineRollout, workload: int, time: float) -> float:
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
def _play(batch: CompiledBatch, workload: int, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Run a whole workload in the first cluster with constant index weights.

    Returns time [L] s and the reward up to then [L] at its L decisions.
    """
    begin(batch, 0, workload)
    terms = np.zeros(PARTS)
    time, total = [batch.loop.world.clusters[0].time], [0.0]
    while not is_over(batch.loop.world, 0):
        run_hold(batch, 0, weights, -np.inf, terms)
        time.append(batch.loop.world.clusters[0].time)
        total.append(total[-1] + terms.sum())
    return np.array(time), np.array(total)
