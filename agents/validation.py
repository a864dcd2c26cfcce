"""How good an agent is on windows it does not learn from: every one from its first job to its last.

The windows step together in the compiled fleet, so that looking often is cheap; what is counted is what
`rlpto.evaluation` counts of the same schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from rlpto.agents.trained import TrainedAgent
from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.core.policy import Policy
from rlpto.core.records import RunRecord
from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.batch import EnvBatch, begin_episode
from rlpto.envs.fleet import build_fleet, play
from rlpto.envs.setup import EnvSetup
from rlpto.io.arrays import AnyArray, FloatArray

HOUR = 3600.0
AGENT_TIME_LIMIT_FACTOR = 5.0
"""After so many times the hours of the longest window, the start heuristic schedules what an agent has left over."""

CONSTANTS_TIME_LIMIT_FACTOR = 20.0
"""After so many times those hours, constants are taken to rescale jobs for ever."""


@dataclass(frozen=True)
class Evaluator:
    """What a training needs to look at its agent on validation windows.

    setup: workloads are the windows. baselines: reward [W] of every policy to compare with, in order of the
    workloads; called once. record: lets a policy schedule one of the windows, for a closer look.
    """

    setup: EnvSetup
    baselines: Callable[[], Mapping[str, FloatArray]]
    record: Callable[[Policy], RunRecord]


@dataclass(frozen=True)
class Validation:
    """What became of W windows. parts: [W, 4] the reward's terms. metrics: means over windows, by name."""

    parts: FloatArray
    metrics: dict[str, float]

    @property
    def rewards(self) -> FloatArray:
        """[W] total reward."""
        total: FloatArray = self.parts.sum(axis=1)
        return total


class WindowBatch(EnvBatch):
    """A batch in which environment b goes through workload b from its start, again and again.

    finished: [W] the job records of each workload when it was first over, or None.
    """

    def __init__(self, setup: EnvSetup) -> None:
        plain = replace(setup, settings=setup.settings.model_copy(update={"baseline": "none"}))
        self.finished: list[AnyArray | None] = [None] * len(setup.workloads)
        super().__init__(plain, len(setup.workloads), 0)

    def _begin(self, b: int) -> None:
        """Keep what became of the jobs, then begin anew."""
        if self.fleet.world.clusters[b]["arrived"] and self.finished[b] is None:
            self.finished[b] = self.fleet.world.jobs[b, : self.fleet.counts[b]].copy()
        self.began[b] = begin_episode(self.fleet, b, b, 0.0, self.weights, self.observation)
        self.length[b] = np.inf
        self.steps[b] = 0


def validate(setup: EnvSetup, trained: TrainedAgent) -> Validation:
    """Let an agent schedule every workload of `setup` from its first job to its last."""
    batch = WindowBatch(replace(setup, start=trained.start))
    windows = len(setup.workloads)
    parts, running = np.zeros((windows, len(REWARD_PARTS))), np.ones(windows, dtype=np.bool_)
    limit = AGENT_TIME_LIMIT_FACTOR * HOUR * max(workload.hours for workload in setup.workloads)
    in_time = True
    seen = batch.reset()
    while running.any():
        if in_time and (batch.fleet.world.clusters["time"][running] > limit).any():
            in_time = False
        actions = trained.act(seen) if in_time else np.zeros((windows, len(ACTION_FEATURES)))
        seen, steps = batch.step(actions)
        parts[running] += steps.parts[running]
        running &= ~(steps.ended | steps.cut)
    gpus = setup.shape.capacity
    each = [job_metrics(jobs, gpus) for jobs in batch.finished if jobs is not None]
    return Validation(parts, {name: _mean([metrics[name] for metrics in each]) for name in each[0]})


def reward_of_constants(setup: EnvSetup, weights: FloatArray) -> float:
    """Reward per job (see `per_job`) over the workloads of `setup` of the index with weights [STEERING_FEATURES].

    -infinity where they do not get a workload done: there are weights that rescale jobs for ever.
    """
    fleet = build_fleet(1, setup.shape, setup.workloads, setup.tables, setup.simulator, setup.queue, setup.reward)
    longest = CONSTANTS_TIME_LIMIT_FACTOR * HOUR * max(workload.hours for workload in setup.workloads)
    fleet.world.rules["limit"] = np.minimum(fleet.world.rules["limit"], longest)
    time, total = np.zeros(2), np.zeros(2)  # only the end of a window is wanted
    rewards = np.zeros(len(setup.workloads))
    for workload in range(len(rewards)):
        total[:] = 0.0
        play(fleet, 0, workload, np.atleast_2d(weights), time, total)
        cluster = fleet.world.clusters[0]
        done = cluster["active"] == 0 and cluster["arrived"] == cluster["jobs"]
        rewards[workload] = total[-1] if done else -np.inf
    return per_job(setup, rewards)


def per_job(setup: EnvSetup, rewards: FloatArray) -> float:
    """Reward per job of rewards [W] over all workloads, where every group (load) counts alike.

    Totals differ by windows much more than by policies: the mean of them is decided by a few windows with long queues.
    """
    jobs = np.array([len(workload.jobs) for workload in setup.workloads])
    group = np.array([workload.group for workload in setup.workloads])
    return float(np.mean([rewards[group == at].sum() / jobs[group == at].sum() for at in np.unique(group)]))


def job_metrics(jobs: AnyArray, gpus: int) -> dict[str, float]:
    """Figures of one window from its job records [M], as `rlpto.evaluation.metrics` defines them; times in s.

    gpus: of the cluster. NaN where a figure is not defined. Utilisation takes all nodes as up.
    """
    jct, waited = jobs["finish_time"] - jobs["submit_time"], jobs["start_time"] - jobs["submit_time"]
    done = jct[np.isfinite(jct)]
    complete = len(done) == len(jobs)
    span = float(np.nanmax(jobs["finish_time"]) - jobs["submit_time"].min()) if len(done) else float("nan")
    percentiles = np.percentile(done, [95, 99]) if len(done) else np.full(2, np.nan)
    queueing = {
        f"queueing_{name}": _mean(waited[jobs["priority"] == number]) for number, name in enumerate(PRIORITY_CLASSES)
    }
    return {
        "jct_mean": _mean(done),
        "jct_p95": float(percentiles[0]),
        "jct_p99": float(percentiles[1]),
        "makespan": span if complete else float("nan"),
        "queueing_mean": _mean(waited),
        **queueing,
        "utilisation": float(jobs["attained_service"].sum()) / (gpus * span),
        "rescales_per_job": float(jobs["rescales"].mean()),
        "unfinished": float(len(jobs) - len(done)),
    }


def standing(rewards: FloatArray, baselines: Mapping[str, FloatArray]) -> dict[str, float]:
    """Where an agent with these rewards [W] stands among baselines.

    rank: 1 + baselines with a larger mean reward. wins/NAME: share of the windows in which the agent has more
    than NAME. gain/NAME: by how much its mean reward is larger, relative to the size of that of NAME.
    """
    if not baselines:
        return {}
    mean = rewards.mean()
    found = {"rank": 1.0 + sum(float(other.mean()) > mean for other in baselines.values())}
    for name, other in baselines.items():
        found[f"wins/{name}"] = float((rewards > other).mean())
        found[f"gain/{name}"] = float((mean - other.mean()) / max(abs(float(other.mean())), 1e-9))
    return found


def _mean(values: FloatArray | list[float]) -> float:
    """Mean of what is not NaN; NaN of nothing."""
    given = np.asarray(values, dtype=np.float64)
    known = given[~np.isnan(given)]
    return float(known.mean()) if len(known) else float("nan")
