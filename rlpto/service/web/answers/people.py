"""What the API answers about users, their tokens, and who has changed what."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


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
