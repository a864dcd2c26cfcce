"""Training programs of the tests: small, and with faults on demand."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR

from rlpto.ray_cluster.programs.base import Batch, Classifier


class Tiny(Classifier):
    """Two classes of 101 points in 5 dimensions. adam: rather than SGD with a falling rate."""

    def __init__(self, adam: bool = False) -> None:
        inputs = torch.randn(121, 5, generator=torch.Generator().manual_seed(3))
        super().__init__(inputs, (inputs.sum(1) > 0).long(), held_out=20)
        self._adam = adam

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 2))

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return Adam(parameters, lr=0.01) if self._adam else SGD(parameters, lr=0.05, momentum=0.9)

    def scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        return None if self._adam else StepLR(optimizer, max(steps // 3, 1))


class Plain(Tiny):
    """The same with dropout, without batch normalisation, whose statistics depend on how a batch is shared out."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 2))


class Unfrozen(Plain):
    """The same, whose first layer is frozen in the first epoch."""

    def model(self) -> nn.Module:
        network = super().model()
        self._first = next(network.children()).requires_grad_(False)
        return network

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.epoch > 0:
            self._first.requires_grad_(True)
        return super().loss(model, batch)


class Large(Plain):
    """The same behind a frozen table of `megabytes` of weights, of which a step reads a few rows."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self._rows = megabytes * 1_000_000 // 20

    def model(self) -> nn.Module:
        return nn.Sequential(Table(self._rows), super().model())


class Slow(Plain):
    """The same with a state that takes `seconds` to write."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def model(self) -> nn.Module:
        network = super().model()
        network.register_state_dict_post_hook(lambda *_: time.sleep(self._seconds))
        return network


class Table(nn.Module):
    """Adds a row of weights, chosen by the first column, to each sample of 5 columns."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(rows, 5).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.rows((inputs[:, 0].abs() * 1000).long() % self.rows.num_embeddings)
        return inputs + found


class Held(Plain):
    """Pauses before every batch [s] as long as there is no file `until`."""

    def __init__(self, until: str, pause: float = 1.0) -> None:
        super().__init__()
        self._until, self._pause = Path(until), pause

    def batch(self, indices: Tensor) -> Batch:
        if not self._until.exists():
            time.sleep(self._pause)
        return super().batch(indices)


class Recorded(Plain):
    """Prints the size of every batch it makes, and writes down its samples, one line a batch. folder: where."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._path = Path(folder) / f"samples-{os.getpid()}.txt"

    def batch(self, indices: Tensor) -> Batch:
        with self._path.open("a") as lines:
            lines.write(" ".join(map(str, indices.tolist())) + "\n")
        print("a batch of", len(indices))
        return super().batch(indices)


class Faulty(Plain):
    """Raises or hangs in the batch number `at` of a process, as long as fewer than `times` of them have.

    folder: where that is counted. Batches of the warm-up count too.
    """

    def __init__(self, folder: str, kind: str = "raise", at: int = 10, times: int = 1000) -> None:
        super().__init__()
        self._folder, self._kind, self._at, self._times = Path(folder), kind, at, times
        self._batches = 0

    def batch(self, indices: Tensor) -> Batch:
        self._batches += 1
        if self._batches == self._at:
            before = len(list(self._folder.glob("fault-*")))
            if before < self._times:
                (self._folder / f"fault-{before}-{os.getpid()}").touch()
                if self._kind == "raise":
                    raise ValueError("this batch is cursed")
                time.sleep(600)
        return super().batch(indices)


def weights_of(network: nn.Module) -> Tensor:
    """All parameters as one vector, on the CPU."""
    return nn.utils.parameters_to_vector(network.parameters()).detach().cpu()
