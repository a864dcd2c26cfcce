"""How far the jobs of a session are and when they are predicted to end: the scheduler writes, others read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlpto.ray_cluster.scheduler.session_database import SessionDatabase, read_table
from rlpto.store.database import unusable
from rlpto.store.jobs import ENDED

PREDICTIONS_KEY = "predictions"
"""Key of the newest prediction among the facts of a database."""


@dataclass(frozen=True)
class Predictions:
    """The newest prediction of a session. Times in s on the session's clock; NaN where none can be made.

    made_at: when. jobs: start (first GPU) and finish by id of the job. failed: why there is no newer one, if so.
    """

    made_at: float = math.nan
    jobs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    failed: str = ""


def write_predictions(database: SessionDatabase, predictions: Predictions) -> None:
    """Put a prediction in place of the one before."""
    # With NaN and Infinity, which JSON of other programs does not have: only this module reads it.
    database.set_fact(PREDICTIONS_KEY, json.dumps([predictions.made_at, dict(predictions.jobs), predictions.failed]))


def read_predictions(database: Path) -> Predictions:
    """The newest prediction of a session; without one, no jobs.

    Raises ClusterError if there is no such database, or it is damaged.
    """
    facts = dict(read_table(database, "facts")[1])
    if PREDICTIONS_KEY not in facts:
        return Predictions()
    try:
        made_at, jobs, failed = json.loads(facts[PREDICTIONS_KEY])
        times = {job: (float(start), float(finish)) for job, (start, finish) in jobs.items()}
        return Predictions(float(made_at), times, failed)
    except (ValueError, TypeError, AttributeError):
        raise unusable(database, f"it is damaged: {PREDICTIONS_KEY} are {facts[PREDICTIONS_KEY]!r}") from None


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
    predictions = read_predictions(database)
    names, rows = read_table(database, "jobs")
    found = []
    for row in sorted((dict(zip(names, row, strict=True)) for row in rows), key=lambda row: row["number"]):
        job, state = row["id"], row["state"]
        done = min(1.0, row["progress"] / row["epochs"])
        _, finish = predictions.jobs.get(job, (math.nan, math.nan))
        left = finish - predictions.made_at if state not in ENDED else math.nan
        found.append(JobProgress(job, row["name"], state, 0 if state in ENDED else row["gpus_held"], done, left))
    return found


def newest_database(folder: Path) -> Path | None:
    """The session database of a run folder that was written last; None if there is none."""
    return max(folder.glob("ray/*/state.sqlite"), key=_written, default=None)


def _written(database: Path) -> float:
    """When a database was changed: of one that is open its write-ahead log is."""
    log = database.with_name(f"{database.name}-wal")
    return max(file.stat().st_mtime for file in (database, log) if file.exists())
