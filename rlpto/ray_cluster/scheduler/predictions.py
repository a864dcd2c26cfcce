"""Predicted start and finish of jobs in the session database: the scheduler writes, `rlpto cluster status` reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlpto.ray_cluster.scheduler.durable_connection import unusable
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase, read_table

FACT = "predictions"
"""Key of the newest prediction in the database."""


@dataclass(frozen=True)
class Predictions:
    """The newest prediction of a session. Times in s on the session's clock; NaN where none can be made.

    made_at: when. jobs: start (first GPU) and finish by name of the job. failed: why there is no newer one, if so.
    """

    made_at: float = math.nan
    jobs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    failed: str = ""


def write_predictions(database: SessionDatabase, predictions: Predictions) -> None:
    """Put a prediction in place of the one before."""
    jobs = {name: [_null(start), _null(finish)] for name, (start, finish) in predictions.jobs.items()}
    text = json.dumps({"made_at": _null(predictions.made_at), "jobs": jobs, "failed": predictions.failed})
    database.set_fact(FACT, text)


def read_predictions(database: Path) -> Predictions:
    """The newest prediction of a session, while its scheduler is at work; without one, no jobs.

    Raises ClusterError if there is no such database, or it is damaged.
    """
    facts = dict(read_table(database, "facts")[1])
    if FACT not in facts:
        return Predictions()
    try:
        content = json.loads(facts[FACT])
        jobs = {name: (_number(start), _number(finish)) for name, (start, finish) in content["jobs"].items()}
        return Predictions(_number(content["made_at"]), jobs, content["failed"])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise unusable(database, f"it is damaged: {FACT} are {facts[FACT]!r}") from None


def _null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
