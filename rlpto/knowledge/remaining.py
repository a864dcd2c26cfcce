"""What policies believe of the work that a job has left: what it declares, what like jobs needed, or nothing."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rlpto.core.job_store import JobStore
from rlpto.io.arrays import FloatArray, IntArray

RemainingKnowledge = Literal["declared", "learnt", "unknown"]
LEAST_EPOCHS = 1.0
"""Of a job that has not trained so long, as much is taken to be left."""


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
