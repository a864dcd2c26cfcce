"""What happens on the cluster, as users read it: states, curves, nodes, decisions, and a sign of life."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlpto.core.rewards import REWARD_PARTS
from rlpto.io.arrays import FloatArray
from rlpto.performance.efficiency import efficiency
from rlpto.ray_cluster.messages import JobReport
from rlpto.ray_cluster.scheduler.serving import ServingCluster
from rlpto.service.scheduler.follower import Follower
from rlpto.store.curves import add_point, thin_points
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import change_job
from rlpto.store.status import (
    DecisionRow,
    Heartbeat,
    NodeRow,
    QueueRow,
    add_decision,
    beat,
    set_nodes,
    set_queue,
)

POINT_INTERVAL_S = 2.0
"""Least time between two points of a job's curves."""
POINTS_BETWEEN_LOOKS = 50
"""So many points of a job are added before it is looked whether there are too many."""
MOST_GONE_NODES = 100
"""Nodes that are gone, of which users are told."""
BEAT_INTERVAL_S = 1.0
"""Least time between two signs of life."""


@dataclass
class Watched:
    """A job whose reports are written down. reported: time of the newest one taken. point_at: of the newest point [s];
    points: added since it was last looked whether there are too many."""

    reported: float = 0.0
    point_at: float = -math.inf
    epoch: float = -1.0
    points: int = 0


@dataclass
class Recorder:
    """Writes what happens on a cluster to the database; an observer of the cluster.

    wall: time [s] now. points: most of a job. address: of the cluster, for people.
    """

    store: Store
    follower: Follower
    wall: Callable[[], float]
    points: int
    address: str = ""
    decisions: int = 0
    _since: float = field(default=0.0, init=False)
    _beat_at: float = field(default=-math.inf, init=False)
    _longest_wait_s: float = field(default=0.0, init=False)
    _watched: dict[str, Watched] = field(default_factory=dict, init=False)
    _nodes: tuple[NodeRow, ...] = field(default=(), init=False)
    _queue: tuple[QueueRow, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._since = self.wall()
        set_queue(self.store, ())

    def __call__(self, cluster: ServingCluster) -> None:
        """Write down what has happened since the last call."""
        now = self.wall()
        with self.store.transaction():
            self.follower.follow()
            active = {cluster.ids[number]: number for number in np.flatnonzero(cluster.columns.active).tolist()}
            for job, number in active.items():
                if job in cluster.reports:
                    self._take(cluster, number, cluster.reports[job])
            for job in self._watched.keys() - active.keys():
                self._finish(cluster, job)
            if now >= self._beat_at + BEAT_INTERVAL_S:
                self._see_nodes(cluster, now)
                self.beat(now)

    def beat(self, now: float) -> None:
        """Give a sign of life."""
        self._beat_at = now
        self._longest_wait_s = max(self._longest_wait_s, self.store.longest_wait_s)
        alive = Heartbeat(os.getpid(), self._since, self.address, self.decisions, self._longest_wait_s)
        beat(self.store, alive, now)

    def _take(self, cluster: ServingCluster, number: int, report: JobReport) -> None:
        """Write down a report of a job that goes on."""
        job, seen = report.job, self._watched.setdefault(report.job, Watched())
        if report.time <= seen.reported:
            return
        seen.reported = report.time
        known = self.follower.known(job)
        if known is None:
            return
        if report.training_on and known.state == "starting":
            self.follower.set(job, report.time, "running")
        if report.progress == seen.epoch or report.time < seen.point_at + POINT_INTERVAL_S:
            return
        store = cluster.columns.store
        served, rescales = float(store.attained_service[number]), int(store.rescales[number])
        sums = {"gpu_seconds": served, "rescales": rescales, "recoveries": report.recoveries}
        figures = {"loss": _known(report.loss), "accuracy": _known(report.accuracy)}
        change_job(self.store, job, report.time, progress=report.progress, **figures, **sums)
        self._add_point(report, cluster.spec_of(job).batch_size, seen)
        if seen.points >= POINTS_BETWEEN_LOOKS:
            seen.points = 0
            thin_points(self.store, job, self.points)

    def _add_point(self, report: JobReport, base: int, seen: Watched) -> None:
        seen.point_at, seen.epoch, seen.points = report.time, report.progress, seen.points + 1
        add_point(
            self.store,
            report.job,
            report.time,
            report.progress,
            len(report.training_on),
            loss=_known(report.loss),
            accuracy=_known(report.accuracy),
            goodput=_known(goodput(report, base)),
            noise_scale=_known(report.noise_scale),
        )

    def _finish(self, cluster: ServingCluster, job: str) -> None:
        """The job has ended: its last report is the last point of its curves."""
        seen, report = self._watched.pop(job), cluster.reports.get(job)
        if report is not None and report.progress != seen.epoch:
            self._add_point(report, cluster.spec_of(job).batch_size, seen)
        thin_points(self.store, job, self.points)

    def forget(self, jobs: Sequence[str]) -> None:
        """Jobs are over, and nothing more will come of them."""
        for job in jobs:
            self._watched.pop(job, None)
            self.follower.forget(job)

    def _see_nodes(self, cluster: ServingCluster, now: float) -> None:
        """Write down the nodes and who holds what of them, if that is new."""
        rows = node_rows(cluster)
        if rows != self._nodes:
            self._nodes = rows
            set_nodes(self.store, rows, now)

    def queued(self, rows: Sequence[QueueRow]) -> None:
        """Write down the queue, if it is another."""
        if tuple(rows) == self._queue:
            return
        before, self._queue = self._queue, tuple(rows)
        with self.store.transaction():
            set_queue(self.store, rows, before)
            add_event(self.store, "queue", self.wall(), body={"waiting": len(rows)})

    def decided(self, row: DecisionRow, reward: FloatArray | None) -> None:
        """Write down a decision. reward: [TERMS] of the time since the one before."""
        self.decisions += 1
        if reward is not None:
            parts = dict(zip(REWARD_PARTS, reward.tolist(), strict=True))
            row = replace(row, reward=float(reward.sum()), parts=parts)
        with self.store.transaction():
            add_decision(self.store, row)
            body = {"policy": row.policy, "held": row.held, "active": row.active, "waiting": row.waiting}
            add_event(self.store, "decision", row.at, body=body)


def goodput(report: JobReport, base: int) -> float:
    """Samples per second times statistical efficiency at a base batch size; all that is known where one is not."""
    if not report.batch_size or not 0 < report.noise_scale < math.inf:
        return report.samples_per_second
    return report.samples_per_second * float(efficiency(np.array([report.noise_scale]), report.batch_size, base)[0])


def node_rows(cluster: ServingCluster) -> tuple[NodeRow, ...]:
    """The nodes that are up, with the GPUs that jobs hold there, and those that are gone."""
    held: dict[str, dict[str, int]] = {}
    for number in np.flatnonzero(cluster.columns.held).tolist():
        job = cluster.ids[number]
        report = cluster.reports.get(job)
        for node in () if report is None else report.holding:
            jobs = held.setdefault(node, {})
            jobs[job] = jobs.get(job, 0) + 1
    up = dict(zip(cluster.node_ids, cluster.shape, strict=False))
    gone = [(name, gpus) for name, _, gpus, _ in cluster.database.nodes() if name not in up]
    hosts = cluster.hosts
    alive = (NodeRow(name, up[name].gpus, True, up[name].gpu, held.get(name, {}), hosts.get(name, "")) for name in up)
    return (*alive, *(NodeRow(name, gpus, False, host=hosts.get(name, "")) for name, gpus in gone[-MOST_GONE_NODES:]))


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
