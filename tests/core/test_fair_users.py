"""Order between users: who has had little comes before who has had much, and nobody is forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from rlpto.core.jobs import Job
from rlpto.core.queues import QueueSettings
from rlpto.core.records import RunRecord

from ..builders import SAMPLES, linear_tables, make_cluster, played

HOUR = 3600.0


def many_and_few() -> list[Job]:
    """ann submits 60 jobs of two hours at once; bob one of half an hour every hour. 8 GPUs, one for each job."""
    ann = [Job(f"ann-{i}", 0.0, "m0", 72.0, SAMPLES, user="ann") for i in range(60)]
    bob = [Job(f"bob-{i}", 600.0 + i * HOUR, "m0", 18.0, SAMPLES, user="bob") for i in range(12)]
    return sorted([*ann, *bob], key=lambda job: job.submit_time)


def served(inside: str) -> RunRecord:
    cluster = make_cluster(many_and_few(), linear_tables(), interval=300.0, decide_on="events")
    queue = QueueSettings.model_validate({"inside": inside, "aging_normal": 1e9, "aging_low": 1e9})
    return played(cluster, "fifo", queue)


def mean_wait(record: RunRecord, user: str) -> float:
    """Hours from submission to the first GPU."""
    own = np.array([name.startswith(user) for name in record.jobs.names])
    return float((record.jobs.start_time - record.jobs.submit_time)[own].mean()) / HOUR


def test_who_asks_for_little_waits_less_and_the_other_hardly_more() -> None:
    first_come, fair = served("fifo"), served("fair_users")
    assert np.isfinite(fair.jobs.finish_time).all()
    assert mean_wait(first_come, "bob") > 6.0
    assert mean_wait(fair, "bob") < 1.5
    assert mean_wait(fair, "ann") == pytest.approx(mean_wait(first_come, "ann"), rel=0.15)
    ends = first_come.jobs.finish_time.max(), fair.jobs.finish_time.max()
    assert ends[1] == pytest.approx(ends[0], rel=0.1), "no GPU is left idle for it"


def test_a_class_comes_before_fairness() -> None:
    jobs = [
        *(Job(f"ann-{i}", 0.0, "m0", 50.0, SAMPLES, priority=0, user="ann") for i in range(20)),
        Job("bob-0", 1.0, "m0", 5.0, SAMPLES, priority=1, user="bob"),
    ]
    cluster = make_cluster(jobs, linear_tables(), decide_on="events")
    queue = QueueSettings(inside="fair_users", aging_normal=1e9)
    record = played(cluster, "fifo", queue)
    assert record.jobs.start_time[-1] >= record.jobs.start_time[:-1].max()
