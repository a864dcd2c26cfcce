"""Training loops of users' own scripts as training programs: each step of a job is one turn of the script's loop.

Script and trainer are two coroutines (greenlets) of one thread, because torch's modes belong to a thread and must hold
for both.
"""

from __future__ import annotations

import linecache
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from weakref import WeakSet

import torch
from greenlet import greenlet
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, IterableDataset, default_collate

from rlpto.io.errors import JobError
from rlpto.ray_cluster.programs.base import Batch, TrainingProgram
from rlpto.store.code_files import unpack, write_files
from rlpto.store.program_keys import OnNonfinite
from rlpto.store.scripts import compiled

MakeScheduler = Callable[[Optimizer, int], LRScheduler]


class Samples(Protocol):
    """Dataset whose samples are accessed by index."""

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Turn:
    """Input of one turn of the loop. model: model that the loss calls. rows: samples of this worker [n] int64."""

    model: nn.Module
    rows: Tensor
    epoch: int
    rank: int
    steps_done: int


@dataclass(eq=False)
class Session:
    """One training by a user's own loop (`rlpto.elastic.session`). bare: the model as the user made it."""

    bare: nn.Module
    optimizer: Optimizer
    data_size: int
    make_scheduler: MakeScheduler | None
    evaluate: Callable[[nn.Module], float | None] | None
    on_nonfinite: OnNonfinite = "fail"
    _trainer: greenlet | None = None
    _turn: Turn | None = None
    _dealt: Turn | None = None
    _calls_model: bool = False
    _watched: WeakSet[nn.Module] = field(default_factory=WeakSet)

    def begin(self, trainer: greenlet, first: Turn | None) -> None:
        """Start with the first turn, of which the trainer, now running, needs the loss."""
        self._trainer, self._turn = trainer, first

    @property
    def unfinished(self) -> bool:
        """Whether any turns remain."""
        return self._turn is not None

    @property
    def model(self) -> nn.Module:
        """The model to call in this turn. With several workers it averages gradients, and it changes when they
        change."""
        model = self._present().model
        if model not in self._watched:
            self._watched.add(model)
            model.register_forward_pre_hook(self._note_call)
        return model

    def _note_call(self, *_: Any) -> None:
        self._calls_model = True

    @property
    def epoch(self) -> int:
        """Passes over the data before this turn."""
        return self._latest().epoch

    @property
    def rank(self) -> int:
        """Number of this worker, from 0. The log has the output of all workers."""
        return self._latest().rank

    @property
    def steps_done(self) -> int:
        """Steps of the job before this turn, the same on all workers."""
        return self._latest().steps_done

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.bare.parameters()).device

    def batches(
        self, data: Samples | DataLoader[Any] | None = None, collate: Callable[[list[Any]], Any] = default_collate
    ) -> Iterator[Any]:
        """Yield this worker's part of each step's batch until the job has all its epochs.

        data: a dataset accessed by index, whose samples `collate` combines, or a DataLoader, whose dataset and
        `collate_fn` are used. Default: the batches are the indices, [n] int64 on the CPU. Tensors are moved to the
        model's device. Raises JobError for data without indices, and for a turn without `step`.
        """
        if isinstance(data, DataLoader):
            collate, data = data.collate_fn, data.dataset
        if isinstance(data, IterableDataset) or (data is not None and not hasattr(data, "__getitem__")):
            raise JobError(f"job.batches: expected data that give samples by index, got {type(data).__name__}")
        while self._turn is not None:
            turn = self._dealt = self._turn
            self._calls_model = False
            rows = turn.rows.cpu()
            yield rows if data is None else self._placed(collate([data[row] for row in rows.tolist()]))
            if self._turn is turn:
                raise JobError("a turn of the loop ended without job.step(loss): expected one call in every turn")

    def step(self, loss: Tensor) -> None:
        """End this turn: compute gradients of the batch's mean loss (a scalar), average them over workers, and update
        the weights.

        Raises JobError for a second call in one turn, for a loss that is no scalar with gradients, if `job.model` was
        not called in the turn, and where the script has computed gradients itself.
        """
        self._present()
        if not (isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad):
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise JobError(f"job.step: expected the mean loss of the batch, a scalar with gradients, got {got}")
        if not self._calls_model:
            raise JobError("job.step: expected a loss of job.model(...), called in every turn; not of the model itself")
        if any(one.grad is not None for one in self.bare.parameters()):
            raise JobError("job.step computes gradients and updates: leave out loss.backward() and optimizer.step()")
        assert self._trainer is not None
        self._turn = None
        self._turn = self._trainer.switch(loss)

    def _present(self) -> Turn:
        if self._turn is None or self._turn is not self._dealt:
            raise JobError("expected to be inside `for batch in job.batches(...)`, before its only job.step(loss)")
        return self._turn

    def _latest(self) -> Turn:
        if self._dealt is None:
            raise JobError("expected to be inside `for batch in job.batches(...)`")
        return self._dealt

    def _placed(self, part: Any) -> Any:
        """Move tensors within tuples, lists and mappings to the model's device, and floats to its precision."""
        if isinstance(part, Tensor):
            like = next(self.bare.parameters())
            return part.to(like.device, like.dtype) if part.is_floating_point() else part.to(like.device)
        if isinstance(part, Mapping) and hasattr(part, "to"):  # such as transformers.BatchEncoding
            return part.to(self.device)
        if isinstance(part, Mapping):
            return {key: self._placed(value) for key, value in part.items()}
        if isinstance(part, list | tuple):
            placed = [self._placed(value) for value in part]
            return type(part)(*placed) if hasattr(part, "_fields") else type(part)(placed)
        return part


