"""Training on whole windows. What is learnt is a steering vector: the index's constants, and a network of per-job
bonuses (`rlpto.policies.bonus_network`).

Two ways: evolution, and PPO whose action is a draw of all its numbers. Both draw vectors in pairs to either side of a
mean, and move it towards draws that lost less reward than the others. A policy's effect on one window is lost in the
chance of queues, so that an action of ten minutes teaches nothing; over whole windows, each against the start heuristic
on the same one, it adds up.
Sources: Salimans et al., "Evolution Strategies as a Scalable Alternative to Reinforcement Learning" (arXiv:1703.03864);
Sehnke et al., "Parameter-exploring policy gradients" (Neural Networks 23, 2010) with the objective of PPO (Schulman et
al., arXiv:1707.06347). Adapted: every number is an action of its own, with a probability ratio of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator

from rlpto.agents.archive import STEERING, STEERING_START, Archive, state_of, write_archive
from rlpto.agents.checkpoint import Identity, read_checkpoint
from rlpto.agents.settings import BEST, LAST, AgentSettings, WindowSettings
from rlpto.agents.training_loop import Status, TrainingLoop, TrainingResult, log_figures
from rlpto.agents.validation import Validation, validate_steering
from rlpto.core.rewards import RewardWeights
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.episodes import EnvSetup
from rlpto.envs.whole_windows import WindowPool
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.errors import CheckpointError
from rlpto.policies.bonus_network import first_network, network_draws
from rlpto.policies.index_weights import (
    ACCURACY_FEATURES,
    NO_PRICE,
    STEERING_FEATURES,
    save_weights,
    steering_meaning,
)

WEIGHTS = "agent.yaml"
"""File of a run with the best steering vector, for `index:weights=` and `planner:base=`."""
SMALLEST = 0.3
"""A weight smaller than this is drawn as if it were this large."""
SMALLEST_ACCURACY = 2.5
"""The same of weights that depend on accuracy: they start at 0, are best about 1, and an update moves a weight by at
most a tenth of its draws' standard deviation."""
AVERAGED = 25
"""Updates that the averaged mean looks back on: what is kept of a training is that, since the mean itself wanders."""


