"""The search of the heuristic that the agent starts from: constant weights first, weights by state later.

An evolution strategy finds good constants of the steered index in a few minutes, because a candidate is
tried on whole windows: the effect of its weights adds up, and the chance in schedules averages out. PPO, which
learns from single actions, then begins where constants end (`docs/agent.md` has the figures). Every
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
from rlpto.envs.episodes import EnvSetup
from rlpto.envs.whole_windows import Played, WindowPlayer, per_job
from rlpto.evaluation.weight_search import Parameter, SearchSettings, minimise
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.policies.index_weights import NO_PRICE, STEERING_FEATURES

TIME_LIMIT_FACTOR = 3.0
"""A candidate is stopped after this multiple of the start's time: some rescale jobs for ever."""
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
    identity: what else decides the search. on_progress: gets the share that is done. validated: reward of weights
    [STEERING_FEATURES] on such windows.

    Raises CheckpointError if the generations to go on from are of another search.
    """
    chosen = settings.evolution
    origin = replace(setup, start=priced(setup.start, setup.reward))
    found = minimise(
        _Loss(setup, origin, chosen.windows, seed),
        [Parameter(name, 0.0, -LARGEST, LARGEST) for name in SEARCHED],
        SearchSettings(
            generations=chosen.generations, population=chosen.population, step=chosen.step / (2 * LARGEST), seed=seed
        ),
        folder / CHECKPOINT,
        {**identity, "windows": chosen.windows},
        resume=resume,
        on_progress=lambda _, tried: on_progress(tried / (chosen.generations * chosen.population)),
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


class _Loss:
    """Objective: reward lost per job against the start of `setup`, on the windows of the present generation.

    origin: weights are steps from its start.
    """

    def __init__(self, setup: EnvSetup, origin: EnvSetup, windows: int, seed: int) -> None:
        self._player = WindowPlayer(setup.compiled())
        self._groups = np.array([workload.group for workload in setup.workloads])
        self._start, self._origin = setup.start, origin
        self._windows, self._seed = min(windows, len(setup.workloads)), seed
        self._base: dict[int, Played] = {}

    def __call__(self, point: Mapping[str, float], generation: int) -> float:
        drawn, weights = self.windows(generation), _weights(self._origin, point)
        lost = np.array([self._lost(int(workload), weights) for workload in drawn])
        return per_job(lost, self._player.batch.counts[drawn], self._groups[drawn])

    def windows(self, generation: int) -> IntArray:
        """Numbers of the windows of a generation, spread evenly over the pool and so over its groups."""
        rng = np.random.default_rng([self._seed, 11, generation])
        pool = len(self._groups)
        order = np.lexsort((rng.random(pool), self._groups))
        places = ((np.arange(self._windows) + rng.random()) * pool / self._windows).astype(np.int64) % pool
        drawn: IntArray = order[places]
        return drawn

    def _lost(self, workload: int, weights: FloatArray) -> float:
        """Reward the start has more than `weights` in a workload; a great deal if these leave jobs unfinished."""
        if workload not in self._base:
            self._base[workload] = self._player.play(workload, self._start)
        base = self._base[workload]
        mine = self._player.play(workload, weights, TIME_LIMIT_FACTOR * base.end)
        jobs = float(self._player.batch.counts[workload])
        return base.reward - mine.reward if mine.finished else UNFINISHED_LOSS_PER_JOB * jobs
