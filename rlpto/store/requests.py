"""What the web asks of the scheduler, and what it answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlpto.store.database import Store

Kind = Literal["cancel", "priority", "policy", "drain"]
"""cancel, priority: of `job`; body of priority: {"priority"}. policy: body {"policy", "reason", "number"}, where number
is the switch that must still be in force. drain: body {"on"}: no job starts any more until it is off again."""


@dataclass(frozen=True)
class Request:
    """job: None where the request is about none. done_at: None: open. problem: why it was refused; empty: done."""

    seq: int
    kind: Kind
    job: str | None
    body: Mapping[str, Any]
    by: str
    at: float
    done_at: float | None
    problem: str | None


@dataclass(frozen=True)
class Switch:
    """A change of policy. number: counts them from 1, and is the ETag. before: None: the service had just started.
    asked, in_force: s."""

    number: int
    policy: str
    before: str | None
    by: str
    reason: str
    asked: float
    in_force: float


_REQUEST = "seq, kind, job, body, by, at, done_at, problem"


def ask(
    store: Store, kind: Kind, by: str, at: float, job: str | None = None, body: Mapping[str, Any] | None = None
) -> int:
    """Ask the scheduler for something; the number of the request."""
    return store.insert(
        "INSERT INTO requests (kind, job, body, by, at) VALUES (?, ?, ?, ?, ?)",
        (kind, job, json.dumps(dict(body or {})), by, at),
    )


def open_requests(store: Store) -> list[Request]:
    """What the scheduler has not answered, oldest first."""
    return [_request(row) for row in store.rows(f"SELECT {_REQUEST} FROM requests WHERE done_at IS NULL ORDER BY seq")]


def get_request(store: Store, seq: int) -> Request | None:
    """A request with its answer, if there is one."""
    row = store.row(f"SELECT {_REQUEST} FROM requests WHERE seq = ?", (seq,))
    return None if row is None else _request(row)


def is_open(store: Store, seq: int) -> bool:
    """Whether nobody has answered a request yet."""
    return store.row("SELECT 1 FROM requests WHERE seq = ? AND done_at IS NULL", (seq,)) is not None


def is_asked(store: Store, kind: Kind, job: str) -> bool:
    """Whether such a request about a job is open."""
    query = "SELECT 1 FROM requests WHERE done_at IS NULL AND kind = ? AND job = ?"
    return store.row(query, (kind, job)) is not None


def answer(store: Store, seq: int, at: float, problem: str = "") -> None:
    """Say that a request is done, or why it was refused."""
    store.write("UPDATE requests SET done_at = ?, problem = ? WHERE seq = ? AND done_at IS NULL", (at, problem, seq))


def add_switch(store: Store, policy: str, by: str, reason: str, asked: float, in_force: float) -> Switch:
    """Note that another policy decides from now on."""
    with store.transaction():
        last = switch_in_force(store)
        found = Switch(
            1 if last is None else last.number + 1,
            policy,
            None if last is None else last.policy,
            by,
            reason,
            asked,
            in_force,
        )
        store.insert(
            "INSERT INTO switches (number, policy, before, by, reason, asked, in_force) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (found.number, policy, found.before, by, reason, asked, in_force),
        )
    return found


def switch_in_force(store: Store) -> Switch | None:
    """The newest switch: its policy decides. None: the scheduler has never run."""
    row = store.row("SELECT * FROM switches ORDER BY number DESC LIMIT 1")
    return None if row is None else Switch(*row)


def switches(store: Store, before: int | None = None, limit: int = 50) -> list[Switch]:
    """Switches, newest first. before: the number they come before."""
    query = "SELECT * FROM switches WHERE ? IS NULL OR number < ? ORDER BY number DESC LIMIT ?"
    return [Switch(*row) for row in store.rows(query, (before, before, limit))]


def _request(row: Sequence[Any]) -> Request:
    seq, kind, job, body, by, at, done_at, problem = row
    return Request(seq, kind, job, json.loads(body), by, at, done_at, problem)
