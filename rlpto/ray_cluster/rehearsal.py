"""The first step of a process, trained on nothing: what is slow the first time is then done."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.programs import Classifier
from rlpto.ray_cluster.training import Trainer
from rlpto.ray_cluster.worker import use_few_threads, warm_group


class Nothing(Classifier):
    """Sixteen blank images, and a network as small as one with all usual layers can be."""

    def __init__(self) -> None:
        super().__init__(torch.zeros(16, 1, 4, 4), torch.zeros(16, dtype=torch.int64), held_out=8)

    def model(self) -> nn.Module:
        """A convolution and a linear layer."""
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(8, 2))

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Adam."""
        return Adam(parameters)


def rehearse() -> None:
    """Train some steps of nothing, alone and in a group of one, on the CPU."""
    use_few_threads("cpu")
    training = f"{__name__}:Nothing"
    spec = JobSpec("rehearsal", "rehearsal", training, folder="", batch_size=4, epochs=1.0, data_size=8, device="cpu")
    trainer = Trainer(spec, Nothing())
    trainer.warm_up()
    warm_group(trainer)
