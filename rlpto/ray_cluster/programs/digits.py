"""Handwritten digits of scikit-learn: 1797 images of 8 x 8 pixels in 10 classes, without a download."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from rlpto.io.errors import JobError
from rlpto.ray_cluster.programs.base import Classifier

HELD_OUT = 360
SHUFFLE = 20231


class Digits(Classifier):
    """The images in [0, 1] as [n, 1, 8, 8], shuffled once, the same way everywhere; `HELD_OUT` are for validation."""

    def __init__(self) -> None:
        rows = torch.from_numpy(_read())
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(SHUFFLE))]
        super().__init__(rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long(), HELD_OUT)


def _read() -> NDArray[np.float32]:
    """Rows of 64 pixels (0 to 16) and a label: the file included in scikit-learn.

    Its package is located but not imported, because the import takes longer than the rest of a worker's start.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise JobError("the digits need scikit-learn, which is not installed")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        return np.loadtxt(path, delimiter=",", dtype=np.float32)
    except OSError as refused:
        raise JobError(f"{path}: cannot read scikit-learn's digits there: {refused}") from None


class DigitsMlp(Digits):
    """A perceptron with one hidden layer and momentum SGD.

    hidden: units of the hidden layer. learning_rate, momentum: parameters of SGD.
    """

    def __init__(self, hidden: int = 64, learning_rate: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__()
        self._hidden, self._learning_rate, self._momentum = hidden, learning_rate, momentum

    def model(self) -> nn.Module:
        """Flatten, linear, ReLU, linear."""
        return nn.Sequential(nn.Flatten(), nn.Linear(64, self._hidden), nn.ReLU(), nn.Linear(self._hidden, 10))

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """SGD."""
        return SGD(parameters, lr=self._learning_rate, momentum=self._momentum)


class DigitsCnn(Digits):
    """Two convolutions, two linear layers, dropout, and Adam.

    channels: channels of the first convolution; the second has twice as many. dropout: share of dropped hidden units.
    learning_rate: learning rate of Adam.
    """

    def __init__(self, channels: int = 32, dropout: float = 0.25, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self._channels, self._dropout, self._learning_rate = channels, dropout, learning_rate

    def model(self) -> nn.Module:
        """130,000 weights with 32 channels."""
        first, second = self._channels, 2 * self._channels
        return nn.Sequential(
            nn.Conv2d(1, first, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * 16, 108),
            nn.ReLU(),
            nn.Dropout(self._dropout),
            nn.Linear(108, 10),
        )

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Adam."""
        return Adam(parameters, lr=self._learning_rate)
