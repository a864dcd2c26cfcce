"""How the cluster stands, as the scheduler has last written it: nodes, queue, predictions, decisions, forecasts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rlpto.store.database import Store

HEARTBEAT, NODES, DRAIN = "heartbeat", "nodes", "drain"
"""Keys of `status`."""


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life of the scheduler. process: its id. since: s, when it started. address: of the cluster.
    decisions: so far. longest_wait: s, longest wait for the database since it started."""

    process: int
    since: float
    address: str = ""
    decisions: int = 0
    longest_wait: float = 0.0


@dataclass(frozen=True)
class NodeRow:
    """A node. kind: of its GPUs. jobs: GPUs that each job holds there now. host: name of its machine."""

    id: str
    gpus: int
    alive: bool
    kind: str = ""
    jobs: Mapping[str, int] = field(default_factory=dict)
    host: str = ""


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


def set_status(store: Store, key: str, at: float, value: object) -> None:
    """Keep a value (JSON) under a key, in place of the one before."""
    store.write("INSERT OR REPLACE INTO status (key, at, value) VALUES (?, ?, ?)", (key, at, json.dumps(value)))


def get_status(store: Store, key: str) -> tuple[float, Any] | None:
    """When a key was last set, and to what."""
    row = store.row("SELECT at, value FROM status WHERE key = ?", (key,))
    return None if row is None else (row[0], json.loads(row[1]))


def set_drained(store: Store, drained: bool, by: str, at: float) -> None:
    """Note that no job is to start from now on, or that they may again."""
    set_status(store, DRAIN, at, {"on": drained, "by": by})


def is_drained(store: Store) -> bool:
    """Whether no job is to start."""
    found = get_status(store, DRAIN)
    return found is not None and bool(found[1]["on"])


def beat(store: Store, heartbeat: Heartbeat, at: float) -> None:
    """Say that the scheduler is alive."""
    set_status(store, HEARTBEAT, at, asdict(heartbeat))


def heartbeat(store: Store) -> tuple[float, Heartbeat] | None:
    """The last sign of life of a scheduler, and when [s] it was given."""
    found = get_status(store, HEARTBEAT)
    return None if found is None else (found[0], Heartbeat(**found[1]))


def set_nodes(store: Store, nodes: Sequence[NodeRow], at: float) -> None:
    """Replace what is known of the nodes."""
    set_status(store, NODES, at, [asdict(node) for node in nodes])


def nodes(store: Store) -> list[NodeRow]:
    """The nodes as they were last seen."""
    found = get_status(store, NODES)
    return [] if found is None else [NodeRow(**node) for node in found[1]]


def set_queue(store: Store, rows: Sequence[QueueRow], before: Sequence[QueueRow] = ()) -> None:
    """Replace the queue. before: what stands there; of thousands of rows only those are written that differ."""
    known, there = set(before), {row.job for row in rows}
    gone = [(row.job,) for row in before if row.job not in there]
    new = [(row.job, row.position, row.gpus_ahead, row.reason) for row in rows if row not in known]
    with store.transaction():
        if not before:
            store.write("DELETE FROM queue")
        if gone:
            store.write("DELETE FROM queue WHERE job = ?", *gone)
        if new:
            statement = "INSERT OR REPLACE INTO queue (job, position, gpus_ahead, reason) VALUES (?, ?, ?, ?)"
            store.write(statement, *new)


def queue(store: Store, limit: int = -1) -> list[QueueRow]:
    """Waiting jobs in order of service. limit: -1: all."""
    query = "SELECT job, position, gpus_ahead, reason FROM queue ORDER BY position LIMIT ?"
    return [QueueRow(*row) for row in store.rows(query, (limit,))]


def queue_row(store: Store, job: str) -> QueueRow | None:
    """Where a job stands in the queue; None: it does not wait."""
    row = store.row("SELECT job, position, gpus_ahead, reason FROM queue WHERE job = ?", (job,))
    return None if row is None else QueueRow(*row)


def set_predictions(store: Store, rows: Sequence[PredictionRow]) -> None:
    """Replace all predictions."""
    with store.transaction():
        store.write("DELETE FROM predictions")
        if rows:
            marks = ", ".join("?" * 9)
            store.write(f"INSERT INTO predictions VALUES ({marks})", *(tuple(asdict(row).values()) for row in rows))


