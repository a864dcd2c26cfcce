"""State of the cluster as last written by the scheduler: nodes, queue, predictions, decisions, forecasts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rlpto.store.database import Store
from rlpto.store.rows import Row, find, first, put

HEARTBEAT, DRAIN, PROVISIONING = "heartbeat", "drain", "provisioning"
"""Keys of the key-value table."""
ANY_METRIC = "any"
"""Metric of a preview that is the same for every metric."""
MOST_GONE_NODES = 100
"""Most nodes shown that are gone."""


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life of the scheduler. process: its id. since: when it started [s]. address: address of the cluster.
    decisions: number so far. longest_wait: longest wait for the database since it started [s]."""

    process: int
    since: float
    address: str = ""
    decisions: int = 0
    longest_wait: float = 0.0


@dataclass(frozen=True)
class ProvisioningStatus:
    """The last decision of a provisioner, made `at` [s]. wanted: GPUs that rented nodes should have. ready, booting:
    GPUs of rented nodes. held: GPUs held by jobs. spare: GPUs wanted beyond the jobs' demand, held and waited for."""

    at: float
    provisioner: str
    wanted: float
    ready: float
    booting: float
    held: float
    spare: float

    @property
    def text(self) -> str:
        """A line for people."""
        seen = f"{self.ready:g} are ready, {self.booting:g} boot, {self.held:g} are held"
        return f"{self.provisioner} wants nodes of {self.wanted:g} GPUs, {self.spare:g} spare; {seen}"


@dataclass(frozen=True)
class NodeRow(Row):
    """A node. jobs: GPUs that each job holds there now. host: name of its machine. leaves:
    announced time when it leaves [s], or None. silent: time of its last answer [s] while it does not answer, else None.
    spot: its owner may take it away."""

    TABLE = "nodes"

    id: str
    gpus: int
    alive: bool
    gpu_type: str = ""
    jobs: Mapping[str, int] = field(default_factory=dict)
    host: str = ""
    leaves: float | None = None
    silent: float | None = None
    spot: bool = False


@dataclass(frozen=True)
class QueueRow(Row):
    """A waiting job. position: 1 is served first. gpus_ahead: GPUs requested by jobs before it. reason: why it
    waits."""

    TABLE = "queue"

    job: str
    position: int
    gpus_ahead: int
    reason: str


@dataclass(frozen=True)
class PredictionRow(Row):
    """Predicted start and finish of a job [s]. low, high: bounds of an 80 % interval. None means not predicted.

    as_of: time of the simulation [s]. policy: policy in force then.
    """

    TABLE = "predictions"

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
class DecisionRow(Row):
    """A decision. latency: s. capacity, held: GPUs up, and GPUs held after it. active, waiting: numbers of jobs.
    reward, parts: reward of the preceding interval, and its parts by name. weight_steps: the agent's steps of the index
    weights, by name; empty for other policies."""

    TABLE = "decisions"

    at: float
    policy: str
    latency: float
    capacity: int
    held: int
    active: int
    waiting: int
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    weight_steps: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class VolumeRow(Row):
    """Task volume of the step that begins `at` [GPU-seconds requested by jobs arriving in the step].

    seen: observed value, None until the step is over. forecast, low, high: None if there was no forecast.
    """

    TABLE = "volume"

    at: float
    seen: float | None = None
    forecast: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class PolicyEntry(Row):
    """A policy that may be switched to. name: name in the catalogue."""

    TABLE = "policies"

    name: str
    summary: str
    source: str


@dataclass(frozen=True)
class PreviewRow(Row):
    """A full training of a program alone on some GPUs, with the batch size chosen by `metric`, or `ANY_METRIC`."""

    TABLE = "previews"

    program: str
    metric: str
    gpus: int
    hours: float
    gpu_hours: float


def set_drained(store: Store, drained: bool) -> None:
    """Record whether jobs are kept from starting."""
    store.set_fact(DRAIN, json.dumps(drained))


def is_drained(store: Store) -> bool:
    """Whether jobs are kept from starting."""
    return bool(json.loads(store.fact(DRAIN) or "false"))


def beat(store: Store, heartbeat: Heartbeat, at: float) -> None:
    """Record that the scheduler is alive."""
    store.set_fact(HEARTBEAT, json.dumps([at, asdict(heartbeat)]))


def heartbeat(store: Store) -> tuple[float, Heartbeat] | None:
    """The last sign of life of a scheduler, with its time [s]."""
    kept = store.fact(HEARTBEAT)
    if kept is None:
        return None
    at, found = json.loads(kept)
    return at, Heartbeat(**found)


