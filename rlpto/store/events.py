"""What has happened, in one order: the stream that pages and clients follow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlpto.store.database import Store


@dataclass(frozen=True)
class Event:
    """kind: `job` (state, reason, GPUs of a job have changed), `policy`, `nodes`, `queue` (positions or predictions),
    `decision`, `drain`, `end` (the service stops). job, owner: None: about no job, for everybody."""

    seq: int
    at: float
    kind: str
    job: str | None
    owner: str | None
    body: Mapping[str, Any]


_EVENT = "seq, at, kind, job, owner, body"


def add_event(
    store: Store,
    kind: str,
    at: float,
    job: str | None = None,
    owner: str | None = None,
    body: Mapping[str, Any] | None = None,
    time: float | None = None,
) -> int:
    """Note something that has happened; its number. time: s of the session, for one of its own."""
    return store.insert(
        "INSERT INTO events (at, time, kind, job, owner, body) VALUES (?, ?, ?, ?, ?, ?)",
        (at, time, kind, job, owner, json.dumps(dict(body or {}))),
    )


def events_after(store: Store, seq: int, limit: int = 1000) -> list[Event]:
    """Events that follow number `seq`, oldest first."""
    return _events(store.rows(f"SELECT {_EVENT} FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (seq, limit)))


def events_of_job(store: Store, job: str, after: int = 0, limit: int = 200) -> list[Event]:
    """Events of one job that follow number `after`, oldest first."""
    query = f"SELECT {_EVENT} FROM events WHERE job = ? AND seq > ? ORDER BY seq LIMIT ?"
    return _events(store.rows(query, (job, after, limit)))


def last_event(store: Store) -> int:
    """Number of the newest event; 0: there is none."""
    row = store.row("SELECT max(seq) FROM events")
    return 0 if row is None or row[0] is None else int(row[0])


def first_event(store: Store) -> int:
    """Number of the oldest event that is kept; 0: there is none."""
    row = store.row("SELECT min(seq) FROM events")
    return 0 if row is None or row[0] is None else int(row[0])


def _events(rows: Sequence[Sequence[Any]]) -> list[Event]:
    return [Event(seq, at, kind, job, owner, json.loads(body)) for seq, at, kind, job, owner, body in rows]