class Learner:
    """A mean in units of the draws' standard deviation, 0 at the start, and its average over the latest updates."""

    def __init__(self, size: int, learning_rate: float) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.average = np.zeros(size)
        self.updates = 0
        self.optimizer = torch.optim.Adam([self.mean], lr=learning_rate)

    def draw(self, rng: Generator, pairs: int) -> FloatArray:
        """[2 x pairs, D] draws; row i and row pairs + i lie to either side of the mean."""
        away = rng.standard_normal((pairs, len(self.mean)))
        drawn: FloatArray = self.mean.numpy() + np.concatenate([away, -away])
        return drawn

    def step(self, gradient: torch.Tensor) -> None:
        """Go a step against the gradient [D]."""
        self.mean.grad = gradient
        self.optimizer.step()

    def remember(self) -> None:
        """After an update."""
        self.updates += 1
        self.average += (self.mean.numpy() - self.average) / min(self.updates, AVERAGED)

    def arrays(self) -> dict[str, AnyArray]:
        """All that changes, by name."""
        adam = self.optimizer.state_dict()["state"].get(0, {})
        own = {"mean": self.mean.numpy().copy(), "average": self.average, "updates": np.array(self.updates)}
        return own | {f"adam/{name}": value.numpy() for name, value in adam.items()}

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Go on where `arrays` were asked for. Raises CheckpointError if they are of another learner."""
        size = len(self.mean)
        if any(arrays[name].shape != (size,) for name in ("mean", "average")):
            raise CheckpointError(f"a learner of {arrays['mean'].shape} numbers, expected {size}")
        self.mean[:] = torch.as_tensor(arrays["mean"])
        self.average, self.updates = arrays["average"].copy(), int(arrays["updates"].item())
        adam = {name[5:]: torch.as_tensor(value) for name, value in arrays.items() if name.startswith("adam/")}
        if adam:
            adam["step"] = adam["step"].reshape(())  # files know no arrays without dimensions
        state = self.optimizer.state_dict()
        self.optimizer.load_state_dict(state | {"state": {0: adam} if adam else {}})


def evolve(learner: Learner, drawn: FloatArray, losses: FloatArray) -> dict[str, float]:
    """Move the mean along the gradient of the mean loss, estimated from pairs by the ranks of their losses.

    drawn: [n, D] of `Learner.draw`, which lost `losses` [n]; these are compared with each other only.
    Returns figures to show.
    """
    count = len(losses)
    ranks = losses.argsort(kind="stable").argsort(kind="stable") / (count - 1)
    away = drawn[: count // 2] - learner.mean.numpy()
    learner.step(torch.as_tensor((ranks[: count // 2] - ranks[count // 2 :]) @ away / (count // 2)))
    return {}


def learn_by_ppo(learner: Learner, drawn: FloatArray, losses: FloatArray, settings: WindowSettings) -> dict[str, float]:
    """As `evolve`, in several steps on the same draws: probability ratios that leave the clip range teach nothing."""
    ranks = losses.argsort(kind="stable").argsort(kind="stable") / (len(losses) - 1)  # as losses have heavy tails
    advantage = torch.as_tensor((0.5 - ranks) * np.sqrt(12.0))[:, None]
    draws, old = torch.as_tensor(drawn), learner.mean.clone()
    clipped = 0.0
    for _ in range(settings.epochs):
        away = draws - learner.mean
        ratio = (0.5 * ((draws - old) ** 2 - away**2)).exp()
        learns = torch.where(advantage > 0, ratio < 1.0 + settings.clip, ratio > 1.0 - settings.clip)
        learner.step(-(advantage * ratio * away * learns).mean(dim=0))
        clipped = 1.0 - float(learns.double().mean())
    return {"clip_fraction": clipped}


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
        # The gain stays, since only ratios count. A price that is off stays off.
        learnt = {*ACTION_FEATURES, *(ACCURACY_FEATURES if slopes else ())} - {"gain"}
        count = len(STEERING_FEATURES)
        if network > 0 and len(start) == count:
            start = np.concatenate([start, first_network(seed)])
        sigma = np.zeros(len(start))
        for at, name in enumerate(STEERING_FEATURES):
            if name in learnt and start[at] != NO_PRICE:
                smallest = SMALLEST_ACCURACY if name in ACCURACY_FEATURES else SMALLEST
                sigma[at] = constants * max(abs(start[at]), smallest)
        if len(sigma) > count:
            sigma[count:] = network_draws(network)
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
    run = WindowTraining(setup, settings, folder, identity, validation, on_progress)
    if resume:
        run.restore(read_checkpoint(folder / LAST, identity, run.meaning()), folder / LAST)
    return run.loop(stop, begun=resume)


@dataclass
class WindowTraining(TrainingLoop):
    """One training under way. Its steps are windows played."""

    setup: EnvSetup
    unit = "windows"
    figure = "gain"
    points = 50
    steps = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        setup, settings, identity = self.setup, self.settings.whole_windows, self.identity
        self.total, self.every = settings.windows, settings.evaluate_every
        self._rng = np.random.default_rng([identity.seed, 19])
        start = priced(setup.start, setup.reward) if settings.constants else setup.start
        slopes = setup.reward.shortfall > 0
        self._space = SteeringSpace.around(start, settings.constants, settings.network, identity.seed, slopes=slopes)
        evolves = settings.trainer == "evolution"
        self._learner = Learner(self._space.size, settings.learning_rate or (0.1 if evolves else 0.02))
        self._validated = None if self.validation is None else WindowPool(self.validation)
        self._pool = WindowPool(setup, max(settings.idle_interval, setup.interval))

    @property
    def vector(self) -> FloatArray:
        """[S] what would be kept now."""
        vector: FloatArray = self._space.vectors(self._learner.average[None])[0]
        return vector

    def update(self) -> bool:
        """One rollout of draws, and one update."""
        settings, learner = self.settings.whole_windows, self._learner
        pairs = settings.rollout // 2
        drawn, windows = learner.draw(self._rng, pairs), self.windows(pairs)
        both, began = np.concatenate([windows, windows]), time.perf_counter()
        losses, above = self._pool.compare(self._space.vectors(drawn), both)
        if settings.trainer == "evolution":
            figures = evolve(learner, drawn, losses)
        else:
            figures = learn_by_ppo(learner, drawn, losses, settings)
        learner.remember()
        self.steps += settings.rollout
        finished = above[~np.isnan(above)]
        log_figures(self.logger, "rollout", {"ep_rew_mean": float(finished.mean()) if len(finished) else np.nan})
        log_figures(
            self.logger,
            "train",
            {
                "loss": float(losses.mean()),
                "learning_rate": learner.optimizer.param_groups[0]["lr"],
                **figures,
                **by_load("loss", losses, self._pool.groups[both], self.setup),
                "distance": float(np.sqrt((learner.average**2).mean())),
            },
        )
        log_figures(self.logger, "time", {"fps": settings.rollout / (time.perf_counter() - began)})
        return True

    def windows(self, count: int) -> IntArray:
        """[count] numbers of windows, spread evenly over the loads."""
        groups, drawn = np.unique(self._pool.groups), np.zeros(count, dtype=np.int64)
        for at, group in enumerate(groups):
            members = np.flatnonzero(self._pool.groups == group)
            small = members[self._pool.jobs[members] <= self.settings.whole_windows.most_jobs]
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
            self.steps = int(archive.manifest["steps"])
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
    """Return the same weights [STEERING_FEATURES], with a price if none is set: a third of what a GPU-hour costs.

    If the reward also counts the shortfall, price and worth of an hour are those of the reward. A reward without time
    or resources sets neither.

    A GPU-hour that saves less time than it costs is never worth it. Without a price, the index gives GPUs away for
    nothing, and training would hardly find one.
    """
    price, worth, keep = (STEERING_FEATURES.index(name) for name in ("price", "worth", "keep"))
    if weights[price] > NO_PRICE or reward.resources == 0 or reward.time == 0:
        return weights
    found = weights.copy()
    found[price] = np.log(reward.resources / reward.time / 3.0)
    if reward.shortfall > 0:
        found[price] = np.log(reward.resources / reward.time)
        found[worth], found[keep] = reward.shortfall / reward.time, 1.0
    return found
