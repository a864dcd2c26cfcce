"""Events in a single order: the stream that pages and clients follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlpto.store.database import Store
from rlpto.store.rows import Row, find, insert


@dataclass(frozen=True)
class Event(Row):
    """kind: `job` (state, reason, GPUs of a job have changed), `policy`, `nodes`, `queue` (positions or predictions),
    `decision`, `drain`, `end` (the service stops). job, owner: None for events about no job, which all users see."""

    TABLE = "events"

    seq: int
    at: float
    kind: str
    job: str | None
    owner: str | None
    body: Mapping[str, Any]


def add_event(
    store: Store,
    kind: str,
    at: float,
    job: str | None = None,
    owner: str | None = None,
    body: Mapping[str, Any] | None = None,
    time: float | None = None,
) -> int:
    """Add an event and return its number. time: s of the session, for events of the session."""
    return insert(store, "events", at=at, time=time, kind=kind, job=job, owner=owner, body=body or {})


def events_after(store: Store, seq: int, limit: int = 1000) -> list[Event]:
    """Events after number `seq`, oldest first."""
    return find(store, Event, "WHERE seq > ? ORDER BY seq LIMIT ?", (seq, limit))


def events_of_job(store: Store, job: str) -> list[Event]:
    """The newest 200 events of one job, oldest first."""
    return find(store, Event, "WHERE job = ? ORDER BY seq DESC LIMIT 200", (job,))[::-1]


def last_event(store: Store) -> int:
    """Number of the newest event; 0 if there is none."""
    row = store.row("SELECT max(seq) FROM events")
    return 0 if row is None or row[0] is None else int(row[0])


def first_event(store: Store) -> int:
    """Number of the oldest event that is kept; 0 if there is none."""
    row = store.row("SELECT min(seq) FROM events")
    return 0 if row is None or row[0] is None else int(row[0])
