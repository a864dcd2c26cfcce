"""Looks at everything all the time: reports of job controllers, processes, and the session database."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from rlpto.ray_cluster.controllers import alive_nodes, find_controllers
from rlpto.ray_cluster.messages import JobReport
from rlpto.ray_cluster.nodes.local import LocalCluster

PERIOD = 1.0
LOOK = 3.0
"""s of training between two looks at most: in longer gaps a job stood still, which takes nothing back."""


class Point(NamedTuple):
    """A job at one look. time: `time.time()`. trained: s it has trained for, those taken back left out."""

    time: float
    trained: float
    progress: float


class Watcher:
    """Samples a session in a thread. reports: newest of each job. wrong: what must not be, each with its time.

    lost: s of training that each fall of a job's progress took back. lost_twice: the same of jobs in `corrupted`, whose
    newest checkpoint was damaged before.

    A GPU is double-booked for certain if more workers than a node has GPUs are there in two samples in a row: each
    sample takes a while, so that within one a GPU may be seen to change hands.
    """

    def __init__(self, started: LocalCluster, session: str, database: Path, gpus: int) -> None:
        self._started, self._session, self._database, self._gpus = started, session, database, gpus
        self.reports: dict[str, JobReport] = {}
        self.wrong: list[str] = []
        self.lost: list[float] = []
        self.lost_twice: list[float] = []
        self.corrupted: set[str] = set()
        self.samples = 0
        self.most_held = 0
        self._handles: dict[str, Any] = {}
        self._history: dict[str, list[Point]] = {}
        self._held: dict[str, Counter[str]] = {}
        self._processes: dict[str, set[int]] = {}
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(PERIOD):
            if self.samples % 3 == 0:
                self._handles = find_controllers(self._session)
            heard = self._ask()
            self._look_at_holdings(heard)
            self._look_at_processes()
            self._look_at_commands(heard)
            self._look_at_progress(heard)
            self.reports |= heard
            self.samples += 1

    def _ask(self) -> dict[str, JobReport]:
        asked = {handle.report.remote(): job for job, handle in self._handles.items()}
        if not asked:
            return {}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=1.0)
        heard = {}
        for answer in ready:
            try:
                heard[asked[answer]] = ray.get(answer)
            except RayError:
                continue  # gone, or being restarted
        return heard

    def _note(self, text: str) -> None:
        self.wrong.append(f"{time.monotonic() - self._began:.0f} s: {text}")

    def _look_at_holdings(self, heard: dict[str, JobReport]) -> None:
        held = {job: Counter(report.holding) for job, report in heard.items()}
        both: Counter[str] = Counter()
        for job, now in held.items():
            both += now & self._held.get(job, Counter())
        self.most_held = max(self.most_held, sum(map(Counter.total, held.values())))
        for node, gpus in both.items():
            if gpus > self._gpus:
                self._note(f"{gpus} GPUs of node {node[:8]} are held")
        self._held = held

    def _look_at_processes(self) -> None:
        """Workers that are there, whoever owns them."""
        there = {}
        for node in self._started.node_ids:
            with suppress(KeyError):  # it was killed since
                there[node] = set(self._started.worker_pids(node))
        for node, pids in there.items():
            if len(pids & self._processes.get(node, set())) > self._gpus:
                self._note(f"node {node[:8]} has workers {sorted(pids)}")
        self._processes = there

    def _look_at_commands(self, heard: dict[str, JobReport]) -> None:
        """No worker but on nodes that a command since the last one in force has named."""
        for job, report in heard.items():
            allowed: Counter[str] = Counter()
            for nodes in self._commands(job, report.applied, report.generation):
                allowed |= Counter(nodes)
            if Counter(report.holding) - allowed and report.generation:
                self._note(f"{job} holds {report.holding}, commanded since {report.applied}: {dict(allowed)}")

    def _commands(self, job: str, applied: int, generation: int) -> list[list[str]]:
        rows = query(
            self._database,
            "SELECT nodes FROM allocations WHERE commanded_at IS NOT NULL AND job = ? AND generation BETWEEN ? AND ?",
            (job, applied, generation),
        )
        return [json.loads(row[0]) for row in rows]

    def _look_at_progress(self, heard: dict[str, JobReport]) -> None:
        for job, report in heard.items():
            history = self._history.setdefault(job, [])
            if history and report.progress < history[-1].progress:
                kept = [point for point in history if point.progress <= report.progress]
                lost = history[-1].trained - (kept[-1].trained if kept else 0.0)
                (self.lost_twice if job in self.corrupted else self.lost).append(lost)
                self.corrupted.discard(job)
                history[:] = kept
            if report.training_on and (not history or report.progress > history[-1].progress):
                last = history[-1] if history else Point(report.time, 0.0, 0.0)
                since = min(report.time - last.time, LOOK)
                history.append(Point(report.time, last.trained + since, report.progress))


def query(database: Path, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    """Rows of the session database, read beside it; none while there are no database."""
    if not database.exists() or not database.stat().st_size:
        return []
    base = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10.0)
    try:
        return base.execute(statement, values).fetchall()
    finally:
        base.close()


def free_gpus() -> tuple[float, float]:
    """GPUs that Ray holds to be free, and those it has."""
    total = sum(entry["Resources"].get("GPU", 0.0) for entry in alive_nodes())
    return float(ray.available_resources().get("GPU", 0.0)), float(total)
