"""How far the jobs of a session are, for whoever looks on from outside its scheduler."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from rlpto.ray_cluster.scheduler.predictions import read_predictions
from rlpto.ray_cluster.scheduler.session_database import read_table

WAITED_FOR = "expected", "active"
"""States of jobs that have not ended."""


@dataclass(frozen=True)
class JobProgress:
    """A job as its session database has it.

    id: the scheduler's; name: the user's. state: expected, active, finished or failed. gpus: it holds. progress: share
    of its training that is done. left: s until it is expected to end, as of the newest prediction; NaN: none was made.
    """

    id: str
    name: str
    state: str
    gpus: int
    progress: float
    left: float = math.nan


def job_progress(database: Path) -> list[JobProgress]:
    """All jobs of a session in the order in which they were submitted. Raises ClusterError if there is no database."""
    names, rows = read_table(database, "changes")
    held = {str(row[names.index("job")]): int(row[names.index("gpus")]) for row in rows}
    predictions = read_predictions(database)
    names, rows = read_table(database, "jobs")
    found = []
    for row in sorted((dict(zip(names, row, strict=True)) for row in rows), key=lambda row: row["number"]):
        _, finish = predictions.jobs.get(row["name"], (math.nan, math.nan))
        done = min(1.0, row["progress"] / json.loads(row["spec"])["epochs"])
        active = row["state"] == "active"
        gpus = held.get(row["id"], 0) if active else 0
        left = finish - predictions.made_at if row["state"] in WAITED_FOR else math.nan
        found.append(JobProgress(row["id"], row["name"], row["state"], gpus, done, left))
    return found


def newest_database(folder: Path) -> Path | None:
    """The session database of a run folder that was written last; None if there is none."""
    return max(folder.glob("ray/*/state.sqlite"), key=_written, default=None)


def _written(database: Path) -> float:
    """When a database was changed: of one that is open its write-ahead log is."""
    log = database.with_name(f"{database.name}-wal")
    return max(file.stat().st_mtime for file in (database, log) if file.exists())
