"""The database and the files of a session: what is written is there after a restart, and one scheduler writes; links in
their place, damage, and a disk that is full."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from rlpto.core.stopping import StopRule
from rlpto.io.errors import ClusterError
from rlpto.io.files import FileLock
from rlpto.io.interrupts import interrupts_kept
from rlpto.ray_cluster.messages import Command, JobSpec, Plan
from rlpto.ray_cluster.scheduler import session_folder
from rlpto.ray_cluster.scheduler.gpu_claims import GpuClaims
from rlpto.ray_cluster.scheduler.live_curves import EventFile
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_folder import (
    DATABASE,
    SESSIONS,
    SessionLock,
    is_locked,
    job_progress,
    lock_of,
    newest_database,
    read_table,
    remove_sessions,
    session_name,
    sessions_at_work,
)
from rlpto.ray_cluster.settings import ProgramSettings, RaySettings, job_specs
from rlpto.store import database as database_module
from rlpto.store.jobs import JobRow
from rlpto.store.rows import find, put
from rlpto.store.status import PredictionRow
from tests.builders import job as make_job
from tests.ray_cluster.fakes import FakeBackend, FakeTime, events_of
from tests.ray_cluster.sessions import elastic, make_cluster, play, run_until

FLIPS = 50


def test_jobs_have_folders_of_their_own_under_any_name(tmp_path: Path) -> None:
    names = ("a/b", "a_b", "..", "../..", "/tmp", "x:y", "CON", "a" * 300)
    jobs = [replace(make_job(number), name=name, model="m") for number, name in enumerate(names)]
    settings = RaySettings(programs={"m": ProgramSettings(training="some.module:Program")})
    made = job_specs(jobs, settings, "s", tmp_path, 0)
    assert [spec.id for spec in made] == [f"job-{number:06d}" for number in range(len(names))]
    assert [Path(spec.folder) for spec in made] == [tmp_path / spec.id for spec in made]
    assert [spec.name for spec in made] == list(names)


class TestLinks:
    def test_a_lock_that_is_a_link_is_refused_and_what_it_points_to_stays(self, tmp_path: Path) -> None:
        precious = tmp_path / "precious"
        precious.write_text("do not touch")
        (tmp_path / "state.sqlite.lock").symlink_to(precious)
        with pytest.raises(ClusterError, match=r"state.sqlite.lock is a symbolic link, expected a file of its own"):
            SessionDatabase(tmp_path / "state.sqlite")
        assert precious.read_text() == "do not touch"
        assert sessions_at_work(tmp_path) == []

    def test_a_session_is_the_same_by_every_path_to_it(self, tmp_path: Path) -> None:
        (tmp_path / "there").mkdir()
        (tmp_path / "link").symlink_to("there")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "state.sqlite").symlink_to(tmp_path / "there" / "state.sqlite")
        with SessionDatabase(tmp_path / "there" / "state.sqlite") as database:
            for path in (tmp_path / "link", tmp_path / "other"):  # who is refused leaves the lock as it is
                with pytest.raises(ClusterError, match=rf"scheduler \(process {os.getpid()}\) is at work on it"):
                    SessionDatabase(path / "state.sqlite")
                assert sessions_at_work(path) == [database.path]
        SessionDatabase(database.path).close()
        assert session_name(tmp_path / "there", "cell") == session_name(tmp_path / "link", "cell")
        assert session_name(tmp_path / "there", "cell") != session_name(tmp_path / "there", "other")

    def test_a_fresh_start_next_to_a_scheduler_at_work_is_refused_and_changes_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / SESSIONS / "cell" / DATABASE
        with SessionDatabase(path):
            with pytest.raises(ClusterError, match="another scheduler"):
                remove_sessions(tmp_path)
            assert path.exists()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a session with some of everything in it, whose scheduler was killed."""
    path = tmp_path_factory.mktemp("sound") / "state.sqlite"
    backend = FakeBackend(FakeTime(), {"m": 2, "n": 2})
    with SessionDatabase(path) as database:
        run_until(make_cluster(backend, [elastic(0), elastic(1, 5.0), elastic(2, 30.0, 9.0)], database), 35.0)
    return path.read_bytes()


def contents(path: Path) -> list[list[tuple[object, ...]]]:
    """All that a restarted scheduler reads. Raises ClusterError if it is damaged."""
    with SessionDatabase(path) as database:
        tables = "facts", "jobs", "allocations", "decisions", "events", "changes", "nodes"
        return [database.rows(f"SELECT * FROM {table} ORDER BY rowid") for table in tables]