def prediction(store: Store, job: str) -> PredictionRow | None:
    """When a job will start and finish; None: nobody has said so."""
    row = store.row("SELECT * FROM predictions WHERE job = ?", (job,))
    return None if row is None else PredictionRow(*row)


def predictions(store: Store) -> dict[str, PredictionRow]:
    """All predictions by job."""
    return {row[0]: PredictionRow(*row) for row in store.rows("SELECT * FROM predictions")}


def add_decision(store: Store, row: DecisionRow, time: float = 0.0) -> None:
    """Note a decision that changed nothing. time: s of the session."""
    values = _decision_values(row) | {"time": time}
    store.write(
        f"INSERT INTO decisions ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", (*values.values(),)
    )


def describe_decision(store: Store, row: DecisionRow) -> None:
    """Note more of the decision that the session has taken last."""
    values = _decision_values(row)
    sets = ", ".join(f"{name} = ?" for name in values)
    store.write(f"UPDATE decisions SET {sets} WHERE seq = (SELECT max(seq) FROM decisions)", (*values.values(),))


def _decision_values(row: DecisionRow) -> dict[str, Any]:
    return asdict(row) | {"parts": json.dumps(dict(row.parts)), "steering": json.dumps(dict(row.steering))}


def decisions(store: Store, since: float, limit: int = 500) -> list[DecisionRow]:
    """The newest `limit` decisions since a time [s], oldest first."""
    names = [one.name for one in fields(DecisionRow)]
    query = f"SELECT {', '.join(names)} FROM decisions WHERE at >= ? ORDER BY seq DESC LIMIT ?"
    found = [dict(zip(names, row, strict=True)) for row in reversed(store.rows(query, (since, limit)))]
    return [DecisionRow(**row | {name: json.loads(row[name]) for name in ("parts", "steering")}) for row in found]


def set_volume(store: Store, rows: Sequence[VolumeRow]) -> None:
    """Note task volume, seen or forecast, of steps. What was forecast of one stays if nothing else is said of it."""
    kept = ", ".join(f"{name} = coalesce(excluded.{name}, {name})" for name in ("seen", "forecast", "low", "high"))
    statement = (
        "INSERT INTO volume (at, seen, forecast, low, high) VALUES (?, ?, ?, ?, ?) "
        f"ON CONFLICT (at) DO UPDATE SET {kept}"
    )
    if rows:
        store.write(statement, *((row.at, row.seen, row.forecast, row.low, row.high) for row in rows))


def volume(store: Store, since: float, limit: int = 500) -> list[VolumeRow]:
    """The newest `limit` steps since a time [s], oldest first."""
    query = "SELECT at, seen, forecast, low, high FROM volume WHERE at >= ? ORDER BY at DESC LIMIT ?"
    return [VolumeRow(*row) for row in reversed(store.rows(query, (since, limit)))]


def set_policies(store: Store, rows: Sequence[PolicyRow]) -> None:
    """Replace the catalogue of policies."""
    with store.transaction():
        store.write("DELETE FROM policies")
        if rows:
            store.write(
                "INSERT INTO policies VALUES (?, ?, ?, ?)", *((r.name, r.spec, r.summary, r.source) for r in rows)
            )


def policies(store: Store) -> list[PolicyRow]:
    """Policies that may be switched to, by name."""
    return [PolicyRow(*row) for row in store.rows("SELECT name, spec, summary, source FROM policies ORDER BY name")]


def set_previews(store: Store, program: str, rows: Sequence[PreviewRow]) -> None:
    """Replace the previews of a program."""
    with store.transaction():
        store.write("DELETE FROM previews WHERE program = ?", (program,))
        if rows:
            store.write("INSERT INTO previews VALUES (?, ?, ?, ?, ?)", *(tuple(asdict(row).values()) for row in rows))


def previews(store: Store, program: str) -> list[PreviewRow]:
    """Previews of a program by metric and number of GPUs."""
    query = "SELECT program, metric, gpus, hours, gpu_hours FROM previews WHERE program = ? ORDER BY metric, gpus"
    return [PreviewRow(*row) for row in store.rows(query, (program,))]
