"""The session database on disk: SQLite in write-ahead mode. What stands here is what a restarted scheduler believes.

One file for each session (one policy on one workload). One scheduler at a time writes to it; others may look, and ask
for another policy.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rlpto.errors import ClusterError
from rlpto.ray_cluster.messages import JobReport
from rlpto.ray_cluster.scheduler.gpu_claims import Command, Nodes
from rlpto.ray_cluster.scheduler.schema import SCHEMA, TABLES, Decision, JobRow


class SessionDatabase:
    """The session database of one session, opened for the scheduler: nobody else may write while they are open.

    path: of the file, made if need be. Raises ClusterError if another scheduler has it open, or it is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _lock(path)
        try:
            if not path.exists():
                _make(path)
            self._base = _open(path)
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            self._lock.close()
            raise ClusterError(f"{path}: cannot be used as the session database: {error}") from None
        self._generation = self._one("SELECT COALESCE(MAX(generation), 0) FROM allocations")

    def _prepare(self) -> None:
        # WAL lets others read while we write; a crash of this process loses nothing, one of the machine at most the
        # last moments, which the controllers' own reports make good.
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute("PRAGMA synchronous = NORMAL")
        version = self._one("PRAGMA user_version")
        if version != SCHEMA:
            raise ClusterError(
                f"{self.path}: session database of version {version}, expected {SCHEMA}; use another run folder"
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything written inside is kept, or nothing of it. Inside another one: part of that."""
        if self._base.in_transaction:
            yield
            return
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")

    def next_generation(self) -> int:
        """A generation larger than all there ever were in this session, also before a restart."""
        self._generation += 1
        return self._generation

    # facts

    def fact(self, key: str) -> str | None:
        """A single value of the session; None if it was never set."""
        row = self._base.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_fact(self, key: str, value: str) -> None:
        """Keep a single value of the session."""
        self._base.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, value))

    # jobs

    def expect(self, jobs: Sequence[tuple[str, str, float]]) -> None:
        """Enter the workload: name, specification as JSON and submit time of each job, unless it stands there already.

        Raises ClusterError if the database is about other jobs.
        """
        present = self._base.execute("SELECT name, spec, submit_time FROM jobs ORDER BY number").fetchall()
        if present and present != list(jobs):
            raise ClusterError(f"{self.path}: holds a session with other jobs; use another run folder, or --fresh")
        if not present:
            with self.transaction():
                self._base.executemany(
                    "INSERT INTO jobs (name, number, spec, submit_time) VALUES (?, ?, ?, ?)",
                    [(name, number, spec, submit) for number, (name, spec, submit) in enumerate(jobs)],
                )

    def jobs(self) -> list[JobRow]:
        """All jobs in order of submission."""
        columns = tuple(JobRow.__dataclass_fields__)
        rows = self._base.execute(f"SELECT {', '.join(columns)} FROM jobs ORDER BY number").fetchall()
        return [JobRow(**dict(zip(columns, row, strict=True))) for row in rows]

    def set_job(self, name: str, **columns: object) -> None:
        """Change columns of a job."""
        assignments = ", ".join(f"{column} = ?" for column in columns)
        self._base.execute(f"UPDATE jobs SET {assignments} WHERE name = ?", (*columns.values(), name))

    def note_report(self, report: JobReport, gpu_seconds: float, peak_gpus: int) -> None:
        """What a controller has said: state of the job, its checkpoint, and throughput as measured."""
        with self.transaction():
            self.set_job(
                report.name,
                progress=report.progress,
                step=report.step,
                accuracy=report.accuracy,
                loss=report.loss,
                gpu_seconds=gpu_seconds,
                peak_gpus=peak_gpus,
                rescale_seconds=report.rescale_seconds,
                recoveries=report.recoveries,
                failure=report.failure,
            )
            if report.checkpoint is not None:
                kept = report.checkpoint
                self._base.execute(
                    "INSERT OR IGNORE INTO checkpoints VALUES (?, ?, ?, ?, ?)",
                    (report.name, kept.step, kept.path, kept.sha256, report.time),
                )
            self._base.executemany(
                "INSERT OR REPLACE INTO profile VALUES (?, ?, ?, ?, ?)",
                [
                    (report.name, size.workers, size.nodes, size.samples_per_second, size.count)
                    for size in report.throughput
                ],
            )

    # allocations

    def plan(self, commands: Sequence[Command], time: float) -> None:
        """Enter commands before any is sent; what was planned for these jobs and never sent is superseded."""
        with self.transaction():
            for job in {command.job for command in commands}:
                self._base.execute(
                    "UPDATE allocations SET state = 'superseded' WHERE job = ? AND state = 'planned'", (job,)
                )
            self._base.executemany(
                "INSERT INTO allocations (generation, job, nodes, state, planned_at) VALUES (?, ?, ?, 'planned', ?)",
                [(command.generation, command.job, json.dumps(command.nodes), time) for command in commands],
            )

    def commanded(self, generation: int, time: float) -> None:
        """A command has been sent."""
        self._base.execute(
            "UPDATE allocations SET state = 'commanded', commanded_at = ? WHERE generation = ?", (time, generation)
        )

    def applied(self, job: str, generation: int, time: float) -> None:
        """A controller has put a generation wholly in force; what was sent before it is so too, or superseded."""
        with self.transaction():
            self._base.execute(
                "UPDATE allocations SET state = 'superseded' "
                "WHERE job = ? AND generation < ? AND state IN ('planned', 'commanded')",
                (job, generation),
            )
            self._base.execute(
                "UPDATE allocations SET state = 'applied', applied_at = ? "
                "WHERE generation = ? AND job = ? AND state = 'commanded'",
                (time, generation, job),
            )

    def newest_commands(self) -> dict[str, list[Command]]:
        """For each job the commands that its controller may follow or have yet to follow: the newest that is wholly in
        force, and all after it."""
        rows = self._base.execute(
            "SELECT job, generation, nodes, state FROM allocations WHERE state != 'superseded' ORDER BY generation"
        ).fetchall()
        found: dict[str, list[Command]] = {}
        for job, generation, nodes, state in rows:
            if state == "applied":
                found[job] = []
            found.setdefault(job, []).append(Command(job, generation, tuple(json.loads(nodes))))
        return found

    def forget_commands(self, job: str) -> None:
        """The controller that was told them is gone."""
        self._base.execute("UPDATE allocations SET state = 'superseded' WHERE job = ?", (job,))

    def unsent(self) -> set[int]:
        """Generations that are planned, and not sent as far as the database know."""
        return {row[0] for row in self._base.execute("SELECT generation FROM allocations WHERE state = 'planned'")}

    # what happened

    def event(
        self, time: float, kind: str, job: str = "", node: str = "", value: float | None = None, detail: str = ""
    ) -> None:
        """Note something that happened."""
        self._base.execute(
            "INSERT INTO events (time, kind, job, node, value, detail) VALUES (?, ?, ?, ?, ?, ?)",
            (time, kind, job or None, node or None, value, detail),
        )

    def events(self) -> list[tuple[float, str, str, str, float | None, str]]:
        """Time, kind, job, node, value and detail of all events, in order."""
        rows = self._base.execute("SELECT time, kind, job, node, value, detail FROM events ORDER BY id")
        return [(time, kind, job or "", node or "", value, detail) for time, kind, job, node, value, detail in rows]

    def decision(self, taken: Decision) -> None:
        """Enter a decision that has just been taken."""
        self._base.execute(
            "INSERT INTO decisions (time, policy, latency, capacity, held, active, waiting, observation, action) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(taken.time, taken.policy, taken.latency, taken.capacity, taken.held, taken.active, taken.waiting),
                *(json.dumps(taken.observation), json.dumps(taken.action)),
            ),
        )

    def followed(self, gains: Sequence[float], unfinished: float, gpu_seconds: float, rescale_seconds: float) -> None:
        """Add what has happened to the newest decision; before the first one there is nothing to add it to."""
        self._base.execute(
            "UPDATE decisions SET gain_high = gain_high + ?, gain_normal = gain_normal + ?, gain_low = gain_low + ?, "
            "unfinished = unfinished + ?, gpu_seconds = gpu_seconds + ?, rescale_seconds = rescale_seconds + ? "
            "WHERE id = (SELECT MAX(id) FROM decisions)",
            (*gains, unfinished, gpu_seconds, rescale_seconds),
        )

    def decisions(self) -> list[tuple[float, ...]]:
        """Time, latency, capacity, held, active, waiting, then gains by class, unfinished, gpu_seconds and
        rescale_seconds that followed, of all decisions in order."""
        return self._base.execute(
            "SELECT time, latency, capacity, held, active, waiting, gain_high, gain_normal, gain_low, unfinished, "
            "gpu_seconds, rescale_seconds FROM decisions ORDER BY id"
        ).fetchall()

    def deciders(self) -> list[tuple[float, str]]:
        """Time of all decisions in order, and the policy that took each."""
        return self._base.execute("SELECT time, policy FROM decisions ORDER BY id").fetchall()

    def change(self, time: float, job: str, gpus: int, accuracy: float, nodes: Nodes) -> None:
        """A job holds other GPUs from now on."""
        self._base.execute(
            "INSERT INTO changes (time, job, gpus, accuracy, nodes) VALUES (?, ?, ?, ?, ?)",
            (time, job, gpus, accuracy, json.dumps(nodes)),
        )

    def changes(self) -> list[tuple[float, str, int, float, Nodes]]:
        """All such changes, in order of time."""
        rows = self._base.execute("SELECT time, job, gpus, accuracy, nodes FROM changes ORDER BY time, id")
        return [(time, job, gpus, accuracy, tuple(json.loads(nodes))) for time, job, gpus, accuracy, nodes in rows]

    def held(self) -> dict[str, int]:
        """GPUs that each job held last; jobs that never held any are missing."""
        return dict(self._base.execute("SELECT job, gpus FROM changes ORDER BY id").fetchall())

    def node(self, node: str, number: int, gpus: int, alive: bool, time: float) -> None:
        """A node has come or gone."""
        self._base.execute(
            "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?)", (node, number, gpus, int(alive), time)
        )

    def nodes(self) -> list[tuple[str, int, int, bool]]:
        """Id, number, GPUs and whether it is alive, of all nodes there ever were."""
        rows = self._base.execute("SELECT id, number, gpus, alive FROM nodes ORDER BY number")
        return [(node, number, gpus, bool(alive)) for node, number, gpus, alive in rows]

    # policies

    def policy_request(self) -> tuple[int, str] | None:
        """The newest request for another policy that has not been answered."""
        row = self._base.execute(
            "SELECT id, policy FROM requests WHERE answered_at IS NULL ORDER BY id DESC LIMIT 1"
        ).fetchone()
        return None if row is None else (int(row[0]), str(row[1]))

    def answer(self, request: int, time: float, answer: str) -> None:
        """Answer a request, and with it those before it."""
        self._base.execute(
            "UPDATE requests SET answered_at = ?, answer = ? WHERE id <= ? AND answered_at IS NULL",
            (time, answer, request),
        )

    def _one(self, query: str) -> int:
        return int(self._base.execute(query).fetchone()[0])

    def close(self) -> None:
        """Write what is open, and let others in."""
        self._base.close()
        self._lock.close()

    def __enter__(self) -> SessionDatabase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sessions_at_work(run: Path) -> list[Path]:
    """Session databases below a run folder that a scheduler has open."""
    found = []
    for lock in sorted(run.glob("**/*.sqlite.lock")):
        with lock.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                found.append(lock.with_name(lock.name.removesuffix(".lock")))
    return found


def request_policy(path: Path, policy: str) -> int:
    """Ask the scheduler of a session database for another policy; returns the request's number.

    Raises ClusterError if there are no such database.
    """
    with _looking(path) as base:
        cursor = base.execute("INSERT INTO requests (policy) VALUES (?)", (policy,))
        return int(cursor.lastrowid or 0)


def policy_answer(path: Path, request: int) -> str | None:
    """What the scheduler said to a request: empty if it did so, else why not; None: nothing yet."""
    with _looking(path) as base:
        row = base.execute("SELECT answer FROM requests WHERE id = ?", (request,)).fetchone()
        return None if row is None or row[0] is None else str(row[0])


def read_table(path: Path, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of a table of a session database. Raises ClusterError if there are none."""
    with _looking(path) as base:
        cursor = base.execute(f"SELECT * FROM {table}")
        return [column[0] for column in cursor.description], cursor.fetchall()


@contextmanager
def _looking(path: Path) -> Iterator[sqlite3.Connection]:
    """The session database beside their scheduler."""
    if not path.is_file():
        raise ClusterError(f"{path}: no such file; expected the session database of a run with --cluster ray")
    base = None
    try:
        base = _open(path)
        yield base
    except sqlite3.Error as error:
        raise ClusterError(f"{path}: cannot be read as a session database: {error}") from None
    finally:
        if base is not None:
            base.close()


def _make(path: Path) -> None:
    """New database, which others see with all their tables or not at all."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    base = _open(unfinished)
    try:
        base.executescript(f"BEGIN; {TABLES}; PRAGMA user_version = {SCHEMA}; COMMIT")
    finally:
        base.close()
    unfinished.replace(path)


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=10.0, isolation_level=None)


def _lock(path: Path) -> Any:
    """A file that only one process can hold; it is free again when the process ends, however it ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(path.name + ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"{path}: cannot keep the session database there: {error.strerror or error}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise ClusterError(f"{path}: another scheduler (process {owner}) is at work on it, expected none") from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