class TestDamage:
    def test_what_opens_has_the_contents_that_were_written(self, sound: bytes, tmp_path: Path) -> None:
        rng, path = random.Random(0), tmp_path / "state.sqlite"
        path.write_bytes(sound)
        written, opened = contents(path), 0
        assert all(written), "each table has rows"
        for _ in range(3 * FLIPS):
            damaged = bytearray(sound)
            damaged[rng.randrange(len(sound))] ^= 1 << rng.randrange(8)
            for left in tmp_path.iterdir():
                left.unlink()
            path.write_bytes(damaged)
            with suppress(ClusterError):
                assert contents(path) == written
                opened += 1
        assert 0 < opened < 3 * FLIPS

    def test_the_line_names_the_file_and_what_to_do(self, sound: bytes, tmp_path: Path) -> None:
        path = tmp_path / "state.sqlite"
        path.write_bytes(sound[:4096] + bytes(len(sound) - 4096))
        with pytest.raises(
            ClusterError, match=r"state.sqlite: the database cannot be used: .*put back a copy, or start over"
        ):
            SessionDatabase(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all room of a disk: the file that has it."""
    path = folder / "filler"
    with path.open("ab", buffering=0) as file:
        for size in (65_536, 4096, 1):
            with suppress(OSError):
                while file.write(b"\0" * size) == size:
                    pass
    return path


class TestFullDisk:
    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database_module, "RETRY_INTERVAL_S", 0.02)

    def once_waited(self, said: list[str], then: Callable[[], None]) -> threading.Thread:
        """Do something once the scheduler has said that it waits."""

        def work() -> None:
            while not said:
                time.sleep(0.01)
            time.sleep(0.1)
            then()

        thread = threading.Thread(target=work, daemon=True)  # a test that fails before leaves it waiting
        thread.start()
        return thread

    def test_a_session_waits_for_room_and_nothing_is_lost(self, small_disk: Path) -> None:
        said: list[str] = []
        backend = FakeBackend(FakeTime(), {"m": 2, "n": 2})
        with SessionDatabase(small_disk / "state.sqlite", said.append) as database:
            cluster = make_cluster(backend, [elastic(0), elastic(1, 5.0), elastic(2, 30.0)], database)
            emptied = self.once_waited(said, fill(small_disk).unlink)
            play(cluster)
            emptied.join()
            assert cluster.columns.finished.all()
            kinds = [event[1] for event in events_of(database)]
            assert kinds.count("finished") == 3
            assert kinds.count("disk_full") >= 1
            times = database.rows("SELECT time FROM decisions")
            assert len(times) == len(set(times))
        assert "database or disk is full): jobs go on, the scheduler waits" in said[0]
        assert "can be written again" in said[1]

    def test_curves_wait_for_room_without_a_word_too_many(self, small_disk: Path) -> None:
        said: list[str] = []
        events = EventFile(small_disk / "curves", said.append)
        events.flush()
        filler = fill(small_disk)
        for step in range(300):  # more than is left of the last page
            events.add(Event(wall_time=float(step), step=step).SerializeToString())
            events.flush()
        assert len(said) == 1
        assert "curves: live curves cannot be written now (no space left on device): jobs go on" in said[0]
        filler.unlink()
        events.flush()
        read = EventFileLoader(str(next((small_disk / "curves").iterdir()))).Load()
        assert [event.step for event in read] == [0, *range(300)]

    @pytest.mark.parametrize("interval", [0.0, 0.02])  # Ctrl-C meets SQLite, or a sleep
    def test_ctrl_c_ends_the_wait_and_the_session(
        self, interval: float, small_disk: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database_module, "RETRY_INTERVAL_S", interval)
        said: list[str] = []
        backend = FakeBackend(FakeTime(), {"m": 2, "n": 2})
        with SessionDatabase(small_disk / "state.sqlite", said.append) as database:
            cluster = make_cluster(backend, [elastic(0), elastic(1, 5.0), elastic(2, 30.0)], database)
            filler = fill(small_disk)
            interrupted = self.once_waited(said, lambda: os.kill(os.getpid(), 2))
            with interrupts_kept(), pytest.raises(KeyboardInterrupt):  # as in commands: SQLite may call Python then
                play(cluster)
            interrupted.join()
            with pytest.raises(ClusterError, match="full"):
                cluster.close()
            assert not backend.controllers, "they were asked to end all the same"
        filler.unlink()
        with SessionDatabase(small_disk / "state.sqlite") as database:
            assert [row.state for row in database.jobs()].count("finished") == 0


def spec(job: str, epochs: float = 1.0) -> JobSpec:
    return JobSpec(job, "a name", "s", "some.module:Program", "folder", 8, epochs, 100)


class TestSessionDatabase:
    def test_newest_commands_begin_with_the_one_in_force(self, database: SessionDatabase) -> None:
        plans = (Plan(("n",)), Plan(("n", "n"), 64), Plan(("m",)))
        commands = [Command("a", database.next_generation(), plan) for plan in plans]
        for command in commands[:2]:
            database.plan(["a"], [command], 1.0)
            database.commanded(command.generation, 1.0)
        database.applied("a", commands[1].generation, 2.0)
        database.plan(["a"], commands[2:], 3.0)
        assert database.newest_commands() == {"a": commands[1:]}
        assert database.unsent() == {commands[2].generation}

    def test_who_looks_while_a_database_is_made_finds_none_or_all_of_their_tables(self, tmp_path: Path) -> None:
        paths = [tmp_path / f"{number}.sqlite" for number in range(20)]

        def look() -> int:
            looks = 0
            for path in paths:
                found = False
                while not found:
                    looks += 1
                    try:
                        found = bool(read_table(path, "jobs"))
                    except ClusterError as error:
                        if "no such file" not in str(error):
                            raise
            return looks

        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(look)
            for path in paths:
                SessionDatabase(path).close()
            assert looking.result() >= len(paths)

    def test_other_jobs_in_the_same_file_are_refused(self, database: SessionDatabase) -> None:
        database.enter_jobs([(spec("a"), 0.0)], 0.0)
        with pytest.raises(ClusterError, match="a session with other jobs"):
            database.enter_jobs([(spec("a"), 1.0)], 0.0)

    def test_a_job_with_a_rule_for_stopping_is_read_back_as_it_was_entered(self, database: SessionDatabase) -> None:
        entered = replace(spec("a"), stop=StopRule(gain=0.01), options={"width": 3})
        database.enter_jobs([(entered, 0.0)], 0.0)
        ((text,),) = database.rows("SELECT spec FROM jobs")
        assert JobSpec.from_json(text) == entered

    def test_a_plan_that_needs_no_command_takes_back_what_was_never_sent(self, database: SessionDatabase) -> None:
        claims = GpuClaims({"n": 2})

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


def test_jobs_are_submitted_at_times_of_the_day_not_of_the_session(tmp_path: Path) -> None:
    with SessionDatabase(tmp_path / "state.sqlite") as database:
        database.enter_jobs([(spec("a"), 0.0), (spec("b"), 5.0)], began=1e9)
        assert [row.submitted for row in find(database, JobRow)] == [1e9, 1e9 + 5.0]


def test_a_session_that_is_only_looked_at_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another look does not take the first for a scheduler, and a scheduler waits until it is over."""
    monkeypatch.setattr(session_folder, "PROBES_S", [0.01] * 10_000)
    path = tmp_path / "state.sqlite"
    lock_of(path).touch()
    look = FileLock(lock_of(path), os.O_RDONLY, shared=True)
    assert not is_locked(path)
    threading.Timer(0.02, look.close).start()
    with closing(SessionLock(path)):
        assert is_locked(path)


def test_state_gpus_progress_and_end_of_every_job(tmp_path: Path) -> None:
    database = tmp_path / "ray" / "fifo-jobs-0" / "state.sqlite"
    assert newest_database(tmp_path) is None
    with SessionDatabase(database) as own:
        own.enter_jobs([(spec(f"job-{number}", 8.0), 0.0) for number in range(3)], 0.0)
        for number, gpus in ((0, 3), (1, 2), (0, 1), (1, 0)):
            own.change(1.0, f"job-{number}", gpus, 0.5, ())
        own.set_job("job-0", progress=2.0)
        own.set_job("job-1", state="finished", progress=8.0)
        now = time.time()
        rows = ("job-0", now + 35.0), ("job-1", now - 1.0), ("job-2", None)
        put(own, [PredictionRow(job, now - 10.0, "fifo", 1.0, finish=finish) for job, finish in rows])
        assert newest_database(tmp_path) == database
        first, second, third = job_progress(database)
    assert first[:5] == ("job-0", "a name", "starting", 1, 0.25)
    assert first[5] is not None
    assert first[5] <= 35.0 <= first[5] + (time.time() - now), "counted from now, not from the prediction"
    assert second[2:] == ("finished", 0, 1.0, None)
    assert third[2:] == ("submitted", 0, 0.0, None)
