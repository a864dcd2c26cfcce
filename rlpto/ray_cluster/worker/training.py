"""Training of one worker, step by step, without Ray. A single worker is a plain torch loop whose prints are
recorded."""

from __future__ import annotations

import io
import math
import pickle
import random
import sys
import time
from collections import Counter, OrderedDict, deque
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from rlpto.io.errors import CheckpointError, JobError
from rlpto.ray_cluster.messages import JobSpec, global_batch
from rlpto.ray_cluster.programs.base import Batch, TrainingProgram, load_program
from rlpto.ray_cluster.worker.gradient_noise import NoiseMeter
from rlpto.ray_cluster.worker.sampling import DrawForWholeBatch, Position, shard, step_seed
from rlpto.ray_cluster.worker.worker_group import SingleWorker, WorkerGroup, learning_rate_factor

MOST_LINES, LONGEST_LINE = 2000, 4000
"""Most kept lines, and most characters of a line. More lines replace the oldest; longer lines are cut."""
Lines = tuple[tuple[float, str], ...]
"""Printed lines: time (`time.time()`) and text of each."""


class PrintedLines:
    """Records the lines that Python code of this process prints, and passes them on to their former destination.

    Output of libraries that bypass Python's `sys.stdout` and `sys.stderr` is not recorded.
    """

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str]] = deque(maxlen=MOST_LINES)
        self._dropped = 0

    def install(self) -> None:
        """Start recording."""
        sys.stdout, sys.stderr = _Tee(sys.stdout, self), _Tee(sys.stderr, self)

    def add(self, line: str) -> None:
        """Record a printed line."""
        self._dropped += len(self._lines) == MOST_LINES
        self._lines.append((time.time(), line[:LONGEST_LINE]))

    def take(self) -> Lines:
        """Return the lines since the last call."""
        lines, dropped = [], self._dropped
        while self._lines:  # another thread may print meanwhile
            lines.append(self._lines.popleft())
        self._dropped = 0
        if dropped:
            lines.insert(0, (lines[0][0], f"({dropped} lines are left out)"))
        return tuple(lines)


class _Tee:
    """A text stream whose lines are recorded."""

    def __init__(self, stream: TextIO, lines: PrintedLines) -> None:
        self._stream, self._noted, self._rest = stream, lines, ""

    def write(self, text: str) -> int:
        *whole, self._rest = (self._rest + text).replace("\r\n", "\n").split("\n")
        for line in whole:
            self._noted.add(line.rpartition("\r")[2])  # the last state of a progress bar that is redrawn
        if len(self._rest) > 2 * LONGEST_LINE:
            self._rest = self._rest[-LONGEST_LINE:]
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


EVALUATION_SHARE = 0.01
"""Largest share of a worker's time that evaluations take while the job trains."""
LOOKS_PER_WINDOW = 5
"""Evaluations at ends of epochs within the window of an early-stopping rule, regardless of their cost."""


@dataclass(frozen=True)
class Chunk:
    """The work of one worker between two hand-overs.

    steps, samples: counts over all workers. batch_size: samples of a step. chosen: whether a scheduler chose the batch
    size. loss: this worker's part of the mean loss over the steps; the mean over workers is the job's. accuracy: result
    of the last evaluation, at `evaluated_at` epochs; NaN if there was none. finished: whether the job has all its
    epochs. first, ended: `time.monotonic()` of its machine after the first and after the last step. output: lines
    printed since the previous chunk.
    """

    position: Position
    steps: int
    samples: int
    batch_size: int
    chosen: bool
    loss: float
    noise_scale: float
    accuracy: float
    evaluated_at: float
    finished: bool
    first: float
    ended: float
    output: Lines = ()