def provisioning(store: Store) -> ProvisioningStatus | None:
    """The last decision of a provisioner; None if there is none."""
    kept = store.fact(PROVISIONING)
    return None if kept is None else ProvisioningStatus(**json.loads(kept))


def nodes(store: Store) -> list[NodeRow]:
    """Nodes that are up, and the nodes that have gone most recently."""
    newest = "SELECT rowid FROM nodes WHERE NOT alive ORDER BY rowid DESC LIMIT ?"
    return find(store, NodeRow, f"WHERE alive OR rowid IN ({newest}) ORDER BY alive DESC, rowid", (MOST_GONE_NODES,))


def note_leaving(store: Store, node: str, at: float) -> None:
    """Record when a node will leave."""
    store.write("UPDATE nodes SET leaves = ? WHERE id = ?", (at, node))


def note_held(store: Store, held: Mapping[str, Mapping[str, int]]) -> None:
    """Record the GPUs that each job holds on some nodes now."""
    if held:
        store.write("UPDATE nodes SET jobs = ? WHERE id = ?", *((json.dumps(held[node]), node) for node in held))


def set_queue(store: Store, rows: Sequence[QueueRow], before: Sequence[QueueRow] = ()) -> None:
    """Write the queue. before: rows already stored; only rows that differ are written."""
    known, there = set(before), {row.job for row in rows}
    gone = [(row.job,) for row in before if row.job not in there]
    with store.transaction():
        if gone:
            store.write("DELETE FROM queue WHERE job = ?", *gone)
        put(store, [row for row in rows if row not in known])


def queue(store: Store, limit: int = -1) -> list[QueueRow]:
    """Waiting jobs in order of service. limit: most jobs. Default: all."""
    return find(store, QueueRow, "ORDER BY position LIMIT ?", (limit,))


def queue_row(store: Store, job: str) -> QueueRow | None:
    """Queue row of a job; None if it does not wait."""
    return first(store, QueueRow, "WHERE job = ?", (job,))


def prediction(store: Store, job: str) -> PredictionRow | None:
    """Prediction of a job; None if there is none yet."""
    return first(store, PredictionRow, "WHERE job = ?", (job,))


def predictions(store: Store) -> dict[str, PredictionRow]:
    """All predictions by job."""
    return {row.job: row for row in find(store, PredictionRow)}


def describe_decision(store: Store, row: DecisionRow) -> None:
    """Add columns to the session's newest decision."""
    values = asdict(row) | {"parts": json.dumps(dict(row.parts)), "weight_steps": json.dumps(dict(row.weight_steps))}
    sets = ", ".join(f"{name} = ?" for name in values)
    store.write(f"UPDATE decisions SET {sets} WHERE seq = (SELECT max(seq) FROM decisions)", (*values.values(),))


def decisions(store: Store, since: float, limit: int = 500) -> list[DecisionRow]:
    """The newest `limit` decisions since a time [s], oldest first."""
    return find(store, DecisionRow, "WHERE at >= ? ORDER BY seq DESC LIMIT ?", (since, limit))[::-1]


def set_volume(store: Store, rows: Sequence[VolumeRow]) -> None:
    """Write observed or forecast task volume of steps. Values missing in a row stay unchanged."""
    kept = ", ".join(f"{name} = coalesce(excluded.{name}, {name})" for name in ("seen", "forecast", "low", "high"))
    statement = (
        "INSERT INTO volume (at, seen, forecast, low, high) VALUES (?, ?, ?, ?, ?) "
        f"ON CONFLICT (at) DO UPDATE SET {kept}"
    )
    if rows:
        store.write(statement, *((row.at, row.seen, row.forecast, row.low, row.high) for row in rows))


def volume(store: Store, since: float, limit: int = 500) -> list[VolumeRow]:
    """The newest `limit` steps since a time [s], oldest first."""
    return find(store, VolumeRow, "WHERE at >= ? ORDER BY at DESC LIMIT ?", (since, limit))[::-1]


def policies(store: Store) -> list[PolicyEntry]:
    """Policies that may be switched to, by name."""
    return find(store, PolicyEntry, "ORDER BY name")


def previews(store: Store, program: str) -> list[PreviewRow]:
    """Previews of a program by metric and number of GPUs."""
    return find(store, PreviewRow, "WHERE program = ? ORDER BY metric, gpus", (program,))
