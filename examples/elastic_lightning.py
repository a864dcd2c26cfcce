"""A LightningModule as an elastic job.

rlpto submit examples/elastic_lightning.py --samples 1437 --epochs 20 --gpus 2 --wait
"""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import TensorDataset

from rlpto.io.extras import extras

with extras():
    from lightning import LightningModule

    from rlpto.elastic.lightning import fit

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)


class Digits(LightningModule):
    """A small multilayer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """The loss."""
        inputs, answers = batch
        return functional.cross_entropy(self.network(inputs), answers)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.003)


def accuracy(module: Digits) -> float:
    """Share of the held-out digits that are recognised."""
    found = module.network(images[1437:].to(module.device))
    return float((found.argmax(-1).cpu() == labels[1437:]).float().mean())


fit(Digits(), TensorDataset(images[:1437], labels[:1437]), evaluate=accuracy, epochs=5, batch_size=64)
