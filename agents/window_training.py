"""Training on whole windows. The result is index weights, with a network of per-job bonuses
(`rlpto.policies.bonus_network`).

Two methods: evolution, and PPO whose action is a perturbation of all parameters. Both draw perturbations in pairs to
either side of a mean, and move the mean towards perturbations that lost less reward than the others. The chance of
queues hides a policy's effect on one window, and an action of ten minutes teaches nothing; over many whole windows,
each compared with the start heuristic on the same window, the effect adds up.
Sources: Salimans et al., "Evolution Strategies as a Scalable Alternative to Reinforcement Learning" (arXiv:1703.03864);
Sehnke et al., "Parameter-exploring policy gradients" (Neural Networks 23, 2010) with the objective of PPO (Schulman et
al., arXiv:1707.06347). Adapted: every parameter is an action with its own probability ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.random import Generator

from rlpto.agents.archive import INDEX_WEIGHTS, START, state_of
from rlpto.agents.checkpoint import Identity, read_checkpoint
from rlpto.agents.settings import BEST, LAST, AgentSettings, WindowSettings
from rlpto.agents.training_loop import Status, TrainingLoop, TrainingResult, log_figures
from rlpto.agents.validation import Validation, WindowResult, play_validation
from rlpto.core.cluster import ClusterShape
from rlpto.core.rewards import RewardWeights
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.episodes import EnvSetup
from rlpto.envs.whole_windows import WindowPool
from rlpto.io.archive import Archive, write_archive
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.errors import CheckpointError
from rlpto.policies.bonus_network import first_network, network_sigmas
from rlpto.policies.index_weights import (
    ACCURACY_FEATURES,
    NO_PRICE,
    WEIGHT_NAMES,
    save_index_weights,
    weights_data,
)

WEIGHTS = "agent.yaml"
"""File of a run with the best index weights, for `index:weights=` and `planner:base=`."""
SMALLEST = 0.3
"""Smallest magnitude of a weight in the standard deviation of its perturbations."""
SMALLEST_ACCURACY = 2.5
"""Smallest such magnitude of weights that depend on accuracy: they start at 0, are best about 1, and an update moves a
weight by at most a tenth of its perturbations' standard deviation."""
AVERAGED = 25
"""Updates in the averaged mean, which is the result of a training, since the mean itself wanders."""


