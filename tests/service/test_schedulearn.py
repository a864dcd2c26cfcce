"""Schedulearn's acceptance behaviours S1, S2 and S6 on a real local cluster, through REST alone.

S3 and S4 are decisions: `scheduler/test_policies.py` has them in virtual time.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from rlpto.store.curves import points_after, spans_of_job
from rlpto.store.jobs import JobRow
from rlpto.store.logs import log_lines
from rlpto.store.requests import Switch
from rlpto.store.rows import find
from rlpto.store.status import decisions, predictions, queue
from tests.service.served import TINY, Served, served

NODES, GPUS = 2, 2
JOBS = 4
HELD_EPOCHS = 100.0
"""Epochs of a job that is held: it trains for five minutes, or seconds once it is released."""

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("schedulearn")
    faulty = {
        "program": {
            "training": "tests.ray_cluster.programs:Faulty",
            "options": {"folder": str(folder)},
            "samples": 101,
            "batch_size": 16,
        }
    }
    held = {
        "training": "tests.ray_cluster.programs:Held",
        "options": {"until": str(folder / RELEASED), "pause": 0.4},
        "pace": None,
    }
    programs = {"tiny": TINY, "faulty": faulty, "held": {**TINY, "program": {**TINY["program"], **held}}}
    with served(folder, NODES, GPUS, interval=2.0, programs=programs) as made:
        yield made


RELEASED = "released"
"""File of the service's folder: jobs that are held go on once it is there."""


def hold(service: Served, gpus: int = 1) -> str:
    """A job that lasts until `release`; its id."""
    (service.path.parent / RELEASED).unlink(missing_ok=True)
    return service.submit(HELD_EPOCHS, gpus, program="held")


def release(service: Served) -> None:
    """Let all jobs that are held go on."""
    (service.path.parent / RELEASED).touch()


def submit_together(service: Served, count: int, submit: Callable[[], str]) -> list[str]:
    """Jobs that are all known when the first decision about them is taken."""
    service.client.drain(True)
    made = [submit() for _ in range(count)]
    service.until(lambda: service.states(*made) == {"queued"})
    service.client.drain(False)
    return made


def test_s1_policies_are_switched_while_jobs_run_and_wait(service: Served) -> None:
    running = [hold(service, GPUS) for _ in range(NODES)]
    service.until(lambda: service.states(*running) == {"running"})
    waiting = [service.submit(1.0) for _ in range(JOBS - NODES)]
    service.until(lambda: service.states(*waiting) == {"queued"})
    service.until(lambda: [row.job for row in queue(service.store)] == waiting)
    before = service.workers()
    assert len(before) == NODES * GPUS
    for policy in ("elastic_fifo", "round_robin", "fifo"):
        found = service.switch(policy)
        assert service.workers() == before, "a switch leaves running processes alone"
        service.until(lambda found=found: bool(decisions(service.store, found["since"])))
        assert decisions(service.store, found["since"])[0].policy == policy, "the next decision is the new policy's"
    switched = time.time()
    service.until(lambda: any(row.as_of > switched for row in predictions(service.store).values()))
    predicted = predictions(service.store).keys()
    assert predicted >= {row.job for row in queue(service.store)}, "all that wait still"
    release(service)
    rows = service.over(*running, *waiting)
    assert Counter(row.state for row in rows) == {"finished": JOBS}
    assert sum(row.recoveries for row in rows) == 0
    assert len(list(service.client.jobs(states=["finished"]))) == JOBS, "none was lost, none is there twice"
    for policy in ("round_robin", "fifo"):
        service.switch(policy)  # idle, too
    asked = [one.policy for one in find(service.store, Switch, "ORDER BY number DESC LIMIT 6")]
    assert asked == ["fifo", "round_robin", "fifo", "round_robin", "elastic_fifo", "fifo"]


def busy_share(service: Served, rows: list[JobRow], gpus: int, most: int) -> float:
    """GPU-seconds held of those that jobs, which start together and can use `most` GPUs each, could have used."""
    began = min(row.started or 0.0 for row in rows)
    ends = sorted(row.ended or 0.0 for row in rows)
    useful = sum(
        min(gpus, most * (len(ends) - at)) * (end - before) for at, (before, end) in enumerate(pairwise([began, *ends]))
    )
    held = sum(
        span.gpus * ((span.ended or 0.0) - span.started) for row in rows for span in spans_of_job(service.store, row.id)
    )
    return held / useful


