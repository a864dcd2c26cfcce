"""The session database: what is written is there after a restart, and only one scheduler writes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rlpto.core.stopping import StopRule
from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.messages import JobSpec, Plan
from rlpto.ray_cluster.scheduler.gpu_claims import Command, GpuClaims
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_folder import job_progress, newest_database, read_table
from rlpto.store.rows import put
from rlpto.store.status import PredictionRow
from tests.ray_cluster.fakes import events_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session" / "state.sqlite"


def spec(job: str, epochs: float = 1.0) -> JobSpec:
    return JobSpec(job, "a name", "s", "some.module:Program", "folder", 8, epochs, 100)


class TestSessionDatabase:
    def test_another_scheduler_is_refused_until_the_first_has_left(self, path: Path) -> None:
        with SessionDatabase(path):
            for _ in range(2):  # the first that is refused leaves the lock as it is
                with pytest.raises(
                    ClusterError, match=rf"another scheduler \(process {os.getpid()}\) is at work on it"
                ):
                    SessionDatabase(path)
        SessionDatabase(path).close()

    def test_a_scheduler_that_was_killed_leaves_the_database_free_and_whole(self, path: Path) -> None:
        program = (
            "import os, sys; from pathlib import Path\n"
            "from rlpto.ray_cluster.scheduler.session_database import SessionDatabase\n"
            "database = SessionDatabase(Path(sys.argv[1])); database.event(1.0, 'submitted', 'a')\n"
            "with database.transaction():\n"
            "    database.event(2.0, 'half'); os.kill(os.getpid(), 9)\n"
        )
        subprocess.run([sys.executable, "-c", program, str(path)], check=False)
        with SessionDatabase(path) as database:
            assert [event[1] for event in events_of(database)] == ["submitted"]

    def test_who_looks_while_a_database_is_made_finds_none_or_all_of_their_tables(self, tmp_path: Path) -> None:
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
            SessionDatabase(path).close()
        looking.join()
        assert wrong == []

    def test_other_jobs_in_the_same_file_are_refused(self, path: Path) -> None:
        with SessionDatabase(path) as database:
            database.enter_jobs([(spec("a"), 0.0)])
        with SessionDatabase(path) as database, pytest.raises(ClusterError, match="a session with other jobs"):
            database.enter_jobs([(spec("a"), 1.0)])

    def test_a_job_with_a_rule_for_stopping_is_read_back_as_it_was_entered(self, path: Path) -> None:
        entered = replace(spec("a"), stop=StopRule(gain=0.01), options={"width": 3})
        with SessionDatabase(path) as database:
            database.enter_jobs([(entered, 0.0)])
            ((text,),) = database.rows("SELECT spec FROM jobs")
        assert JobSpec.from_json(text) == entered

    def test_newest_commands_begin_with_the_one_in_force(self, path: Path) -> None:
        with SessionDatabase(path) as database:
            plans = (Plan(("n",)), Plan(("n", "n"), 64), Plan(("m",)))
            commands = [Command("a", database.next_generation(), plan) for plan in plans]
            for command in commands[:2]:
                database.plan(["a"], [command], 1.0)
                database.commanded(command.generation, 1.0)
            database.applied("a", commands[1].generation, 2.0)
            database.plan(["a"], commands[2:], 3.0)
            assert database.newest_commands() == {"a": commands[1:]}
            assert database.unsent() == {commands[2].generation}

    def test_a_plan_that_needs_no_command_takes_back_what_was_never_sent(self, path: Path) -> None:
        claims = GpuClaims({"n": 2})
        with SessionDatabase(path) as database:

            def plan(targets: dict[str, Plan]) -> None:
                database.plan(targets, claims.plan(targets, database.next_generation), 1.0)
                for command in claims.due():
                    database.commanded(command.generation, 1.0)

            plan({"a": Plan(("n",)), "b": Plan(("n",))})
            plan({"a": Plan(("n", "n")), "b": Plan()})  # it waits until b has let go
            plan({"a": Plan(("n",)), "b": Plan(("n",))})  # it is to stay as it is after all
            newest = {job: commands[-1].plan for job, commands in database.newest_commands().items()}
            assert newest == {"a": Plan(("n",)), "b": Plan(("n",))}
            assert not database.unsent()


def test_state_gpus_progress_and_end_of_every_job(tmp_path: Path) -> None:
    database = tmp_path / "ray" / "fifo-jobs-0" / "state.sqlite"
    assert newest_database(tmp_path) is None
    with SessionDatabase(database) as own:
        own.enter_jobs([(spec(f"job-{number}", 8.0), 0.0) for number in range(3)])
        for number, gpus in ((0, 3), (1, 2), (0, 1), (1, 0)):
            own.change(1.0, f"job-{number}", gpus, 0.5, ())
        own.set_job("job-0", progress=2.0)
        own.set_job("job-1", state="finished", progress=8.0)
        put(own, [PredictionRow("job-0", 10.0, "fifo", 1.0, finish=35.0), PredictionRow("job-2", 10.0, "fifo", 40.0)])
        assert newest_database(tmp_path) == database
        first, second, third = job_progress(database)
    assert first == ("job-0", "a name", "starting", 1, 0.25, 25.0)
    assert second[2:] == ("finished", 0, 1.0, None)
    assert third[2:] == ("submitted", 0, 0.0, None)
