"""A `LightningModule` as an elastic job: `fit` replaces Lightning's trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import default_collate

from rlpto import elastic
from rlpto.io.errors import JobError
from rlpto.io.extras import extras
from rlpto.store.program_keys import OnNonfinite

with extras():
    from lightning import LightningModule


class _TrainingStep(nn.Module):
    """`training_step` as a forward pass, because workers average the gradients of parameters used in a forward pass."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any, number: int) -> Tensor:
        """Return the loss."""
        found = self.module.training_step(batch, number)
        loss = found["loss"] if isinstance(found, dict) else found
        if not isinstance(loss, Tensor):
            raise JobError(f"training_step: expected a loss, or a dict with one, got {type(found).__name__}")
        return loss

    def state_dict(self, *given: Any, **named: Any) -> Any:
        """The module's state, which can then be loaded without this wrapper."""
        return self.module.state_dict(*given, **named)

    def load_state_dict(self, *given: Any, **named: Any) -> Any:
        """Load the state into the module."""
        return self.module.load_state_dict(*given, **named)


def fit(
    module: LightningModule,
    data: Sequence[Any],
    *,
    collate: Callable[[list[Any]], Any] = default_collate,
    scheduler: elastic.MakeScheduler | None = None,
    evaluate: Callable[[LightningModule], float] | None = None,
    epochs: float = 1.0,
    batch_size: int = 32,
    on_nonfinite: OnNonfinite = "fail",
) -> None:
    """Train a module by its `configure_optimizers` and `training_step`.

    data: samples by index; other parameters are explained at `elastic.session`. `configure_optimizers` returns one
    optimizer and, unless `scheduler` is given, at most a scheduler whose interval is step. A batch has the number of
    the job's step. Lightning's loggers, callbacks and `validation_step` are not used. Raises JobError for manual
    optimization, for other optimizers, and for data without samples by index.
    """
    if not module.automatic_optimization:
        raise JobError("a LightningModule with manual optimization cannot be fitted here: expected automatic")
    data_size = elastic.samples_of(data, "elastic.lightning.fit")
    optimizer, own = _optimizer_of(module, scheduler is not None)
    loop = _TrainingStep(module)
    with elastic.session(
        loop,
        optimizer,
        data_size=data_size,
        scheduler=scheduler if own is None else lambda *_: own,
        evaluate=None if evaluate is None else lambda _: evaluate(module),
        epochs=epochs,
        batch_size=batch_size,
        on_nonfinite=on_nonfinite,
    ) as job:
        for batch in job.batches(data, collate):
            job.step(job.model(batch, job.steps_done))


def _optimizer_of(module: LightningModule, replaced: bool) -> tuple[Optimizer, LRScheduler | None]:
    """Unpack `configure_optimizers`; if `replaced`, ignore its scheduler. Raises JobError for anything but one
    optimizer with at most a scheduler whose interval is step."""
    found: Any = module.configure_optimizers()
    scheduler: Any = None
    if isinstance(found, dict):
        found, scheduler = found.get("optimizer"), None if replaced else found.get("lr_scheduler")
    if scheduler is not None:
        # Lightning's default is to step a scheduler once an epoch.
        given = scheduler if isinstance(scheduler, dict) else {}
        by_step = given.get("interval") == "step" and given.get("frequency", 1) == 1
        scheduler = given.get("scheduler") if by_step else "a scheduler of epochs"
    if not isinstance(found, torch.optim.Optimizer) or not isinstance(scheduler, LRScheduler | None):
        raise JobError(
            "configure_optimizers: expected one optimizer, with a scheduler whose interval is step at most, got "
            f"{type(found).__name__}, {scheduler if isinstance(scheduler, str) else type(scheduler).__name__}"
        )
    return found, scheduler