def all_spans_ended(service: Served, *jobs: str) -> bool:
    """Whether it is known of all GPUs that jobs held until when."""
    return all(span.ended is not None for job in jobs for span in spans_of_job(service.store, job))


@pytest.mark.slow
def test_s2_elastic_fifo_uses_what_fifo_leaves_idle(service: Served) -> None:
    most = 2
    found = {}
    for policy in ("fifo", "elastic_fifo"):
        service.switch(policy)
        jobs = submit_together(service, 2, lambda: service.submit(15.0, 1, max_gpus=most))
        rows = service.over(*jobs)
        assert {row.state for row in rows} == {"finished"}
        service.until(lambda jobs=jobs: all_spans_ended(service, *jobs))  # what they held is in the database
        began = min(row.started or 0.0 for row in rows)
        ends = [(row.ended or 0.0) - began for row in rows]
        found[policy] = sum(ends) / len(ends), busy_share(service, rows, NODES * GPUS, most)
    print({policy: [round(value, 3) for value in values] for policy, values in found.items()})
    fifo, elastic = found["fifo"], found["elastic_fifo"]
    # How much is a matter of how busy this machine is: `study.py schedulearn` bounds it.
    assert elastic[0] < fifo[0], found
    assert elastic[1] > fifo[1], found


@pytest.mark.slow
def test_s6_a_job_whose_worker_is_killed_goes_on_and_a_broken_one_fails_alone(service: Served) -> None:
    service.until(lambda: not service.workers())
    well = hold(service)
    service.until(lambda: service.row(well).state == "running")
    (victim,) = service.workers()
    os.kill(victim, signal.SIGKILL)
    broken = service.submit(5.0, program="faulty")
    (failed,) = service.over(broken)
    assert failed.state == "failed"
    assert "this batch is cursed" in failed.reason
    assert failed.recoveries <= 2, "retries are bounded"
    service.until(lambda: service.row(well).recoveries == 1)
    release(service)
    (done,) = service.over(well)
    assert done.state == "finished"
    assert done.recoveries == 1
    running = hold(service)
    service.until(lambda: service.row(running).state == "running")
    service.client.cancel(running)
    service.until(lambda: service.row(running).state == "cancelled" and service.row(running).gpus_held == 0)


@pytest.mark.slow
def test_s6_whichever_process_of_the_service_is_killed_jobs_train_on(service: Served) -> None:
    job, others = hold(service, GPUS), [service.submit(1.0)]
    service.until(lambda: service.row(job).progress > 0.2)
    before, progress = service.workers(), service.row(job).progress
    for module in ("rlpto.service.web", "rlpto.service.scheduler"):
        killed = service.scheduler()
        assert service.kill(module)
        others.append(service.submit(1.0))
        if module == "rlpto.service.scheduler":
            service.until(lambda killed=killed: service.scheduler() not in (0, killed))
        assert before & service.workers(), "runners train on meanwhile"
    service.process.kill()
    service.process.wait()
    by = time.monotonic() + 60
    while service.scheduler():
        assert time.monotonic() < by, "without its parent the scheduler ends"
        time.sleep(0.05)
    assert before & service.workers()
    service.start()
    release(service)
    rows = service.over(job, *others)
    assert {row.state for row in rows} == {"finished"}
    assert service.row(job).recoveries == 0
    epochs = [point.epoch for point in points_after(service.store, job)]
    assert epochs == sorted(epochs), "no epoch is trained twice"
    assert epochs[-1] == pytest.approx(HELD_EPOCHS)
    assert progress < epochs[-1]
    lines = log_lines(service.settings.folder, job, 1, 1000)
    assert [line.n for line in lines] == list(range(1, len(lines) + 1))
    assert sum("epoch" in line.text and "accuracy" in line.text for line in lines) >= 10
    service.until(lambda: all_spans_ended(service, job))
