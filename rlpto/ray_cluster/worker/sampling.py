"""The samples of a training step, independent of the number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlpto.io.arrays import IntArray


@dataclass(frozen=True)
class Position:
    """Position of a job in training. step: steps done. epoch, offset: passes over the data, and samples of the present
    one.

    progress: scale-invariant samples, that is, trained samples weighted by their efficiency relative to the job's own
    batch size. seconds, gpu_seconds: duration of the training that led here, including evaluations [s, GPU-s].
    """

    step: int = 0
    epoch: int = 0
    offset: int = 0
    progress: float = 0.0
    seconds: float = field(default=0.0, compare=False)
    gpu_seconds: float = field(default=0.0, compare=False)

    def batch(self, data_size: int, seed: int, batch_size: int) -> IntArray:
        """Samples of the step that starts here: the next `batch_size` of the epoch [n], with 1 <= n <= batch_size. The
        last batch of an epoch may be short, because every sample is used once."""
        return _order(data_size, seed, self.epoch)[self.offset : self.offset + batch_size]

    def after(self, data_size: int, samples: int, efficiency: float = 1.0) -> Position:
        """The position after a step of `samples` samples, each worth `efficiency`."""
        epoch, offset = self.epoch, self.offset + samples
        if offset >= data_size:
            epoch, offset = epoch + 1, 0
        progress = self.progress + samples * efficiency
        return replace(self, step=self.step + 1, epoch=epoch, offset=offset, progress=progress)


@lru_cache(1)
def _order(data_size: int, seed: int, epoch: int) -> IntArray:
    """Order of the samples of an epoch, drawn from (seed, epoch) alone."""
    return np.random.default_rng((seed, epoch)).permutation(data_size)


def shard(batch: IntArray, rank: int, world: int) -> IntArray:
    """The part of a global batch for worker `rank` of `world`: every `world`-th sample. It may be empty."""
    return batch[rank::world]


def step_seed(seed: int, step: int) -> int:
    """Seed of the random numbers of one step: well mixed, and identical whenever and wherever the step is repeated."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> np.uint64(1))


class DrawForWholeBatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, draw random numbers for all `samples` of a batch, and keep only the numbers of worker `rank` of
    `world`, which are every `world`-th, in the way `sampling.shard` deals samples out. A worker without a sample gets
    the first."""

    def __init__(self, rank: int, world: int, samples: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._samples = samples
        self._rows = slice(rank, samples, world) if rank < samples else slice(0, 1)
        self._own = len(range(samples)[self._rows])

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation unchanged, unless it draws for the samples of this worker."""
        named = kwargs or {}
        if not _draws(func) or not any(map(self._entries, args)):
            return func(*args, **named)
        drawn = func(*map(self._for_all, args), **named)
        if func._schema.is_mutable:
            return args[0].copy_(self._own_part(drawn))
        return self._own_part(drawn) if isinstance(drawn, Tensor) else tuple(map(self._own_part, drawn))

    def _entries(self, argument: Any) -> int:
        """Entries per sample along the first dimension of a tensor or a shape; 0 if none, or not a whole number."""
        shape = argument.shape if isinstance(argument, Tensor) else argument
        first = shape[0] if isinstance(shape, list | tuple) and len(shape) else 0
        return first // self._own if isinstance(first, int) and first % self._own == 0 else 0

    def _for_all(self, argument: Any) -> Any:
        """An argument expanded to the whole batch; its values for other workers' samples have no effect."""
        entries = self._entries(argument)
        if not entries:
            return argument
        if not isinstance(argument, Tensor):
            return [entries * self._samples, *argument[1:]]
        whole = argument.new_zeros(self._samples, entries, *argument.shape[1:])
        whole[self._rows] = argument.reshape(self._own, entries, *argument.shape[1:])
        return whole.flatten(0, 1)

    def _own_part(self, whole: Tensor) -> Tensor:
        """This worker's part of the random numbers drawn for the whole batch."""
        entries = len(whole) // self._samples
        return whole.reshape(self._samples, entries, *whole.shape[1:])[self._rows].flatten(0, 1).contiguous()


@cache
def _draws(operation: Any) -> bool:
    """True for torch operations that draw random numbers, except fused attention, and `multinomial`, which refuses rows
    of zeros for other workers' samples, and often draws from one vector for all samples."""
    name = operation.name()
    return torch.Tag.nondeterministic_seeded in operation.tags and not ("attention" in name or "multinomial" in name)
