"""Jobs under a real policy, a fault drawn at random every 3.5 s, and all promises checked every second.

12 s; `--soak 30` goes on for half an hour, with a fault every 15 s.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import ray
from ray.exceptions import RayError

from rlpto.experiments.on_ray import session_folder, session_of
from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.controllers import alive_nodes, find_controllers
from rlpto.ray_cluster.messages import JobReport
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.scheduler.session_folder import DATABASE
from rlpto.store.checkpoints import list_checkpoints
from rlpto.store.database import Store, looking
from rlpto.store.requests import ask
from tests.ray_cluster.conftest import CELL, GPUS, NODES
from tests.ray_cluster.test_commands import experiment
from tests.ray_cluster.test_real import wait_until

MINUTES = 0.2
JOBS = 6
FAULT_INTERVAL_S, SOAK_INTERVAL_S = 3.5, 15.0
PACE, STEPS = 0.5, 23
"""s of a step with one worker; steps of an epoch."""
SHARE, STARTS = 0.78, 20.0
"""Of all GPU time that there is in the soak, what the jobs need; GPU seconds of it that starts of each take."""
INTERVAL = 10.0
"""s between checkpoints."""
SLACK = 5.0
"""s that a loss may seem longer than it is: samples are a second apart, and a checkpoint takes time to be written."""
FINISH_TIMEOUT_S = 2400.0
"""s after the last fault within which all jobs must have finished."""
PERIOD = 1.0
LOOK = 3.0
"""s of training between two looks at most: in longer gaps a job stood still, which takes nothing back."""
POLICIES = ("fifo", "equal_share", "las", "optimus", "elastic_fifo")
NODE_BACK, NOTICED = 10.0, 14.0
"""s after which a machine that died is replaced; s that a frozen node is given to be noticed before."""


@pytest.mark.slow
def test_all_promises_are_kept_under_faults(
    ray_cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    soak = request.config.getoption("--soak")
    minutes, interval = (soak, SOAK_INTERVAL_S) if soak else (MINUTES, FAULT_INTERVAL_S)
    epochs = max(round((SHARE * 60 * minutes * NODES * GPUS / JOBS - STARTS) / (PACE * STEPS)), 1)
    scheduler = Scheduler(tmp_path, ray_cluster.address, jobs_of_equal_length(tmp_path, minutes, epochs))
    watcher = Watcher(ray_cluster, scheduler)
    faults = Faults(ray_cluster, watcher, scheduler, random.Random(5))
    try:
        with watcher:
            wait_until(lambda: any(one.training_on for one in list(watcher.reports.values())) or scheduler.ended)
            faults.wreak(60 * minutes, interval)
            with suppress(subprocess.TimeoutExpired):
                scheduler.process.wait(FINISH_TIMEOUT_S)
            code = scheduler.process.poll()
    finally:
        scheduler.kill()
        while faults.mend():
            time.sleep(0.5)
    jobs = scheduler.query("SELECT id, state, step, recoveries FROM jobs")
    print(f"{dict(faults.done)}, {sum(row[3] for row in jobs)} recoveries")
    print(f"{watcher.samples} samples, training taken back: {watcher.lost}, {watcher.lost_twice} [s]")
    assert code == 0, scheduler.log.read_text(errors="replace")[-2000:]
    assert [row[1:3] for row in jobs] == [("finished", epochs * STEPS)] * JOBS
    ended = scheduler.query("SELECT job FROM events WHERE json_extract(body, '$.what') = 'finished'")
    assert set(Counter(ended).values()) == {1}
    assert watcher.wrong == []
    assert find_controllers(scheduler.session) == {}
    gpus = sum(entry["Resources"].get("GPU", 0.0) for entry in alive_nodes())
    wait_until(lambda: ray.available_resources().get("GPU", 0.0) == gpus)
    assert max(watcher.lost, default=0.0) <= INTERVAL + SLACK
    assert max(watcher.lost_twice, default=0.0) <= 2 * INTERVAL + SLACK, "after a damaged checkpoint"
    assert faults.done.total() >= 3 * minutes


def jobs_of_equal_length(folder: Path, minutes: float, epochs: int) -> Path:
    """The experiment: they come during the first half."""
    program = {"training": "rlpto.ray_cluster.programs.digits:DigitsMlp", "samples": 1437, "batch_size": 64}
    jobs = {"model": "digits", "gpus": 1, "max_gpus": 4, "count": JOBS, "every": 30 * minutes / JOBS, "epochs": epochs}
    digits = {"digits": {**program, "epochs": epochs, "pace": PACE}}
    return experiment(
        folder,
        cluster={"nodes": [{"count": NODES, "gpus": GPUS}]},
        workload={"source": "jobs", "jobs": [jobs]},
        simulator={"interval": 10},
        ray={"programs": digits, "checkpoint_interval": INTERVAL, "heartbeat_timeout": 5, "retries": 5},
        policies=["equal_share"],
        evaluation={"reference": "equal_share"},
    )


class Scheduler:
    """`rlpto evaluate` of `experiment` on the cluster at `address`. folder: for its files."""

    def __init__(self, folder: Path, address: str, experiment: Path) -> None:
        run = folder / "run"
        where = ["--cluster", "ray", "--address", address, "--run-dir", str(run), "--no-report", "--quiet"]
        self._command = [sys.executable, "-m", "rlpto.cli.main", "evaluate", str(experiment), *where]
        self.log = folder / "scheduler.log"
        self.session = session_of(run, CELL)
        self.database = session_folder(run, CELL) / DATABASE
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """As a machine does that loses power."""
        self.process.kill()
        self.process.wait()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def query(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Rows of the session database, read next to its scheduler; none while there is no database."""
        if not self.database.exists():
            return []
        with looking(self.database) as base:
            return base.execute(statement, values).fetchall()


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

    def __init__(self, started: LocalCluster, scheduler: Scheduler) -> None:
        self._started, self._scheduler = started, scheduler
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
                self._handles = find_controllers(self._scheduler.session)
            heard = self._ask()
            self._look_at_gpus(heard)
            for job, report in heard.items():
                self._look_at_commands(job, report)
                self._look_at_progress(job, report)
            self.reports |= heard
            self.samples += 1

    def _ask(self) -> dict[str, JobReport]:
        asked = {handle.report.remote(): job for job, handle in self._handles.items()}
        heard = {}
        for answer in ray.wait(list(asked), num_returns=len(asked), timeout=1.0)[0] if asked else ():
            with suppress(RayError):  # gone, or being restarted
                heard[asked[answer]] = ray.get(answer)
        return heard

    def _check(self, right: bool, text: str) -> None:
        if not right:
            self.wrong.append(f"{time.monotonic() - self._began:.0f} s: {text}")

    def _look_at_gpus(self, heard: dict[str, JobReport]) -> None:
        """What controllers say they hold, and workers that are there, of any owner."""
        held = {job: Counter(report.holding) for job, report in heard.items()}
        both = sum((now & self._held.get(job, Counter()) for job, now in held.items()), Counter[str]())
        self._check(max(both.values(), default=0) <= GPUS, f"GPUs held by node: {both}")
        there = {}
        for node in self._started.node_ids:
            with suppress(KeyError):  # it was killed since
                there[node] = set(self._started.worker_pids(node))
                self._check(len(there[node] & self._processes.get(node, set())) <= GPUS, f"workers {there[node]}")
        self._held, self._processes = held, there

    def _look_at_commands(self, job: str, report: JobReport) -> None:
        """No worker but on nodes that a command since the last one in force has named."""
        allowed = Counter[str]()
        for (nodes,) in self._scheduler.query(
            "SELECT nodes FROM allocations WHERE commanded_at IS NOT NULL AND job = ? AND generation BETWEEN ? AND ?",
            (job, report.applied, report.generation),
        ):
            allowed |= Counter(json.loads(nodes))
        right = not report.generation or Counter(report.holding) <= allowed
        self._check(right, f"{job} holds {report.holding}, commanded since {report.applied}: {dict(allowed)}")

    def _look_at_progress(self, job: str, report: JobReport) -> None:
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


