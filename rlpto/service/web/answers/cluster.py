"""What the API answers about the cluster: its queue, nodes, allocations, policies, decisions and task volume."""

from __future__ import annotations

from pydantic import BaseModel, Field

from rlpto.service.web.answers.jobs import Prediction, QueuePlace


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


class DrainAnswer(BaseModel):
    """Whether no further job starts."""

    on: bool


class Health(BaseModel):
    """The process answers."""

    status: str