class Learner:
    """A mean in units of the perturbations' standard deviation, 0 at the start, and its average over recent updates."""

    def __init__(self, size: int, learning_rate: float) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.average = np.zeros(size)
        self.updates = 0
        self.optimizer = torch.optim.Adam([self.mean], lr=learning_rate)

    def draw(self, rng: Generator, pairs: int) -> FloatArray:
        """`perturbed` means."""
        return perturbed(self.mean.numpy(), rng, pairs)

    def step(self, gradient: torch.Tensor) -> None:
        """Take a step against the gradient [D]."""
        self.mean.grad = gradient
        self.optimizer.step()

    def remember(self) -> None:
        """Include the mean after an update in the average."""
        self.updates += 1
        self.average += (self.mean.numpy() - self.average) / min(self.updates, AVERAGED)

    def arrays(self) -> dict[str, AnyArray]:
        """All arrays that change, by name."""
        adam = self.optimizer.state_dict()["state"].get(0, {})
        own = {"mean": self.mean.numpy().copy(), "average": self.average, "updates": np.array(self.updates)}
        return own | {f"adam/{name}": value.numpy() for name, value in adam.items()}

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Continue from `arrays` of another learner of this size. Raises CheckpointError if the size differs."""
        size = len(self.mean)
        if any(arrays[name].shape != (size,) for name in ("mean", "average")):
            raise CheckpointError(f"a learner of {arrays['mean'].shape} numbers, expected {size}")
        self.mean[:] = torch.as_tensor(arrays["mean"])
        self.average, self.updates = arrays["average"].copy(), int(arrays["updates"].item())
        adam = {name[5:]: torch.as_tensor(value) for name, value in arrays.items() if name.startswith("adam/")}
        state = self.optimizer.state_dict()
        self.optimizer.load_state_dict(state | {"state": {0: adam} if adam else {}})


def perturbed(mean: FloatArray, rng: Generator, pairs: int, first: int = 0) -> FloatArray:
    """Return [2 x P, D] perturbations of a mean [D], of which rows i and P + i lie to either side of it.

    pairs: number of pairs that are drawn. first: number of drawn pairs that are left out, so that P = pairs - first.
    """
    away = rng.standard_normal((pairs, len(mean)))[first:]
    drawn: FloatArray = mean + np.concatenate([away, -away])
    return drawn


def evolve(learner: Learner, drawn: FloatArray, losses: FloatArray) -> dict[str, float]:
    """Move the mean against the gradient of the mean rank of the losses, estimated from pairs.

    drawn: [n, D] perturbed means of `Learner.draw`. losses: [n] loss of each; only their ranks matter.
    Returns figures to show.
    """
    count = len(losses)
    ranks = losses.argsort(kind="stable").argsort(kind="stable") / (count - 1)
    away = drawn[: count // 2] - learner.mean.numpy()
    learner.step(torch.as_tensor((ranks[: count // 2] - ranks[count // 2 :]) @ away / (count // 2)))
    return {}


def learn_by_ppo(learner: Learner, drawn: FloatArray, losses: FloatArray, settings: WindowSettings) -> dict[str, float]:
    """Move the mean in several steps on the same perturbations; probability ratios outside the clip range are ignored.

    Arguments and result are the same as for `evolve`."""
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
class WeightSpace:
    """Policy parameters by the trained ones among them. S parameters: index weights, then those of the network if there
    is one. start: [S] at the origin. sigma: [S] one standard deviation of perturbations; entries with 0 are not
    trained."""

    start: FloatArray
    sigma: FloatArray

    @classmethod
    def around(
        cls, start: FloatArray, constants: float, network: float, seed: int, *, slopes: bool = False
    ) -> WeightSpace:
        """The space around start [S], of index weights alone or with a network.

        constants, network: standard deviations of `WindowSettings`. seed: seed of the hidden layer of a new network.
        slopes: also train the weights that depend on accuracy.
        """
        # The gain stays, since only ratios count. A price that is off stays off.
        learnt = {*ACTION_FEATURES, *(ACCURACY_FEATURES if slopes else ())} - {"gain"}
        count = len(WEIGHT_NAMES)
        if network > 0 and len(start) == count:
            start = np.concatenate([start, first_network(seed)])
        sigma = np.zeros(len(start))
        for at, name in enumerate(WEIGHT_NAMES):
            if name in learnt and start[at] != NO_PRICE:
                smallest = SMALLEST_ACCURACY if name in ACCURACY_FEATURES else SMALLEST
                sigma[at] = constants * max(abs(start[at]), smallest)
        if len(sigma) > count:
            sigma[count:] = network_sigmas(network)
        return cls(start, sigma)

    @property
    def size(self) -> int:
        """Number of trained parameters."""
        return int(np.count_nonzero(self.sigma))

    def index_weights(self, points: FloatArray) -> FloatArray:
        """[n, S] policy parameters of points [n, size] in standard deviations."""
        found = np.repeat(self.start[None], len(points), axis=0)
        found[:, self.sigma > 0] += points * self.sigma[self.sigma > 0]
        return found


class Draws(NamedTuple):
    """The perturbations of an update. mean: [D]. random: state of the generator before it drew them. points: [2 x P, D]
    perturbed means. windows: [P] number of the training window of each pair."""

    mean: FloatArray
    random: Mapping[str, Any]
    points: FloatArray
    windows: IntArray


class Player(Protocol):
    """Plays windows for a training."""

    def play(self, draws: Draws) -> tuple[FloatArray, FloatArray]:
        """Return `WindowPool.compare` of all perturbations: [2 x P] losses, and rewards above the start heuristic's."""

    def validate(self, index_weights: FloatArray, windows: Sequence[int]) -> tuple[FloatArray, list[WindowResult]]:
        """Return the losses [n] of index weights [S] on the validation windows with these numbers, and the results."""


