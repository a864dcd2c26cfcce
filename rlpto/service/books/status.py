"""How the cluster stands, as the scheduler has last written it: nodes, queue, predictions, decisions, forecasts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlpto.service.books.database import Books

HEARTBEAT, NODES, DRAIN = "heartbeat", "nodes", "drain"
"""Keys of `status`."""


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life of the scheduler. process: its id. since: s, when it started. address: of the cluster.
    decisions: so far. longest_wait: s, longest wait for the books since it started."""

    process: int
    since: float
    address: str = ""
    decisions: int = 0
    longest_wait: float = 0.0


@dataclass(frozen=True)
class NodeRow:
    """A node. kind: of its GPUs. jobs: GPUs that each job holds there now."""

    id: str
    gpus: int
    alive: bool
    kind: str = ""
    jobs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class QueueRow:
    """A waiting job. position: 1 is served first. gpus_ahead: that jobs before it ask for. reason: why it waits."""

    job: str
    position: int
    gpus_ahead: int
    reason: str


@dataclass(frozen=True)
class PredictionRow:
    """When a job will start and finish [s]; low, high: bounds of an 80 % interval; None: not predicted.

    as_of: s, when that was simulated. policy: in force then.
    """

    job: str
    as_of: float
    policy: str
    start: float | None = None
    start_low: float | None = None
    start_high: float | None = None
    finish: float | None = None
    finish_low: float | None = None
    finish_high: float | None = None


@dataclass(frozen=True)
class DecisionRow:
    """A decision. latency: s. capacity, held: GPUs up, and held after it. active, waiting: jobs. reward: of the
    interval before, and its parts by name; steering: what the agent did to the index, by name; empty: another policy
    decided."""

    at: float
    policy: str
    latency: float
    capacity: int
    held: int
    active: int
    waiting: int
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    steering: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class VolumeRow:
    """Task volume [GPU-seconds that jobs which arrived in the step ask for] of the step that begins `at`.

    seen: None: not over yet. forecast, low, high: None: none was made.
    """

    at: float
    seen: float | None = None
    forecast: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class PolicyRow:
    """A policy that may be switched to. name: in the catalogue. spec: as `rlpto policies` reads it, not for users."""

    name: str
    spec: str
    summary: str
    source: str


@dataclass(frozen=True)
class PreviewRow:
    """A whole training of a program with a number of GPUs, alone, its batch size chosen by a metric."""

    program: str
    metric: str
    gpus: int
    hours: float
    gpu_hours: float


def set_status(books: Books, key: str, at: float, value: object) -> None:
    """Keep a value (JSON) under a key, in place of the one before."""
    books.write("INSERT OR REPLACE INTO status (key, at, value) VALUES (?, ?, ?)", (key, at, json.dumps(value)))


def get_status(books: Books, key: str) -> tuple[float, Any] | None:
    """When a key was last set, and to what."""
    row = books.row("SELECT at, value FROM status WHERE key = ?", (key,))
    return None if row is None else (row[0], json.loads(row[1]))


def set_drained(books: Books, drained: bool, by: str, at: float) -> None:
    """Note that no job is to start from now on, or that they may again."""
    set_status(books, DRAIN, at, {"on": drained, "by": by})


def is_drained(books: Books) -> bool:
    """Whether no job is to start."""
    found = get_status(books, DRAIN)
    return found is not None and bool(found[1]["on"])


def beat(books: Books, heartbeat: Heartbeat, at: float) -> None:
    """Say that the scheduler is alive."""
    set_status(books, HEARTBEAT, at, asdict(heartbeat))


def heartbeat(books: Books) -> tuple[float, Heartbeat] | None:
    """The last sign of life of a scheduler, and when [s] it was given."""
    found = get_status(books, HEARTBEAT)
    return None if found is None else (found[0], Heartbeat(**found[1]))


def set_nodes(books: Books, nodes: Sequence[NodeRow], at: float) -> None:
    """Replace what is known of the nodes."""
    set_status(books, NODES, at, [asdict(node) for node in nodes])


def nodes(books: Books) -> list[NodeRow]:
    """The nodes as they were last seen."""
    found = get_status(books, NODES)
    return [] if found is None else [NodeRow(**node) for node in found[1]]


def set_queue(books: Books, rows: Sequence[QueueRow], before: Sequence[QueueRow] = ()) -> None:
    """Replace the queue. before: what stands there; of thousands of rows only those are written that differ."""
    known, there = set(before), {row.job for row in rows}
    gone = [(row.job,) for row in before if row.job not in there]
    new = [(row.job, row.position, row.gpus_ahead, row.reason) for row in rows if row not in known]
    with books.transaction():
        if not before:
            books.write("DELETE FROM queue")
        if gone:
            books.write("DELETE FROM queue WHERE job = ?", *gone)
        if new:
            statement = "INSERT OR REPLACE INTO queue (job, position, gpus_ahead, reason) VALUES (?, ?, ?, ?)"
            books.write(statement, *new)


