"""The session database on disk: SQLite in write-ahead mode. What stands here is what a restarted scheduler believes.

One file for each session (one policy on one workload). One scheduler at a time writes to it; others may look, and ask
for another policy.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rlpto.core.cluster import Progress
from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.messages import JobReport, JobSpec, Nodes, Plan
from rlpto.ray_cluster.scheduler.durable_connection import DAMAGE, LOCK_TIMEOUT_S, DurableConnection, unusable
from rlpto.ray_cluster.scheduler.gpu_claims import Command
from rlpto.ray_cluster.scheduler.schema import SCHEMA, TABLES, Decision, JobRow
from rlpto.ray_cluster.scheduler.session_folder import SessionLock, is_locked

SUPERSEDED_KEPT = 10_000
"""Generations after which a plan that was superseded may be forgotten."""


def say_on_stderr(line: str) -> None:
    """One line for people."""
    print(line, file=sys.stderr, flush=True)


class SessionDatabase(DurableConnection):
    """The session database of one session, opened for the scheduler: nobody else may write while it is open.

    path: of the file, made if need be; `path` of the object is without symbolic links. say: is told in one line that
    writes wait because the disk is full, and when they go on.

    Raises ClusterError if another scheduler has it open, it is of another version, damaged, or no such file.
    """

    def __init__(self, path: Path, say: Callable[[str], object] = say_on_stderr) -> None:
        path = path.resolve()
        with ExitStack() as opened:
            self._lock = opened.enter_context(closing(SessionLock(path)))
            try:
                if not path.exists():
                    _make(path)
                super().__init__(path, say)
            except (*DAMAGE, OSError) as error:
                raise unusable(path, error) from None
            opened.callback(super().close)
            self._prepare()
            self._generation = self._one("SELECT COALESCE(MAX(generation), 0) FROM allocations")
            opened.pop_all()
        self.wait_for_room()

    def _prepare(self) -> None:
        # WAL lets others read while we write; a crash of this process loses nothing, one of the machine at most the
        # last moments, which the controllers' own reports make good.
        self.rows("PRAGMA journal_mode = WAL")
        self.rows("PRAGMA synchronous = NORMAL")
        version = self._one("PRAGMA user_version")
        if version != SCHEMA:
            raise ClusterError(
                f"{self.path}: session database of version {version}, expected {SCHEMA}: go on with the version of "
                "rlpto that has written it, or start over with --fresh or another run folder"
            )
        ((found,),) = self.rows("PRAGMA integrity_check(1)")
        if found != "ok":
            raise unusable(self.path, f"it is damaged: {found}")
        self._read_all()

    def _read_all(self) -> None:
        """Find out that all that a scheduler will read is what a scheduler has written."""
        self.newest_commands()
        self.changes()
        self.events()
        for key in ("began", "beat"):
            self.number(key)
        try:
            for (spec,) in self.rows("SELECT spec FROM jobs"):
                json.loads(spec)
            for texts in self.rows("SELECT observation, action, batch_sizes FROM decisions"):
                for text in texts:
                    json.loads(text)
        except ValueError as error:
            raise unusable(self.path, f"it is damaged: {error}") from None

    @property
    def begun(self) -> bool:
        """True if a scheduler has entered its jobs here."""
        return bool(self.rows("SELECT 1 FROM jobs LIMIT 1"))

    def next_generation(self) -> int:
        """A generation larger than all there ever were in this session, also before a restart."""
        self._generation += 1
        return self._generation

    # facts

    def fact(self, key: str) -> str | None:
        """A single value of the session; None if it was never set."""
        rows = self.rows("SELECT value FROM facts WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    def number(self, key: str) -> float | None:
        """A fact that is a number; None if it was never set."""
        value = self.fact(key)
        try:
            return None if value is None else float(value)
        except ValueError:
            raise unusable(self.path, f"it is damaged: {key} is {value!r}, expected a number") from None

    def set_fact(self, key: str, value: str) -> None:
        """Keep a single value of the session."""
        self.write("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, value))

    # jobs

    def enter_jobs(self, jobs: Sequence[tuple[JobSpec, float]], growing: bool = False) -> None:
        """Enter the workload, what each job's controller needs and its submit time, unless it stands there already.

        growing: these may be more jobs than were entered before. Raises ClusterError if the database is about others.
        """
        entered = [(spec.id, spec.name, spec.to_json(), submit) for spec, submit in jobs]
        present = self.rows("SELECT id, name, spec, submit_time FROM jobs ORDER BY number")
        more = entered[len(present) :]
        if present and (present != entered[: len(present)] or (more and not growing)):
            raise ClusterError(f"{self.path}: holds a session with other jobs; use another run folder, or --fresh")
        if more:
            self.write(
                "INSERT INTO jobs (id, name, spec, submit_time, number) VALUES (?, ?, ?, ?, ?)",
                *((*job, number) for number, job in enumerate(more, len(present))),
            )

    def add_jobs(self, jobs: Sequence[tuple[JobSpec, float]]) -> None:
        """Enter further jobs, what each one's controller needs and its submit time, behind those that are there."""
        first = self._one("SELECT COALESCE(MAX(number), -1) + 1 FROM jobs")
        self.write(
            "INSERT INTO jobs (id, name, spec, submit_time, number) VALUES (?, ?, ?, ?, ?)",
            *((spec.id, spec.name, spec.to_json(), at, number) for number, (spec, at) in enumerate(jobs, first)),
        )

    def forget(self, jobs: Collection[str], decisions: int) -> None:
        """Remove what is known of these jobs, and all but the newest so many decisions and events."""
        with self.transaction():
            for table, column in (("jobs", "id"), ("allocations", "job"), ("changes", "job"), ("events", "job")):
                self.write(f"DELETE FROM {table} WHERE {column} = ?", *((job,) for job in jobs))
            self.write(
                "DELETE FROM allocations WHERE state = 'superseded' "
                "AND generation <= (SELECT MAX(generation) FROM allocations) - ?",
                (SUPERSEDED_KEPT,),
            )
            for table in ("decisions", "events"):
                self.write(f"DELETE FROM {table} WHERE id <= (SELECT MAX(id) FROM {table}) - ?", (decisions,))

    def jobs(self) -> list[JobRow]:
        """All jobs in order of submission."""
        columns = tuple(JobRow.__dataclass_fields__)
        rows = self.rows(f"SELECT {', '.join(columns)} FROM jobs ORDER BY number")
        return [JobRow(**dict(zip(columns, row, strict=True))) for row in rows]

    def set_job(self, job: str, **columns: object) -> None:
        """Change columns of the job with this id."""
        assignments = ", ".join(f"{column} = ?" for column in columns)
        self.write(f"UPDATE jobs SET {assignments} WHERE id = ?", (*columns.values(), job))

    def note_report(
        self, report: JobReport, gpu_seconds: float, peak_gpus: int, reached: Sequence[float | None]
    ) -> None:
        """What a controller has said of its job. reached [s]: when it came to each level of accuracy, None: not yet."""
        said = ("progress", "step", "accuracy", "loss", "rescale_seconds", "recoveries", "failure")
        columns = {name: getattr(report, name) for name in said}
        levels = dict(zip(("reached_90", "reached_95", "reached_99"), reached, strict=True))
        self.set_job(report.job, gpu_seconds=gpu_seconds, peak_gpus=peak_gpus, **levels, **columns)

    # allocations

    def plan(self, jobs: Collection[str], commands: Sequence[Command], time: float) -> None:
        """Enter commands before any is sent; what was planned for `jobs` and never sent is superseded.

        A job without a new command goes on as it was told last.
        """
        with self.transaction():
            self.write(
                "UPDATE allocations SET state = 'superseded' WHERE job = ? AND state = 'planned'",
                *((job,) for job in jobs),
            )
            self.write(
                "INSERT INTO allocations (generation, job, nodes, batch_size, servers, state, planned_at) "
                "VALUES (?, ?, ?, ?, ?, 'planned', ?)",
                *((command.generation, command.job, *_columns(command.plan), time) for command in commands),
            )

    def commanded(self, generation: int, time: float) -> None:
        """A command has been sent."""
        self.write(
            "UPDATE allocations SET state = 'commanded', commanded_at = ? WHERE generation = ?", (time, generation)
        )

    def applied(self, job: str, generation: int, time: float) -> None:
        """A controller has put a generation wholly in force; what was sent before it is so too, or superseded."""
        with self.transaction():
            self.write(
                "UPDATE allocations SET state = 'superseded' "
                "WHERE job = ? AND generation < ? AND state IN ('planned', 'commanded')",
                (job, generation),
            )
            self.write(
                "UPDATE allocations SET state = 'applied', applied_at = ? "
                "WHERE generation = ? AND job = ? AND state = 'commanded'",
                (time, generation, job),
            )

    def newest_commands(self) -> dict[str, list[Command]]:
        """For each job the commands that its controller may follow or have yet to follow: the newest that is wholly in
        force, and all after it."""
        rows = self.rows(
            "SELECT job, generation, nodes, batch_size, servers, state FROM allocations WHERE state != 'superseded' "
            "ORDER BY generation"
        )
        found: dict[str, list[Command]] = {}
        for job, generation, nodes, batch_size, servers, state in rows:
            if state == "applied":
                found[job] = []
            plan = Plan(self._nodes(nodes), batch_size, self._nodes(servers))
            found.setdefault(job, []).append(Command(job, generation, plan))
        return found

    def forget_commands(self, job: str) -> None:
        """The controller that was told them is gone."""
        self.write("UPDATE allocations SET state = 'superseded' WHERE job = ?", (job,))

    def unsent(self) -> set[int]:
        """Generations that are planned, and not sent as far as the database knows."""
        return {row[0] for row in self.rows("SELECT generation FROM allocations WHERE state = 'planned'")}

    # what happened

    def event(
        self, time: float, kind: str, job: str = "", node: str = "", value: float | None = None, detail: str = ""
    ) -> None:
        """Note something that happened."""
        self.write(
            "INSERT INTO events (time, kind, job, node, value, detail) VALUES (?, ?, ?, ?, ?, ?)",
            (time, kind, job or None, node or None, value, detail),
        )

    def events(self) -> list[tuple[float, str, str, str, float | None, str]]:
        """Time, kind, job, node, value and detail of all events, in order."""
        rows = self.rows("SELECT time, kind, job, node, value, detail FROM events ORDER BY id")
        return [(time, kind, job or "", node or "", value, detail) for time, kind, job, node, value, detail in rows]

    def decision(self, taken: Decision) -> None:
        """Enter a decision that has just been taken."""
        self.write(
            "INSERT INTO decisions (time, policy, latency, capacity, held, active, waiting, observation, action, "
            "batch_sizes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(taken.time, taken.policy, taken.latency, taken.capacity, taken.held, taken.active, taken.waiting),
                *(json.dumps(taken.observation), json.dumps(taken.action), json.dumps(taken.batch_sizes)),
            ),
        )

    def followed(self, passed: Progress) -> None:
        """Add what has happened to the newest decision; before the first one there is nothing to add it to."""
        sums = (passed.unfinished, passed.gpu_seconds, passed.rescale_seconds)
        self.write(
            "UPDATE decisions SET gain_high = gain_high + ?, gain_normal = gain_normal + ?, gain_low = gain_low + ?, "
            "unfinished = unfinished + ?, gpu_seconds = gpu_seconds + ?, rescale_seconds = rescale_seconds + ?, "
            "short_high = short_high + ?, short_normal = short_normal + ?, short_low = short_low + ? "
            "WHERE id = (SELECT MAX(id) FROM decisions)",
            (*passed.accuracy_gain.tolist(), *sums, *passed.shortfall.tolist()),
        )

    def decisions(self) -> list[tuple[float, ...]]:
        """Time, latency, capacity, held, active, waiting, then gains by class, unfinished, gpu_seconds,
        rescale_seconds and shortfall by class that followed, of all decisions in order."""
        return self.rows(
            "SELECT time, latency, capacity, held, active, waiting, gain_high, gain_normal, gain_low, unfinished, "
            "gpu_seconds, rescale_seconds, short_high, short_normal, short_low FROM decisions ORDER BY id"
        )

    def deciders(self) -> list[tuple[float, str]]:
        """Time of all decisions in order, and the policy that took each."""
        rows = self.rows("SELECT time, policy FROM decisions ORDER BY id")
        return [(float(time), str(policy)) for time, policy in rows]

    def change(self, time: float, job: str, gpus: int, accuracy: float, nodes: Nodes) -> None:
        """A job holds other GPUs from now on."""
        self.write(
            "INSERT INTO changes (time, job, gpus, accuracy, nodes) VALUES (?, ?, ?, ?, ?)",
            (time, job, gpus, accuracy, json.dumps(nodes)),
        )

    def changes(self) -> list[tuple[float, str, int, float, Nodes]]:
        """All such changes, in order of time."""
        rows = self.rows("SELECT time, job, gpus, accuracy, nodes FROM changes ORDER BY time, id")
        return [(time, job, gpus, accuracy, self._nodes(nodes)) for time, job, gpus, accuracy, nodes in rows]

    def held(self) -> dict[str, int]:
        """GPUs that each job held last; jobs that never held any are missing."""
        return dict(self.rows("SELECT job, gpus FROM changes ORDER BY id"))

    def node(self, node: str, number: int, gpus: int, alive: bool, time: float) -> None:
        """A node has come or gone."""
        self.write("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?)", (node, number, gpus, int(alive), time))

    def nodes(self) -> list[tuple[str, int, int, bool]]:
        """Id, number, GPUs and whether it is alive, of all nodes there ever were."""
        rows = self.rows("SELECT id, number, gpus, alive FROM nodes ORDER BY number")
        return [(node, number, gpus, bool(alive)) for node, number, gpus, alive in rows]

    # policies

    def policy_request(self) -> tuple[int, str] | None:
        """The newest request for another policy that has not been answered."""
        rows = self.rows("SELECT id, policy FROM requests WHERE answered_at IS NULL ORDER BY id DESC LIMIT 1")
        return (int(rows[0][0]), str(rows[0][1])) if rows else None

    def answer(self, request: int, time: float, answer: str) -> None:
        """Answer a request, and with it those before it."""
        self.write(
            "UPDATE requests SET answered_at = ?, answer = ? WHERE id <= ? AND answered_at IS NULL",
            (time, answer, request),
        )

    def _one(self, query: str) -> int:
        return int(self.rows(query)[0][0])

    def _nodes(self, text: str) -> Nodes:
        """Node ids that were written as JSON."""
        try:
            nodes = json.loads(text)
        except ValueError:
            nodes = None
        if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
            raise unusable(self.path, f"it is damaged: {text!r}, expected a list of node ids")
        return tuple(nodes)

    def close(self) -> None:
        """Write what is open, and let others in."""
        try:
            super().close()
        finally:
            self._lock.close()

    def __enter__(self) -> SessionDatabase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sessions_at_work(run: Path) -> list[Path]:
    """Session databases below a run folder that a scheduler has open."""
    databases = sorted({path.resolve() for path in run.glob("**/*.sqlite")})
    return [path for path in databases if is_locked(path)]


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
    except DAMAGE as error:
        raise unusable(path, error) from None
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
    return sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)


def _columns(plan: Plan) -> tuple[str, int | None, str]:
    """A plan as the columns nodes, batch_size and servers of an allocation."""
    return json.dumps(plan.nodes), plan.batch_size, json.dumps(plan.servers)
