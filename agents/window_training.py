"""Training on whole windows: one visible loop of draws and updates, looked at now and then, that can be left anywhere.

What is learnt is a steering vector: the index's constants, and a network of per-job bonuses
(`rlpto.policies.bonus_network`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlpto.agents.archive import STEERING, STEERING_START, Archive, state_of, write_archive
from rlpto.agents.checkpoint import Identity, read_checkpoint
from rlpto.agents.logs import log_figures
from rlpto.agents.settings import BEST, LAST, AgentSettings, WindowSettings
from rlpto.agents.training_loop import Status, TrainingLoop, TrainingResult
from rlpto.agents.validation import Validation, validate_steering
from rlpto.agents.window_trainers import Evolution, Learner, Ppo
from rlpto.core.rewards import RewardWeights
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.episodes import EnvSetup
from rlpto.envs.whole_windows import WindowPool
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import CheckpointError
from rlpto.policies.bonus_network import first_network
from rlpto.policies.index_weights import NO_PRICE, SLOPE_FEATURES, STEERING_FEATURES, save_weights, steering_meaning

WEIGHTS = "agent.yaml"
"""File of a run with the best steering vector, for `index:weights=` and `planner:base=`."""
KEPT = ("gain",)
"""Weights of the index that stay as they start, since only ratios count. A price that is off stays off."""
SMALLEST = 0.3
"""A weight smaller than this is drawn as if it were this large."""


@dataclass(frozen=True)
class SteeringSpace:
    """Steering vectors by what is learnt of them. start: [S] vector at the origin. sigma: [S] one standard deviation of
    draws; 0: stays as it is."""

    start: FloatArray
    sigma: FloatArray

    @classmethod
    def around(
        cls, start: FloatArray, constants: float, network: float, seed: int, *, slopes: bool = False
    ) -> SteeringSpace:
        """The space around start [S], of weights alone or with a network. constants, network: as in `WindowSettings`.

        seed: of the hidden layer of a new network. slopes: learn the weights that look at accuracy, too.
        """
        learnt = {*ACTION_FEATURES, *(SLOPE_FEATURES if slopes else ())} - {*KEPT}
        count = len(STEERING_FEATURES)
        if network > 0 and len(start) == count:
            start = np.concatenate([start, first_network(seed)])
        sigma = np.zeros(len(start))
        for at, name in enumerate(STEERING_FEATURES):
            if name in learnt and start[at] != NO_PRICE:
                sigma[at] = constants * max(abs(start[at]), SMALLEST)
        sigma[count:] = network
        return cls(start, sigma)

    @property
    def size(self) -> int:
        """Numbers that are learnt."""
        return int(np.count_nonzero(self.sigma))

    def vectors(self, points: FloatArray) -> FloatArray:
        """[n, S] of points [n, size] in standard deviations."""
        vectors = np.repeat(self.start[None], len(points), axis=0)
        vectors[:, self.sigma > 0] += points * self.sigma[self.sigma > 0]
        return vectors


def train_on_windows(
    setup: EnvSetup,
    settings: AgentSettings,
    folder: Path,
    identity: Identity,
    validation: EnvSetup | None = None,
    *,
    resume: bool = False,
    on_progress: Callable[[Status], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> TrainingResult:
    """Learn a steering vector on the workloads of `setup`, from its start on.

    Arguments as in `rlpto.agents.training.train`.

    Raises CheckpointError if there is nothing to resume or it belongs to another training.
    """
    torch.set_num_threads(1)
    run = WindowTraining(setup, settings.whole_windows, folder, identity, validation, on_progress)
    if resume:
        run.restore(read_checkpoint(folder / LAST, identity, run.meaning()), folder / LAST)
    return run.loop(stop, begun=resume)


class WindowTraining(TrainingLoop):
    """One training under way. Its steps are windows played."""

    unit = "windows"
    figure = "gain"

    def __init__(
        self,
        setup: EnvSetup,
        settings: WindowSettings,
        folder: Path,
        identity: Identity,
        validation: EnvSetup | None,
        on_progress: Callable[[Status], None] | None,
    ) -> None:
        super().__init__(folder, identity, validation, on_progress)
        self.setup, self.settings, self.played = setup, settings, 0
        self.total, self.every = settings.windows, settings.evaluate_every
        self._rng = np.random.default_rng([identity.seed, 19])
        start = priced(setup.start, setup.reward) if settings.constants else setup.start
        slopes = setup.reward.shortfall > 0
        self._space = SteeringSpace.around(start, settings.constants, settings.network, identity.seed, slopes=slopes)
        evolves = settings.trainer == "evolution"
        self._learner = Learner(self._space.size, settings.learning_rate or (0.1 if evolves else 0.02))
        self._trainer = Evolution() if evolves else Ppo(settings)
        self._validated = None if validation is None else WindowPool(validation)
        self._pool = WindowPool(setup, max(settings.idle_interval, setup.interval))

    @property
    def steps(self) -> int:
        """Windows played so far."""
        return self.played

    @property
    def vector(self) -> FloatArray:
        """[S] what would be kept now."""
        vector: FloatArray = self._space.vectors(self._learner.average[None])[0]
        return vector

    def update(self) -> bool:
        """One rollout of draws, and one update."""
        pairs = self.settings.rollout // 2
        drawn, windows = self._learner.draw(self._rng, pairs), self.windows(pairs)
        both = np.concatenate([windows, windows])
        losses = self._pool.losses(self._space.vectors(drawn), both)
        figures = self._trainer.learn(self._learner, drawn, losses)
        self._learner.remember()
        self.played += self.settings.rollout
        log_figures(self.logger, "train", {"gain": -float(losses.mean()), **figures})
        log_figures(self.logger, "train", by_load("gain", -losses, self._pool.groups[both], self.setup))
        log_figures(self.logger, "train", {"distance": float(np.sqrt((self._learner.average**2).mean()))})
        return True

    def windows(self, count: int) -> IntArray:
        """[count] numbers of windows, spread evenly over the loads."""
        groups, drawn = np.unique(self._pool.groups), np.zeros(count, dtype=np.int64)
        for at, group in enumerate(groups):
            members = np.flatnonzero(self._pool.groups == group)
            small = members[self._pool.jobs[members] <= self.settings.most_jobs]
            members = small if len(small) else members
            mine = drawn[at :: len(groups)]
            rounds = [self._rng.permutation(members) for _ in range(-(-len(mine) // len(members)))]
            if rounds:  # none where there are more loads than windows to draw
                mine[:] = np.concatenate(rounds)[: len(mine)]
        return drawn

    def validate(self, setup: EnvSetup) -> tuple[Validation, dict[str, float]]:
        """The result on validation windows, and what is gained over the start, by load too."""
        pool, vector = self._validated, self.vector
        assert pool is not None
        gains = -pool.losses(np.repeat(vector[None], len(pool), axis=0), np.arange(len(pool)))
        found = validate_steering(setup, vector)
        return found, {
            "gain": float(gains.mean()),
            **by_load("gain", gains, pool.groups, setup),
            **by_load("reward", found.rewards, pool.groups, setup),
        }

    def save(self, name: str = LAST) -> None:
        """Write all that the training needs to go on, and the agent as it is now; the best one as a file of weights,
        too."""
        arrays = {STEERING: self.vector, STEERING_START: self._space.start}
        arrays |= {f"learner/{key}": value for key, value in self._learner.arrays().items()}
        manifest = {
            "meaning": self.meaning(),
            "state": state_of(arrays),
            **self.notes(),
            "random": self._rng.bit_generator.state,
        }
        write_archive(self.folder / name, manifest, arrays, "a checkpoint")
        if name == BEST:
            save_weights(self.vector, self.folder / WEIGHTS)

    def restore(self, archive: Archive, path: Path) -> None:
        """Go on where a checkpoint of the same training was written. Raises CheckpointError if it lacks something."""
        try:
            self._learner.restore(archive.group("learner"))
            self._rng.bit_generator.state = archive.manifest["random"]
            self.played = int(archive.manifest["steps"])
            self.remember(archive.manifest)
        except (KeyError, TypeError, ValueError, CheckpointError) as error:
            raise CheckpointError(f"{path}: incomplete ({error}), expected a checkpoint of `rlpto train`") from None

    def meaning(self) -> dict[str, Any]:
        """What the numbers of a steering vector mean, in this version of RLPTO."""
        return steering_meaning(len(self._space.start))


def by_load(name: str, values: FloatArray, groups: IntArray, setup: EnvSetup) -> dict[str, float]:
    """Means of values [n] by load, where there are several; groups: [n] as in `rlpto.envs.compiled_batch.Workload`."""
    labels = {workload.group: workload.name.split("/")[0] for workload in setup.workloads}
    if len(labels) == 1:
        return {}
    return {f"{name}_at_load_{label}": float(values[groups == at].mean()) for at, label in labels.items()}


def priced(weights: FloatArray, reward: RewardWeights) -> FloatArray:
    """The same weights [STEERING_FEATURES], with a price where none is set: a third of what a GPU-hour costs.

    A GPU-hour that saves less time than it costs is never worth it; without a price, the index gives GPUs away for
    nothing, so far from any price that training would not find one.
    """
    price = STEERING_FEATURES.index("price")
    if weights[price] > NO_PRICE or reward.resources == 0 or reward.time == 0:
        return weights
    found = weights.copy()
    found[price] = np.log(reward.resources / reward.time / 3.0)
    return found
