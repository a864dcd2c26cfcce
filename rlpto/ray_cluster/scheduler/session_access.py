"""A session seen from outside its scheduler: who is at work on it, how far its jobs are, and another policy for it."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlpto.ray_cluster.scheduler.session_folder import is_locked
from rlpto.store.database import looking
from rlpto.store.jobs import ENDED


@dataclass(frozen=True)
class JobProgress:
    """A job as its session database has it.

    id: the scheduler's; name: the user's. state: as in `rlpto.store.jobs`. gpus: it holds. progress: share of its
    training that is done. left: s until it is expected to end, as of the newest prediction; NaN: none was made.
    """

    id: str
    name: str
    state: str
    gpus: int
    progress: float
    left: float = math.nan


def job_progress(database: Path) -> list[JobProgress]:
    """All jobs of a session in the order in which they were submitted. Raises ClusterError if there is no database."""
    with looking(database) as base:
        rows = base.execute(
            "SELECT jobs.id, name, state, gpus_held, progress / epochs, finish - as_of FROM jobs "
            "LEFT JOIN predictions ON job = jobs.id WHERE number IS NOT NULL ORDER BY number"
        ).fetchall()
    return [
        JobProgress(job, name, state, 0, min(done, 1.0))
        if state in ENDED
        else JobProgress(job, name, state, gpus, min(done, 1.0), math.nan if left is None else left)
        for job, name, state, gpus, done, left in rows
    ]


def newest_database(folder: Path) -> Path | None:
    """The session database of a run folder that was written last; None if there is none."""
    return max(folder.glob("ray/*/state.sqlite"), key=_written, default=None)


def _written(database: Path) -> float:
    """When a database was changed: of one that is open its write-ahead log is."""
    log = database.with_name(f"{database.name}-wal")
    return max(file.stat().st_mtime for file in (database, log) if file.exists())


def sessions_at_work(run: Path) -> list[Path]:
    """Session databases below a run folder that a scheduler has open."""
    databases = sorted({path.resolve() for path in run.glob("**/*.sqlite")})
    return [path for path in databases if is_locked(path)]


def request_policy(path: Path, policy: str) -> int:
    """Ask the scheduler of a session database for another policy; returns the request's number.

    Raises ClusterError if there is no such database.
    """
    with looking(path) as base:
        values = (json.dumps({"policy": policy}), time.time())
        cursor = base.execute("INSERT INTO requests (kind, body, by, at) VALUES ('policy', ?, 'a command', ?)", values)
        return int(cursor.lastrowid or 0)


def policy_answer(path: Path, request: int) -> str | None:
    """What the scheduler said to a request: empty if it did so, else why not; None: nothing yet."""
    with looking(path) as base:
        row = base.execute("SELECT problem FROM requests WHERE seq = ?", (request,)).fetchone()
        return None if row is None or row[0] is None else str(row[0])


def read_table(path: Path, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of a table of a session database. Raises ClusterError if there is none."""
    with looking(path) as base:
        cursor = base.execute(f"SELECT * FROM {table}")
        return [column[0] for column in cursor.description], cursor.fetchall()