def queue(books: Books, limit: int = -1) -> list[QueueRow]:
    """Waiting jobs in order of service. limit: -1: all."""
    query = "SELECT job, position, gpus_ahead, reason FROM queue ORDER BY position LIMIT ?"
    return [QueueRow(*row) for row in books.rows(query, (limit,))]


def queue_row(books: Books, job: str) -> QueueRow | None:
    """Where a job stands in the queue; None: it does not wait."""
    row = books.row("SELECT job, position, gpus_ahead, reason FROM queue WHERE job = ?", (job,))
    return None if row is None else QueueRow(*row)


def set_predictions(books: Books, rows: Sequence[PredictionRow]) -> None:
    """Replace all predictions."""
    with books.transaction():
        books.write("DELETE FROM predictions")
        if rows:
            marks = ", ".join("?" * 9)
            books.write(f"INSERT INTO predictions VALUES ({marks})", *(tuple(asdict(row).values()) for row in rows))


def prediction(books: Books, job: str) -> PredictionRow | None:
    """When a job will start and finish; None: nobody has said so."""
    row = books.row("SELECT * FROM predictions WHERE job = ?", (job,))
    return None if row is None else PredictionRow(*row)


def predictions(books: Books) -> dict[str, PredictionRow]:
    """All predictions by job."""
    return {row[0]: PredictionRow(*row) for row in books.rows("SELECT * FROM predictions")}


def add_decision(books: Books, row: DecisionRow) -> int:
    """Note a decision; its number."""
    values = asdict(row) | {"parts": json.dumps(dict(row.parts)), "steering": json.dumps(dict(row.steering))}
    names = ", ".join(values)
    return books.insert(
        f"INSERT INTO decisions ({names}) VALUES ({', '.join('?' * len(values))})", tuple(values.values())
    )


def decisions(books: Books, since: float, limit: int = 500) -> list[DecisionRow]:
    """The newest `limit` decisions since a time [s], oldest first."""
    found = books.rows(
        "SELECT at, policy, latency, capacity, held, active, waiting, reward, parts, steering FROM decisions "
        "WHERE at >= ? ORDER BY seq DESC LIMIT ?",
        (since, limit),
    )
    names = ("at", "policy", "latency", "capacity", "held", "active", "waiting", "reward")
    return [
        DecisionRow(**{name: row[name] for name in names}, parts=json.loads(row[8]), steering=json.loads(row[9]))
        for row in reversed(found)
    ]


def set_volume(books: Books, rows: Sequence[VolumeRow]) -> None:
    """Note task volume, seen or forecast, of steps. What was forecast of one stays if nothing else is said of it."""
    kept = ", ".join(f"{name} = coalesce(excluded.{name}, {name})" for name in ("seen", "forecast", "low", "high"))
    statement = (
        "INSERT INTO volume (at, seen, forecast, low, high) VALUES (?, ?, ?, ?, ?) "
        f"ON CONFLICT (at) DO UPDATE SET {kept}"
    )
    if rows:
        books.write(statement, *((row.at, row.seen, row.forecast, row.low, row.high) for row in rows))


def volume(books: Books, since: float, limit: int = 500) -> list[VolumeRow]:
    """The newest `limit` steps since a time [s], oldest first."""
    query = "SELECT at, seen, forecast, low, high FROM volume WHERE at >= ? ORDER BY at DESC LIMIT ?"
    return [VolumeRow(*row) for row in reversed(books.rows(query, (since, limit)))]


def set_policies(books: Books, rows: Sequence[PolicyRow]) -> None:
    """Replace the catalogue of policies."""
    with books.transaction():
        books.write("DELETE FROM policies")
        if rows:
            books.write(
                "INSERT INTO policies VALUES (?, ?, ?, ?)", *((r.name, r.spec, r.summary, r.source) for r in rows)
            )


def policies(books: Books) -> list[PolicyRow]:
    """Policies that may be switched to, by name."""
    return [PolicyRow(*row) for row in books.rows("SELECT name, spec, summary, source FROM policies ORDER BY name")]


def set_previews(books: Books, program: str, rows: Sequence[PreviewRow]) -> None:
    """Replace the previews of a program."""
    with books.transaction():
        books.write("DELETE FROM previews WHERE program = ?", (program,))
        if rows:
            books.write("INSERT INTO previews VALUES (?, ?, ?, ?, ?)", *(tuple(asdict(row).values()) for row in rows))


def previews(books: Books, program: str) -> list[PreviewRow]:
    """Previews of a program by metric and number of GPUs."""
    query = "SELECT program, metric, gpus, hours, gpu_hours FROM previews WHERE program = ? ORDER BY metric, gpus"
    return [PreviewRow(*row) for row in books.rows(query, (program,))]
