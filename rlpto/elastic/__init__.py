"""Any torch training loop as an elastic job, whose GPUs may change from step to step:

    with elastic.session(model, optimizer, data_size=len(data)) as job:
        for inputs, labels in job.batches(data):
            job.step(cross_entropy(job.model(inputs), labels))

The script is submitted to the job service (`rlpto submit train.py`), or run unchanged by Python, with one worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from rlpto.io.errors import JobError
from rlpto.io.extras import extras
from rlpto.store.program_keys import OnNonfinite

with extras():
    from greenlet import getcurrent, greenlet

    from rlpto.ray_cluster.programs.script import LoopProgram, MakeScheduler, ScriptLoop, Session

__all__ = ["MakeScheduler", "Session", "session"]


@contextmanager
def session(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    data_size: int,
    scheduler: MakeScheduler | None = None,
    evaluate: Callable[[nn.Module], float | None] | None = None,
    epochs: float = 1.0,
    batch_size: int = 32,
    on_nonfinite: OnNonfinite = "fail",
) -> Iterator[Session]:
    """Open a training session of `model`. `optimizer` has its parameters, or those that are trained, and no others.

    data_size: samples of an epoch. scheduler: makes the learning-rate scheduler from the optimizer and the number of
    steps; the scheduler is called after every step. evaluate: returns the accuracy of a model in evaluation mode, a
    share from 0 to 1, or None; called at ends of epochs, on worker 0. epochs, batch_size: values without a service; a
    job of a service has its own. on_nonfinite: effect of a loss or weights that are NaN or infinite; fail ends the job,
    warn prints a line and continues. Code after the session runs only without a service, because a job's processes end
    with its last step.

    Raises JobError for a loop that breaks the rules of `Session`, for an optimizer with parameters that are not the
    model's, and for a second session of a script.
    """
    if on_nonfinite not in get_args(OnNonfinite):
        raise JobError(f"elastic.session: on_nonfinite is {on_nonfinite!r}, expected fail or warn")
    known = set(model.parameters())
    if any(one not in known for group in optimizer.param_groups for one in group["params"]):
        raise JobError(
            "elastic.session: the optimizer has parameters that are not the model's, which would be neither averaged "
            "over workers nor kept in checkpoints: put all that is trained into one module"
        )
    made = Session(model, optimizer, data_size, scheduler, evaluate, on_nonfinite)
    here = getcurrent()
    if isinstance(here, ScriptLoop):
        here.enter(made)
    else:
        trainer = greenlet(_train)
        made.begin(trainer, trainer.switch(made, here, epochs, batch_size))
    yield made
    if isinstance(here, ScriptLoop) and made.unfinished:
        raise JobError("the script left its loop before its job did: expected it to go through all of job.batches()")


def samples_of(data: Any, where: str) -> int:
    """Return the number of samples. Raises JobError for data without a length or without samples by index, such as a
    stream or a DataLoader."""
    if isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        got = type(data).__name__
        raise JobError(f"{where}: expected a dataset with a length and with samples by index, got {got}")
    return len(data)


def _train(made: Session, loop: greenlet, epochs: float, batch_size: int) -> None:
    """Train to the end in this process, printing a line per epoch."""
    from rlpto.ray_cluster.messages import JobSpec
    from rlpto.ray_cluster.worker.training import Trainer

    name = "script"
    spec = JobSpec(
        id=name,
        name=name,
        session=name,
        training="this script",
        folder="",
        batch_size=batch_size,
        epochs=epochs,
        data_size=made.data_size,
    )
    trainer = Trainer(spec, LoopProgram(made, loop))
    steps = math.ceil(made.data_size / batch_size)
    while not trainer.finished:
        chunk = trainer.run(trainer.position.step + steps)
        accuracy = "" if math.isnan(chunk.accuracy) else f", accuracy {chunk.accuracy:.4g}"
        print(f"epoch {trainer.epochs_done:.6g} of {epochs:g}: loss {chunk.loss:.4g}{accuracy}", flush=True)
