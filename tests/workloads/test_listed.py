"""Workloads that are written down job by job."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rlpto.core.stopping import StopRule
from rlpto.io.errors import JobError
from rlpto.performance.efficiency import BatchLimits
from rlpto.performance.profiles import ModelLimits
from rlpto.workloads.listed import ListedJob, listed_jobs, listed_trace


def facts(model: str) -> ModelLimits:  # noqa: ARG001
    return ModelLimits(1000.0, 7, BatchLimits(32, 64, 1, 64), 3.0)


class TestListed:
    def test_what_is_not_said_is_that_of_the_model(self) -> None:
        (job,) = listed_jobs([ListedJob(model="m", gpus=2)], facts, 4)
        assert (job.name, job.epochs, job.data_size, job.priority, job.max_gpus) == ("m-0", 7.0, 1000.0, 1, 2)

    def test_several_alike_come_one_after_the_other(self) -> None:
        jobs = listed_jobs([ListedJob(model="m", name="a", count=3, every=10, submit=5)], facts, 4)
        assert [(job.name, job.submit_time) for job in jobs] == [("a", 5.0), ("a-1", 15.0), ("a-2", 25.0)]

    def test_jobs_are_sorted_by_their_submission_and_so_is_their_trace(self) -> None:
        jobs = listed_jobs([ListedJob(model="m", submit=9), ListedJob(model="m", submit=3, priority="high")], facts, 4)
        trace = listed_trace(jobs)
        assert trace.submit_time.tolist() == [3.0, 9.0]
        assert trace.priority.tolist() == [0, 1]

    def test_a_metric_is_the_jobs_own_or_the_usual_one(self) -> None:
        entries = [ListedJob(model="m"), ListedJob(model="m", metric="efficiency", submit=1)]
        jobs = listed_jobs(entries, facts, 4, "throughput")
        assert [job.metric for job in jobs] == listed_trace(jobs).texts("metric") == ["throughput", "efficiency"]
        assert listed_jobs(entries, facts, 4)[0].metric == "goodput"
        with pytest.raises(ValidationError, match="'goodput', 'throughput' or 'efficiency'"):
            ListedJob.model_validate({"model": "m", "metric": "speed"})

    def test_a_job_may_stop_early(self) -> None:
        entries = [ListedJob(model="m"), ListedJob.model_validate({"model": "m", "submit": 1, "stop": {"after": 0.5}})]
        jobs = listed_jobs(entries, facts, 4)
        assert [job.stop for job in jobs] == [None, StopRule(gain=0.001, over=0.05, after=0.5)]
        assert listed_trace(jobs).texts("stop") == ["", "0.001/0.05/0.5"]

    def test_two_jobs_of_one_name_are_refused(self) -> None:
        with pytest.raises(JobError, match="two jobs are called a, expected a name of its own"):
            listed_jobs([ListedJob(model="m", name="a"), ListedJob(model="m", name="a")], facts, 4)

    def test_a_job_that_wants_more_than_there_is_is_refused(self) -> None:
        with pytest.raises(JobError, match="job m-0 wants 8 GPUs, but the cluster has 4 in all"):
            listed_jobs([ListedJob(model="m", gpus=8)], facts, 4)

    def test_limits_must_fit(self) -> None:
        with pytest.raises(ValidationError, match="min_gpus <= gpus <= max_gpus"):
            ListedJob(model="m", gpus=2, max_gpus=1)