class Trainer:
    """Model, optimizer, scheduler and position of one worker.

    leaves_out: whether a step of the warm-up computed no gradient for some weights. phase: "own" while the program
    computes, "shared" while gradients of several workers are combined. A worker that waits for a hanging one is in
    "shared".

    Raises JobError if the program cannot be made, or has fewer samples than the job asks for.
    """

    def __init__(self, spec: JobSpec, program: TrainingProgram | None = None) -> None:
        self.spec = spec
        random.seed(spec.seed)  # a script makes its model, and often splits its data, where it begins
        np.random.seed(spec.seed % 2**32)
        torch.manual_seed(spec.seed)
        self.program = program or load_program(spec.training, spec.options)
        has = self.program.data_size
        if self.program.trains_all and has != spec.data_size:
            raise JobError(f"job {spec.name!r}: its samples are {spec.data_size}, data_size of its session is {has}")
        if has < spec.data_size:
            raise JobError(f"job {spec.name!r}: data_size is {spec.data_size}, but {spec.training} has {has}")
        self.device = pick_device(spec)
        self.dtype = torch.float64 if spec.float64 else torch.float32
        torch.manual_seed(spec.seed)
        self.network = self.program.model().to(self.device, self.dtype)
        self.optimizer = self.program.optimizer(self.network.parameters())
        steps = math.ceil(spec.epochs * math.ceil(spec.data_size / spec.batch_size))
        self.scheduler = self.program.scheduler(self.optimizer, steps)
        self.position = Position()
        self.noise = NoiseMeter()
        self.phase = "own"
        self.group: WorkerGroup = SingleWorker(self.network, self.optimizer)
        self._batch_size: int | None = None
        self._interrupted: list[Tensor] | None = None
        self._evaluation_due = 0.0
        self._evaluated_at = 0.0
        self._deadline = 0.0
        self._pace = spec.pace
        self._draws = True
        self.leaves_out = self._warned = False

    @property
    def epochs_done(self) -> float:
        """Scale-invariant epochs done."""
        return self.position.progress / self.spec.data_size

    @property
    def finished(self) -> bool:
        """True once the job has all its epochs."""
        return self.position.progress >= self.spec.epochs * self.spec.data_size

    @property
    def global_batch(self) -> int:
        """Samples of a step, all workers together."""
        return global_batch(self.spec, self.group.world, self._batch_size)

    def join(self, group: WorkerGroup | None = None) -> None:
        """Leave the present group, and train in `group` from the next step on. Default: train alone."""
        self.group.close()
        self.group = group or SingleWorker(self.network, self.optimizer)
        self._deadline = 0.0

    def run(self, until: int, batch_size: int | None = None) -> Chunk:
        """Train until step `until` is done, or the job has finished; steps already done are not repeated.

        batch_size: samples of a step, all workers together, chosen by a scheduler. Default: the job's own choice.
        """
        self._batch_size = batch_size
        began = first = time.monotonic()
        before, samples, steps = self.position, 0, 0
        losses = torch.zeros((), device=self.device)
        accuracy = evaluated_at = math.nan
        while self.position.step < until and not self.finished:
            epoch = self.position.epoch
            loss, size = self.step()
            losses += loss
            samples += size
            steps += 1
            if steps == 1:
                first = time.monotonic()
            if self.group.rank == 0 and (self.finished or self._evaluates(epoch)):
                accuracy, evaluated_at = self.evaluate(), self.epochs_done
                self._evaluated_at = evaluated_at
        if not math.isfinite(total := float(losses)):
            self._not_finite(f"the loss is {total}")
        seconds = time.monotonic() - began
        trained = before.seconds + seconds, before.gpu_seconds + self.group.world * seconds
        self.position = replace(self.position, seconds=trained[0], gpu_seconds=trained[1])
        return Chunk(
            position=self.position,
            steps=self.position.step - before.step,
            samples=samples,
            batch_size=self.global_batch,
            chosen=self._batch_size is not None,
            loss=total / steps if steps else math.nan,
            noise_scale=self.noise.noise_scale,
            accuracy=accuracy,
            evaluated_at=evaluated_at,
            finished=self.finished,
            first=first,
            ended=time.monotonic(),
        )

    def step(self) -> tuple[Tensor, int]:
        """Train one step. Returns this worker's part of the mean loss, and the samples of all workers."""
        spec, group, began = self.spec, self.group, time.perf_counter()
        batch_size = self.global_batch
        everyone = self.position.batch(spec.data_size, spec.seed, batch_size)
        own = shard(everyone, group.rank, group.world)
        self.phase = "own"
        self._seed()
        if group.world > 1:  # the step can be interrupted, after it has changed buffers
            self._interrupted = [buffer.detach().clone() for buffer in self.network.buffers()]
        group.begin(self.position.step, len(own), len(everyone))
        self.program.epoch, self.program.rank = self.position.epoch, group.rank
        self.program.steps_done = self.position.step
        # A worker without a sample takes part too, with gradients of weight 0.
        taken = torch.from_numpy(own if len(own) else everyone[:1])
        self.optimizer.zero_grad()
        self.network.zero_grad()  # also weights that the optimizer does not have
        together = DrawForWholeBatch(group.rank, group.world, len(everyone))
        with together if self._draws and group.world > 1 else nullcontext():
            loss = self.program.loss(group.model, self._placed(self.program.batch(taken)))
        if group.weight != 1.0:
            loss = loss * group.weight
        self.phase = "shared"
        loss.backward()  # type: ignore[no-untyped-call]
        usual = min(spec.batch_size, spec.data_size)
        scale = min(batch_size, spec.data_size) / usual  # no step has more samples than there are
        gain = self.noise.gain(scale, usual)
        noise = group.update(learning_rate_factor(spec.lr_rule, scale, gain))
        self._interrupted = None
        if self.scheduler is not None:
            self.scheduler.step()
        if noise is not None:
            self.noise.add(noise)
        self.position = self.position.after(spec.data_size, len(everyone), gain / scale)
        self.phase = "own"
        self._keep_pace(began, scale)
        return loss.detach(), len(everyone)

    def evaluate(self) -> float:
        """Accuracy over all validation samples; NaN if it is not finite."""
        start = time.perf_counter()
        modes = [(module, module.training) for module in self.network.modules()]  # a frozen part may stay in eval()
        self.network.eval()
        right, samples = 0.0, 0
        with torch.no_grad():
            for batch in self.program.validation():
                right += float(self.program.accuracy(self.network, self._placed(batch))) * len(batch[0])
                samples += len(batch[0])
        for module, training in modes:
            module.training = training
        taken = time.perf_counter() - start
        self._evaluation_due = time.perf_counter() + taken / EVALUATION_SHARE
        return right / samples if samples and math.isfinite(right) else math.nan

    def state(self) -> bytes:
        """The complete training state: model, with the weights that are frozen, optimizer, scheduler, noise and
        position."""
        self.group.gather()
        written = io.BytesIO()
        held = {
            "model": self.network.state_dict(),
            "trained": [one.requires_grad for one in self.network.parameters()],
            "optimizer": _plain(self.optimizer.state_dict()),
            "scheduler": None if self.scheduler is None else _plain(self.scheduler.state_dict()),
            "noise": asdict(self.noise),
            "position": asdict(self.position),
        }
        torch.save(held, written)
        return written.getvalue()

    def load(self, state: bytes) -> None:
        """Continue from a result of `state`. Raises CheckpointError if it belongs to another program."""
        try:
            held = torch.load(io.BytesIO(state), map_location=self.device, weights_only=True)
            self.network.load_state_dict(held["model"])
            for one, trained in zip(self.network.parameters(), held.get("trained", ()), strict=False):
                one.requires_grad_(trained)  # workers that average gradients have to agree about it
            self.optimizer.load_state_dict(held["optimizer"])
            if self.scheduler is not None:
                self.scheduler.load_state_dict(held["scheduler"])
            self.noise = NoiseMeter(**held["noise"])
            self.position = Position(**held["position"])
        except torch.OutOfMemoryError:
            raise  # says nothing about the state
        except (KeyError, RuntimeError, TypeError, ValueError, EOFError, AttributeError, pickle.PickleError) as wrong:
            raise CheckpointError(f"job {self.spec.name!r}: state is not of {self.spec.training}: {wrong}") from wrong
        self._interrupted = None

    def checked_state(self) -> tuple[bytes, bool]:
        """Return `state`, and whether all trained weights are finite. Raises JobError if they are not, unless
        `on_nonfinite` is warn."""
        state = self.state()
        finite = all(bool(one.isfinite().all()) for one in self.network.parameters() if one.requires_grad)
        if not finite:
            self._not_finite("weights are NaN or infinite")
        return state, finite

    def _not_finite(self, found: str) -> None:
        """End the job, or print a warning once."""
        text = f"{found} after step {self.position.step} (epoch {self.epochs_done:.4g}): expected finite numbers"
        if "warn" not in (self.spec.on_nonfinite, self.program.on_nonfinite):
            raise JobError(f"job {self.spec.name!r}: {text}; on_nonfinite: warn would go on")
        if not self._warned:
            print(f"warning: {text}; no checkpoint with such weights is written", flush=True)
        self._warned = True

    def undo(self) -> None:
        """Undo a step interrupted before its update, by restoring the buffers that the forward pass changed."""
        if self._interrupted is not None:
            with torch.no_grad():
                for buffer, kept in zip(self.network.buffers(), self._interrupted, strict=True):
                    buffer.copy_(kept)
            self._interrupted = None

    def warm_up(self) -> tuple[float, float]:
        """Run the slow first step and evaluation, and undo their effect. Returns seconds of a warm step and
        evaluation."""
        start = self.state()
        self._pace = None
        self._seed()
        seeded = self._random_state()
        self.step()
        self._draws = not torch.equal(self._random_state(), seeded)
        self.leaves_out = any(one.requires_grad and one.grad is None for one in self.network.parameters())
        began = time.perf_counter()
        self.step()
        stepped = time.perf_counter()
        self.evaluate()
        evaluated = time.perf_counter()
        self.load(start)
        self._pace = self.spec.pace
        self._evaluation_due = 0.0
        return stepped - began, evaluated - stepped

    def _seed(self) -> None:
        seed = step_seed(self.spec.seed, self.position.step)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _random_state(self) -> Tensor:
        """State of the generators of random numbers."""
        cuda = [torch.cuda.get_rng_state()] if self.device.type == "cuda" else []
        return torch.cat([torch.default_generator.get_state(), *cuda])

    def _placed(self, batch: Batch) -> Batch:
        return tuple(
            part.to(self.device, self.dtype) if part.is_floating_point() else part.to(self.device) for part in batch
        )

    def _evaluates(self, epoch: int) -> bool:
        return self.position.epoch != epoch and (time.perf_counter() >= self._evaluation_due or self._may_stop())

    def _may_stop(self) -> bool:
        """True if an early-stopping rule needs the accuracy, from one window before the job may stop."""
        rule, declared = self.spec.stop, self.spec.epochs
        if rule is None or self.epochs_done < (rule.after - rule.over) * declared:
            return False
        return abs(self.epochs_done - self._evaluated_at) >= rule.over * declared / LOOKS_PER_WINDOW

    def _keep_pace(self, began: float, scale: float) -> None:
        """Stretch the step to its pace, which is divided among workers. At most one step of lost time is made up."""
        if self._pace is None:
            return
        due = self._pace * scale / self.group.world
        now = time.perf_counter()
        self._deadline = max((self._deadline or began) + due, now - due)
        time.sleep(max(self._deadline - now, 0.0))


def _plain(held: Any) -> Any:
    """State with Python's numbers in place of NumPy's, such as rates by `np.cos`, which `load` would refuse to read."""
    if isinstance(held, np.generic):
        return held.item()
    if type(held) in (dict, OrderedDict, Counter):
        return type(held)({_plain(key): _plain(value) for key, value in held.items()})
    return type(held)(map(_plain, held)) if type(held) in (list, tuple) else held


def pick_device(spec: JobSpec) -> torch.device:
    """Device on which the job trains. Raises JobError if it asks for CUDA and there is none."""
    visible = torch.cuda.is_available()
    if spec.device == "cuda" and not visible:
        raise JobError(f"job {spec.name!r}: device is cuda, but no CUDA device is visible to its worker")
    return torch.device("cuda", 0) if visible and spec.device != "cpu" else torch.device("cpu")
