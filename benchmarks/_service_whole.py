"""A whole job service on a Ray cluster: policies compiled under load, processes killed, and how soon jobs queue."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _common import Check, Found, progress
from _service_web import SECONDS, p95, submit_at_once

from rlpto.client import Client
from rlpto.store.jobs import ENDED, count_by_state
from rlpto.store.status import heartbeat
from tests.service.served import TINY, Served, served

NODES, GPUS = 3, 2
COMPILED = ("pollux", "planner")
SILENCE_S = 3.0
"""Longest time without a sign of life, which there is one of every second."""
SUBMISSIONS, SUBMITTERS, WEB_KILLS, SCHEDULER_KILLS = 1000, 8, 20, 5
ENOUGH_OVER = 200
"""Jobs that have trained when it is looked whether all is right, unless all are wanted."""
QUICK = {**TINY, "program": {**TINY["program"], "epochs": 1, "pace": None}}
"""A program whose jobs take as long as their processes take to start."""
SLOW = {**TINY, "program": {**TINY["program"], "pace": 2.0}}
"""A program whose steps take long, so that its jobs hold GPUs and leave the cores to the service."""
RATE = 230.0
"""Submissions a second of all clients together."""
LOOK_S, PATIENCE_S = 0.02, 7200.0


@contextmanager
def service(**more: Any) -> Iterator[Served]:
    """A service of its own, with its cluster."""
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), NODES, GPUS, **more) as started:
        yield started


def compiling() -> Found:
    """The first switch to policies that have to be compiled: whether jobs are served meanwhile."""
    with (
        tempfile.TemporaryDirectory() as cache,
        service(variables={"NUMBA_CACHE_DIR": cache}) as started,
        ThreadPoolExecutor(1) as pool,
    ):
        jobs, took, silences = [started.submit(100_000.0)], [], [0.0]
        started.until(lambda: started.states(*jobs) == {"running"})
        started.switch("elastic_fifo")  # what is made ready without being asked for is ready now
        started.switch("round_robin")
        for policy in COMPILED:
            progress(f"compiling {policy}")
            epochs = started.row(jobs[0]).progress
            asked = time.monotonic()
            switch = pool.submit(started.switch, policy)
            jobs.append(started.submit(1.0))
            last = time.time()
            while not switch.done():
                beat = heartbeat(started.store)
                last = last if beat is None else max(last, beat[0])
                silences.append(time.time() - last)
                time.sleep(LOOK_S)
            switch.result()
            took.append(f"{policy} {time.monotonic() - asked:.1f}")
            assert started.row(jobs[0]).progress > epochs
        rows = started.over(*jobs[1:])
        started.client.cancel(jobs[0])
        queued = [(row.queued or float("inf")) - row.submitted for row in rows]
    return [
        Check("policies that were compiled and are in force", len(took), "", len(COMPILED), True),
        Check("longest silence of the scheduler meanwhile", max(silences), "s", SILENCE_S, False),
        Check("a job that is submitted meanwhile is queued", max(queued), "s", SILENCE_S, False),
    ], {"from the request to in force [s]": took}


def submissions(whole: bool = False) -> Found:
    """Submissions by several clients while both processes are killed again and again, and jobs train meanwhile.

    whole: wait until all have trained, which takes half an hour or more; else until `ENOUGH_OVER` have.
    """
    made: list[str] = []
    began = time.monotonic()
    with service(programs={"tiny": QUICK}) as started:

        def submit(number: int) -> None:
            with Client(started.address, started.token, retry_for_s=300.0) as client:
                made.append(client.submit("tiny", name=f"job {number}", epochs=1)["id"])

        with ThreadPoolExecutor(SUBMITTERS) as pool:
            answers = pool.map(submit, range(SUBMISSIONS))
            kills = _kill_while(started, made)
        list(answers)  # an error of one of them is raised here
        submitted = time.monotonic() - began
        enough = len(made) if whole else ENOUGH_OVER
        started.until(lambda: _over(started) >= enough, PATIENCE_S)
        seconds = time.monotonic() - began
        return _verdict(started, made, kills, enough), {
            f"all submitted, {enough} over after [s]": (round(submitted), round(seconds)),
            "states": dict(count_by_state(started.store)),
        }


def _over(started: Served) -> int:
    """How many jobs have ended."""
    counts = count_by_state(started.store)
    return sum(counts.get(state, 0) for state in ENDED)


def _kill_while(started: Served, made: list[str]) -> Counter[str]:
    """Kill processes while jobs are submitted, the web process each time, the scheduler at every fourth; the kills."""
    kills: Counter[str] = Counter()
    while kills["web"] < WEB_KILLS or kills["scheduler"] < SCHEDULER_KILLS:
        goal = min(kills["web"] * SUBMISSIONS // (WEB_KILLS + 1), SUBMISSIONS - 1)
        progress(f"submissions: {goal} of {SUBMISSIONS}, kill {kills['web'] + 1} of {WEB_KILLS}")
        started.until(lambda goal=goal: len(made) >= goal, PATIENCE_S)
        time.sleep(random.uniform(0, 0.2))
        started.until(lambda: started.kill("rlpto.service.web"))
        kills["web"] += 1
        due = kills["web"] * SCHEDULER_KILLS // WEB_KILLS
        if kills["scheduler"] < due:
            started.until(lambda: started.scheduler() != 0, PATIENCE_S)  # one that was at work
            started.until(lambda: started.kill("rlpto.service.scheduler"))
            kills["scheduler"] += 1
    return kills


def _verdict(started: Served, made: list[str], kills: Counter[str], enough: int) -> list[Check]:
    """What the database says of all jobs. enough: of them must have trained."""
    store = started.store
    kept = store.rows("SELECT id, name, state, started FROM jobs")
    starts = store.rows(
        "SELECT job, count(*) FROM events WHERE kind = 'job' AND json_extract(body, '$.state') = 'starting' "
        "GROUP BY job"
    )
    states = Counter(state for _, _, state, _ in kept)
    lost = [row for row in kept if row[2] in ENDED and row[3] is None]
    names = Counter(name for _, name, _, _ in kept)
    return [
        Check("kills of the web process", kills["web"], "", WEB_KILLS, True),
        Check("kills of the scheduler process", kills["scheduler"], "", SCHEDULER_KILLS, True),
        Check("acknowledged jobs", len(made), "", SUBMISSIONS, True),
        Check("acknowledged jobs that are lost", len(set(made) - {row[0] for row in kept}), "", 0, False),
        Check("jobs that were made twice", sum(names.values()) - len(names), "", 0, False),
        Check("jobs that were started more than once", sum(count > 1 for _, count in starts), "", 0, False),
        Check("jobs that are over without a start", len(lost), "", 0, False),
        Check("jobs that have failed, or were rejected", states["failed"] + states["rejected"], "", 0, False),
        Check("jobs finished", states["finished"], "", enough, True),
    ]


def queued() -> Found:
    """32 clients that submit at a steady rate: how soon the scheduler has put their jobs into the queue."""
    with service(programs={"tiny": TINY, "slow": SLOW}) as started:
        running = [started.submit(100_000.0, program="slow") for _ in range(NODES * GPUS)]
        started.until(lambda: started.states(*running) == {"running"})
        took = submit_at_once(started.address, started.store, "tiny", RATE)
        asked = "SELECT queued - submitted FROM jobs WHERE program = 'tiny' AND queued IS NOT NULL"
        started.until(lambda: len(started.store.rows(asked)) >= len(took), PATIENCE_S)
        waited = [row[0] for row in started.store.rows(asked)]
        beat = heartbeat(started.store)
        assert beat is not None
        for job in running:
            started.client.cancel(job)
    return [
        Check("submissions a second, 32 clients, with a scheduler", len(took) / SECONDS, "1/s", 200.0, True),
        Check("p95 of a submission then", 1000 * p95(took), "ms", 150.0, False),
        Check("jobs seen in the queue", len(waited), "", len(took), True),
        Check("submitted to queued, p95", p95(waited), "s", 0.3, False),
        Check("scheduler's longest wait for the database", 1000 * beat[1].longest_wait, "ms", 100.0, False),
    ], {"submitted to queued, median, slowest [s]": (round(statistics.median(waited), 3), round(max(waited), 3))}


PARTS = {"compiling": compiling, "submissions": submissions, "queued": queued}
