"""The session database as its scheduler writes it: the state a restarted scheduler resumes from, and the state of jobs
that users of a service see, in the same transactions. Only one scheduler writes at a time; others may read and send
requests."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from rlpto.core.records import DecisionRecords, PolicySwitches, intervals
from rlpto.core.rewards import RewardWeights, reward_terms
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.messages import Command, JobReport, JobSpec, Nodes, Plan, raised_in
from rlpto.ray_cluster.scheduler.backend import NodeInfo
from rlpto.ray_cluster.scheduler.session_folder import SessionLock
from rlpto.store.curves import close_spans
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import ENDED, JobRow, SessionJob, State, change_job, get_job
from rlpto.store.requests import answer, asked
from rlpto.store.rows import find, insert

SUPERSEDED_KEPT = 10_000
"""Generations after which a superseded plan may be removed."""
CANCELLED = "withdrawn"
"""Event name for the end of a cancelled job."""
_ENDS: dict[str, State] = {"finished": "finished", "failed": "failed", CANCELLED: "cancelled"}
_LONGEST_REASON = 500
_SUMS = ("unfinished", "gpu_seconds", "rescale_seconds")
INTERVAL_COLUMNS = ("gain_high", "gain_normal", "gain_low", *_SUMS, "short_high", "short_normal", "short_low")
"""Columns of a decision with the following interval: accuracy gained by class, sums, accuracy missing by class."""
_ENTER = (
    "INSERT INTO jobs (id, name, epochs, submitted, changed, spec, submit_time, number) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET spec = excluded.spec, submit_time = excluded.submit_time, number = excluded.number"
)


def say_on_stderr(line: str) -> None:
    """Print a line for people."""
    print(line, file=sys.stderr, flush=True)


class SessionDatabase(Store):
    """The database of one session, opened for its scheduler. No other scheduler may write while it is open.

    path: database file, created if missing; the attribute `path` has symbolic links resolved. say: called with a line
    when writes wait for a full disk, and when they continue, and about nodes. Times are seconds of the session.

    Raises ClusterError if another scheduler has it open, or if the file has another version, is damaged or is no such
    database.
    """

    def __init__(self, path: Path, say: Callable[[str], object] = say_on_stderr) -> None:
        path = path.resolve()
        with ExitStack() as opened:
            self._lock = opened.enter_context(closing(SessionLock(path)))
            super().__init__(path, durable=False)
            opened.callback(super().close)
            self.check()
            self._generation = int(self.rows("SELECT COALESCE(MAX(generation), 0) FROM allocations")[0][0])
            opened.pop_all()
        self._began = self.number("began") or 0.0
        self._training: set[str] = set()
        self.say = self.on_wait = say

    @property
    def begun(self) -> bool:
        """True if a scheduler has entered its jobs here."""
        return bool(self.rows("SELECT 1 FROM jobs WHERE number IS NOT NULL LIMIT 1"))

    def wall(self, time: float) -> float:
        """Convert a second of the session to a time [s since 1970]."""
        return self._began + time

    def next_generation(self) -> int:
        """Return a generation larger than all before in this session, including before a restart."""
        self._generation += 1
        return self._generation

    # facts

    def number(self, key: str) -> float | None:
        """Read a key whose value is a number; None if it was never set."""
        value = self.fact(key)
        return None if value is None else float(value)

    # jobs

    def enter_jobs(self, jobs: Sequence[tuple[JobSpec, float]], began: float, growing: bool = False) -> None:
        """Set second 0 of the session to `began` [s since 1970], and enter the workload unless already present:
        controllers' specifications and submit times.

        growing: allow more jobs than were entered before. Raises ClusterError if the database holds other jobs.
        """
        entered = [(spec.id, spec.name, spec.to_json(), submit) for spec, submit in jobs]
        present = self.rows("SELECT id, name, spec, submit_time FROM jobs WHERE number IS NOT NULL ORDER BY number")
        more = jobs[len(present) :]
        if present and (present != entered[: len(present)] or (more and not growing)):
            raise ClusterError(f"{self.path}: holds a session with other jobs; use another run folder, or --fresh")
        self._began = began
        self.set_fact("began", repr(began))
        self.add_jobs(more)

    def add_jobs(self, jobs: Sequence[tuple[JobSpec, float]]) -> None:
        """Append jobs, each with its controller's specification and its submit time."""
        ((first,),) = self.rows("SELECT COALESCE(MAX(number), -1) + 1 FROM jobs")
        with self.transaction():
            for number, (spec, submit) in enumerate(jobs, first):
                at = self.wall(submit)
                self.write(_ENTER, (spec.id, spec.name, spec.epochs, at, at, spec.to_json(), submit, number))

    def forget(self, jobs: Collection[str]) -> None:
        """Remove the session's own data on these jobs, and old plans."""
        with self.transaction():
            for job in jobs:
                self.write("UPDATE jobs SET number = NULL, spec = NULL WHERE id = ?", (job,))
                for table in ("allocations", "changes", "improvements"):
                    self.write(f"DELETE FROM {table} WHERE job = ?", (job,))
                self._training.discard(job)
            self.write(
                "DELETE FROM allocations WHERE state = 'superseded' "
                "AND generation <= (SELECT MAX(generation) FROM allocations) - ?",
                (SUPERSEDED_KEPT,),
            )

    def jobs(self) -> list[SessionJob]:
        """All jobs of the session in order of submission."""
        return find(self, SessionJob, "WHERE number IS NOT NULL ORDER BY number")

    def set_job(self, job: str, **columns: object) -> None:
        """Change columns of a job."""
        assignments = ", ".join(f"{column} = ?" for column in columns)
        self.write(f"UPDATE jobs SET {assignments} WHERE id = ?", (*columns.values(), job))

    def note_report(self, report: JobReport, **more: object) -> None:
        """Write a controller's report on its job, and additional columns."""
        columns = {name: getattr(report, name) for name in ("progress", "step", "failure")}
        columns["recoveries"] = report.interruptions.recoveries
        columns["loss"] = report.loss if math.isfinite(report.loss) else None
        self.set_job(report.job, **columns, **more)

    def improvement(self, job: str, time: float, accuracy: float) -> None:
        """Record an evaluation of a job that was better than all before it."""
        insert(self, "improvements", job=job, time=time, accuracy=accuracy)

    def let_in(self, job: str, time: float) -> None:
        """Queue a job."""
        at = self._began + time
        with self.transaction():
            change_job(self, job, at, state="queued", reason="", queued=at)
            self.event(time, "submitted", job, state="queued")

    def trains(self, job: str, time: float) -> None:
        """Record that the workers of a job train."""
        if job in self._training:
            return
        row = get_job(self, job)
        if row is not None and row.state == "starting":
            self._training.add(job)
            with self.transaction():
                change_job(self, job, self._began + time, state="running")
                self._show(job, self._began + time, {"state": "running"})

    def end(self, job: str, time: float, kind: str, detail: str = "") -> None:
        """End a job. kind: finished, failed or `CANCELLED`. detail: full reason. Open requests to cancel the job are
        answered, and its predictions are removed."""
        at, state, row = self._began + time, _ENDS[kind], get_job(self, job)
        if row is None:
            return
        reason = detail if kind == "finished" or not detail.strip() else raised_in(detail)[:_LONGEST_REASON]
        with self.transaction():
            for request in asked(self, "cancel", job):
                answer(self, request.seq, at, "" if state == "cancelled" else "it has ended")
                reason = f"cancelled by {request.by}" if state == "cancelled" else reason
            started = row.started
            if started is None:  # too short to be seen holding GPUs
                query = "SELECT MIN(commanded_at) FROM allocations WHERE job = ? AND nodes != '[]'"
                ((first,),) = self.rows(query, (job,))
                started = None if first is None else self._began + first
            if row.state == "queued" and kind == "finished":  # it ran entirely without a scheduler
                self._show(job, started or at, {"state": "running"})
            change_job(self, job, at, state=state, reason=reason, started=started, ended=max(at, started or at))
            self.write("DELETE FROM predictions WHERE job = ?", (job,))
            self.event(time, kind, job, detail=detail, state=state, reason=reason)
        self._training.discard(job)

    # allocations

    def plan(self, jobs: Collection[str], commands: Sequence[Command], time: float) -> None:
        """Enter commands before any is sent. Unsent commands of `jobs` are superseded. A job without a new command
        keeps its last one."""
        with self.transaction():
            for job in jobs:
                self.write("UPDATE allocations SET state = 'superseded' WHERE job = ? AND state = 'planned'", (job,))
            for one in commands:
                places = {"nodes": json.dumps(one.plan.nodes), "servers": json.dumps(one.plan.servers)}
                asked = {"generation": one.generation, "job": one.job, "batch_size": one.plan.batch_size, **places}
                insert(self, "allocations", **asked, state="planned", planned_at=time)

    def commanded(self, generation: int, time: float) -> None:
        """Record that a command has been sent."""
        self.write(
            "UPDATE allocations SET state = 'commanded', commanded_at = ? WHERE generation = ?", (time, generation)
        )

    def applied(self, job: str, generation: int, time: float) -> None:
        """Record that a generation is fully in force; earlier commands are superseded."""
        with self.transaction():
            self.write(
                "UPDATE allocations SET state = 'superseded' "
                "WHERE job = ? AND generation < ? AND state IN ('planned', 'commanded')",
                (job, generation),
            )
            self.write(
                "UPDATE allocations SET state = 'applied', applied_at = ? "
                "WHERE generation = ? AND job = ? AND state = 'commanded'",
                (time, generation, job),
            )

    def newest_commands(self) -> dict[str, list[Command]]:
        """Return the commands that each job's controller may be following or has yet to follow: the newest one fully in
        force, and all later ones."""
        rows = self.rows(
            "SELECT job, generation, nodes, batch_size, servers, state FROM allocations WHERE state != 'superseded' "
            "ORDER BY generation"
        )
        found: dict[str, list[Command]] = {}
        for job, generation, nodes, batch_size, servers, state in rows:
            if state == "applied":
                found[job] = []
            plan = Plan(tuple(json.loads(nodes)), batch_size, tuple(json.loads(servers)))
            found.setdefault(job, []).append(Command(job, generation, plan))
        return found

    def forget_commands(self, job: str) -> None:
        """Supersede all commands of a job whose controller is gone."""
        self.write("UPDATE allocations SET state = 'superseded' WHERE job = ?", (job,))

    def unsent(self) -> set[int]:
        """Generations that are planned and, according to the database, not sent."""
        return {row[0] for row in self.rows("SELECT generation FROM allocations WHERE state = 'planned'")}

    # what happened

    def event(
        self,
        time: float,
        kind: str,
        job: str = "",
        node: str = "",
        value: float | None = None,
        detail: str = "",
        **more: str,
    ) -> None:
        """Record an event. more: additional values shown to users."""
        body = {"what": kind, "node": node, "value": value, "detail": detail, **more}
        shown = {key: given for key, given in body.items() if given not in ("", None)}
        self._show(job, self.wall(time), shown, time)

    def _show(self, job: str, at: float, body: Mapping[str, Any], time: float | None = None) -> None:
        """Add an event to the stream that users follow. A job's events are in order of time."""
        if not job:
            kind = "nodes" if str(body.get("what")).startswith("node") else "session"
            add_event(self, kind, at, body=body, time=time)
            return
        owner = self.row("SELECT owner FROM jobs WHERE id = ?", (job,))
        newest = self.row("SELECT at FROM events WHERE job = ? ORDER BY seq DESC LIMIT 1", (job,))
        at = at if newest is None else max(at, newest[0])
        add_event(self, "job", at, job, None if owner is None else owner[0], body, time)

    def decision(self, time: float, **columns: object) -> None:
        """Enter a decision that was just made. columns: columns of the table of decisions."""
        insert(self, "decisions", at=self.wall(time), time=time, **columns)

    def add_interval(self, passed: AnyArray) -> bool:
        """Add an [1] INTERVAL to the newest decision. False if there is no decision yet."""
        sums = (float(passed[name][0]) for name in _SUMS)
        added = ", ".join(f"{name} = {name} + ?" for name in INTERVAL_COLUMNS)
        more = (*passed["accuracy_gain"][0].tolist(), *sums, *passed["shortfall"][0].tolist())
        newest = "WHERE seq = (SELECT MAX(seq) FROM decisions)"
        return self.write(f"UPDATE decisions SET {added} {newest}", more).rowcount > 0

    def change(self, time: float, job: str, gpus: int, accuracy: float, nodes: Nodes) -> None:
        """Record a change of the GPUs that a job holds."""
        at = self._began + time
        with self.transaction():
            insert(self, "changes", time=time, job=job, gpus=gpus, accuracy=accuracy, nodes=json.dumps(nodes))
            row = self.moved(time, job, nodes)
            if row is None:
                return
            if row.state in ENDED:
                change_job(self, job, at, gpus_held=gpus)
                return
            if not gpus:
                self._training.discard(job)
            state: State = "queued" if not gpus else "running" if row.state == "running" else "starting"
            started = at if gpus and row.started is None else row.started
            columns: dict[str, str | float | None] = {"held_by": ""} if gpus else {}  # a hold that came too late
            change_job(self, job, at, state=state, reason="", gpus_held=gpus, started=started, **columns)
            self._show(job, at, {"state": state, "gpus_held": gpus})

    def moved(self, time: float, job: str, nodes: Nodes) -> JobRow | None:
        """Record the nodes on which a job now holds GPUs; returns the job's row."""
        at, row = self._began + time, get_job(self, job)
        with self.transaction():
            close_spans(self, job, at)
            if row is not None:
                for node, count in Counter(nodes).items():
                    insert(self, "spans", job=job, owner=row.owner, node=node, gpus=count, started=at)
        return row

    def node_up(self, node: NodeInfo, time: float, detail: str = "") -> None:
        """Record a new node, or one that answers again."""
        names = ("gpus", "gpu_type", "host", "spot")
        known = ", ".join(("alive = 1, leaves = NULL, silent = NULL", *(f"{name} = excluded.{name}" for name in names)))
        self.write(
            f"INSERT INTO nodes (id, alive, {', '.join(names)}) VALUES (?, 1, ?, ?, ?, ?) ON CONFLICT (id) "
            f"DO UPDATE SET {known}",
            (node.id, node.gpus, node.gpu, node.host, node.spot),
        )
        self.event(time, "node_up", node=node.id, value=node.gpus, detail=detail)

    def node_down(
        self,
        node: str,
        gpus: int,
        time: float,
        leaves: float | None = None,
        silent: float | None = None,
        detail: str = "",
    ) -> None:
        """Record that a node has gone, is draining, or is silent. leaves: announced time [s]. silent: time of the last
        answer of a silent node."""
        since = None if silent is None else self.wall(silent)
        changed = "alive = 0, jobs = '{}', leaves = coalesce(leaves, ?), silent = ?"
        self.write(f"UPDATE nodes SET {changed} WHERE id = ?", (leaves, since, node))
        self.event(time, "node_down", node=node, value=gpus, detail=detail)

    def node_gone(self, node: str, time: float) -> None:
        """Record that Ray has declared a silent node dead."""
        self.write("UPDATE nodes SET silent = NULL WHERE id = ?", (node,))
        self.event(time, "node_gone", node=node)

    def close(self) -> None:
        """Write pending changes and release the lock."""
        try:
            super().close()
        finally:
            self._lock.close()

    def __enter__(self) -> SessionDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def decision_records(database: SessionDatabase, weights: RewardWeights, newest: int = -1) -> DecisionRecords:
    """Decisions of a session, including earlier schedulers' ones: all, or the `newest`. The latency is the policy's
    alone."""
    columns = ("time", "latency", "capacity", "held", "active", "waiting", *INTERVAL_COLUMNS)
    chosen = "(SELECT * FROM decisions ORDER BY seq DESC LIMIT ?)"
    found = database.rows(f"SELECT {', '.join(columns)} FROM {chosen} ORDER BY seq", (newest,))
    rows = np.array(found, dtype=np.float64).reshape(-1, len(columns))
    shortfall = rows[:, 12:]
    terms = reward_terms(intervals(rows[:, 6:9], rows[:, 9], rows[:, 10], rows[:, 11], shortfall), weights)
    return DecisionRecords.from_rows(rows[:, :6], terms, shortfall.sum(axis=1), np.zeros(len(rows)))


def policy_switches(database: SessionDatabase) -> PolicySwitches:
    """When each policy began to decide in a session; empty if one policy made all decisions."""
    taken = database.rows("SELECT time, policy FROM decisions ORDER BY seq")
    firsts = [next(group) for _, group in groupby(taken, key=lambda row: row[1])]
    if len(firsts) < 2:
        return PolicySwitches()
    return PolicySwitches(np.array([time for time, _ in firsts]), tuple(name for _, name in firsts))
