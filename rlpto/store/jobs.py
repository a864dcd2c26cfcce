"""Jobs in the database: what was asked for, and what has become of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from rlpto.store.database import Store

State = Literal["submitted", "checking", "queued", "starting", "running", "finished", "failed", "cancelled", "rejected"]
STATES: tuple[State, ...] = get_args(State)
ACTIVE: tuple[State, ...] = ("queued", "starting", "running")
"""States of jobs that the scheduler decides on."""
ENDED: tuple[State, ...] = ("finished", "failed", "cancelled", "rejected")
"""States after which nothing changes any more."""
EXPECTED: tuple[State, ...] = ("submitted", "checking")
"""States of jobs that the scheduler does not decide on yet."""
WAITING: tuple[State, ...] = ("submitted", "checking", "queued")
"""States of jobs that were never given GPUs, or wait for them again."""
Priority = Literal["high", "normal", "low"]
Scalar = bool | int | float | str
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_ID_LETTERS = 12


@dataclass(frozen=True)
class NewJob:
    """What a user asks for, checked. name: a label. training: class path of a developer in place of the program's.

    epochs: work. batch_size: samples of a step, None: the program's. metric: None: the experiment's.
    """

    owner: str
    name: str
    program: str
    epochs: float
    gpus: int = 1
    min_gpus: int = 1
    max_gpus: int = 1
    priority: Priority = "normal"
    options: Mapping[str, Scalar] = field(default_factory=dict)
    training: str | None = None
    batch_size: int | None = None
    metric: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobRow(NewJob):
    """A job as the database has it. seq: in order of submission. version: of what users may change (priority, labels).

    submitted, changed, queued, started, ended: s; None: not yet. progress: epochs done. gpus_held: now.
    gpu_seconds: so far. reason: why it is in its state, empty: as usual.
    """

    seq: int = 0
    id: str = ""
    version: int = 1
    state: State = "submitted"
    reason: str = ""
    submitted: float = 0.0
    changed: float = 0.0
    queued: float | None = None
    started: float | None = None
    ended: float | None = None
    progress: float = 0.0
    gpus_held: int = 0
    gpu_seconds: float = 0.0
    loss: float | None = None
    accuracy: float | None = None
    rescales: int = 0
    recoveries: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing changes any more."""
        return self.state in ENDED


@dataclass(frozen=True)
class SessionJob(JobRow):
    """A job that the scheduler of a session knows. number: its place there. launched: whether it ever had a controller.

    start_time, finish_time: s of the session. reached_90 and so on: when it had gained that share [%] of the accuracy
    it can gain; None: not yet. failure: whole text of what went wrong last.
    """

    number: int = 0
    launched: bool = False
    start_time: float | None = None
    finish_time: float | None = None
    step: int = 0
    peak_gpus: int = 0
    rescale_seconds: float = 0.0
    failure: str = ""
    reached_90: float | None = None
    reached_95: float | None = None
    reached_99: float | None = None


_COLUMNS = [one.name for one in fields(JobRow)]
_SESSION = [one.name for one in fields(SessionJob)]
_JOB = ", ".join(f"jobs.{name}" for name in _COLUMNS)
_ASKED = [one.name for one in fields(NewJob)]
_CHANGEABLE = frozenset(
    (
        *("state", "reason", "queued", "started", "ended", "progress", "loss", "accuracy"),
        *("gpus_held", "gpu_seconds", "rescales", "recoveries"),
    )
)


def new_job_id() -> str:
    """A name that nobody can guess and every file system takes: j and 12 letters of base 32."""
    return "j" + "".join(secrets.choice(_LETTERS) for _ in range(_ID_LETTERS))


def insert_job(store: Store, job: NewJob, at: float, job_id: str | None = None) -> JobRow:
    """A new job in state `submitted`. job_id: None: a new one."""
    made = job_id or new_job_id()
    values = {name: getattr(job, name) for name in _ASKED}
    values |= {"options": json.dumps(dict(job.options)), "labels": json.dumps(dict(job.labels))}
    names = [*values, "id", "submitted", "changed"]
    with store.transaction():
        seq = store.insert(
            f"INSERT INTO jobs ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
            (*values.values(), made, at, at),
        )
        _note_labels(store, seq, job.labels)
    return JobRow(**{name: getattr(job, name) for name in _ASKED}, seq=seq, id=made, submitted=at, changed=at)


def get_job(store: Store, job: str) -> JobRow | None:
    """The job of an id."""
    row = store.row(f"SELECT {_JOB} FROM jobs WHERE id = ?", (job,))
    return None if row is None else _job(row)


def jobs_in(store: Store, states: Sequence[State], after: int = 0, limit: int = -1) -> list[JobRow]:
    """Jobs in any of these states in order of submission. after: the number `seq` they follow. limit: -1: all."""
    query = f"SELECT {_JOB} FROM jobs WHERE state IN ({_marks(states)}) AND seq > ? ORDER BY seq LIMIT ?"
    return [_job(row) for row in store.rows(query, (*states, after, limit))]


