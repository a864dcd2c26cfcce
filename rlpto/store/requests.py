"""What the web asks of the scheduler, and what it answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlpto.store.database import Store
from rlpto.store.rows import Row, find, first, insert

Kind = Literal["cancel", "priority", "hold", "policy", "drain", "leave"]
"""cancel, priority, hold (put on or taken off): of `job`; body of priority: {"priority"}. policy: body
{"policy", "reason", "number"}, where number is the switch that must still be in force. drain: body {"on"}: no job
starts until it is off. leave: body {"node", "seconds"} until the node goes."""


@dataclass(frozen=True)
class Request(Row):
    """job: None where the request is about none. done_at: None: open. problem: why it was refused; empty: done."""

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
    """A change of policy. number: counts them from 1, and is the ETag. before: None: the service had just started.
    asked, in_force: s."""

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
    """Ask the scheduler for something; the number of the request."""
    return insert(store, "requests", kind=kind, job=job, body=body or {}, by=by, at=at)


def open_requests(store: Store) -> list[Request]:
    """What the scheduler has not answered, oldest first."""
    return find(store, Request, "WHERE done_at IS NULL ORDER BY seq")


def get_request(store: Store, seq: int) -> Request | None:
    """A request with its answer, if there is one."""
    return first(store, Request, "WHERE seq = ?", (seq,))


def asked(store: Store, kind: Kind, job: str) -> list[Request]:
    """The open requests of a kind about a job, oldest first."""
    return find(store, Request, "WHERE done_at IS NULL AND kind = ? AND job = ? ORDER BY seq", (kind, job))


def answer(store: Store, seq: int, at: float, problem: str = "") -> None:
    """Say that a request is done, or why it was refused."""
    store.write("UPDATE requests SET done_at = ?, problem = ? WHERE seq = ? AND done_at IS NULL", (at, problem, seq))


def add_switch(store: Store, policy: str, by: str, reason: str, asked: float, in_force: float) -> Switch:
    """Note that another policy decides from now on."""
    with store.transaction():
        last = switch_in_force(store)
        number, before = (1, None) if last is None else (last.number + 1, last.policy)
        found = Switch(number, policy, before, by, reason, asked, in_force)
        insert(store, "switches", **asdict(found))
    return found


def switch_in_force(store: Store) -> Switch | None:
    """The newest switch: its policy decides. None: the scheduler has never run."""
    return first(store, Switch, "ORDER BY number DESC")
