"""The books: what is written is there after a restart, and only one scheduler writes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rlpto.errors import ClusterError
from rlpto.ray_cluster.messages import Checkpoint, JobReport, Measured
from rlpto.ray_cluster.scheduler.gpu_claims import Command
from rlpto.ray_cluster.scheduler.session_database import Store, policy_answer, read_table, request_policy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session" / "state.sqlite"


class TestStore:
    def test_generations_go_on_after_a_restart(self, path: Path) -> None:
        with Store(path) as books:
            first = [books.next_generation() for _ in range(3)]
            books.plan([Command("a", generation, ("n",)) for generation in first], 0.0)
        with Store(path) as books:
            assert books.next_generation() == first[-1] + 1

    def test_a_second_scheduler_is_refused_until_the_first_has_left(self, path: Path) -> None:
        with Store(path), pytest.raises(ClusterError, match=r"another scheduler \(process \d+\) is at work on it"):
            Store(path)
        Store(path).close()

    def test_a_scheduler_that_was_killed_leaves_the_books_free_and_whole(self, path: Path) -> None:
        program = (
            "import os, sys; from pathlib import Path; from rlpto.ray_cluster.scheduler.session_database import Store\n"
            "books = Store(Path(sys.argv[1])); books.expect([('a', 'spec', 0.0)]); books.event(1.0, 'submitted', 'a')\n"
            "with books.together():\n"
            "    books.event(2.0, 'half'); os.kill(os.getpid(), 9)\n"
        )
        subprocess.run([sys.executable, "-c", program, str(path)], check=False)
        with Store(path) as books:
            assert [event[1] for event in books.events()] == ["submitted"]

    def test_who_looks_while_books_are_made_finds_none_or_all_of_their_tables(self, tmp_path: Path) -> None:
        paths = [tmp_path / f"{number}.sqlite" for number in range(20)]
        wrong: list[str] = []

        def look() -> None:
            for path in paths:
                found = False
                while not found:
                    try:
                        read_table(path, "jobs")
                        found = True
                    except ClusterError as error:
                        if "no such file" not in str(error):
                            wrong.append(str(error))
                            return

        looking = threading.Thread(target=look)
        looking.start()
        for path in paths:
            Store(path).close()
        looking.join()
        assert wrong == []

    def test_a_file_without_tables_is_refused(self, tmp_path: Path) -> None:
        empty = tmp_path / "state.sqlite"
        empty.touch()
        with pytest.raises(ClusterError, match="books of version 0, expected 1; use another run folder"):
            Store(empty)

    def test_other_jobs_in_the_same_file_are_refused(self, path: Path) -> None:
        with Store(path) as books:
            books.expect([("a", "spec", 0.0)])
        with Store(path) as books, pytest.raises(ClusterError, match="a session with other jobs"):
            books.expect([("a", "spec", 1.0)])

    def test_a_file_that_is_no_database_is_refused(self, path: Path) -> None:
        path.parent.mkdir(parents=True)
        path.write_text("not a database, but long enough to be looked at as one\n" * 20)
        with pytest.raises(ClusterError, match="cannot be used as the scheduler's books"):
            Store(path)

    def test_newest_commands_begin_with_the_one_in_force(self, path: Path) -> None:
        with Store(path) as books:
            commands = [Command("a", books.next_generation(), nodes) for nodes in (("n",), ("n", "n"), ("m",))]
            for command in commands[:2]:
                books.plan([command], 1.0)
                books.commanded(command.generation, 1.0)
            books.applied("a", commands[1].generation, 2.0)
            books.plan(commands[2:], 3.0)
            assert books.newest_commands() == {"a": commands[1:]}
            assert books.unsent() == {commands[2].generation}

    def test_what_was_planned_and_never_sent_is_superseded_by_the_next_plan(self, path: Path) -> None:
        with Store(path) as books:
            books.plan([Command("a", 1, ("n",))], 1.0)
            books.plan([Command("a", 2, ())], 2.0)
            assert books.newest_commands() == {"a": [Command("a", 2, ())]}

    def test_reports_fill_jobs_checkpoints_and_measured_throughput(self, path: Path) -> None:
        report = JobReport(
            "a",
            progress=1.5,
            step=30,
            accuracy=0.5,
            throughput=(Measured(2, 1, 640.0, 12),),
            checkpoint=Checkpoint(20, "there", "f" * 64),
        )
        with Store(path) as books:
            books.expect([("a", "spec", 0.0)])
            books.note_report(report, gpu_seconds=12.0, peak_gpus=2)
            books.note_report(report, gpu_seconds=13.0, peak_gpus=2)
            (row,) = books.jobs()
            assert (row.progress, row.step, row.gpu_seconds, row.peak_gpus) == (1.5, 30, 13.0, 2)
        columns, checkpoints = read_table(path, "checkpoints")
        assert [dict(zip(columns, row, strict=True))["sha256"] for row in checkpoints] == ["f" * 64]
        assert read_table(path, "profile")[1] == [("a", 2, 1, 640.0, 12)]

    def test_another_process_asks_for_a_policy_and_gets_an_answer(self, path: Path) -> None:
        with Store(path) as books:
            first, second = request_policy(path, "las"), request_policy(path, "srtf")
            assert books.policy_request() == (second, "srtf")
            assert policy_answer(path, second) is None
            books.answer(second, 1.0, "")
            assert (policy_answer(path, first), policy_answer(path, second)) == ("", "")
            assert books.policy_request() is None

    def test_asking_where_there_are_no_books_is_an_error(self, path: Path) -> None:
        with pytest.raises(ClusterError, match="no such file; expected the books of a run"):
            request_policy(path, "las")
