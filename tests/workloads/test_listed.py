"""Workloads that are written down job by job."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from rlpto.core.jobs import Job
from rlpto.core.stopping import StopRule
from rlpto.io.errors import JobError, TraceError
from rlpto.performance.efficiency import BatchLimits
from rlpto.performance.profiles import ModelLimits
from rlpto.workloads.listed import FollowedFile, ListedJob, listed_jobs, listed_trace


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


def make(entry: ListedJob, number: int) -> Job:
    return Job(entry.name or f"{entry.model}-{number}", entry.submit, entry.model, entry.epochs or 1.0, 10.0)


def followed(path: Path) -> FollowedFile:
    return FollowedFile(path, make)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_jobs_are_given_once_as_soon_as_their_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.touch()
    source = followed(path)
    assert source.poll() == []
    append(path, '{"model": "a"}\n{"model": "a", "sub')
    assert [job.name for job in source.poll()] == ["a-0"]
    append(path, 'mit": 3}\n\n')
    assert [(job.name, job.submit_time) for job in source.poll()] == [("a-1", 3.0)]
    assert not source.closed
    append(path, '{"model": "b", "submit": 3, "name": "x"}\n{"closed": true}\n')
    assert [job.name for job in source.poll()] == ["x"]
    assert source.closed
    assert source.poll() == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("nonsense", r"jobs\.jsonl:2: truncated, damaged or foreign"),
        ("[1]", r"jobs\.jsonl:2: the line: "),
        ('{"modell": "a"}', r"jobs\.jsonl:2: modell: unknown key, did you mean model\?"),
        ('{"model": "a", "gpus": 0}', r"jobs\.jsonl:2: gpus: expected greater than or equal to 1, got 0"),
        ('{"model": "a", "submit": 4}', r"jobs\.jsonl:2: submit 4, expected at least that above it, 5"),
        ('{"model": "a", "submit": 6, "name": "first"}', r"jobs\.jsonl:2: a second job called first"),
        ('{"model": "a", "submit": 6, "count": 2}', r"jobs\.jsonl:2: count: expected 1"),
        ('{"closed": true}\n{"model": "a"}', r"jobs\.jsonl:3: follows the closing line"),
        ("x" * 70_000, r"jobs\.jsonl:2: "),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, lines: str, message: str) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"model": "a", "submit": 5, "name": "first"}\n' + lines + "\n")
    with pytest.raises(TraceError, match=message):
        followed(path).poll()


def test_a_file_that_is_missing_or_cut_is_named(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    with pytest.raises(TraceError, match=r"jobs\.jsonl: cannot be read: no such file"):
        followed(path).poll()
    path.write_text('{"model": "a"}\n')
    source = followed(path)
    source.poll()
    path.write_text("")
    with pytest.raises(TraceError, match="has become shorter"):
        source.poll()
