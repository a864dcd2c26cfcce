"""Jobs that nobody schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from rlpto.errors import JobError
from rlpto.ray_cluster.measuring.job_mover import MovedJobs


@dataclass
class Failing:
    """A job that has failed. starting: its controller may not be there yet."""

    starting: bool

    def report(self) -> None:
        raise JobError("some.module:Program fails")


def test_a_job_that_fails_while_others_train_is_noticed() -> None:
    jobs: list[Any] = [Failing(starting=True)]
    crowd = MovedJobs()
    crowd.jobs = jobs
    crowd.rest(0.01)
    jobs.append(Failing(starting=False))
    with pytest.raises(JobError, match="fails"):
        crowd.rest(60.0)