def change_job(store: Store, job: str, at: float, **changes: str | float | None) -> None:
    """Change columns of a job, those that the scheduler alone decides (`state`, `reason`, `progress`, ...).

    Raises ValueError for any other column.
    """
    wrong = sorted(changes.keys() - _CHANGEABLE)
    if wrong:
        raise ValueError(f"not the scheduler's to change: {', '.join(wrong)}")
    sets = ", ".join(f"{name} = ?" for name in changes)
    store.write(f"UPDATE jobs SET changed = ?, {sets} WHERE id = ?", (at, *changes.values(), job))


def change_asked(store: Store, job: JobRow, at: float, priority: Priority, labels: Mapping[str, str]) -> bool:
    """Change what a user may change later; False if somebody else has done so since `job` was read."""
    with store.transaction():
        changed = store.write(
            "UPDATE jobs SET priority = ?, labels = ?, version = version + 1, changed = ? WHERE id = ? AND version = ?",
            (priority, json.dumps(dict(labels)), at, job.id, job.version),
        )
        if changed:
            store.write("DELETE FROM labels WHERE job = ?", (job.seq,))
            _note_labels(store, job.seq, labels)
    return changed > 0


def session_jobs(store: Store) -> list[SessionJob]:
    """The jobs that the scheduler of the session knows, in its order."""
    query = f"SELECT {', '.join(_SESSION)} FROM jobs WHERE number IS NOT NULL ORDER BY number"
    return [SessionJob(**_decoded(dict(zip(_SESSION, row, strict=True)))) for row in store.rows(query)]


def list_jobs(
    store: Store,
    *,
    owner: str | None = None,
    states: Sequence[State] = (),
    label: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[JobRow]:
    """Jobs, newest first. owner, states, label ("key=value"): of these only. before: number that they precede."""
    tables, conditions, values = "jobs", [], []
    if label is not None:
        tables = "labels CROSS JOIN jobs ON jobs.seq = labels.job"
        conditions.append("labels.label = ?")
        values.append(label)
    seq = "jobs.seq" if label is None else "labels.job"
    bounds: list[str | int] = [*values]
    if owner is not None:
        conditions.append("owner = ?")
        bounds.append(owner)
    if before is not None:
        conditions.append(f"{seq} < ?")
        bounds.append(before)
    one = (
        f"SELECT {_JOB} FROM {tables} WHERE " + " AND ".join([*conditions, "{state}"]) + f" ORDER BY {seq} DESC LIMIT ?"
    )
    if not states:
        return [_job(row) for row in store.rows(one.format(state="1"), (*bounds, limit))]
    # One state after the other, each by its own index and merged: a filter over all rows would read the whole history.
    found = [row for state in states for row in store.rows(one.format(state="state = ?"), (*bounds, state, limit))]
    return sorted(map(_job, found), key=lambda job: -job.seq)[:limit]


def count_jobs(store: Store, states: Sequence[State], owner: str | None = None) -> int:
    """How many jobs are in any of these states."""
    query, values = f"SELECT count(*) FROM jobs WHERE state IN ({_marks(states)})", [*states]
    row = store.row(query, values) if owner is None else store.row(f"{query} AND owner = ?", (*values, owner))
    return 0 if row is None else int(row[0])


def count_open(store: Store, owner: str) -> int:
    """How many jobs of a user are not over."""
    row = store.row(
        "SELECT count(*) FROM jobs WHERE owner = ? "
        "AND state IN ('submitted', 'checking', 'queued', 'starting', 'running')",
        (owner,),
    )
    return 0 if row is None else int(row[0])


def count_by_state(store: Store) -> dict[str, int]:
    """How many jobs are in each state; states without any are left out."""
    return {row[0]: int(row[1]) for row in store.rows("SELECT state, count(*) FROM jobs GROUP BY state")}


def gpus_held_by(store: Store) -> dict[str, int]:
    """GPUs that the jobs of each user hold now; users without any are left out."""
    query = (
        "SELECT owner, sum(gpus_held) FROM jobs WHERE state IN ('queued', 'starting', 'running') AND gpus_held > 0 "
        "GROUP BY owner"
    )
    return {row[0]: int(row[1]) for row in store.rows(query)}


def _note_labels(store: Store, seq: int, labels: Mapping[str, str]) -> None:
    if labels:
        rows = [(f"{key}={value}", seq) for key, value in labels.items()]
        store.write("INSERT INTO labels (label, job) VALUES (?, ?)", *rows)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _job(row: Sequence[Any]) -> JobRow:
    return JobRow(**_decoded(dict(zip(_COLUMNS, row, strict=True))))


def _decoded(values: dict[str, Any]) -> dict[str, Any]:
    return values | {"options": json.loads(values["options"]), "labels": json.loads(values["labels"])}
