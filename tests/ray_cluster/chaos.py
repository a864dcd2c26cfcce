"""Parts of the test of chaos: a scheduler that can be killed, a watcher of everything, and faults drawn at random."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from rlpto.experiments.on_ray import session_folder, session_of
from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.controllers import alive_nodes, find_controllers
from rlpto.ray_cluster.messages import JobReport
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.scheduler.session_folder import DATABASE
from rlpto.store.checkpoints import list_checkpoints
from rlpto.store.database import Store
from rlpto.store.requests import ask
from tests.ray_cluster.conftest import CELL


class Scheduler:
    """`rlpto evaluate` of `experiment` on the cluster at `address`. folder: for its files. restarts: after kills."""

    def __init__(self, folder: Path, address: str, experiment: Path) -> None:
        run = folder / "run"
        where = ["--cluster", "ray", "--address", address, "--run-dir", str(run), "--no-report", "--quiet"]
        self._command = [sys.executable, "-m", "rlpto.cli.main", "evaluate", str(experiment), *where]
        self._log = folder / "scheduler.log"
        self.session = session_of(run, CELL)
        self.database = session_folder(run, CELL) / DATABASE
        self.restarts = 0
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """As a machine does that loses power."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.restarts += 1
        self.start()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None if it is still at work after that time."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def output(self) -> str:
        """The end of what it has printed."""
        return self._log.read_text(errors="replace")[-2000:]


PERIOD = 1.0
LOOK = 3.0
"""s of training between two looks at most: in longer gaps a job stood still, which takes nothing back."""


class ReportedPoint(NamedTuple):
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
        self._handles: dict[str, Any] = {}
        self._history: dict[str, list[ReportedPoint]] = {}
        self._held: dict[str, Counter[str]] = {}
        self._processes: dict[str, set[int]] = {}
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
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
        for node, gpus in both.items():
            if gpus > self._gpus:
                self._note(f"{gpus} GPUs of node {node[:8]} are held")
        self._held = held

    def _look_at_processes(self) -> None:
        """Workers that are there, of any owner."""
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
                last = history[-1] if history else ReportedPoint(report.time, 0.0, 0.0)
                since = min(report.time - last.time, LOOK)
                history.append(ReportedPoint(report.time, last.trained + since, report.progress))


def query(database: Path, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    """Rows of the session database, read next to its scheduler; none while there is no database."""
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


POLICIES = ("fifo", "equal_share", "las", "optimus", "elastic_fifo")
NODE_BACK = 10.0
"""s after which a machine that died is replaced."""
NOTICED = 14.0
"""s that a frozen node is given to be noticed before it is replaced."""


class Faults:
    """Does one at a time, drawn by `rng`. done: how often each was. gpus: of a new node."""

    def __init__(
        self, started: LocalCluster, watcher: Watcher, scheduler: Scheduler, rng: random.Random, gpus: int
    ) -> None:
        self._started, self._watcher, self._scheduler = started, watcher, scheduler
        self._rng, self._gpus = rng, gpus
        self.done: Counter[str] = Counter()
        self._mending: list[tuple[float, Callable[[], object]]] = []
        self._kinds: dict[str, Callable[[], bool]] = {
            "worker killed": lambda: self._signal_worker(signal.SIGKILL),
            "worker frozen": lambda: self._signal_worker(signal.SIGSTOP),
            "raylet killed": self._kill_node,
            "node frozen": self._freeze_node,
            "controller killed": self._kill_controller,
            "scheduler killed": self._restart_scheduler,
            "checkpoint corrupted": self._corrupt,
            "policy switched": self._switch,
        }

    def strike(self) -> str:
        """Do one that can be done now: its name, empty if there was none."""
        kinds = list(self._kinds)
        self._rng.shuffle(kinds)
        for kind in kinds:
            if self._kinds[kind]():
                self.done[kind] += 1
                return kind
        return ""

    def mend(self) -> bool:
        """Bring back nodes whose time has come; True if some are still to come. Not in a thread: Ray refuses that."""
        due = [what for at, what in self._mending if at <= time.monotonic()]
        self._mending = [(at, what) for at, what in self._mending if at > time.monotonic()]
        for what in due:
            what()
        return bool(self._mending)

    def _signal_worker(self, number: signal.Signals) -> bool:
        nodes = list(self._started.node_ids)
        pids = [pid for node in nodes for pid in self._started.worker_pids(node)]
        return bool(pids) and _send(self._rng.choice(pids), number)

    def _kill_node(self) -> bool:
        nodes = self._started.node_ids
        if len(nodes) < 3:
            return False  # the others are still on their way back
        self._started.kill_node(self._rng.choice(nodes))
        self._later(NODE_BACK, lambda: self._started.add_node(self._gpus))
        return True

    def _freeze_node(self) -> bool:
        nodes = self._started.node_ids
        if len(nodes) < 3:
            return False
        node = self._rng.choice(nodes)
        for pid in [self._started.raylet_pid(node), *self._started.worker_pids(node)]:
            _send(pid, signal.SIGSTOP)

        def replace() -> None:
            self._started.kill_node(node)
            self._started.add_node(self._gpus)

        self._later(NOTICED, replace)
        return True

    def _kill_controller(self) -> bool:
        controllers = [
            report.pid for report in self._watcher.reports.values() if not report.ended and report.training_on
        ]
        return bool(controllers) and _send(self._rng.choice(controllers), signal.SIGKILL)

    def _restart_scheduler(self) -> bool:
        if self._scheduler.ended or not self._scheduler.database.exists():
            return False
        self._scheduler.restart()
        return True

    def _corrupt(self) -> bool:
        """Damage a job's newest checkpoint, and kill its controller, which then has to read it."""
        jobs = [
            report
            for report in self._watcher.reports.values()
            if not report.ended and report.training_on and report.checkpoint is not None
        ]
        if not jobs:
            return False
        job = self._rng.choice(jobs)
        folder = Path(job.checkpoint.path).parent if job.checkpoint is not None else Path()
        found = list_checkpoints(folder)
        if len(found) < 2 or not _send(job.pid, signal.SIGSTOP):
            return False
        Path(list_checkpoints(folder)[0].path).write_bytes(b"what a failing disk gives back")
        self._watcher.corrupted.add(job.job)
        return _send(job.pid, signal.SIGKILL)

    def _switch(self) -> bool:
        if self._scheduler.ended or not self._scheduler.database.exists():
            return False
        try:
            with closing(Store(self._scheduler.database, durable=False)) as store:
                ask(store, "policy", "chaos", time.time(), body={"policy": self._rng.choice(POLICIES)})
        except (ClusterError, sqlite3.Error):
            return False  # the database is being made
        return True

    def _later(self, seconds: float, what: Callable[[], object]) -> None:
        self._mending.append((time.monotonic() + seconds, what))


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
