"""Tests of remaining work that is learnt from finished jobs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.jobs import JOB
from rlpto.knowledge.history import NO_HISTORY
from rlpto.knowledge.remaining import learnt_epochs

FINISHED = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 8), st.booleans()), max_size=12)


@given(FINISHED, st.integers(0, 2), st.integers(0, 2), st.floats(0.0, 9.0), st.floats(0.0, 9.0))
def test_the_mean_stays_between_the_epochs_that_are_returned_with_it(
    others: list[tuple[int, int, int, bool]], job_type: int, user: int, progress: float, later: float
) -> None:
    jobs = np.zeros(len(others) + 1, dtype=JOB)
    jobs["finish_time"] = np.nan
    for row, (other_type, other_user, epochs, finished) in zip(jobs, others, strict=False):
        row["type_index"], row["user"], row["progress"] = other_type, other_user, epochs
        row["finish_time"] = 60.0 if finished else np.nan
    jobs[-1]["type_index"], jobs[-1]["user"], jobs[-1]["progress"] = job_type, user, progress

    mean, low, high = learnt_epochs(jobs, np.arange(3), NO_HISTORY, 0, jobs[-1])
    longer = [
        (epochs, whose) for what, whose, epochs, ended in others if ended and what == job_type and epochs > progress
    ]
    own = [epochs for epochs, whose in longer if whose == user]
    of = own or [epochs for epochs, _ in longer]
    np.testing.assert_allclose(mean, np.mean(of) if of else np.nan)

    assert low <= progress < high
    jobs[-1]["progress"] = later
    if low <= later < high:
        np.testing.assert_equal(learnt_epochs(jobs, np.arange(3), NO_HISTORY, 0, jobs[-1]), (mean, low, high))
    elif later >= high:
        assert learnt_epochs(jobs, np.arange(3), NO_HISTORY, 0, jobs[-1])[1] >= high