class LocalPlayer:
    """Plays windows in threads of this process. seed: seed of the training. threads: default is one per core."""

    def __init__(
        self, setup: EnvSetup, validation: EnvSetup | None, settings: WindowSettings, seed: int, threads: int = 0
    ) -> None:
        start = priced(setup.start, setup.reward, gpu_price(setup.shape)) if settings.constants else setup.start
        slopes = setup.reward.shortfall > 0
        self.space = WeightSpace.around(start, settings.constants, settings.network, seed, slopes=slopes)
        interval = setup.interval
        if setup.simulator.decide_on == "events":  # else these are all decisions there are, not idle ones
            interval = max(settings.idle_interval, interval)
        self.pool = WindowPool(setup, interval, threads)
        self._validation, self._threads = validation, threads

    @cached_property
    def _validated(self) -> WindowPool:
        """The validation windows."""
        assert self._validation is not None
        return WindowPool(self._validation, threads=self._threads)

    def play(self, draws: Draws) -> tuple[FloatArray, FloatArray]:
        """See `Player.play`."""
        windows = np.concatenate([draws.windows, draws.windows])
        return self.pool.compare(self.space.index_weights(draws.points), windows)

    def validate(self, index_weights: FloatArray, windows: Sequence[int]) -> tuple[FloatArray, list[WindowResult]]:
        """See `Player.validate`."""
        assert self._validation is not None
        losses = self._validated.losses(np.repeat(index_weights[None], len(windows), axis=0), np.array(windows))
        return losses, play_validation(self._validation, index_weights, windows)


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
    player: Player | None = None,
) -> TrainingResult:
    """Train index weights on the workloads of `setup`, from its start on.

    player: plays the windows. Default: threads of this process; results are identical. `rlpto.agents.training.train`
    explains the other arguments. Raises CheckpointError if there is nothing to resume or it belongs to another
    training.
    """
    torch.set_num_threads(1)
    run = WindowTraining(setup, settings, folder, identity, validation, on_progress, player)
    if resume:
        run.restore(read_checkpoint(folder / LAST, identity), folder / LAST)
    return run.loop(stop, begun=resume)


