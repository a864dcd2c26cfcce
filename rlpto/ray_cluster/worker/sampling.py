"""Which samples a training step takes: the same ones however many workers share it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlpto.io.arrays import IntArray


@dataclass(frozen=True)
class Position:
    """How far a job has come. step: steps done. epoch, offset: passes over the data, and samples of the present one.

    progress: scale-invariant samples: those trained, each counted by what it was worth beside a sample of a step of
    the job's own batch size.
    """

    step: int = 0
    epoch: int = 0
    offset: int = 0
    progress: float = 0.0


class DataOrder:
    """Order of the samples of every epoch, drawn from (seed, epoch) alone.

    The global batch of a step is the next `batch_size` samples of the epoch; the last one of an epoch may be short,
    so that every sample is used once. Worker r of k takes every k-th one of it, from the r-th on.
    """

    def __init__(self, data_size: int, seed: int) -> None:
        self.data_size = data_size
        self._seed = seed
        self._epoch = -1
        self._order: IntArray = np.empty(0, dtype=np.int64)

    def batch(self, position: Position, batch_size: int) -> IntArray:
        """Samples of the step that starts at `position`: [n] with 1 <= n <= batch_size."""
        if position.epoch != self._epoch:
            self._order = np.random.default_rng((self._seed, position.epoch)).permutation(self.data_size)
            self._epoch = position.epoch
        return self._order[position.offset : position.offset + batch_size]

    def after(self, position: Position, samples: int, efficiency: float = 1.0) -> Position:
        """Position after a step of `samples` samples, each worth `efficiency`."""
        epoch, offset = position.epoch, position.offset + samples
        if offset >= self.data_size:
            epoch, offset = epoch + 1, 0
        progress = position.progress + samples * efficiency
        return replace(position, step=position.step + 1, epoch=epoch, offset=offset, progress=progress)


def shard(batch: IntArray, rank: int, world: int) -> IntArray:
    """What worker `rank` of `world` takes of a global batch; empty where there are fewer samples than workers."""
    return batch[rank::world]
