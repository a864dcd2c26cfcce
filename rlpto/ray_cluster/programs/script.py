"""Training loops of users' own scripts as training programs: each step of a job is one turn of the script's loop.

Script and trainer are two coroutines of one thread (greenlets): torch's modes, which belong to a thread, hold for both.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from greenlet import greenlet
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import default_collate

from rlpto.io.errors import JobError
from rlpto.ray_cluster.programs.base import Batch, TrainingProgram

MakeScheduler = Callable[[Optimizer, int], LRScheduler]


class Samples(Protocol):
    """Data that are found by index."""

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Turn:
    """What a turn of the loop works on. model: what the loss calls. rows: [n] int64, samples of this worker."""

    model: nn.Module
    rows: Tensor
    epoch: int
    rank: int


class Session:
    """One training by a loop of the user's own, see `rlpto.elastic.session`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        data_size: int,
        scheduler: MakeScheduler | None,
        evaluate: Callable[[nn.Module], float] | None,
    ) -> None:
        self.bare, self.optimizer, self.data_size = model, optimizer, data_size
        self.make_scheduler, self.evaluate = scheduler, evaluate
        self._trainer: greenlet | None = None
        self._turn: Turn | None = None
        self._uses_model = False

    def begin(self, trainer: greenlet, first: Turn | None) -> None:
        """The trainer has been started, and wants the loss of the first turn."""
        self._trainer, self._turn = trainer, first

    @property
    def model(self) -> nn.Module:
        """The model to call in this turn: with several workers it averages gradients, and changes as they change."""
        self._uses_model = True
        return self._present().model

    @property
    def epoch(self) -> int:
        """Passes over the data before this turn."""
        return self._present().epoch

    @property
    def rank(self) -> int:
        """Number of this worker, from 0; only the output of worker 0 is kept."""
        return self._present().rank

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.bare.parameters()).device

    def batches(
        self, data: Samples | None = None, collate: Callable[[list[Any]], Any] = default_collate
    ) -> Iterator[Any]:
        """This worker's part of the batch of every step until the job has all its epochs.

        data: gives samples by index, which `collate` puts together; None: the batches are the indices, [n] int64 on
        the CPU. Tensors come on the model's device. Raises JobError for a turn without `step`.
        """
        while self._turn is not None:
            turn, self._uses_model = self._turn, False
            rows = turn.rows.cpu()
            yield rows if data is None else self._placed(collate([data[row] for row in rows.tolist()]))
            if self._turn is turn:
                raise JobError("a turn of the loop ended without job.step(loss): expected one call in every turn")

    def step(self, loss: Tensor) -> None:
        """End this turn: gradients of the mean loss over the batch (a scalar), averaged over workers, and the update.

        Raises JobError for a second call in one turn, for a loss that is no scalar with gradients, and if `model` was
        not asked for since the turn began.
        """
        self._present()
        if not (isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad):
            raise JobError(f"job.step: expected the mean loss of the batch, a scalar with gradients, got {loss!r}")
        if not self._uses_model:
            raise JobError("job.step: the loss has to come from job.model, asked for in every turn of the loop")
        assert self._trainer is not None
        self._turn, self._uses_model = None, False
        self._turn = self._trainer.switch(loss)

    def _present(self) -> Turn:
        if self._turn is None or self._trainer is None:
            raise JobError("expected to be inside `for batch in job.batches(...)`, before job.step(loss)")
        return self._turn

    def _placed(self, part: Any) -> Any:
        """Tensors within tuples, lists and mappings, on the model's device, with as many digits as the model."""
        if isinstance(part, Tensor):
            like = next(self.bare.parameters())
            return part.to(like.device, like.dtype) if part.is_floating_point() else part.to(like.device)
        if isinstance(part, Mapping):
            return {key: self._placed(value) for key, value in part.items()}
        if isinstance(part, list | tuple):
            placed = [self._placed(value) for value in part]
            return type(part)(*placed) if hasattr(part, "_fields") else type(part)(placed)
        return part


class LoopProgram(TrainingProgram):
    """The program of a session. loop: the greenlet in which its loop runs."""

    trains_all = True

    def __init__(self, session: Session, loop: greenlet) -> None:
        self._session, self._loop = session, loop
        self.data_size = session.data_size

    def model(self) -> nn.Module:
        """That of the session."""
        return self._session.bare

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """That of the session. Raises JobError for parameters of another model, as parameter servers have them."""
        if {id(one) for one in parameters} != {id(one) for one in self._session.bare.parameters()}:
            raise JobError("a training loop of a script cannot use parameter servers: expected all_reduce")
        return self._session.optimizer

    def scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        """That of the session, made now that the number of steps is known."""
        make = self._session.make_scheduler
        return None if make is None else make(optimizer, steps)

    def batch(self, indices: Tensor) -> Batch:
        """The indices themselves: the loop looks the samples up."""
        return (indices,)

    @property
    def can_go_on(self) -> bool:  # type: ignore[override]
        """False once the loop has ended."""
        return not self._loop.dead

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Let the loop make a turn. Raises JobError if it has ended."""
        loss = None if self._loop.dead else self._loop.switch(Turn(model, batch[0], self.epoch, self.rank))
        if not isinstance(loss, Tensor):
            raise JobError("the script ended before its job did: expected its loop over job.batches() to go on")
        return loss

    def validation(self) -> Sequence[Batch]:
        """One batch that stands for all that the session evaluates, or none."""
        return [] if self._session.evaluate is None else [(torch.zeros(1),)]

    def accuracy(self, model: nn.Module, batch: Batch) -> Tensor:  # noqa: ARG002
        """What the session says. Raises JobError for what is no share."""
        assert self._session.evaluate is not None
        share = float(self._session.evaluate(model))
        if not 0 <= share <= 1:
            raise JobError(f"evaluate: expected a share from 0 to 1, got {share:g}")
        return torch.tensor(share)


class ScriptLoop(greenlet):
    """Runs a script for the greenlet that made it, the trainer's."""

    entered = False

    def enter(self, session: Session) -> None:
        """Hand the script's session over, and wait for the first turn. Raises JobError for a second session."""
        if self.entered:
            raise JobError("a script has one elastic.session, and this is its second")
        self.entered = True
        trainer = self.parent
        assert trainer is not None
        session.begin(trainer, trainer.switch(session))


class Script(LoopProgram):
    """A user's script, which trains by a loop over `rlpto.elastic.session`.

    source: its text. name: what it is called in tracebacks. arguments: of its command line.
    """

    def __init__(self, source: str, name: str = "script.py", arguments: Sequence[str] = ()) -> None:
        self._source, self._name, self._arguments = source, name, list(arguments)
        loop = ScriptLoop(self._run)
        session = loop.switch()
        if not isinstance(session, Session):
            raise JobError(f"{name} ended without entering an elastic.session")
        super().__init__(session, loop)

    def _run(self) -> None:
        """Run the script as Python's command does. Raises JobError for a syntax error, and if it exits."""
        linecache.cache[self._name] = (len(self._source), None, self._source.splitlines(True), self._name)
        try:
            code = compile(self._source, self._name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as wrong:
            raise JobError(f"{self._name}: not Python: {wrong}") from None
        sys.argv = [self._name, *self._arguments]
        try:
            exec(code, {"__name__": "__main__", "__file__": self._name})
        except SystemExit as ended:
            raise JobError(f"{self._name} exited with {ended.code}") from None
