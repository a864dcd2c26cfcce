"""The scheduler process of a service on a real local Ray cluster, with the books as its only door (S1, S4, S6)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from rlpto.ray_cluster.nodes.processes import TITLE, titled
from rlpto.service.books.curves import points_after, spans_of_job
from rlpto.service.books.database import Books
from rlpto.service.books.jobs import JobRow, NewJob, get_job, insert_job
from rlpto.service.books.logs import log_lines
from rlpto.service.books.requests import ask, get_request, switches
from rlpto.service.books.status import decisions, heartbeat, predictions
from rlpto.service.preparing import make_folder, prepare
from rlpto.service.settings import load_service

NODES, GPUS = 2, 2
WAIT_S = 150.0
EXPERIMENT = """
name: service
cluster: {nodes: [{count: 2, gpus: 2}]}
simulator: {interval: 10}
ray: {checkpoint_interval: 5, retries: 1, backoff: 0.1, tensorboard: false}
"""
SETTINGS = """
folder: FOLDER
experiment: experiment.yaml
programs:
  tiny: {program: {training: "tests.ray_cluster.programs:Plain", samples: 101, epochs: 20, batch_size: 16, pace: 0.1}}
  faulty:
    program:
      training: "tests.ray_cluster.programs:Faulty"
      options: {folder: FOLDER}
      samples: 101
      batch_size: 16
