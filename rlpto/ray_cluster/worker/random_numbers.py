"""Random numbers of a training step that do not depend on how many workers share it: those of dropout, say.

All workers of a step seed their generators alike. Whatever one of them draws for its own samples, it draws for the
whole batch, and keeps its rows: it gets what one process that trains the whole batch would have drawn for them. That
holds for tensors that torch draws with the samples along the first dimension (one or several entries for each), while
the batch is made and in the forward pass. It does not hold for dropout inside torch's LSTM and GRU (samples come
second there), for fused attention with dropout on GPUs, and where a backward pass draws again (activation
checkpointing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def step_seed(seed: int, step: int) -> int:
    """Seed of the random numbers of one step: well mixed, and the same whenever and wherever the step is repeated."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> np.uint64(1))


class DrawForWholeBatch(TorchDispatchMode):
    """While it is active, random numbers are drawn for all `samples` of a batch, and those of worker `rank` of `world`
    are kept: every `world`-th, as `sampling.shard` deals samples out. A worker without a sample is given the first."""

    def __init__(self, rank: int, world: int, samples: int) -> None:
        super().__init__()
        self._samples = samples
        self._rows = slice(rank, samples, world) if rank < samples else slice(0, 1)
        self._own = len(range(samples)[self._rows])

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation as it is, unless it draws for the samples of this worker."""
        named = kwargs or {}
        if not _draws(func) or not any(map(self._entries, args)):
            return func(*args, **named)
        drawn = func(*map(self._for_all, args), **named)
        if func._schema.is_mutable:
            return args[0].copy_(self._own_part(drawn))
        return self._own_part(drawn) if isinstance(drawn, Tensor) else tuple(map(self._own_part, drawn))

    def _entries(self, argument: Any) -> int:
        """Entries for each sample along the first dimension of a tensor, or of a shape; 0: none, or no whole number."""
        shape = argument.shape if isinstance(argument, Tensor) else argument
        first = shape[0] if isinstance(shape, list | tuple) and len(shape) else 0
        return first // self._own if isinstance(first, int) and first % self._own == 0 else 0

    def _for_all(self, argument: Any) -> Any:
        """An argument as it would be for the whole batch; what stands there for samples of others has no effect."""
        entries = self._entries(argument)
        if not entries:
            return argument
        if not isinstance(argument, Tensor):
            return [entries * self._samples, *argument[1:]]
        whole = argument.new_zeros(self._samples, entries, *argument.shape[1:])
        whole[self._rows] = argument.unflatten(0, (self._own, entries))
        return whole.flatten(0, 1)

    def _own_part(self, whole: Tensor) -> Tensor:
        """This worker's part of what was drawn for the whole batch."""
        return whole.unflatten(0, (self._samples, -1))[self._rows].flatten(0, 1).contiguous()


@cache
def _draws(operation: Any) -> bool:
    """True for operations of torch that draw random numbers, but for fused attention."""
    return torch.Tag.nondeterministic_seeded in operation.tags and "attention" not in operation.name()
