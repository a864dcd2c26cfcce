from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.store.logs import OutputLog, job_folder, log_files, log_lines


def write(run: Path, job: str, count: int, file_bytes: int = 10_000_000) -> None:
    writer = OutputLog(job_folder(run, job), file_bytes)
    for number in range(count):
        writer.write(f"line {number}", float(number))


def test_lines_from_a_number_and_the_last_ones(tmp_path: Path) -> None:
    write(tmp_path, "j1", 10)
    assert [(line.n, line.text) for line in log_lines(tmp_path, "j1", 9, 100)] == [(9, "line 8"), (10, "line 9")]
    assert [line.n for line in log_lines(tmp_path, "j1", -3, 100)] == [8, 9, 10]
    assert [line.n for line in log_lines(tmp_path, "j1", 0, 2)] == [1, 2]
    assert log_lines(tmp_path, "j2", 0, 2) == []


def test_numbers_go_on_when_a_writer_was_killed_within_a_line(tmp_path: Path) -> None:
    write(tmp_path, "j1", 2)
    with log_files(tmp_path, "j1")[1].open("ab") as file:
        file.write(b'{"n": 3, "at": 1.0, "te')
    write(tmp_path, "j1", 1)
    assert [line.n for line in log_lines(tmp_path, "j1", 0, 10)] == [1, 2, 3]


def test_halves_of_characters_are_kept_as_escapes(tmp_path: Path) -> None:
    OutputLog(job_folder(tmp_path, "j1")).write("a file \udcff", 1.0)
    (line,) = log_lines(tmp_path, "j1", 1, 10)
    assert line.text.encode() == b"a file \\udcff"


def test_old_lines_are_dropped(tmp_path: Path) -> None:
    write(tmp_path, "j1", 500, file_bytes=5_000)
    older, newer = log_files(tmp_path, "j1")
    assert older.stat().st_size <= 5_000
    assert newer.stat().st_size <= 5_000
    lines = [line.n for line in log_lines(tmp_path, "j1", 1, 1000)]
    assert lines == list(range(lines[0], 501)), "what is left has no gaps"
    assert [line.n for line in log_lines(tmp_path, "j1", -150, 1000)] == list(range(351, 501))


@settings(max_examples=20, deadline=None)
@given(start=st.integers(1, 6000), limit=st.integers(1, 50))
def test_long_logs_are_entered_anywhere(long_log: Path, start: int, limit: int) -> None:
    found = [line.n for line in log_lines(long_log, "j1", start, limit)]
    assert found == list(range(start, min(start + limit, 5001)))


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    write(run, "j1", 5000, file_bytes=200_000)
    return run


@pytest.mark.parametrize("job", ["..", "../x", "/etc", "", "a/b", "A", "j\n", "j" * 80])
def test_nothing_outside_the_run_folder_is_read(tmp_path: Path, job: str) -> None:
    with pytest.raises(ValueError, match="no id of a job"):
        log_lines(tmp_path, job, 0, 1)