"""

pytestmark = pytest.mark.cluster


class Service:
    """A folder with books, and the scheduler process that a test starts and kills."""

    def __init__(self, folder: Path) -> None:
        (folder / "experiment.yaml").write_text(EXPERIMENT)
        self.path = folder / "service.yaml"
        self.path.write_text(SETTINGS.replace("FOLDER", str(folder / "run")))
        self.settings = load_service(self.path)
        make_folder(self.settings.folder)
        prepare(self.settings)
        self.books = Books(self.settings.books)
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        log = (self.path.parent / "scheduler.log").open("ab")
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlpto.service.scheduler", str(self.path)], stderr=log, env=environment
        )
        log.close()

    def submit(self, epochs: float, gpus: int = 1, program: str = "tiny", most: int | None = None) -> str:
        job = NewJob("ann", "a job", program, epochs, gpus=gpus, max_gpus=most or gpus)
        return insert_job(self.books, job, time.time()).id

    def row(self, job: str) -> JobRow:
        found = get_job(self.books, job)
        assert found is not None
        return found

    def until(self, holds: Callable[[], bool], seconds: float = WAIT_S) -> None:
        by = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, (self.path.parent / "scheduler.log").read_text()[-3000:]
            assert time.monotonic() < by, [self.row(row[0]) for row in self.books.rows("SELECT id FROM jobs")]
            time.sleep(0.02)

    def switch(self, policy: str) -> float:
        """Put a policy in force; seconds until it is."""
        asked = time.monotonic()
        number = ask(self.books, "policy", "op", time.time(), body={"policy": policy, "reason": "a test"})
        self.until(lambda: (found := get_request(self.books, number)) is not None and found.done_at is not None)
        answered = get_request(self.books, number)
        assert answered is not None
        assert answered.problem == ""
        return time.monotonic() - asked

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(60)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    os.environ.pop("RAY_ADDRESS", None)
    made = Service(tmp_path_factory.mktemp("service"))
    try:
        made.until(lambda: heartbeat(made.books) is not None)
        yield made
    finally:
        if made.process.poll() is None:
            made.end(signal.SIGINT)
        made.books.close()


def workers() -> set[int]:
    """Process ids of all workers that this machine has."""
    every = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
    return set(titled(every, TITLE))


def test_policies_are_switched_while_jobs_train_and_none_is_lost(service: Service) -> None:
    long = [service.submit(100.0, GPUS) for _ in range(NODES)]
    service.until(lambda: all(service.row(job).state == "running" for job in long))
    short = [service.submit(1.0) for _ in range(6)]
    service.until(lambda: all(service.row(job).state == "queued" for job in short))
    before = workers()
    took = {}
    for policy in ("elastic_fifo", "round_robin", "fifo"):
        took[policy] = service.switch(policy)
        assert workers() == before, "a switch leaves running processes alone"
    assert max(took.values()) < 1.0, took
    service.until(lambda: decisions(service.books, 0.0)[-1].policy == "fifo")
    switched = time.time()
    service.until(lambda: any(row.as_of > switched for row in predictions(service.books).values()))
    told = predictions(service.books)
    assert told.keys() == {*long, *short}
    service.until(lambda: all(service.row(job).is_over for job in (*long, *short)))
    rows = [service.row(job) for job in (*long, *short)]
    assert {row.state for row in rows} == {"finished"}
    assert [row.recoveries for row in rows] == [0] * len(rows)
    starts = [row.started or 0.0 for row in rows]
    # Jobs of one decision begin side by side; their first signs of life come in any order.
    assert all(later > earlier - 0.5 for earlier, later in pairwise(starts)), "first come, first served"
    off = [
        abs((told[row.id].finish or 0.0) - (row.ended or 0.0)) / ((row.ended or 0.0) - told[row.id].as_of)
        for row in rows
    ]
    assert sorted(off)[len(off) // 2] <= 0.15, f"nobody else has come: {off}"
    assert service.switch("elastic_fifo") < 1.0, "idle, too"
    assert service.switch("fifo") < 1.0
    asked = [one.policy for one in switches(service.books, limit=5)]
    assert asked == ["fifo", "elastic_fifo", "fifo", "round_robin", "elastic_fifo"]


def test_a_killed_scheduler_is_followed_by_one_that_takes_the_jobs_up(service: Service) -> None:
    job, later = service.submit(60.0, GPUS), service.submit(1.0)
    service.until(lambda: service.row(job).progress > 1.0)
    before, progress = workers(), service.row(job).progress
    service.process.kill()
    service.process.wait()
    while_down = service.submit(1.0)
    service.start()
    first = heartbeat(service.books)
    service.until(lambda: heartbeat(service.books) != first)
    assert before & workers(), "runners train on meanwhile"
    service.end(signal.SIGTERM)
    service.start()
    service.until(lambda: all(service.row(one).is_over for one in (job, later, while_down)))
    assert {service.row(one).state for one in (job, later, while_down)} == {"finished"}
    assert service.row(job).recoveries == 0
    epochs = [point.epoch for point in points_after(service.books, job)]
    assert epochs == sorted(epochs), "no epoch is trained twice"
    assert epochs[-1] == pytest.approx(60.0)
    assert progress < epochs[-1]
    lines = log_lines(service.settings.folder, job, 1, 1000)
    assert [line.n for line in lines] == list(range(1, len(lines) + 1))
    assert sum("epoch" in line.text and "accuracy" in line.text for line in lines) >= 10
    assert all(span.ended is not None for span in spans_of_job(service.books, job))


def test_a_job_whose_worker_is_killed_goes_on_and_a_broken_one_fails_alone(service: Service) -> None:
    before = workers()
    well = service.submit(40.0)
    service.until(lambda: service.row(well).state == "running")
    (victim,) = workers() - before
    os.kill(victim, signal.SIGKILL)
    broken = service.submit(5.0, program="faulty")
    service.until(lambda: service.row(broken).is_over)
    assert service.row(broken).state == "failed"
    assert "this batch is cursed" in service.row(broken).reason
    service.until(lambda: service.row(well).is_over)
    assert service.row(well).state == "finished"
    assert service.row(well).recoveries >= 1
    running = service.submit(500.0)
    service.until(lambda: service.row(running).state == "running")
    ask(service.books, "cancel", "ann", time.time(), running)
    service.until(lambda: service.row(running).state == "cancelled" and service.row(running).gpus_held == 0)
