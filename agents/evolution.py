"""Evolution of the heuristic that the agent starts from: constant weights first, states later.

An evolution strategy finds good constants of the steered index in a few minutes, because a candidate is
tried on whole windows: what it does adds up, while the chance in schedules averages out. PPO, which has to
tell from single actions, then begins where constants end (`docs/agent.md` has the figures). Every
generation is tried on other windows of the training pool, so that the constants suit all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlpto.agents.settings import AgentSettings
from rlpto.core.rewards import RewardWeights
from rlpto.envs.actions import ACTION_FEATURES, LARGEST, action_weights
from rlpto.envs.fleet import Fleet, build_fleet, play
from rlpto.envs.setup import EnvSetup
from rlpto.evaluation.tuning import Parameter, TuningSettings, TuningState, tune, tuning_fingerprint
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.policies.index_weights import NO_PRICE, STEERING_FEATURES

TIME_LIMIT_FACTOR = 3.0
"""A candidate is stopped when it has taken so many times as long as the start: some rescale jobs for ever."""
UNFINISHED_LOSS_PER_JOB = 10.0
"""Reward per job that a candidate counts as losing in a window that it does not finish."""
CHECKPOINT = "evolution.json"
"""File of a run with the costs of all candidates so far."""
SEARCHED = tuple(name for name in ACTION_FEATURES if name != "gain")
"""Weights that are searched; `gain` stays, since only ratios of weights matter."""


def evolves(settings: AgentSettings) -> bool:
    """True if the start heuristic should be evolved."""
    return settings.warm_start == "auto" and settings.evolution.generations > 0


def evolve(
    setup: EnvSetup,
    settings: AgentSettings,
    seed: int,
    folder: Path,
    identity: Mapping[str, object],
    on_progress: Callable[[float], None],
    validated: Callable[[FloatArray], float],
    *,
    resume: bool = False,
) -> EnvSetup:
    """The setup with better constants as its start; as it is, if they are worse on windows not learned from.

    folder: of the run; every finished generation is kept there, and with `resume` not tried again.
    identity: what else decides the search. on_progress: is given the part that is done. validated: reward of weights
    [STEERING_FEATURES] on such windows.

    Raises CheckpointError if the generations to go on from are of another search.
    """
    chosen = settings.evolution
    origin = replace(setup, start=priced(setup.start, setup.reward))
    search = TuningSettings(
        generations=chosen.generations, population=chosen.population, step=chosen.step / (2 * LARGEST), seed=seed
    )
    parameters = [Parameter(name, 0.0, -LARGEST, LARGEST) for name in SEARCHED]
    trial = _Trial(setup, chosen.windows, seed)

    def generation_done(state: TuningState) -> None:
        trial.draw(len(state.costs))
        on_progress(len(state.costs) / chosen.generations)

    found = tune(
        lambda point: trial.cost(_weights(origin, point)),
        parameters,
        search,
        folder / CHECKPOINT,
        tuning_fingerprint(parameters, search, {**identity, "windows": chosen.windows}),
        resume=resume,
        each_generation=generation_done,
    )
    # Candidates of different generations met different windows: the mean of the search says more than the best.
    evolved = _weights(origin, found.mean)
    return replace(setup, start=evolved) if validated(evolved) >= validated(setup.start) else setup


def priced(weights: FloatArray, reward: RewardWeights) -> FloatArray:
    """The same weights [STEERING_FEATURES], with a price where none is set: a third of what a GPU-hour costs.

    A GPU-hour that saves less time than it costs is never worth it; without a price, the index gives GPUs away for
    nothing, so far from any price that a search would not find one.
    """
    price = STEERING_FEATURES.index("price")
    if weights[price] > NO_PRICE or reward.resources == 0 or reward.time == 0:
        return weights
    found = weights.copy()
    found[price] = np.log(reward.resources / reward.time / 3.0)
    return found


def _weights(setup: EnvSetup, point: Mapping[str, float]) -> FloatArray:
    action = np.array([point.get(name, 0.0) for name in ACTION_FEATURES])
    return action_weights(setup.start, action, action.shape)


class _Trial:
    """Tries weights on the windows of the present generation, against the start on the same windows."""

    def __init__(self, setup: EnvSetup, windows: int, seed: int) -> None:
        self._fleet: Fleet = build_fleet(
            1, setup.shape, setup.workloads, setup.tables, setup.simulator, setup.queue, setup.reward
        )
        self._groups = np.array([workload.group for workload in setup.workloads])
        self._start = setup.start
        self._limit = float(self._fleet.world.rules["limit"][0])
        self._base: dict[int, tuple[float, float]] = {}
        self._windows, self._seed = min(windows, len(setup.workloads)), seed
        self._time, self._total = np.zeros(2), np.zeros(2)  # only the end of a window is wanted
        self._drawn: IntArray = np.zeros(0, dtype=np.int64)
        self.draw(0)

    def draw(self, generation: int) -> None:
        """Choose the windows of a generation, spread evenly over the pool and so over its groups."""
        rng = np.random.default_rng([self._seed, 11, generation])
        pool = len(self._groups)
        order = np.lexsort((rng.random(pool), self._groups))
        self._drawn = order[((np.arange(self._windows) + rng.random()) * pool / self._windows).astype(np.int64) % pool]

    def cost(self, weights: FloatArray) -> float:
        """Reward lost per job against the start; every group (load) counts alike."""
        lost = {int(workload): self._lost(int(workload), weights) for workload in self._drawn}
        each = [
            sum(lost[int(w)] for w in members) / max(int(self._fleet.counts[members].sum()), 1)
            for group in np.unique(self._groups[self._drawn])
            for members in [self._drawn[self._groups[self._drawn] == group]]
        ]
        return float(np.mean(each))

    def _lost(self, workload: int, weights: FloatArray) -> float:
        """Reward the start has more than `weights` in a workload; a great deal if these do not get it done."""
        if workload not in self._base:
            self._base[workload] = self._play(workload, self._start, np.inf)
        reward, end = self._base[workload]
        mine, _ = self._play(workload, weights, TIME_LIMIT_FACTOR * end)
        cluster = self._fleet.world.clusters[0]
        if cluster["active"] or cluster["arrived"] < cluster["jobs"]:
            return UNFINISHED_LOSS_PER_JOB * float(cluster["jobs"])
        return reward - mine

    def _play(self, workload: int, weights: FloatArray, limit: float) -> tuple[float, float]:
        """Total reward, and the time [s] at the end, which is at most `limit`."""
        self._fleet.world.rules["limit"] = min(limit, self._limit)
        self._total[:] = 0.0
        play(self._fleet, 0, workload, np.atleast_2d(weights), self._time, self._total)
        return float(self._total[-1]), float(self._fleet.world.clusters[0]["time"])
