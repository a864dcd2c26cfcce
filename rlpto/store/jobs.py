"""Jobs in the database: what was asked for, and what has become of it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from rlpto.store.database import Store
from rlpto.store.rows import Row, find, first, insert

State = Literal["submitted", "checking", "queued", "starting", "running", "finished", "failed", "cancelled", "rejected"]
STATES: tuple[State, ...] = get_args(State)
ACTIVE: tuple[State, ...] = ("queued", "starting", "running")
"""States of jobs that the scheduler decides on."""
ENDED: tuple[State, ...] = ("finished", "failed", "cancelled", "rejected")
"""States after which nothing changes any more."""
EXPECTED: tuple[State, ...] = ("submitted", "checking")
"""States of jobs that the scheduler does not decide on yet."""
Priority = Literal["high", "normal", "low"]
Scalar = bool | int | float | str
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_ID_LETTERS = 12


@dataclass(frozen=True)
class NewJob(Row):
    """What a user asks for, checked. name: a label.

    script: digest of a developer's script, with the arguments of its command line, the samples of an epoch, and
    packages that pip installs for its workers besides those of the program. None: the program's. epochs: work.
    batch_size: samples of a step, None: the program's. metric: None: the experiment's.
    after: jobs that have to finish first. most_hours: since its start, after which it is cancelled; None: no limit.
    seed: of the training; None: one of its own.
    """

    TABLE = "jobs"

    owner: str
    name: str
    program: str
    epochs: float
    gpus: int = 1
    min_gpus: int = 1
    max_gpus: int = 1
    priority: Priority = "normal"
    options: Mapping[str, Scalar] = field(default_factory=dict)
    script: str | None = None
    arguments: Sequence[str] = ()
    samples: int | None = None
    pip: Sequence[str] = ()
    batch_size: int | None = None
    metric: str | None = None
    after: Sequence[str] = ()
    most_hours: float | None = None
    seed: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobRow(NewJob):
    """A job as the database has it. seq: in order of submission.

    submitted, changed, queued, started, ended: s; None: not yet. progress: epochs done. gpus_held: now.
    gpu_seconds: so far. reason: why it is in its state, empty: as usual. held_by: the user who holds it back from its
    start; empty: no hold. A job with GPUs has none.
    """

    seq: int = 0
    id: str = ""
    state: State = "submitted"
    reason: str = ""
    held_by: str = ""
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

    @property
    def waits_for(self) -> str:
        """Why it is not queued yet; empty: it comes after no job, or is queued."""
        return f"it comes after {', '.join(self.after)}" if self.after and self.queued is None else ""


@dataclass(frozen=True)
class SessionJob(JobRow):
    """A job that the scheduler of a session knows. number: its place there. launched: whether it ever had a controller.

    start_time, finish_time: s of the session. reached_90 and so on: when it had gained that share [%] of the accuracy
    it can gain; None: not yet. failure: whole text of what went wrong last. kept_seconds: of training that no fault
    has taken back. lost_gpu_seconds: of training that faults have; None: it has not trained. final_accuracy:
    at its end, as expected. gained: share of it; shortfall: s times the share missing, not kept while all was missing.
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
    kept_seconds: float = 0.0
    lost_gpu_seconds: float | None = None
    final_accuracy: float | None = None
    gained: float = 0.0
    shortfall: float = 0.0


_ASKED = [one.name for one in fields(NewJob)]


def insert_job(store: Store, job: NewJob, at: float) -> JobRow:
    """A new job in state `submitted`. Its id cannot be guessed and is a file name anywhere."""
    made = "j" + "".join(secrets.choice(_LETTERS) for _ in range(_ID_LETTERS))
    asked = {name: getattr(job, name) for name in _ASKED}
    with store.transaction():
        seq = insert(store, "jobs", **asked, id=made, submitted=at, changed=at)
        if job.labels:
            labels = ((f"{key}={value}", seq) for key, value in job.labels.items())
            store.write("INSERT INTO labels (label, job) VALUES (?, ?)", *labels)
    return JobRow(**asked, seq=seq, id=made, submitted=at, changed=at)


def get_job(store: Store, job: str) -> JobRow | None:
    """The job of an id."""
    return first(store, JobRow, "WHERE id = ?", (job,))


def jobs_to_take_in(store: Store, limit: int) -> list[JobRow]:
    """Jobs that the scheduler does not decide on yet and that wait for no other job, in order of submission; those on
    hold come last. Where there are more than `limit`, those whose program is being checked are left out first: others
    need not wait for that."""
    waits = (
        "EXISTS (SELECT 1 FROM json_each(jobs.after) AS other JOIN jobs AS before ON before.id = other.value "
        f"WHERE before.state NOT IN ({_marks(ENDED)}))"
    )
    order = "held_by != '', state = 'checking', seq"
    tail = f"WHERE state IN ({_marks(EXPECTED)}) AND (after = '[]' OR NOT {waits}) ORDER BY {order} LIMIT ?"
    found = find(store, JobRow, tail, (*EXPECTED, *ENDED, limit))
    return sorted(found, key=lambda job: (bool(job.held_by), job.seq))


def on_hold(store: Store) -> dict[str, str]:
    """Jobs that are held back from their start, and by whom."""
    return dict(store.rows("SELECT id, held_by FROM jobs WHERE held_by != '' AND ended IS NULL"))


def out_of_time(store: Store, now: float) -> list[str]:
    """Jobs that have had all their hours since their start, and that nobody has asked to end."""
    rows = store.rows(
        f"SELECT id FROM jobs WHERE state IN ({_marks(ACTIVE)}) AND started + 3600 * most_hours < ? "
        "AND NOT EXISTS (SELECT 1 FROM requests WHERE kind = 'cancel' AND job = jobs.id AND done_at IS NULL)",
        (*ACTIVE, now),
    )
    return [str(job) for (job,) in rows]


def change_job(store: Store, job: str, at: float, **changes: str | float | None) -> None:
    """Change columns of a job."""
    sets = ", ".join(f"{name} = ?" for name in changes)
    store.write(f"UPDATE jobs SET changed = ?, {sets} WHERE id = ?", (at, *changes.values(), job))


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
    seq = "seq" if label is None else "labels.job"
    source = "jobs" if label is None else "labels CROSS JOIN jobs ON jobs.seq = labels.job"  # labels lead: by index
    given = {"labels.label = ?": label, "owner = ?": owner, f"{seq} < ?": before}
    bounds = {condition: value for condition, value in given.items() if value is not None}

    def newest(condition: str, *values: str) -> list[JobRow]:
        where = " AND ".join([*bounds, condition])
        tail = f"WHERE {where} ORDER BY {seq} DESC LIMIT ?"
        return find(store, JobRow, tail, (*bounds.values(), *values, limit), source)

    if not states:
        return newest("1")
    # One state after the other, each by its own index and merged: a filter over all rows would read the whole history.
    found = [job for state in states for job in newest("state = ?", state)]
    return sorted(found, key=lambda job: -job.seq)[:limit]


def count_open(store: Store, owner: str) -> int:
    """How many jobs of a user are not over."""
    row = store.row(
        "SELECT count(*) FROM jobs WHERE owner = ? "  # as text, so that the index `jobs_open` is used
        "AND state IN ('submitted', 'checking', 'queued', 'starting', 'running')",
        (owner,),
    )
    return 0 if row is None else int(row[0])


def count_by_state(store: Store) -> dict[str, int]:
    """How many jobs are in each state; states without any are left out."""
    return {row[0]: int(row[1]) for row in store.rows("SELECT state, count(*) FROM jobs GROUP BY state")}


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
