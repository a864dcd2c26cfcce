"""Windows of a training as tasks on the hosts of a Ray cluster.

As in OpenAI's evolution strategies (Salimans et al., arXiv:1703.03864) perturbations do not travel: tasks get the mean
and the state of the generator, draw again, and return losses. The order of results is the order of draws, so that
the training is the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from rlpto.agents.validation import WindowResult
from rlpto.agents.window_training import Draws, LocalPlayer, perturbed
from rlpto.experiments.config import Config
from rlpto.experiments.inputs import Inputs
from rlpto.experiments.on_host import Stored
from rlpto.experiments.ray_workers import AHEAD, RayWorkers
from rlpto.experiments.training_runs import by_load, training_seed, training_windows, validation_setup
from rlpto.io.arrays import FloatArray, IntArray


class FarPlayer:
    """Plays the windows of a training on workers; it is a `Player`. Every process prepares the windows once."""

    def __init__(self, workers: RayWorkers, config: Config) -> None:
        self._workers, self._inputs = workers, Stored.of(Inputs.of(config))

    def play(self, draws: Draws) -> tuple[FloatArray, FloatArray]:
        """See `Player.play`."""
        pairs = len(draws.windows)
        edges = np.linspace(0, pairs, min(AHEAD * self._workers.slots, pairs) + 1).astype(int).tolist()
        parts, found = list(pairwise(edges)), np.empty((2, 2, pairs))
        task = partial(play_part, self._inputs, draws.mean, draws.random, draws.windows)
        for position, result in self._workers.run(task, parts):
            found[:, :, slice(*parts[position])] = result
        losses, above = found.reshape(2, 2 * pairs)
        return losses, above

    def validate(self, index_weights: FloatArray, windows: Sequence[int]) -> tuple[FloatArray, list[WindowResult]]:
        """See `Player.validate`."""
        found = dict(self._workers.run(partial(validate_one, self._inputs, index_weights), windows))
        losses, results = zip(*(found[position] for position in range(len(windows))), strict=True)
        return np.array(losses), list(results)


def play_part(
    inputs: Stored[Inputs], mean: FloatArray, random: Mapping[str, Any], windows: IntArray, part: tuple[int, int]
) -> FloatArray:
    """Play a part of an update's pairs. part: number of the first pair, and of the first one behind it.

    Returns [2, 2, pairs] losses and rewards above the start heuristic's, to either side of the mean.
    """
    first, last = part
    rng = np.random.default_rng()
    rng.bit_generator.state = random
    mine = Draws(mean, random, perturbed(mean, rng, last, first), windows[first:last])
    return np.stack(_player(inputs.value.here).play(mine)).reshape(2, 2, last - first)


def validate_one(inputs: Stored[Inputs], index_weights: FloatArray, window: int) -> tuple[float, WindowResult]:
    """The loss of index weights [S] on one validation window, and the result."""
    losses, results = _player(inputs.value.here).validate(index_weights, [window])
    return float(losses[0]), results[0]


@lru_cache(maxsize=1)
def _player(config: Config) -> LocalPlayer:
    """The windows of a configuration, prepared once by each process, which has one CPU."""
    setup, settings = training_windows(config, by_load(config)), config.agent.whole_windows
    return LocalPlayer(setup, validation_setup(config), settings, training_seed(config), threads=1)