@dataclass
class WindowTraining(TrainingLoop):
    """One training under way. Its steps are windows played."""

    setup: EnvSetup
    player: Player | None = None
    unit = "windows"
    figure = "gain"
    points = 50
    steps = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        setup, settings, identity = self.setup, self.settings.whole_windows, self.identity
        self.total, self.every = settings.windows, settings.evaluate_every
        self._rng = np.random.default_rng([identity.seed, 19])
        here = LocalPlayer(setup, self.validation, settings, identity.seed, threads=0 if self.player is None else 1)
        self._player: Player = self.player or here
        self._space, self._pool = here.space, here.pool
        evolves = settings.trainer == "evolution"
        self._learner = Learner(self._space.size, settings.learning_rate or (0.1 if evolves else 0.02))

    @property
    def index_weights(self) -> FloatArray:
        """[S] policy parameters that would be kept now."""
        found: FloatArray = self._space.index_weights(self._learner.average[None])[0]
        return found

    def update(self) -> bool:
        """Play one rollout of perturbations, and update the mean once."""
        settings, learner = self.settings.whole_windows, self._learner
        pairs, random = settings.rollout // 2, self._rng.bit_generator.state
        drawn, windows = learner.draw(self._rng, pairs), self.windows(pairs)
        both, began = np.concatenate([windows, windows]), time.perf_counter()
        losses, above = self._player.play(Draws(learner.mean.numpy(), random, drawn, windows))
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
            if rounds:  # none if there are more loads than windows to draw
                mine[:] = np.concatenate(rounds)[: len(mine)]
        return drawn

    def validate(self, setup: EnvSetup) -> tuple[Validation, dict[str, float]]:
        """The result on validation windows, and the gain over the start, also by load."""
        losses, results = self._player.validate(self.index_weights, range(len(setup.workloads)))
        gains, found = -losses, Validation.of(results)
        groups = np.array([workload.group for workload in setup.workloads])
        return found, {
            "gain": float(gains.mean()),
            **by_load("gain", gains, groups, setup),
            **by_load("reward", found.rewards, groups, setup),
        }

    def save(self, name: str = LAST) -> None:
        """Write the state of the training and the present agent; if it is the best, also write its weights to a file
        of their own."""
        arrays = {f"learner/{key}": value for key, value in self._learner.arrays().items()}
        agent = {INDEX_WEIGHTS: weights_data(self.index_weights), START: weights_data(self._space.start)}
        manifest = {
            **agent,
            "state": state_of(agent, arrays),
            **self.notes(),
            "random": self._rng.bit_generator.state,
        }
        write_archive(self.folder / name, manifest, arrays, "a checkpoint")
        if name == BEST:
            save_index_weights(self.index_weights, self.folder / WEIGHTS)

    def restore(self, archive: Archive, path: Path) -> None:
        """Continue from a checkpoint of the same training. Raises CheckpointError if it is incomplete."""
        try:
            if archive.manifest[START] != weights_data(self._space.start):
                raise KeyError("a start with these weights and features")
            self._learner.restore(archive.group("learner"))
            self._rng.bit_generator.state = archive.manifest["random"]
            self.steps = int(archive.manifest["steps"])
            self.remember(archive.manifest)
        except (KeyError, TypeError, ValueError, CheckpointError) as error:
            raise CheckpointError(f"{path}: incomplete ({error}), expected a checkpoint of `rlpto train`") from None


def by_load(name: str, values: FloatArray, groups: IntArray, setup: EnvSetup) -> dict[str, float]:
    """Means of values [n] by load, if there are several loads. groups: [n] `Workload.group` of each value."""
    labels = {workload.group: workload.name.split("/")[0] for workload in setup.workloads}
    if len(labels) == 1:
        return {}
    return {f"{name}_at_load_{label}": float(values[groups == at].mean()) for at, label in labels.items()}


def gpu_price(shape: ClusterShape) -> float:
    """Return the highest price of a GPU-hour on rented nodes; 0 if none are rented."""
    return max((node.price for node in shape if node.rented is not None), default=0.0)


def priced(weights: FloatArray, reward: RewardWeights, price_of_gpu: float = 0.0) -> FloatArray:
    """Return a copy of index weights [WEIGHT_NAMES] with a price, or the weights themselves if one is set.

    price_of_gpu: price of a GPU-hour in money. The price in the weights is a third of the reward's cost of a GPU-hour.
    If the reward also counts the shortfall, it is the full cost, and the worth of an hour is set from the reward too. A
    reward without time or without such a cost sets neither.

    A GPU-hour that saves less time than it costs is never worth it. Without a price, the index gives GPUs away for
    nothing, and training would hardly find one.
    """
    price, worth, keep = (WEIGHT_NAMES.index(name) for name in ("price", "worth", "keep"))
    cost = reward.resources + reward.money * price_of_gpu
    if weights[price] > NO_PRICE or cost == 0 or reward.time == 0:
        return weights
    found = weights.copy()
    found[price] = np.log(cost / reward.time / 3.0)
    if reward.shortfall > 0:
        found[price] = np.log(cost / reward.time)
        found[worth], found[keep] = reward.shortfall / reward.time, 1.0
    return found
