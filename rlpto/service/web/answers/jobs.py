"""What the API answers about jobs, typed, so that openapi.json says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from rlpto.store.jobs import JobRow
from rlpto.store.status import PredictionRow, QueueRow

ASSUMES = (
    "the policy in force stays, nobody submits or cancels, no quota or drain holds a job back, no node fails, and "
    "speeds are as they are believed to be; "
    "where an interval is told, it allows for those who are forecast to submit and for speeds that are not known well"
)
"""What a prediction of start and finish takes for granted."""


class QueuePlace(BaseModel):
    """Where a job stands in the queue."""

    position: int = Field(description="1 is served first.")
    gpus_ahead: int = Field(description="GPUs that jobs before it ask for.")
    reason: str = Field(description="Why it waits.")


class Prediction(BaseModel):
    """When a job will start and finish, in seconds since 1970; low, high: an 80 % interval; null: not predicted."""

    start: float | None
    start_low: float | None
    start_high: float | None
    finish: float | None
    finish_low: float | None
    finish_high: float | None
    as_of: float
    policy: str
    assumes: str = ASSUMES


class JobAnswer(BaseModel):
    """A job. Times are seconds since 1970."""

    id: str
    seq: int = Field(description="Counts submissions; ascending.")
    owner: str
    name: str
    program: str
    training: str | None
    options: dict[str, bool | int | float | str]
    epochs: float
    batch_size: int | None
    metric: str | None
    gpus: int
    min_gpus: int
    max_gpus: int
    priority: str
    labels: dict[str, str]
    version: int
    state: str
    reason: str
    submitted: float
    changed: float
    queued: float | None
    started: float | None
    ended: float | None
    progress: float = Field(description="Epochs done.")
    gpus_held: int
    gpu_seconds: float
    loss: float | None
    accuracy: float | None
    rescales: int
    recoveries: int
    queue: QueuePlace | None = None
    prediction: Prediction | None = None


class JobPage(BaseModel):
    """Jobs, newest first."""

    jobs: list[JobAnswer]
    next: str | None = Field(description="The cursor of the next page; null: this is the last one.")


class CancelAnswer(BaseModel):
    """The job will end, or has ended."""

    id: str
    state: str


class LogLineAnswer(BaseModel):
    """A line of rank 0."""

    n: int
    at: float
    text: str


class LogPage(BaseModel):
    """Log lines in order."""

    lines: list[LogLineAnswer]
    next: int = Field(description="Number to go on from.")
    over: bool = Field(description="The job is over: once no line comes, none will.")


class PointAnswer(BaseModel):
    """A report of a job."""

    seq: int
    at: float
    epoch: float
    loss: float | None
    accuracy: float | None
    gpus: int
    goodput: float | None
    noise_scale: float | None


class Curves(BaseModel):
    """Reports of a job in order."""

    points: list[PointAnswer]
    next: int = Field(description="Value of `since` for what comes later.")


class EventAnswer(BaseModel):
    """Something that has happened."""

    seq: int
    at: float
    kind: str
    job: str | None
    body: dict[str, Any]


class EventPage(BaseModel):
    """Events in order."""

    events: list[EventAnswer]


def job_answer(row: JobRow, queue: QueueRow | None = None, prediction: PredictionRow | None = None) -> JobAnswer:
    """A job as it is answered."""
    values: dict[str, Any] = {name: getattr(row, name) for name in JobAnswer.model_fields if hasattr(row, name)}
    return JobAnswer(**values, queue=queue_place(queue), prediction=prediction_answer(prediction))


def queue_place(row: QueueRow | None) -> QueuePlace | None:
    """A place in the queue as it is answered."""
    return None if row is None else QueuePlace(position=row.position, gpus_ahead=row.gpus_ahead, reason=row.reason)


def prediction_answer(row: PredictionRow | None) -> Prediction | None:
    """A prediction as it is answered."""
    return None if row is None else Prediction(**_without(vars(row), "job"))


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}
