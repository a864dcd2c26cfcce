from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.store.logs import LOG, OLDER, OutputLog, job_folder, log_lines


def write(run: Path, job: str, count: int, file_bytes: int = 10_000_000) -> None:
    writer = OutputLog(job_folder(run, job), file_bytes)
    for number in range(count):
        writer.write(f"line {number}", float(number))


def test_numbers_go_on_when_a_writer_was_killed_within_a_line(tmp_path: Path) -> None:
    write(tmp_path, "j1", 2)
    with (job_folder(tmp_path, "j1") / LOG).open("ab") as file:
        file.write(b'{"n": 3, "at": 1.0, "te')
    write(tmp_path, "j1", 1)
    assert [line.n for line in log_lines(tmp_path, "j1", 0, 10)] == [1, 2, 3]


def test_halves_of_characters_are_kept_as_escapes(tmp_path: Path) -> None:
    OutputLog(job_folder(tmp_path, "j1")).write("a file \udcff", 1.0)
    (line,) = log_lines(tmp_path, "j1", 1, 10)
    assert line.text.encode() == b"a file \\udcff"


def test_old_lines_are_dropped(tmp_path: Path) -> None:
    write(tmp_path, "j1", 500, file_bytes=5_000)
    assert all((job_folder(tmp_path, "j1") / name).stat().st_size <= 5_000 for name in (OLDER, LOG))
    lines = [line.n for line in log_lines(tmp_path, "j1", 1, 1000)]
    assert lines == list(range(lines[0], 501)), "what is left has no gaps"
    assert [line.n for line in log_lines(tmp_path, "j1", -150, 1000)] == list(range(351, 501))


@given(start=st.integers(-6000, 6000), limit=st.integers(1, 50))
def test_logs_are_entered_anywhere_and_from_their_end(long_log: Path, start: int, limit: int) -> None:
    first = max(5001 + start, 1) if start < 0 else max(start, 1)
    found = [(line.n, line.text) for line in log_lines(long_log, "j1", start, limit)]
    assert found == [(number, f"line {number - 1}") for number in range(first, min(first + limit, 5001))]
    assert log_lines(long_log, "j2", start, limit) == []


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    write(run, "j1", 5000, file_bytes=200_000)
    return run


@pytest.mark.parametrize("job", ["..", "../x", "/etc", "", "a/b", "A", "j\n", "j" * 80])
def test_nothing_outside_the_run_folder_is_read(tmp_path: Path, job: str) -> None:
    with pytest.raises(ValueError, match="no id of a job"):
        log_lines(tmp_path, job, 0, 1)
