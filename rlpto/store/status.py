"""How the cluster stands, as the scheduler has last written it: nodes, queue, predictions, decisions, forecasts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rlpto.store.database import Store
from rlpto.store.rows import Row, find, first, put

HEARTBEAT, DRAIN, PROVISIONING = "heartbeat", "drain", "provisioning"
"""Keys of facts."""
ANY_METRIC = "any"
"""Metric of a preview that is the same by every metric."""
MOST_GONE_NODES = 100
"""Nodes that are gone and still shown."""


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
class ProvisioningStatus:
    """What a provisioner decided last, `at` [s]: `wanted` GPUs of rented nodes; of nodes that were `ready`, `booting`,
    and `held` by jobs. spare: GPUs that it wanted beyond the demand of jobs, held and waited for."""

    at: float
    provisioner: str
    wanted: float
    ready: float
    booting: float
    held: float
    spare: float

    @property
    def text(self) -> str:
        """In a line, for people."""
        seen = f"{self.ready:g} are ready, {self.booting:g} boot, {self.held:g} are held"
        return f"{self.provisioner} wants nodes of {self.wanted:g} GPUs, {self.spare:g} spare; {seen}"


@dataclass(frozen=True)
class NodeRow(Row):
    """A node. kind: of its GPUs. jobs: GPUs that each job holds there now. host: name of its machine. leaves: when it
    goes, as announced [s]; None: nothing was announced. spot: its owner may take it away."""

    TABLE = "nodes"

    id: str
    gpus: int
    alive: bool
    kind: str = ""
    jobs: Mapping[str, int] = field(default_factory=dict)
    host: str = ""
    leaves: float | None = None
    spot: bool = False


@dataclass(frozen=True)
class QueueRow(Row):
    """A waiting job. position: 1 is served first. gpus_ahead: that jobs before it ask for. reason: why it waits."""

    TABLE = "queue"

    job: str
    position: int
    gpus_ahead: int
    reason: str


@dataclass(frozen=True)
class PredictionRow(Row):
    """When a job will start and finish [s]; low, high: bounds of an 80 % interval; None: not predicted.

    as_of: s, when that was simulated. policy: in force then.
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
    """A decision. latency: s. capacity, held: GPUs up, and held after it. active, waiting: jobs. reward: of the
    interval before, and its parts by name; steering: what the agent did to the index, by name; empty: another policy
    decided."""

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
    steering: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class VolumeRow(Row):
    """Task volume [GPU-seconds that jobs which arrived in the step ask for] of the step that begins `at`.

    seen: None: not over yet. forecast, low, high: None: none was made.
    """

    TABLE = "volume"

    at: float
    seen: float | None = None
    forecast: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class PolicyEntry(Row):
    """A policy that may be switched to. name: in the catalogue."""

    TABLE = "policies"

    name: str
    summary: str
    source: str


@dataclass(frozen=True)
class PreviewRow(Row):
    """A whole training of a program with a number of GPUs, alone, its batch size chosen by a metric, or by any."""

    TABLE = "previews"

    program: str
    metric: str
    gpus: int
    hours: float
    gpu_hours: float


def set_drained(store: Store, drained: bool) -> None:
    """Note that no job may start from now on, or that jobs may start again."""
    store.set_fact(DRAIN, json.dumps(drained))


def is_drained(store: Store) -> bool:
    """Whether no job may start."""
    return bool(json.loads(store.fact(DRAIN) or "false"))


def beat(store: Store, heartbeat: Heartbeat, at: float) -> None:
    """Say that the scheduler is alive."""
    store.set_fact(HEARTBEAT, json.dumps([at, asdict(heartbeat)]))


def heartbeat(store: Store) -> tuple[float, Heartbeat] | None:
    """The last sign of life of a scheduler, and when [s] it was given."""
    kept = store.fact(HEARTBEAT)
    if kept is None:
        return None
    at, found = json.loads(kept)
    return at, Heartbeat(**found)


def provisioning(store: Store) -> ProvisioningStatus | None:
    """What a provisioner decided last; None: there is none."""
    kept = store.fact(PROVISIONING)
    return None if kept is None else ProvisioningStatus(**json.loads(kept))


def nodes(store: Store) -> list[NodeRow]:
    """The nodes that are up, and those that have gone last."""
    newest = "SELECT rowid FROM nodes WHERE NOT alive ORDER BY rowid DESC LIMIT ?"
    return find(store, NodeRow, f"WHERE alive OR rowid IN ({newest}) ORDER BY alive DESC, rowid", (MOST_GONE_NODES,))


def note_leaving(store: Store, node: str, at: float) -> None:
    """Note when a node will go."""
    store.write("UPDATE nodes SET leaves = ? WHERE id = ?", (at, node))


def note_held(store: Store, held: Mapping[str, Mapping[str, int]]) -> None:
    """Note GPUs that each job holds on some nodes now."""
    if held:
        store.write("UPDATE nodes SET jobs = ? WHERE id = ?", *((json.dumps(held[node]), node) for node in held))


def set_queue(store: Store, rows: Sequence[QueueRow], before: Sequence[QueueRow] = ()) -> None:
    """Write the queue. before: what stands there; of thousands of rows only those are written that differ."""
    known, there = set(before), {row.job for row in rows}
    gone = [(row.job,) for row in before if row.job not in there]
    with store.transaction():
        if gone:
            store.write("DELETE FROM queue WHERE job = ?", *gone)
        put(store, [row for row in rows if row not in known])


def queue(store: Store, limit: int = -1) -> list[QueueRow]:
    """Waiting jobs in order of service. limit: -1: all."""
    return find(store, QueueRow, "ORDER BY position LIMIT ?", (limit,))


def queue_row(store: Store, job: str) -> QueueRow | None:
    """Where a job stands in the queue; None: it does not wait."""
    return first(store, QueueRow, "WHERE job = ?", (job,))


def prediction(store: Store, job: str) -> PredictionRow | None:
    """When a job will start and finish; None: not predicted yet."""
    return first(store, PredictionRow, "WHERE job = ?", (job,))


def predictions(store: Store) -> dict[str, PredictionRow]:
    """All predictions by job."""
    return {row.job: row for row in find(store, PredictionRow)}


def describe_decision(store: Store, row: DecisionRow) -> None:
    """Note more of the decision that the session has taken last."""
    values = asdict(row) | {"parts": json.dumps(dict(row.parts)), "steering": json.dumps(dict(row.steering))}
    sets = ", ".join(f"{name} = ?" for name in values)
    store.write(f"UPDATE decisions SET {sets} WHERE seq = (SELECT max(seq) FROM decisions)", (*values.values(),))


def decisions(store: Store, since: float, limit: int = 500) -> list[DecisionRow]:
    """The newest `limit` decisions since a time [s], oldest first."""
    return find(store, DecisionRow, "WHERE at >= ? ORDER BY seq DESC LIMIT ?", (since, limit))[::-1]


def set_volume(store: Store, rows: Sequence[VolumeRow]) -> None:
    """Note task volume, seen or forecast, of steps. A value that a row leaves out stays as it was."""
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
