"""Cluster status for users, except states of jobs: curves, nodes, queue, decisions, and heartbeats."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from rlpto.core.rewards import REWARD_PARTS
from rlpto.io.arrays import FloatArray
from rlpto.performance.efficiency import efficiency
from rlpto.ray_cluster.messages import JobReport
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.job_tracker import JobTracker
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.store.curves import thin_points
from rlpto.store.events import add_event
from rlpto.store.rows import insert, put_all
from rlpto.store.status import DecisionRow, Heartbeat, QueueRow, beat, describe_decision, note_held, set_queue

POINT_INTERVAL_S = 2.0
"""Minimum time between two points of a job's curves."""
POINTS_BETWEEN_LOOKS = 50
"""Points of a job that are added between checks of their number."""
MOST_POINTS = 2000
"""Points of a job's curves. Beyond this, every second point is removed."""
BEAT_INTERVAL_S = 1.0
"""Minimum time between two heartbeats."""


@dataclass
class Curve:
    """Position of a job's curve. point_at: time of the newest point [s of the session]. points: points added since
    their number was last checked."""

    point_at: float = -math.inf
    epoch: float = -1.0
    points: int = 0


class CurveWriter:
    """Writes reports of jobs to their curves."""

    def __init__(self) -> None:
        self._curves: dict[str, Curve] = {}

    def __call__(self, tracker: JobTracker, report: JobReport, last: bool) -> None:
        """Add a job's newest report. last: whether its controller reports no more; the report then becomes a
        point whenever the last one was."""
        if (curve := self._curves.get(report.job)) is None:  # a previous scheduler may have begun it
            ((newest,),) = tracker.database.rows("SELECT max(at) FROM points WHERE job = ?", (report.job,))
            curve = Curve() if newest is None else Curve(newest - tracker.database.wall(0.0))
            self._curves[report.job] = curve
        for one in (*report.earlier, report):
            at = tracker.reported_at(one)
            due = one.ended or (last and one is report) or at >= curve.point_at + POINT_INTERVAL_S
            if due and one.progress != curve.epoch:
                self._add(tracker, one, curve, at)
        if last or curve.points >= POINTS_BETWEEN_LOOKS:
            curve.points = 0
            thin_points(tracker.database, report.job, MOST_POINTS)
        if last:
            self._curves.pop(report.job)

    def _add(self, tracker: JobTracker, report: JobReport, curve: Curve, at: float) -> None:
        curve.point_at, curve.epoch, curve.points = at, report.progress, curve.points + 1
        insert(
            tracker.database,
            "points",
            job=report.job,
            at=tracker.database.wall(at),
            epoch=report.progress,
            gpus=len(report.training_on),
            loss=_known(report.loss),
            accuracy=_known(report.accuracy),
            goodput=_known(goodput(report, tracker.spec_of(report.job).batch_size)),
            noise_scale=_known(report.noise_scale),
        )


class StatusWriter:
    """Writes the status of a cluster, as its observer.

    wall: present time [s]. timer: monotonic clock for intervals [s]. address: address of the cluster, for people.
    """

    def __init__(
        self, database: SessionDatabase, wall: Callable[[], float], timer: Callable[[], float], address: str
    ) -> None:
        self._database, self._wall, self._timer, self._address = database, wall, timer, address
        self._since, self._beat_at, self._decisions = wall(), -math.inf, 0
        self._held: dict[str, dict[str, int]] = {}
        self._queue: tuple[QueueRow, ...] = ()
        put_all(database, QueueRow, ())

    def __call__(self, cluster: RayCluster) -> None:
        """Write the status of the cluster, at intervals of `BEAT_INTERVAL_S`."""
        if self._timer() < self._beat_at + BEAT_INTERVAL_S:
            return
        self._beat_at = self._timer()
        with self._database.transaction():
            held = held_by_node(cluster)
            note_held(self._database, {node: jobs for node, jobs in held.items() if jobs != self._held.get(node)})
            self._held = held
            longest = self._database.longest_wait_s
            alive = Heartbeat(os.getpid(), self._since, self._address, self._decisions, longest)
            beat(self._database, alive, self._wall())

    def queued(self, rows: Sequence[QueueRow]) -> None:
        """Write the queue if it has changed."""
        if tuple(rows) == self._queue:
            return
        before, self._queue = self._queue, tuple(rows)
        with self._database.transaction():
            set_queue(self._database, rows, before)
            add_event(self._database, "queue", self._wall(), body={"waiting": len(rows)})

    def decided(self, row: DecisionRow, reward: FloatArray, time: float, applied: bool) -> None:
        """Write a decision. reward: reward parts [TERMS] since the previous decision. time: s of the session. applied:
        whether the session has written the decision already."""
        self._decisions += 1
        parts = dict(zip(REWARD_PARTS, reward.tolist(), strict=True))
        row = replace(row, reward=float(reward.sum()), parts=parts)
        with self._database.transaction():
            if applied:
                describe_decision(self._database, row)
            else:
                insert(self._database, "decisions", **asdict(row), time=time)
            body = {"policy": row.policy, "held": row.held, "active": row.active, "waiting": row.waiting}
            add_event(self._database, "decision", row.at, body=body)


def goodput(report: JobReport, base: int) -> float:
    """Samples per second times statistical efficiency at a base batch size; without a noise scale, only the former."""
    if not report.batch_size or not 0 < report.noise_scale < math.inf:
        return report.samples_per_second
    return report.samples_per_second * float(efficiency(np.array([report.noise_scale]), report.batch_size, base)[0])


def held_by_node(cluster: RayCluster) -> dict[str, dict[str, int]]:
    """GPUs held by jobs, by node that is up and by job."""
    held: dict[str, dict[str, int]] = {node: {} for node in cluster.node_ids}
    for number in np.flatnonzero(cluster.columns.held).tolist():
        job = cluster.ids[number]
        report = cluster.tracker.reports.get(job)
        for node in () if report is None else report.holding:
            if node in held:
                held[node][job] = held[node].get(job, 0) + 1
    return held


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
