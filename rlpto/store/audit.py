"""Who has changed what, and which submission was already made under a key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlpto.store.database import Store


@dataclass(frozen=True)
class AuditRow:
    """A change that somebody has asked for. action: such as `policy.switch`; target: what was changed."""

    seq: int
    at: float
    by: str
    action: str
    target: str
    detail: Mapping[str, Any]


def note(store: Store, by: str, action: str, target: str, at: float, detail: Mapping[str, Any] | None = None) -> None:
    """Note a change in the audit trail."""
    store.insert(
        "INSERT INTO audit (at, by, action, target, detail) VALUES (?, ?, ?, ?, ?)",
        (at, by, action, target, json.dumps(dict(detail or {}))),
    )


def audit_trail(store: Store, before: int | None = None, limit: int = 50) -> list[AuditRow]:
    """Changes, newest first. before: the number they come before."""
    query = "SELECT seq, at, by, action, target, detail FROM audit WHERE ? IS NULL OR seq < ? ORDER BY seq DESC LIMIT ?"
    found = store.rows(query, (before, before, limit))
    return [AuditRow(seq, at, by, action, target, json.loads(detail)) for seq, at, by, action, target, detail in found]


def submitted_before(store: Store, user: str, key: str) -> tuple[str, str] | None:
    """Digest of the body and id of the job that a user has submitted under an idempotency key."""
    row = store.row("SELECT digest, job FROM idempotency WHERE user = ? AND key = ?", (user, key))
    return None if row is None else (row[0], row[1])


def keep_key(store: Store, user: str, key: str, digest: str, job: str, at: float) -> None:
    """Remember what was submitted under an idempotency key."""
    store.insert(
        "INSERT INTO idempotency (user, key, digest, job, at) VALUES (?, ?, ?, ?, ?)", (user, key, digest, job, at)
    )


def forget_keys(store: Store, before: float) -> None:
    """Forget idempotency keys older than a time [s]."""
    store.write("DELETE FROM idempotency WHERE at < ?", (before,))
