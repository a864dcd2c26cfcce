"""Two ways to learn a steering vector from whole windows: evolution, and PPO whose action is a draw of all its numbers.

Both draw vectors in pairs to either side of a mean, and move it towards draws that lost less reward than the others. A
policy's effect on one window is lost in the chance of queues, so that an action of ten minutes teaches nothing; over
whole windows, each against the start heuristic on the same one, it adds up.
Sources: Salimans et al., "Evolution Strategies as a Scalable Alternative to Reinforcement Learning" (arXiv:1703.03864);
Sehnke et al., "Parameter-exploring policy gradients" (Neural Networks 23, 2010) with the objective of PPO (Schulman et
al., arXiv:1707.06347). Adapted: every number is an action of its own, with a probability ratio of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.random import Generator

from rlpto.agents.settings import WindowSettings
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import CheckpointError

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


class Evolution:
    """The gradient of the mean loss, estimated from pairs by the ranks of their losses."""

    def learn(self, learner: Learner, drawn: FloatArray, losses: FloatArray) -> dict[str, float]:
        """Move the mean after the draws [n, D] of `Learner.draw` lost `losses` [n]; returns figures to show, by name.

        Losses are compared with each other only.
        """
        count = len(losses)
        ranks = losses.argsort(kind="stable").argsort(kind="stable") / (count - 1)
        away = drawn[: count // 2] - learner.mean.numpy()
        learner.step(torch.as_tensor((ranks[: count // 2] - ranks[count // 2 :]) @ away / (count // 2)))
        return {}


class Ppo:
    """PPO: several steps on the same draws, where probability ratios that leave the clip range teach nothing."""

    def __init__(self, settings: WindowSettings) -> None:
        self._epochs, self._clip = settings.epochs, settings.clip

    def learn(self, learner: Learner, drawn: FloatArray, losses: FloatArray) -> dict[str, float]:
        """See `Evolution`."""
        advantage = torch.as_tensor((losses.mean() - losses) / max(losses.std(), 1e-12))[:, None]
        draws, old = torch.as_tensor(drawn), learner.mean.clone()
        clipped = 0.0
        for _ in range(self._epochs):
            away = draws - learner.mean
            ratio = (0.5 * ((draws - old) ** 2 - away**2)).exp()
            low, high = 1.0 - self._clip, 1.0 + self._clip
            learns = torch.where(advantage > 0, ratio < high, ratio > low)
            learner.step(-(advantage * ratio * away * learns).mean(dim=0))
            clipped = 1.0 - float(learns.double().mean())
        return {"clipped": clipped}
