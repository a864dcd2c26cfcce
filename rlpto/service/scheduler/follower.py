"""From the session's database, which says what really happened, to the database, which users read.

Both are written by the scheduler, the session first. How far the database has followed stands in them, in the same
transaction as what was followed: whenever the scheduler is killed, nothing is lost and nothing is told twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rlpto.ray_cluster.scheduler.serving import WITHDRAWN
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.store.curves import close_spans, open_span
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import ENDED, State, change_job, get_job
from rlpto.store.requests import answer, open_requests
from rlpto.store.status import get_status, set_status

FOLLOWED = "followed"
"""Key of the status that says how far the database has followed."""
_ENDS: dict[str, State] = {"finished": "finished", "failed": "failed", WITHDRAWN: "cancelled"}
_TOLD = ("recovery", "fault", "rolled_back", "controller_lost")
"""Kinds of events that change no state, and that users are told."""


@dataclass
class Known:
    """What the database says of a job."""

    owner: str
    state: State


class Follower:
    """Brings the database up to what the session's database says.

    wall_of: time [s] of a second of the session. answered: is told which requests were answered by that.
    """

    def __init__(
        self,
        store: Store,
        database: SessionDatabase,
        wall_of: Callable[[float], float],
        answered: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._store, self._database, self._wall_of, self._answered = store, database, wall_of, answered
        status = get_status(store, FOLLOWED)
        self._at: dict[str, int] = {"events": 0, "changes": 0} if status is None else status[1]
        self._known: dict[str, Known] = {}

    def known(self, job: str) -> Known | None:
        """What the database says of a job, if it is not over."""
        if job not in self._known:
            row = get_job(self._store, job)
            if row is None:
                return None
            self._known[job] = Known(row.owner, row.state)
        return self._known[job]

    def goes_on(self, job: str) -> bool:
        """Whether the job is not over."""
        known = self.known(job)
        return known is not None and known.state not in ENDED

    def forget(self, job: str) -> None:
        """The job is over, and nothing more will come."""
        self._known.pop(job, None)

    def follow(self) -> bool:
        """Take in all that is new; True if there was anything."""
        changes = self._database.rows(
            "SELECT id, time, job, gpus, nodes FROM changes WHERE id > ? ORDER BY id", (self._at["changes"],)
        )
        events = self._database.rows(
            "SELECT id, time, kind, job, node, value, detail FROM events WHERE id > ? ORDER BY id",
            (self._at["events"],),
        )
        if not changes and not events:
            return False
        with self._store.transaction():
            for _, time, job, gpus, nodes in changes:
                self._hold(job, self._wall_of(time), gpus, Counter(json.loads(nodes)))
            for _, time, kind, job, node, value, detail in events:
                self._happened(self._wall_of(time), kind, job, node, value, detail)
            for name, rows in (("changes", changes), ("events", events)):
                self._at[name] = rows[-1][0] if rows else self._at[name]
            set_status(self._store, FOLLOWED, self._wall_of(0.0), self._at)
        return True

    def _hold(self, job: str, at: float, gpus: int, nodes: Counter[str]) -> None:
        """A job holds these GPUs of each node from now on."""
        known = self.known(job)
        if known is None:
            return
        close_spans(self._store, job, at)
        for node, count in nodes.items():
            open_span(self._store, job, known.owner, node, count, at)
        if known.state in ENDED:
            change_job(self._store, job, at, gpus_held=gpus)
            return
        row = get_job(self._store, job)
        if gpus and row is not None and row.started is None:
            change_job(self._store, job, at, started=at)
        state: State = "queued" if not gpus else "starting" if known.state != "running" else "running"
        self.set(job, at, state, gpus_held=gpus)

    def _happened(
        self, at: float, kind: str, job: str | None, node: str | None, value: float | None, detail: str
    ) -> None:
        if kind in ("node_up", "node_down"):
            add_event(self._store, "nodes", at, body={"what": kind, "node": node, "gpus": value})
        known = None if job is None else self.known(job)
        if job is None or known is None or known.state in ENDED:
            return
        if kind == "submitted" and known.state in ("submitted", "checking"):
            self.set(job, at, "queued", queued=at)
        elif kind in _ENDS:
            lines = detail.strip().splitlines()
            reason = detail if kind == "finished" else lines[-1][:500] if lines else ""
            self._end(job, at, _ENDS[kind], reason)
        elif kind in _TOLD:
            add_event(self._store, "job", at, job, known.owner, {"what": kind, "detail": detail[-2000:]})

    def _end(self, job: str, at: float, state: State, reason: str) -> None:
        figures = "progress, accuracy, loss, gpu_seconds, rescales, recoveries"
        found = self._database.rows(f"SELECT {figures} FROM jobs WHERE id = ?", (job,))
        values = dict(zip(figures.split(", "), found[0], strict=True)) if found else {}
        row = get_job(self._store, job)
        if row is not None and row.started is None:  # so short that nobody saw it hold GPUs
            told = "SELECT MIN(commanded_at) FROM allocations WHERE job = ? AND nodes != '[]'"
            ((first,),) = self._database.rows(told, (job,))
            values["started"] = None if first is None else self._wall_of(first)
        for request in open_requests(self._store):
            if request.job == job and request.kind == "cancel":
                answer(self._store, request.seq, at, "" if state == "cancelled" else "it has ended")
                self._answered(request.seq)
                reason = f"cancelled by {request.by}" if state == "cancelled" else reason
        self._store.write("DELETE FROM predictions WHERE job = ?", (job,))
        self.set(job, at, state, reason, ended=at, **values)

    def set(self, job: str, at: float, state: State, reason: str = "", **more: float | None) -> None:
        """Note another state of a job, and tell those who watch it."""
        known = self.known(job)
        if known is None:
            return
        changed, known.state = known.state != state, state
        change_job(self._store, job, at, state=state, reason=reason, **more)
        if changed or "gpus_held" in more:
            body = {"state": state, "reason": reason} | {key: more[key] for key in ("gpus_held",) if key in more}
            add_event(self._store, "job", at, job, known.owner, body)
