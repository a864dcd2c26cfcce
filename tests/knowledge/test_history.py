"""Tests of lengths learnt from jobs that had finished before a window."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.jobs import JOB, FinishedJob, user_code
from rlpto.io.arrays import AnyArray
from rlpto.knowledge.history import NO_HISTORY, compile_history, longer_jobs
from rlpto.knowledge.remaining import OF_ALL, learnt_epochs
from rlpto.performance.tables import JobType

from ..builders import random_tables

TABLES = random_tables(2, 4, 20.0)
OTHER = JobType("a model without a table")
USERS = st.sampled_from(["ann", "bob", ""])
PAST = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), USERS, st.integers(1, 6)), max_size=20)


def running(*jobs: tuple[int, str, float]) -> AnyArray:
    """Jobs by type, user and epochs done, of which the last one has not finished."""
    found = np.zeros(len(jobs), dtype=JOB)
    for row, (job_type, user, epochs) in zip(found, jobs, strict=True):
        row["type_index"], row["user"], row["progress"] = job_type, user_code(user), epochs
    found["finish_time"][-1] = np.nan
    return found


@given(PAST, st.integers(0, 3), st.integers(0, 1), USERS, st.floats(0.0, 7.0), st.floats(0.0, 7.0))
def test_the_history_of_a_window_is_that_of_its_model_and_user(
    past: list[tuple[int, int, str, int]], window: int, job_type: int, user: str, progress: float, later: float
) -> None:
    types = (*TABLES.types[:2], OTHER)
    windows = [[FinishedJob(types[t], whose, epochs) for at, t, whose, epochs in past if at == w] for w in range(3)]
    history = compile_history(windows, TABLES)
    alike = [(whose, n) for at, t, whose, n in past if (at, t) == (window, job_type) and n > progress]
    own = [epochs for whose, epochs in alike if whose == user]
    for by_user, lengths in ((0, [epochs for _, epochs in alike]), (1, own)):
        of = window, job_type, by_user, user_code(user) if by_user else 0
        count, epochs, low, high = longer_jobs(history, *of, progress)
        np.testing.assert_allclose((count, epochs), (len(lengths), sum(lengths)))
        assert low <= progress < high
        if low <= later < high:
            assert longer_jobs(history, *of, later) == (count, epochs, low, high)

    job = running((job_type, user, progress))
    mean = learnt_epochs(job, TABLES.pooled, history, window, job[0])[0]
    of_all = np.mean([epochs for _, epochs in alike]) if alike else np.nan
    np.testing.assert_allclose(mean, (sum(own) + OF_ALL * of_all) / (len(own) + OF_ALL) if own else of_all)


def test_finished_jobs_of_a_window_and_those_before_it_count_alike() -> None:
    jobs = running((0, "ann", 8.0), (0, "ann", 4.0), (0, "bob", 30.0), (0, "ann", 2.0))
    history = compile_history([[FinishedJob(TABLES.types[0], "ann", 12.0)]], TABLES)
    alone = learnt_epochs(jobs, np.arange(1), NO_HISTORY, 0, jobs[-1])
    assert alone == (6.0, -np.inf, 4.0)
    both, low, high = learnt_epochs(jobs, np.arange(1), history, 0, jobs[-1])
    assert both == (8.0 + 4.0 + 12.0 + OF_ALL * (54.0 / 4)) / (3 + OF_ALL)
    assert (low, high) == (-np.inf, 4.0)
