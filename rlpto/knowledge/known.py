"""What is known of jobs: the truth, estimates with errors, or what jobs observe; and how much work they have left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlpto.core.job_store import JobStore
from rlpto.core.jobs import EstimateNoise
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.performance.efficiency import BatchPerformance
from rlpto.performance.profiles import BatchPerformanceSource
from rlpto.performance.tables import JobType

RemainingKnowledge = Literal["declared", "learnt", "unknown"]
LEAST_EPOCHS = 1.0
"""Epochs that are believed to be left, at least, of a job of unknown length."""


class BatchCache:
    """Performance of batches, kept: a placement comes back often, in every run of an experiment."""

    def __init__(self, source: BatchPerformanceSource) -> None:
        self.source = source
        self._known: dict[tuple[JobType, tuple[int, ...], str], BatchPerformance] = {}

    def __call__(self, job_type: JobType, placement: tuple[int, ...], gpu: str) -> BatchPerformance:
        """See `BatchPerformanceSource.batch_performance`."""
        key = (job_type, placement, gpu)
        if key not in self._known:
            self._known[key] = self.source.batch_performance(job_type, placement, gpu)
        return self._known[key]


@dataclass(frozen=True)
class Knowledge:
    """What policies know, and what jobs know of themselves; without arguments the truth.

    noise: errors of what policies believe, or None. remaining: what they believe of remaining work, see
    `believed_remaining`. beliefs: true speeds that jobs choose from, where they know only what they observe, as
    policies do; None: all know the truth. shared_fits: with beliefs, jobs of a type share them.
    """

    noise: EstimateNoise | None = None
    remaining: RemainingKnowledge = "declared"
    beliefs: BatchCache | None = None
    shared_fits: bool = False


TRUTH = Knowledge()
"""Everything is known as it is."""


def believed_remaining(knowledge: RemainingKnowledge, store: JobStore, own: IntArray, index: IntArray) -> FloatArray:
    """[n] epochs that jobs number `index` [n] of the store are believed to have left.

    declared: the truth. unknown: as much again as they have done, which is what a heavy tail suggests. learnt: up to
    the mean length of finished jobs of the same type that were longer than what the job has done, else as if unknown;
    of a job that stopped early, what it trained until then.
    own: [T] as in the speed tables: batch sizes, servers and kinds of GPU that were chosen make no other type of a job.
    """
    progress = store.progress[index]
    if knowledge == "declared":
        return store.epochs[index] - progress
    left = np.maximum(progress, LEAST_EPOCHS)
    if knowledge == "learnt":
        finished, types = np.isfinite(store.finish_time), own[store.type_index]
        lengths, kinds = store.progress[finished], types[finished]
        for at, job in enumerate(index.tolist()):
            longer = lengths[(kinds == types[job]) & (lengths > progress[at])]
            if len(longer):
                left[at] = longer.mean() - progress[at]
    return left