class Faults:
    """Does one at a time, drawn by `rng`. done: how often each was."""

    def __init__(self, started: LocalCluster, watcher: Watcher, scheduler: Scheduler, rng: random.Random) -> None:
        self._started, self._watcher, self._scheduler, self._rng = started, watcher, scheduler, rng
        self.done: Counter[str] = Counter()
        self._mending: list[tuple[float, Callable[[], object]]] = []
        self._kinds: dict[str, Callable[[], bool]] = {
            "worker killed": lambda: self._signal_one(self._workers(), signal.SIGKILL),
            "worker frozen": lambda: self._signal_one(self._workers(), signal.SIGSTOP),
            "raylet killed": self._kill_node,
            "node frozen": self._freeze_node,
            "controller killed": lambda: self._signal_one((one.pid for one in self._training()), signal.SIGKILL),
            "scheduler killed": self._restart_scheduler,
            "checkpoint corrupted": self._corrupt,
            "policy switched": self._switch,
        }

    def wreak(self, seconds: float, interval: float) -> None:
        """A fault every `interval` seconds, as long as there is work."""
        began = time.monotonic()
        due = began + interval
        while (time.monotonic() < began + seconds and not self._scheduler.ended) or self.mend():
            time.sleep(0.5)
            self.mend()
            if due <= time.monotonic() < began + seconds:
                print(f"{time.monotonic() - began:6.0f} s  {self._strike() or 'nothing to break'}")
                due += interval

    def _strike(self) -> str:
        """Do one that can be done now: its name, empty if there was none."""
        kinds = list(self._kinds)
        self._rng.shuffle(kinds)
        kind = next((kind for kind in kinds if self._kinds[kind]()), "")
        self.done.update([kind] if kind else [])
        return kind

    def mend(self) -> bool:
        """Bring back nodes whose time has come; True if some are still to come. Not in a thread: Ray refuses that."""
        due = [what for at, what in self._mending if at <= time.monotonic()]
        self._mending = [(at, what) for at, what in self._mending if at > time.monotonic()]
        for what in due:
            what()
        return bool(self._mending)

    def _workers(self) -> list[int]:
        return [pid for node in self._started.node_ids for pid in self._started.worker_pids(node)]

    def _training(self) -> list[JobReport]:
        return [one for one in self._watcher.reports.values() if not one.ended and one.training_on]

    def _signal_one(self, processes: Iterable[int], number: signal.Signals) -> bool:
        pids = list(processes)
        return bool(pids) and _send(self._rng.choice(pids), number)

    def _node(self) -> str | None:
        """One that may be harmed; None while the others are still on their way back."""
        nodes = self._started.node_ids
        return None if len(nodes) < 3 else self._rng.choice(nodes)

    def _kill_node(self) -> bool:
        if (node := self._node()) is None:
            return False
        self._started.kill_node(node)
        self._mending.append((time.monotonic() + NODE_BACK, lambda: self._started.add_node(GPUS)))
        return True

    def _freeze_node(self) -> bool:
        if (node := self._node()) is None:
            return False
        for pid in [self._started.raylet_pid(node), *self._started.worker_pids(node)]:
            _send(pid, signal.SIGSTOP)

        def replace() -> None:
            self._started.kill_node(node)
            self._started.add_node(GPUS)

        self._mending.append((time.monotonic() + NOTICED, replace))
        return True

    def _restart_scheduler(self) -> bool:
        if self._scheduler.ended or not self._scheduler.database.exists():
            return False
        self._scheduler.kill()
        self._scheduler.start()
        return True

    def _corrupt(self) -> bool:
        """Damage a job's newest checkpoint, and kill its controller, which then has to read it."""
        jobs = [one for one in self._training() if one.checkpoint is not None]
        if not jobs:
            return False
        job = self._rng.choice(jobs)
        folder = Path(job.checkpoint.path).parent if job.checkpoint is not None else Path()
        if len(list_checkpoints(folder)) < 2 or not _send(job.pid, signal.SIGSTOP):
            return False
        Path(list_checkpoints(folder)[0].path).write_bytes(b"what a failing disk gives back")
        self._watcher.corrupted.add(job.job)
        return _send(job.pid, signal.SIGKILL)

    def _switch(self) -> bool:
        if self._scheduler.ended or not self._scheduler.database.exists():
            return False
        with suppress(ClusterError), closing(Store(self._scheduler.database, durable=False)) as store:
            ask(store, "policy", "chaos", time.time(), body={"policy": self._rng.choice(POLICIES)})
            return True
        return False  # the database is being made


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
