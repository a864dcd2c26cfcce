"""Training programs of jobs: a small class that users write in their own module."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from rlpto.io.errors import JobError
from rlpto.store.program_keys import OnNonfinite

Batch = tuple[Tensor, ...]


class TrainingProgram(ABC):
    """A model, its optimizer, and data accessed by index.

    Options of a job are the keyword arguments of its class. Random numbers must come from torch, whose generators are
    seeded before every step; a repeated step is therefore reproduced exactly, on any worker. With a fixed batch, random
    numbers do not depend on the number of workers either, within the limits of `worker.sampling`; a program that
    draws none in its first step is assumed to draw none at all. Tensors are made on the CPU in single precision; the
    trainer moves them.
    """

    data_size: int
    """Number of training samples: indices run from 0 to `data_size - 1`."""
    epoch = rank = steps_done = 0
    """Passes over the data and steps before the present step, and the number of this worker; set by the trainer."""
    trains_all = False
    """Whether jobs must train on all samples. Otherwise they may use only the first ones."""
    on_nonfinite: OnNonfinite = "fail"
    """Effect of a loss or weights that are NaN or infinite: fail ends the job, warn prints a line and continues."""
    can_go_on = True
    """False if its process cannot make another step after an exception."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model, whose modules keep their modes (`train`, `eval`). Its weights depend on the seed, which is set
        before the call."""

    @abstractmethod
    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """A new optimizer. With parameter servers it must treat every element alike (SGD, Adam, ...)."""

    def scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:  # noqa: ARG002
        """Return the scheduler of the learning rate, called after every step. Default: a constant rate. steps: steps of
        the whole job at its batch size."""
        return None

    @abstractmethod
    def batch(self, indices: Tensor) -> Batch:
        """Training samples `indices` ([n] int64), n rows in every tensor."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean loss over the samples of a batch, a scalar. It must call `model` itself, not parts of it."""

    @abstractmethod
    def validation(self) -> Sequence[Batch]:
        """Batches of samples that training does not see."""

    @abstractmethod
    def accuracy(self, model: nn.Module, batch: Batch) -> Tensor:
        """Share of a batch that the model predicts correctly, 0 to 1, a scalar."""


class Classifier(TrainingProgram):
    """A program whose data are labelled inputs in memory. Subclasses add the model and its optimizer.

    inputs: [n, ...] float32. labels: [n] int64. `held_out` samples at the end are for validation.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, held_out: int) -> None:
        self.data_size = len(inputs) - held_out
        self._inputs, self._labels = inputs, labels

    def batch(self, indices: Tensor) -> Batch:
        """Inputs and labels."""
        return self._inputs[indices], self._labels[indices]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy."""
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels)

    def validation(self) -> Sequence[Batch]:
        """The held-out samples, 256 a batch."""
        rows = torch.split(torch.arange(self.data_size, len(self._inputs)), 256)
        return [(self._inputs[part], self._labels[part]) for part in rows]

    def accuracy(self, model: nn.Module, batch: Batch) -> Tensor:
        """Share of samples whose label has the highest score."""
        inputs, labels = batch
        scores: Tensor = model(inputs)
        return (scores.argmax(-1) == labels).float().mean()


def load_program(training: str, options: Mapping[str, Any]) -> TrainingProgram:
    """Make the program named "package.module:Class" with `options`.

    Raises JobError if it cannot be imported, is no TrainingProgram, or does not take the options.
    """
    module, _, name = training.partition(":")
    try:
        imported = importlib.import_module(module)
    except ImportError as missing:
        raise JobError(f"training {training!r} cannot be imported: {missing}") from missing
    try:
        found = getattr(imported, name)
    except AttributeError:
        raise JobError(f"training {training!r} cannot be imported: {module} has no {name}") from None
    if not (isinstance(found, type) and issubclass(found, TrainingProgram)):
        raise JobError(f"training {training!r} is no TrainingProgram")
    try:
        return found(**options)
    except TypeError as refused:
        raise JobError(f"training {training!r} does not take the options {dict(options)}: {refused}") from refused
