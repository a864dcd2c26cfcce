"""Play whole workloads under the same index weights: the trials of a training, and the baseline of rewards.

Index weights [S] may include a network of bonuses (`rlpto.policies.bonus_network`).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rlpto.core.loop import LONGEST_WITHOUT_NODES_S
from rlpto.core.rewards import TERMS
from rlpto.envs.compiled_batch import NO_TRACE, PARTS, CompiledBatch, copy_of_batch, run_clusters
from rlpto.envs.episodes import EnvSetup
from rlpto.envs.observation import empty_observation
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.compiled import helper, kernel
from rlpto.io.cores import cores
from rlpto.io.errors import PolicyError

COSTS = [number for number, term in enumerate(TERMS) if term.name in ("time", "shortfall")]
TIME_LIMIT_FACTOR = 3.0
"""A candidate is stopped after this multiple of the start heuristic's time: some candidates rescale jobs for ever."""
LARGEST_LOSS = 1.0
"""Largest loss of a window, and the loss of a window whose jobs a candidate leaves unfinished."""

TRACED = 4096
"""Decisions that one call of compiled code records."""
UNOBSERVED = empty_observation(0, 0, 0)
"""Passed as observation to compiled code that shall observe nothing."""


class BaselineRollout(NamedTuple):
    """The reward of the start heuristic in each workload, which it plays once.

    time, total: [W, L] time [s] and reward so far at each decision. decisions: [W] number of decisions, 0 for a
    workload that has not been played yet.
    """

    time: FloatArray
    total: FloatArray
    decisions: IntArray


NO_BASELINE = BaselineRollout(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0, dtype=np.int64))
"""Baseline that subtracts nothing."""


class Baseline:
    """The baseline rollouts of a setup. A workload is played when it is first needed."""

    def __init__(self, setup: EnvSetup) -> None:
        self._batch, self._weights = setup.compiled(), np.atleast_2d(setup.start)
        count = len(self._batch.pool)
        self._rollout = BaselineRollout(np.zeros((count, 0)), np.zeros((count, 0)), np.zeros(count, dtype=np.int64))

    def rollout(self, workloads: IntArray) -> BaselineRollout:
        """Return the rollouts, after playing any of `workloads` that has not been played."""
        time, total, decisions = self._rollout
        missing = decisions[workloads] == 0
        if not missing.any():
            return self._rollout
        for workload in np.unique(workloads[missing]).tolist():
            rows = _play(self._batch, workload, self._weights)
            if (more := len(rows) - time.shape[1]) > 0:
                time, total = (np.pad(array, ((0, 0), (0, more))) for array in (time, total))
            time[workload, : len(rows)], total[workload, : len(rows)] = rows.T
            decisions[workload] = len(rows)
        self._rollout = BaselineRollout(time, total, decisions)
        return self._rollout


@lru_cache(maxsize=4)
def baseline_of(setup: EnvSetup) -> Baseline:
    """The baseline rollouts of a setup, shared by all environments of this setup."""
    return Baseline(setup)


@kernel()
def above_baseline(
    baseline: BaselineRollout,
    workload: IntArray,
    start: FloatArray,
    end: FloatArray,
    ended: BoolArray,
    parts: FloatArray,
    reward: FloatArray,
) -> None:
    """Fill reward [B]: sums of parts [B, PARTS], minus the reward of the baseline rollout from start [B] to end [B].

    If an episode has ended, all that its rollout still earns is subtracted at once.
    """
    for b in range(len(parts)):
        reward[b] = 0.0
        for term in range(parts.shape[1]):
            reward[b] += parts[b, term]
        if len(baseline.decisions) > 0:
            until = np.inf if ended[b] else end[b]
            reward[b] -= _earned(baseline, workload[b], until) - _earned(baseline, workload[b], start[b])


@helper()
def _earned(baseline: BaselineRollout, workload: int, time: float) -> float:
    """Reward of the baseline rollout up to `time`, linear between its decisions."""
    times, totals, at = baseline.time[workload], baseline.total[workload], 0
    above = baseline.decisions[workload]
    while at < above:  # the first decision that is not before `time`
        middle = (at + above) // 2
        if times[middle] < time:
            at = middle + 1
        else:
            above = middle
    if at == 0:
        return 0.0
    if at == baseline.decisions[workload]:
        return float(totals[at - 1])
    share = (time - times[at - 1]) / (times[at] - times[at - 1])
    return float(totals[at - 1] + share * (totals[at] - totals[at - 1]))


def _play(batch: CompiledBatch, workload: int, weights: FloatArray) -> FloatArray:
    """Run a whole workload in the first cluster with constant index weights [1, WEIGHT_NAMES].

    Returns [L, 2] the time [s] of each of L decisions, and the reward up to then.
    """
    parts, trace = np.zeros((1, PARTS)), np.empty((TRACED, 2))
    over = run_clusters(batch, 0, workload, weights, np.array([-np.inf]), parts, UNOBSERVED, NO_TRACE)
    rows = [np.array([[batch.world.clusters["time"][0], 0.0]])]
    while not over[0]:
        trace[:] = np.nan
        over = run_clusters(batch, 0, -1, weights, np.array([np.inf]), parts, UNOBSERVED, trace)
        rows.append(trace[~np.isnan(trace[:, 0])])
    played = np.concatenate(rows)
    played[:, 1] = np.cumsum(played[:, 1])
    return played


