"""What is told of the work that is left."""

from __future__ import annotations

import numpy as np

from rlpto.core.job_store import JobStore
from rlpto.knowledge.known import believed_remaining

from ..builders import job, linear_tables, with_batch_sizes


def test_jobs_whose_batch_size_was_chosen_are_learnt_from() -> None:
    tables = with_batch_sizes(linear_tables(), {100: 0.9})
    store = JobStore.from_jobs([job(0, epochs=7.0), job(1, epochs=3.0)], tables)
    store.finish_time[0], store.progress[0], store.type_index[0] = 50.0, 7.0, 1
    assert believed_remaining("learnt", store, tables.own, np.array([1])).tolist() == [7.0]
    assert believed_remaining("unknown", store, tables.own, np.array([1])).tolist() == [1.0]
    assert believed_remaining("declared", store, tables.own, np.array([1])).tolist() == [3.0]
