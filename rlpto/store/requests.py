"""Requests of the web process to the scheduler, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlpto.store.database import Store
from rlpto.store.rows import Row, find, first, insert

Kind = Literal["cancel", "priority", "hold", "policy", "drain", "leave"]
"""cancel, priority, hold (set or released) concern `job`; the body of priority is {"priority"}. policy: body {"policy",
"reason", "number"}, where number is the switch that must still be in force. drain: body {"on"}; no job starts until it
is off. leave: body {"node", "seconds"}, the time until the node leaves."""


@dataclass(frozen=True)
class Request(Row):
    """A request. job: None if it concerns no job. done_at: time of the answer [s], or None if still open. problem:
    reason of a refusal, empty if done."""

    TABLE = "requests"

    seq: int
    kind: Kind
    job: str | None
    body: Mapping[str, Any]
    by: str
    at: float
    done_at: float | None
    problem: str | None


@dataclass(frozen=True)
class Switch(Row):
    """A change of policy. number: counts switches from 1, and is the ETag. before: previous policy, or None at the
    first start. asked, in_force: s."""

    TABLE = "switches"

    number: int
    policy: str
    before: str | None
    by: str
    reason: str
    asked: float
    in_force: float


def ask(
    store: Store, kind: Kind, by: str, at: float, job: str | None = None, body: Mapping[str, Any] | None = None
) -> int:
    """Add a request to the scheduler, and return its number."""
    return insert(store, "requests", kind=kind, job=job, body=body or {}, by=by, at=at)


def open_requests(store: Store) -> list[Request]:
    """Unanswered requests, oldest first."""
    return find(store, Request, "WHERE done_at IS NULL ORDER BY seq")


def get_request(store: Store, seq: int) -> Request | None:
    """A request, with its answer if there is one."""
    return first(store, Request, "WHERE seq = ?", (seq,))


def asked(store: Store, kind: Kind, job: str) -> list[Request]:
    """Open requests of a type about a job, oldest first."""
    return find(store, Request, "WHERE done_at IS NULL AND kind = ? AND job = ? ORDER BY seq", (kind, job))


def answer(store: Store, seq: int, at: float, problem: str = "") -> None:
    """Record that a request is done, or why it was refused."""
    store.write("UPDATE requests SET done_at = ?, problem = ? WHERE seq = ? AND done_at IS NULL", (at, problem, seq))


def add_switch(store: Store, policy: str, by: str, reason: str, asked: float, in_force: float) -> Switch:
    """Record that another policy decides from now on."""
    with store.transaction():
        last = switch_in_force(store)
        number, before = (1, None) if last is None else (last.number + 1, last.policy)
        found = Switch(number, policy, before, by, reason, asked, in_force)
        insert(store, "switches", **asdict(found))
    return found


def switch_in_force(store: Store) -> Switch | None:
    """The newest switch, whose policy is in force. None if the scheduler has never run."""
    return first(store, Switch, "ORDER BY number DESC")