class WindowPool:
    """Windows of a setup, with the start heuristic's result on each, which is computed when first needed.

    interval: seconds between regular decisions. Default: the interval of the setup. threads: default is one per core.
    """

    def __init__(self, setup: EnvSetup, interval: float | None = None, threads: int = 0) -> None:
        self.groups: IntArray = np.array([workload.group for workload in setup.workloads])
        batch = setup.compiled()
        self.jobs: IntArray = batch.counts
        self.names = tuple(workload.name for workload in setup.workloads)
        if interval is not None:
            batch.world.rules["interval"] = interval
        self._batches = [copy_of_batch(batch) for _ in range(threads or cores())]
        self._start, self._limit = setup.start[None], float(batch.world.rules["limit"][0])
        self._base, self._ends = np.full((len(self.groups), PARTS), np.nan), np.zeros(len(self.groups))

    def __len__(self) -> int:
        return len(self.groups)

    def losses(self, candidates: FloatArray, windows: IntArray) -> FloatArray:
        """[n] losses of candidates [n, S] on windows number [n]: reward lost against the start heuristic, divided by
        the start heuristic's cost of time and shortfall. If time alone is rewarded, this is the relative change of the
        mean JCT. Losses are cut to [-LARGEST_LOSS, LARGEST_LOSS]."""
        return self.compare(candidates, windows)[0]

    def compare(self, candidates: FloatArray, windows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return `losses`, and the reward above the start heuristic's [n], which is NaN if jobs are unfinished.

        Raises PolicyError if jobs wait for ever under the start heuristic.
        """
        new = np.unique(windows[np.isnan(self._base[windows, 0])])
        self._base[new], self._ends[new] = self.play(np.repeat(self._start, len(new), axis=0), new)
        if self._limit == np.inf and np.isnan(self._base[new]).any():
            at = int(new[np.isnan(self._base[new, 0])][0])
            raise PolicyError(
                f"window {self.names[at]}: under the start heuristic no job has had GPUs for "
                f"{LONGEST_WITHOUT_NODES_S / 86_400:g} days, and jobs wait; expected nodes for all (cluster.nodes, "
                "provision)"
            )
        base, ends = self._base[windows], self._ends[windows]
        found, _ = self.play(candidates, windows, TIME_LIMIT_FACTOR * ends)
        lost = (base - found).sum(axis=1)
        share = lost / np.maximum(-base[:, COSTS].sum(axis=1), 1e-9)
        return np.where(np.isnan(share), LARGEST_LOSS, np.clip(share, -LARGEST_LOSS, LARGEST_LOSS)), -lost

    def play(
        self, candidates: FloatArray, windows: IntArray, limits: FloatArray | float = np.inf
    ) -> tuple[FloatArray, FloatArray]:
        """Play windows [n] with candidates [n, S]. Returns the terms of the reward [n, PARTS] and the end [n] s.

        Terms are NaN for windows with unfinished jobs. limits: [n] s after which a window is stopped."""
        found, ends = np.zeros((len(windows), PARTS)), np.zeros(len(windows))
        jobs, rows = iter(range(len(windows))), np.minimum(np.broadcast_to(limits, len(windows)), self._limit)

        def work(batch: CompiledBatch) -> None:
            for i in jobs:
                places = found[i], ends[i : i + 1]
                if not play_window(batch, int(windows[i]), candidates[i : i + 1], rows[i], *places):
                    found[i] = np.nan

        if len(self._batches) == 1 or len(windows) == 1:
            work(self._batches[0])
        else:
            with ThreadPoolExecutor(len(self._batches), "windows") as pool:
                list(pool.map(work, self._batches))
        return found, ends


def play_window(
    batch: CompiledBatch, workload: int, weights: FloatArray, limit: float, parts: FloatArray, end: FloatArray
) -> bool:
    """Let index weights [1, S] schedule a whole workload in the first cluster, until `limit` s at most.

    Fills parts [PARTS] with the terms of the reward until then, and end [1] with the time [s]. Returns False if jobs
    are unfinished.
    """
    limits, cluster = batch.world.rules["limit"], batch.world.clusters[0]
    before, limits[0] = limits[0], limit
    jobs, part, served = batch.world.jobs[0], np.zeros((1, PARTS)), -1.0
    over = False
    while not over and (cluster["active"] == 0 or jobs["attained_service"].sum() != served):  # else jobs wait for ever
        served = -1.0 if workload >= 0 else float(jobs["attained_service"].sum())
        until = np.array([LONGEST_WITHOUT_NODES_S if workload >= 0 else cluster["time"] + LONGEST_WITHOUT_NODES_S])
        over = bool(run_clusters(batch, 0, workload, weights, until, part, UNOBSERVED, NO_TRACE)[0])
        parts += part[0]
        workload = -1
    end[0], limits[0] = cluster["time"], before
    return bool(cluster["active"] == 0 and cluster["arrived"] == cluster["jobs"])
