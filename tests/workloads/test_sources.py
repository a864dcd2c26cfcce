"""Files that are appended to while their jobs run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.core.jobs import Job
from rlpto.io.errors import TraceError
from rlpto.workloads.listed import ListedJob
from rlpto.workloads.sources import FollowedFile


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
