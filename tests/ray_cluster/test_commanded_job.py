"""Jobs that nobody schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from rlpto.io.errors import JobError
from rlpto.ray_cluster.measuring.commanded_job import CommandedJobs
from rlpto.ray_cluster.messages import JobReport


@dataclass
class Failing:
    """A job that has failed. generation: of its newest command; before the first its controller may not be there."""

    generation: int

    def report(self) -> JobReport:
        assert self.generation
        return JobReport("job", state="failed", failure="no such thing")

    def refuse_failure(self, report: JobReport) -> None:
        raise JobError(f"some.module:Program fails: {report.failure}")


def test_a_job_that_fails_while_others_train_is_noticed() -> None:
    jobs: list[Any] = [Failing(generation=0)]
    together = CommandedJobs()
    together.jobs = jobs
    together.rest(0.01)
    jobs.append(Failing(generation=1))
    with pytest.raises(JobError, match="fails"):
        together.rest(60.0)
