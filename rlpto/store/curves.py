"""Reports of jobs during training (points), and the GPUs they held over time (spans)."""

from __future__ import annotations

from dataclasses import dataclass

from rlpto.store.database import Store
from rlpto.store.rows import Row, find


@dataclass(frozen=True)
class Point(Row):
    """A report of a job. epoch: epochs done. goodput: samples/s times statistical efficiency. noise_scale: samples."""

    TABLE = "points"

    seq: int
    at: float
    epoch: float
    loss: float | None
    accuracy: float | None
    gpus: int
    goodput: float | None
    noise_scale: float | None


@dataclass(frozen=True)
class Span(Row):
    """GPUs on one node that a job held from `started` to `ended` [s], which is None if it still holds them."""

    TABLE = "spans"

    seq: int
    job: str
    owner: str
    node: str
    gpus: int
    started: float
    ended: float | None


@dataclass(frozen=True)
class Usage:
    """GPU-hours of a user's jobs, or of a label value (empty for jobs without the label). jobs: jobs that held GPUs."""

    who: str
    jobs: int
    gpu_hours: float


def points_after(store: Store, job: str, seq: int = 0, limit: int = 2000) -> list[Point]:
    """Points of a job after number `seq`, in order."""
    return find(store, Point, "WHERE job = ? AND seq > ? ORDER BY seq LIMIT ?", (job, seq, limit))


def thin_points(store: Store, job: str, most: int) -> None:
    """Remove every second point of a job with more than `most` points, but not the newest."""
    with store.transaction():
        row = store.row("SELECT count(*), max(seq) FROM points WHERE job = ?", (job,))
        if row is None or row[0] <= most:
            return
        store.write(
            "DELETE FROM points WHERE seq IN (SELECT seq FROM (SELECT seq, row_number() OVER (ORDER BY seq) AS place "
            "FROM points WHERE job = ? AND seq < ?) WHERE place % 2 = 0)",
            (job, row[1]),
        )


def close_spans(store: Store, job: str, at: float) -> None:
    """Record that a job holds nothing any more."""
    store.write("UPDATE spans SET ended = ? WHERE job = ? AND ended IS NULL", (at, job))


def spans_between(store: Store, since: float, until: float) -> list[Span]:
    """The newest 10,000 spans that overlap an interval [s], newest first."""
    tail = "WHERE started < ? AND {} ORDER BY started DESC LIMIT 10000"  # one query per case, each with an index
    open_ones = find(store, Span, tail.format("ended IS NULL"), (until,))
    over = find(store, Span, tail.format("ended >= ?"), (until, since))
    return sorted(open_ones + over, key=lambda span: -span.started)[:10_000]


def spans_of_job(store: Store, job: str) -> list[Span]:
    """The newest 10,000 spans of one job, oldest first."""
    return find(store, Span, "WHERE job = ? ORDER BY seq DESC LIMIT 10000", (job,))[::-1]


def usage(store: Store, since: float, until: float, label: str | None = None, owner: str | None = None) -> list[Usage]:
    """GPU-hours held in an interval [s] by owner, or by the values of a label, largest first. owner: only their
    jobs."""
    who = "s.owner" if label is None else "coalesce((SELECT value FROM json_each(j.labels) WHERE key = :label), '')"
    rows = store.rows(
        f"SELECT {who} AS who, count(DISTINCT s.job), "
        "sum(s.gpus * (min(coalesce(s.ended, :until), :until) - max(s.started, :since))) / 3600.0 AS hours "
        "FROM spans s JOIN jobs j ON j.id = s.job "
        "WHERE s.started < :until AND coalesce(s.ended, :until) > :since AND (:owner IS NULL OR s.owner = :owner) "
        "GROUP BY who ORDER BY hours DESC, who",
        {"since": since, "until": until, "owner": owner, "label": label},
    )
    return [Usage(*row) for row in rows]
