"""Jobs in the database: requested values and present state."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from rlpto.store.database import Store
from rlpto.store.rows import Row, find, first, insert

State = Literal["submitted", "checking", "queued", "starting", "running", "finished", "failed", "cancelled", "rejected"]
STATES: tuple[State, ...] = get_args(State)
ACTIVE: tuple[State, ...] = ("queued", "starting", "running")
"""States of jobs that the scheduler decides on."""
ENDED: tuple[State, ...] = ("finished", "failed", "cancelled", "rejected")
"""Final states."""
EXPECTED: tuple[State, ...] = ("submitted", "checking")
"""States of jobs that the scheduler does not decide on yet."""
Priority = Literal["high", "normal", "low"]
Scalar = bool | int | float | str
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_ID_LETTERS = 12


@dataclass(frozen=True)
class JobRow(Row):
    """A job in the database. name: a label. Fields before `seq` are the user's request, checked.

    script: digest of a developer's script. Default: none. arguments: its command line. samples: samples of an epoch.
    Default: the program's. pip: packages for its workers in addition to the program's. epochs: epochs to train.
    batch_size: samples of a step. Default: the program's. metric: metric that chooses the batch size. Default: the
    experiment's. after: jobs that must finish first. most_hours: hours from its start until it is cancelled. Default:
    no limit. seed: seed of the training. Default: `seq`.

    seq: number in order of submission. submitted, changed, queued, started, ended: times [s], or None if not yet
    reached. progress: epochs done. gpus_held: GPUs held now. gpu_seconds: used so far. reason: explanation of its
    state, empty if as usual. held_by: user who keeps it from starting, empty if none. A job with GPUs is never on hold.
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
        """Whether the job has ended."""
        return self.state in ENDED

    @property
    def waits_for(self) -> str:
        """Reason why it is not queued yet because of other jobs; empty if there is none."""
        return f"it comes after {', '.join(self.after)}" if self.after and self.queued is None else ""


@dataclass(frozen=True)
class SessionJob(JobRow):
    """A job that a session's scheduler knows. number: its number there. launched: whether it ever had a controller.

    start_time, finish_time: s of the session. reached_90 and so on: time when it had gained this share [%] of its
    attainable accuracy, or None. failure: full text of the last failure. kept_seconds: training not rolled back by a
    fault. lost_gpu_seconds: training rolled back by faults, None before it has trained. final_accuracy: expected at its
    end. gained: share of it. shortfall: integral of the missing share [s], not stored while everything is missing.
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


def insert_job(store: Store, job: JobRow, at: float) -> JobRow:
    """Insert a new job in state `submitted`. Its id cannot be guessed and is a valid file name on any system."""
    made = "j" + "".join(secrets.choice(_LETTERS) for _ in range(_ID_LETTERS))
    job = replace(job, id=made, submitted=at, changed=at)
    with store.transaction():
        seq = insert(store, "jobs", **{name: value for name, value in vars(job).items() if name != "seq"})
        if job.labels:
            labels = ((f"{key}={value}", seq) for key, value in job.labels.items())
            store.write("INSERT INTO labels (label, job) VALUES (?, ?)", *labels)
    return replace(job, seq=seq)


def get_job(store: Store, job: str) -> JobRow | None:
    """The job with an id."""
    return first(store, JobRow, "WHERE id = ?", (job,))


def jobs_to_take_in(store: Store, limit: int) -> list[JobRow]:
    """Jobs that the scheduler does not decide on yet, are not held, and wait for no other job, in order of submission.
    If there are more than `limit`, jobs whose program is being checked are omitted first, because others need not wait
    for the check."""
    waits = (
        "EXISTS (SELECT 1 FROM json_each(jobs.after) AS other JOIN jobs AS before ON before.id = other.value "
        f"WHERE before.state NOT IN ({_marks(ENDED)}))"
    )
    expected = f"state IN ({_marks(EXPECTED)}) AND held_by = ''"
    tail = f"WHERE {expected} AND (after = '[]' OR NOT {waits}) ORDER BY state = 'checking', seq LIMIT ?"
    return sorted(find(store, JobRow, tail, (*EXPECTED, *ENDED, limit)), key=lambda job: job.seq)


def still_expected(store: Store, ids: Collection[str]) -> set[str]:
    """The given jobs that the scheduler does not decide on yet."""
    query = f"SELECT id FROM jobs WHERE state IN ({_marks(EXPECTED)}) AND id IN (SELECT value FROM json_each(?))"
    return {row[0] for row in store.rows(query, (*EXPECTED, json.dumps([*ids])))} if ids else set()


def on_hold(store: Store) -> dict[str, str]:
    """Jobs kept from starting, with the user who holds each."""
    return dict(store.rows("SELECT id, held_by FROM jobs WHERE held_by != '' AND ended IS NULL"))


def out_of_time(store: Store, now: float) -> list[str]:
    """Started jobs past their time limit for which no cancellation is pending."""
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
    """Jobs, newest first. owner, states, label ("key=value"): filters. before: exclusive upper bound of the job
    number."""
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
    """Number of jobs of a user that have not ended."""
    row = store.row(
        "SELECT count(*) FROM jobs WHERE owner = ? "  # as text, to use the index `jobs_open`
        "AND state IN ('submitted', 'checking', 'queued', 'starting', 'running')",
        (owner,),
    )
    return 0 if row is None else int(row[0])


def count_by_state(store: Store) -> dict[str, int]:
    """Number of jobs in each state; states without jobs are left out."""
    return {row[0]: int(row[1]) for row in store.rows("SELECT state, count(*) FROM jobs GROUP BY state")}


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
