from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from rlpto.workloads.calibration import load_calibration
from rlpto.workloads.synthetic import generate
from rlpto.workloads.trace import Trace, make_trace
from rlpto.workloads.users import cluster_users


@pytest.fixture(scope="module")
def day() -> Trace:
    trace = generate(load_calibration("philly"), 14, seed=1).slice(4 * 86_400.0, 5 * 86_400.0)
    groups = np.array([f"vc{int(user[-1]) % 2}" for user in trace.texts("user")], dtype=object)
    return Trace(trace.jobs.assign(group=groups), trace.origin, trace.source)


def test_a_few_users_have_most_jobs_and_no_user_is_in_two_virtual_clusters(day: Trace) -> None:
    users = cluster_users(day, seed=0)
    counts = np.sort(np.bincount(users))[::-1]
    assert 4 < np.count_nonzero(counts) < 0.2 * len(day)
    assert counts[:3].sum() > 0.4 * len(day)
    jobs = day.jobs.assign(made=users)
    assert (jobs.groupby("made")["group"].nunique() == 1).all()
    assert (jobs.groupby("user")["made"].nunique() == 1).all()


def test_users_explain_more_than_half_but_not_all_of_how_long_jobs_take() -> None:
    rng = np.random.default_rng(0)
    durations, explained = np.exp(rng.normal(7.0, 2.0, 300)), []
    trace = make_trace({"submit_time": 100.0 * np.arange(300), "duration": durations, "gpus": np.ones(300)}, "test")
    for seed in range(5):
        log, user = pd.Series(np.log(durations)), cluster_users(trace, seed)
        size, mean = (log.groupby(user).transform(what) for what in ("size", "mean"))
        error = (log - (mean * size - log) / (size - 1))[size > 1]
        explained.append(1 - (error**2).mean() / log.var())
    assert 0.5 < np.mean(explained) < 0.8


def test_the_seed_decides_users(day: Trace) -> None:
    assert np.array_equal(cluster_users(day, 3), cluster_users(day, 3))
    assert not np.array_equal(cluster_users(day, 3), cluster_users(day, 4))
