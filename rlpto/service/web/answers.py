"""What the API answers, typed, so that openapi.json says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from rlpto.service.books.jobs import JobRow
from rlpto.service.books.status import PredictionRow, QueueRow

ASSUMES = (
    "the policy in force stays, nobody submits or cancels, no node fails, and speeds are as they are believed to be"
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


class Preview(BaseModel):
    """A training alone on so many GPUs."""

    metric: str
    gpus: int
    hours: float
    gpu_hours: float


class Validation(BaseModel):
    """What would be submitted."""

    job: JobAnswer
    preview: list[Preview] = Field(description="By metric and number of GPUs, for the job's epochs.")
    waiting: int = Field(description="Jobs that wait now.")
    gpus_ahead: int = Field(description="GPUs that they ask for.")


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


class QueueEntry(QueuePlace):
    """A waiting job; of somebody else's only the place."""

    job: str | None
    name: str | None
    owner: str | None
    gpus: int | None
    priority: str | None
    prediction: Prediction | None


class QueueAnswer(BaseModel):
    """Waiting jobs in order of service."""

    queue: list[QueueEntry]


class NodeAnswer(BaseModel):
    """A node. jobs: GPUs by job; those of other people's are together under an empty id."""

    id: str
    gpus: int
    alive: bool
    kind: str
    jobs: dict[str, int]


class NodesAnswer(BaseModel):
    """The nodes of the cluster."""

    nodes: list[NodeAnswer]


class SpanAnswer(BaseModel):
    """GPUs of one node that a job held; job: null where it is somebody else's."""

    job: str | None
    name: str | None
    node: str
    gpus: int
    started: float
    ended: float | None


class Allocations(BaseModel):
    """Who held which GPUs when, the newest first."""

    now: float
    spans: list[SpanAnswer]


class PolicyAnswer(BaseModel):
    """The policy in force."""

    policy: str | None = Field(description="null: the scheduler has not started yet.")
    number: int = Field(description="Of the last switch: the ETag.")
    since: float | None
    by: str
    reason: str


class PolicyEntry(BaseModel):
    """A policy that may be switched to."""

    name: str
    summary: str
    source: str


class Policies(BaseModel):
    """The catalogue of policies."""

    policies: list[PolicyEntry]


class SwitchAnswer(BaseModel):
    """A change of policy."""

    number: int
    policy: str
    before: str | None
    by: str
    reason: str
    asked: float
    in_force: float


class Switches(BaseModel):
    """Changes of policy, newest first."""

    switches: list[SwitchAnswer]
    next: str | None


class DecisionAnswer(BaseModel):
    """A decision of a policy."""

    at: float
    policy: str
    latency: float
    capacity: int
    held: int
    active: int
    waiting: int
    reward: float | None
    parts: dict[str, float]
    steering: dict[str, float]


class Decisions(BaseModel):
    """Decisions in order."""

    decisions: list[DecisionAnswer]


class VolumeAnswer(BaseModel):
    """Task volume of a step [GPU-seconds]."""

    at: float
    seen: float | None
    forecast: float | None
    low: float | None
    high: float | None


class Volume(BaseModel):
    """Task volume in order."""

    volume: list[VolumeAnswer]


class OptionAnswer(BaseModel):
    """What users may choose for an option."""

    type: str
    minimum: float | None
    maximum: float | None
    choices: list[str]
    default: bool | int | float | str | None
    description: str


class ProgramAnswer(BaseModel):
    """A program that may be trained."""

    name: str
    description: str
    options: dict[str, OptionAnswer]
    batch_size: int | None
    batch_sizes: list[int]
    epochs: float
    most_epochs: float
    most_gpus: int
    enabled: bool
    checked: str
    problem: str
    version: int
    preview: list[Preview]


class Programs(BaseModel):
    """The catalogue of programs."""

    programs: list[ProgramAnswer]


class TokenAnswer(BaseModel):
    """A token, without its secret."""

    id: str
    label: str
    created: float
    expires: float | None


class NewToken(TokenAnswer):
    """A token that was just made."""

    token: str = Field(description="The secret; nobody can tell it later.")


class Tokens(BaseModel):
    """Tokens of a user."""

    tokens: list[TokenAnswer]


class UserAnswer(BaseModel):
    """A user. gpus_held, jobs_queued: quotas; null: no limit."""

    name: str
    role: str
    created: float
    disabled: bool
    gpus_held: int | None
    jobs_queued: int | None


class Users(BaseModel):
    """Everybody."""

    users: list[UserAnswer]


class AuditEntry(BaseModel):
    """A change that somebody has asked for."""

    seq: int
    at: float
    by: str
    action: str
    target: str
    detail: dict[str, Any]


class AuditTrail(BaseModel):
    """Changes, newest first."""

    audit: list[AuditEntry]
    next: str | None


class DrainAnswer(BaseModel):
    """Whether no further job starts."""

    on: bool


class Health(BaseModel):
    """The process answers."""

    status: str


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