class LoopProgram(TrainingProgram):
    """The training program of a session. loop: greenlet that runs the script's loop."""

    trains_all = True
    _name = ""

    def __init__(self, session: Session, loop: greenlet) -> None:
        self._session, self._loop = session, loop
        self.data_size, self.on_nonfinite = session.data_size, session.on_nonfinite

    def model(self) -> nn.Module:
        """The session's model."""
        return self._session.bare

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """The session's optimizer. Raises JobError for parameters of another model, which parameter servers would
        pass."""
        if {id(one) for one in parameters} != {id(one) for one in self._session.bare.parameters()}:
            raise JobError("a training loop of a script cannot use parameter servers: expected all_reduce")
        return self._session.optimizer

    def scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        """The session's scheduler, made when the number of steps is known."""
        make = self._session.make_scheduler
        return None if make is None else make(optimizer, steps)

    def batch(self, indices: Tensor) -> Batch:
        """The indices themselves; the loop looks the samples up."""
        return (indices,)

    @property
    def can_go_on(self) -> bool:  # type: ignore[override]
        """False once the loop has ended."""
        return not self._loop.dead

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Let the loop run one turn. Raises JobError if it has ended."""
        try:
            turn = Turn(model, batch[0], self.epoch, self.rank, self.steps_done)
            loss = None if self._loop.dead else self._loop.switch(turn)
        except JobError as error:
            raise JobError(f"{error}{line_of(error, self._name)}") from error
        if not isinstance(loss, Tensor):
            raise JobError("the script ended before its job did: expected its loop over job.batches() to go on")
        return loss

    def validation(self) -> Sequence[Batch]:
        """One placeholder batch if the session evaluates, else none."""
        return [] if self._session.evaluate is None else [(torch.zeros(1),)]

    def accuracy(self, model: nn.Module, batch: Batch) -> Tensor:  # noqa: ARG002
        """The result of the session's `evaluate`, with NaN for None. Raises JobError if it is not in [0, 1]."""
        assert self._session.evaluate is not None
        found = self._session.evaluate(model)
        if found is None:
            return torch.tensor(math.nan)
        share = float(found)
        if not 0 <= share <= 1:
            raise JobError(f"evaluate: expected a share from 0 to 1, got {share:g}")
        return torch.tensor(share)


def line_of(error: BaseException, name: str) -> str:
    """Line of file `name` at which an exception was raised or passed through; empty if there is none."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == name]
    return f" ({name}, line {lines[-1]})" if lines and name else ""


class ScriptLoop(greenlet):
    """Runs a script on behalf of the trainer's greenlet, which created it."""

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

    source: text of the script. name: its name in tracebacks. arguments: arguments of its command line. files:
    accompanying files, packed by `rlpto.store.code_files`. folder: folder to which script and files are written; it
    becomes the working directory and the first place to look up modules. Default: nothing is written.
    """

    def __init__(
        self, source: str, name: str = "script.py", arguments: Sequence[str] = (), files: str = "", folder: str = ""
    ) -> None:
        self._source, self._name, self._arguments = source, name, list(arguments)
        self._file = os.path.join(folder, name)
        if folder:
            write_files(Path(folder), {**(unpack(files) if files else {}), name: source.encode()})
            os.chdir(folder)
            sys.path.insert(0, folder)
        loop = ScriptLoop(self._run)
        try:
            session = loop.switch()
        except JobError as error:
            raise JobError(f"{error}{line_of(error, name)}") from error
        if not isinstance(session, Session):
            raise JobError(f"{name} ended without entering an elastic.session")
        super().__init__(session, loop)

    def _run(self) -> None:
        """Run the script as module `__main__`, like the `python` command. Raises JobError for a syntax error, and if
        the script exits."""
        linecache.cache[self._name] = (len(self._source), None, self._source.splitlines(True), self._name)
        code = compiled(self._source, self._name, JobError)
        module = ModuleType("__main__")
        module.__file__ = self._file
        sys.modules["__main__"] = module  # pickles look up classes and functions of the script there
        sys.argv = [self._name, *self._arguments]
        try:
            exec(code, module.__dict__)
        except SystemExit as ended:
            raise JobError(f"{self._name} exited with {ended.code or 0}").with_traceback(ended.__traceback__) from None
        except KeyboardInterrupt as ended:
            raise JobError(f"{self._name} was interrupted").with_traceback(ended.__traceback__) from None
