"""How far the jobs of a session are and when they are predicted to end: the scheduler writes, others read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

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
