"""Quality of an agent on validation windows, each played from its first job to its last.

The windows step together in compiled code, which makes frequent validation cheap. Figures equal those computed by
`rlpto.evaluation` for the same schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlpto.agents.trained import TrainedAgent
from rlpto.core.loop import run
from rlpto.core.rewards import HOUR, REWARD_PARTS
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.batch import EnvBatch
from rlpto.envs.clusters import SimulatedClusters
from rlpto.envs.episodes import EnvSetup
from rlpto.envs.whole_windows import play_window
from rlpto.evaluation.metrics import jct_metrics, lower_bound, queueing_metrics
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.knowledge.known import TRUTH
from rlpto.policies.index_weights import WEIGHT_NAMES, IndexWeights
from rlpto.policies.rigid import Fifo

AGENT_TIME_LIMIT_FACTOR = 5.0
"""After this multiple of the hours of the longest window, the start heuristic schedules the agent's unfinished jobs."""

CONSTANTS_TIME_LIMIT_FACTOR = 20.0
"""After this multiple of those hours, index weights are assumed to rescale jobs for ever."""


class WindowResult(NamedTuple):
    """The result on one window. parts: [PARTS] the reward's terms. metrics: `job_metrics`."""

    parts: FloatArray
    metrics: dict[str, float]


@dataclass(frozen=True)
class Validation:
    """The result on W windows. parts: [W, PARTS] the reward's terms. metrics: means over windows, by name."""

    parts: FloatArray
    metrics: dict[str, float]

    @property
    def rewards(self) -> FloatArray:
        """[W] total reward."""
        total: FloatArray = self.parts.sum(axis=1)
        return total

    @classmethod
    def of(cls, results: Sequence[WindowResult]) -> Validation:
        """The result on W windows from the result on each."""
        metrics = pd.DataFrame([result.metrics for result in results]).mean()
        parts = np.stack([result.parts for result in results])
        return cls(parts, {str(name): float(mean) for name, mean in metrics.items()})


def validate(setup: EnvSetup, trained: TrainedAgent) -> Validation:
    """Let an agent schedule every workload of `setup` from its first job to its last."""
    windows = len(setup.workloads)
    plain = setup.settings.model_copy(update={"baseline": "none"})
    batch = EnvBatch(replace(setup, start=trained.start, settings=plain), windows)
    clusters = batch.clusters
    assert isinstance(clusters, SimulatedClusters)
    for b in range(windows):
        batch.begin(b, b)
    parts, running = np.zeros((windows, len(REWARD_PARTS))), np.ones(windows, dtype=np.bool_)
    metrics: list[dict[str, float]] = [{}] * windows
    limit = AGENT_TIME_LIMIT_FACTOR * HOUR * max(workload.hours for workload in setup.workloads)
    in_time = True
    seen = batch.observe()
    while running.any():
        in_time = in_time and not (clusters.time[running] > limit).any()
        actions = trained.act(seen) if in_time else np.zeros((windows, len(ACTION_FEATURES)))
        steps = batch.step(actions)
        parts[running] += steps.parts[running]
        for b in np.flatnonzero(steps.ended).tolist():
            if running[b]:
                metrics[b] = job_metrics(clusters.jobs(b), setup.shape.capacity)
            batch.begin(b, b)  # continues idly until the others are over
        running &= ~steps.ended
        seen = batch.observe()
    return Validation.of(list(map(WindowResult, parts, metrics)))


def play_validation(setup: EnvSetup, index_weights: FloatArray, windows: Iterable[int]) -> list[WindowResult]:
    """Let index weights [S] schedule the workloads with these numbers; rewards of unfinished ones are NaN."""
    batch, results = setup.compiled(), list[WindowResult]()
    longest = CONSTANTS_TIME_LIMIT_FACTOR * HOUR * max(workload.hours for workload in setup.workloads)
    for window in windows:
        parts = np.zeros(len(REWARD_PARTS))
        if not play_window(batch, window, index_weights[None], longest, parts, np.zeros(1)):
            parts[:] = np.nan
        jobs = batch.world.jobs[0, : batch.counts[window]]
        results.append(WindowResult(parts, job_metrics(jobs, setup.shape.capacity)))
    return results


def baselines(setup: EnvSetup) -> dict[str, float]:
    """Return the mean reward of `fifo` and of the start heuristic over all workloads, and a bound for all policies.

    The start heuristic is called `tuned_index` if it is an index with trained weights.
    """
    exact, windows = replace(setup, knowledge=TRUTH), range(len(setup.workloads))  # fifo uses no estimates
    clusters = [exact.make_cluster(at) for at in windows]
    records = [
        run(cluster, Fifo(), setup.queue, setup.reward, nodes=setup.node_control(at, cluster))
        for at, cluster in enumerate(clusters)
    ]
    tuned = "tuned_index" if len(setup.start) == len(WEIGHT_NAMES) else "start"
    start = "index" if np.array_equal(setup.start, IndexWeights().array()) else tuned
    bounds = [lower_bound(record, setup.reward).get("reward", np.nan) for record in records]
    found = {
        "fifo": np.mean([record.decisions.reward.sum() for record in records]),
        start: Validation.of(play_validation(setup, setup.start, windows)).rewards.mean(),
        "bound": np.mean(bounds),
    }
    return {name: float(reward) for name, reward in found.items() if np.isfinite(reward)}


def reward_per_job(setup: EnvSetup, rewards: FloatArray) -> float:
    """Reward per job of rewards [W] over all workloads, where every load counts equally.

    Totals differ between windows much more than between policies: a few windows with long queues would decide their
    mean.
    """
    jobs = np.array([len(workload.jobs) for workload in setup.workloads])
    group = np.array([workload.group for workload in setup.workloads])
    return float(np.mean([rewards[group == at].sum() / max(jobs[group == at].sum(), 1) for at in np.unique(group)]))


def job_metrics(jobs: AnyArray, gpus: int) -> dict[str, float]:
    """Figures of one window from its job records [M], defined in `rlpto.evaluation.metrics`; times in s.

    gpus: GPUs of the cluster. NaN for undefined figures. Utilisation assumes that all nodes are up.
    """
    jct, finished = jobs["finish_time"] - jobs["submit_time"], np.isfinite(jobs["finish_time"])
    span = float(np.nanmax(jobs["finish_time"]) - jobs["submit_time"].min()) if finished.any() else float("nan")
    return {
        **jct_metrics(jct),
        "makespan": span if finished.all() else float("nan"),
        **queueing_metrics(jobs["priority"], jobs["start_time"] - jobs["submit_time"]),
        "utilisation": float(jobs["attained_service"].sum()) / (gpus * span),
        "rescales_per_job": float(jobs["rescales"].mean()),
        "unfinished": float(np.count_nonzero(~finished)),
    }
