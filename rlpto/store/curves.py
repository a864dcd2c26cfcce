"""What jobs report while they train (points), and which GPUs they held when (spans)."""

from __future__ import annotations

from dataclasses import dataclass

from rlpto.store.database import Store


@dataclass(frozen=True)
class Point:
    """A report of a job. epoch: done. goodput: samples/s times statistical efficiency. noise_scale: samples."""

    seq: int
    at: float
    epoch: float
    loss: float | None
    accuracy: float | None
    gpus: int
    goodput: float | None
    noise_scale: float | None


@dataclass(frozen=True)
class Span:
    """GPUs of one node that a job held from `started` to `ended` [s]; None: it still does."""

    seq: int
    job: str
    owner: str
    node: str
    gpus: int
    started: float
    ended: float | None


_POINT = "seq, at, epoch, loss, accuracy, gpus, goodput, noise_scale"


def add_point(
    store: Store,
    job: str,
    at: float,
    epoch: float,
    gpus: int,
    *,
    loss: float | None = None,
    accuracy: float | None = None,
    goodput: float | None = None,
    noise_scale: float | None = None,
) -> int:
    """Note a report of a job; its number."""
    return store.insert(
        "INSERT INTO points (job, at, epoch, loss, accuracy, gpus, goodput, noise_scale) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (job, at, epoch, loss, accuracy, gpus, goodput, noise_scale),
    )


def points_after(store: Store, job: str, seq: int = 0, limit: int = 2000) -> list[Point]:
    """Points of a job that follow number `seq`, in order."""
    query = f"SELECT {_POINT} FROM points WHERE job = ? AND seq > ? ORDER BY seq LIMIT ?"
    return [Point(*row) for row in store.rows(query, (job, seq, limit))]


def thin_points(store: Store, job: str, most: int) -> None:
    """Where a job has more than `most` points: remove every second one, but not the newest."""
    with store.transaction():
        row = store.row("SELECT count(*), max(seq) FROM points WHERE job = ?", (job,))
        if row is None or row[0] <= most:
            return
        store.write(
            "DELETE FROM points WHERE seq IN (SELECT seq FROM (SELECT seq, row_number() OVER (ORDER BY seq) AS place "
            "FROM points WHERE job = ? AND seq < ?) WHERE place % 2 = 0)",
            (job, row[1]),
        )


def open_span(store: Store, job: str, owner: str, node: str, gpus: int, at: float) -> int:
    """Note that a job holds GPUs of a node from now on; the number of the span."""
    query = "INSERT INTO spans (job, owner, node, gpus, started) VALUES (?, ?, ?, ?, ?)"
    return store.insert(query, (job, owner, node, gpus, at))


def close_spans(store: Store, job: str, at: float) -> None:
    """Note that a job holds nothing any more."""
    store.write("UPDATE spans SET ended = ? WHERE job = ? AND ended IS NULL", (at, job))


def spans_between(store: Store, since: float, until: float, limit: int = 10_000) -> list[Span]:
    """Spans that overlap a time [s], the newest `limit` of them, newest first."""
    columns = "seq, job, owner, node, gpus, started, ended"
    query = (
        f"SELECT {columns} FROM spans WHERE started < ? AND ended IS NULL "
        f"UNION ALL SELECT {columns} FROM spans WHERE started < ? AND ended >= ? ORDER BY started DESC LIMIT ?"
    )
    return [Span(*row) for row in store.rows(query, (until, until, since, limit))]


def spans_of_job(store: Store, job: str, limit: int = 10_000) -> list[Span]:
    """Spans of one job, oldest first."""
    query = "SELECT seq, job, owner, node, gpus, started, ended FROM spans WHERE job = ? ORDER BY seq LIMIT ?"
    return [Span(*row) for row in store.rows(query, (job, limit))]
