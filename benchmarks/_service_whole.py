"""A whole job service on a Ray cluster: policies switched under load, processes killed, and how soon jobs queue."""

from __future__ import annotations

import http.client
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _common import Check

from rlpto.client import Client
from rlpto.store.database import Store
from rlpto.store.events import events_after, last_event
from rlpto.store.jobs import ENDED, count_by_state
from rlpto.store.status import decisions, heartbeat
from rlpto.store.users import add_token, add_user
from tests.service.served import TINY, Served, served

Found = tuple[list[Check], dict[str, object]]
NODES, GPUS = 3, 2
SWITCHED = ("fifo", "elastic_fifo", "round_robin", "agent", "fifo")
AGENT = "pretrained:synthetic"
"""The agent that is switched to where no run is given."""
COMPILED = ("pollux", "planner")
SILENCE_S = 3.0
"""Longest time without a sign of life, which there is one of every second."""
RUNNING_EPOCHS, WAITING_EPOCHS, JOBS = 200.0, 1.0, 30
SWITCH_S = 1.0
SUBMISSIONS, SUBMITTERS, WEB_KILLS, SCHEDULER_KILLS = 1000, 8, 20, 5
ENOUGH_OVER = 200
"""Jobs that have trained when it is looked whether all is right, unless all are to."""
QUICK = {**TINY, "program": {**TINY["program"], "epochs": 1, "pace": None}}
"""A program of which a job takes as long as its processes take to start."""
SLOW = {**TINY, "program": {**TINY["program"], "pace": 2.0}}
"""A program whose steps take long, so that its jobs hold GPUs and leave the cores to the service."""
CLIENTS, RATE, SECONDS = 32, 230.0, 15.0
"""Clients, submissions a second of all together, and for how long."""
ENOUGH_RATE, QUEUED_S, WAIT_MS = 200.0, 0.3, 100.0
LOOK_S = 0.02
PATIENCE_S = 7200.0


@contextmanager
def service(**more: Any) -> Iterator[Served]:
    """A service of its own, with its cluster."""
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), NODES, GPUS, **more) as started:
        yield started


def switch(agent: str = AGENT) -> Found:
    """Policies one after the other over 30 running and waiting jobs, and again when idle. agent: spec of `agent`."""
    with service(scheduler={"policies": {"agent": agent}}) as started:
        for policy in SWITCHED:
            started.switch(policy)  # each is ready from now on
        jobs = [started.submit(RUNNING_EPOCHS) for _ in range(NODES * GPUS)]
        started.until(lambda: started.states(*jobs) == {"running"})
        jobs += [started.submit(WAITING_EPOCHS) for _ in range(JOBS - len(jobs))]
        started.until(lambda: started.states(*jobs) == {"running", "queued"})
        busy, changed, decided = [], 0, 0
        for policy in SWITCHED:
            before = started.workers()
            took, found = started.switch(policy)
            changed += len(before ^ started.workers())
            busy.append(took)
            since = float(found["since"])
            started.until(lambda since=since: bool(decisions(started.store, since)))
            decided += decisions(started.store, since)[0].policy == policy
        rows = started.over(*jobs, seconds=PATIENCE_S)
        idle = [started.switch(policy)[0] for policy in SWITCHED]
    ended = Counter(row.state for row in rows)
    return [
        Check("slowest switch over 30 jobs", max(busy), "s", SWITCH_S, False),
        Check("slowest switch when idle", max(idle), "s", SWITCH_S, False),
        Check("processes that a switch has ended or started", changed, "", 0, False),
        Check("switches after which the new policy decides next", decided, "", len(SWITCHED), True),
        Check("jobs finished", ended["finished"], "jobs", JOBS, True),
        Check("faults of jobs", sum(row.recoveries for row in rows), "", 0, False),
    ], {
        "switches over jobs [s]": [f"{name} {took:.2f}" for name, took in zip(SWITCHED, busy, strict=True)],
        "switches when idle [s]": [f"{name} {took:.2f}" for name, took in zip(SWITCHED, idle, strict=True)],
        "the agent": agent,
    }


def compiling() -> Found:
    """The first switch to policies that have to be compiled: whether jobs are served meanwhile."""
    with tempfile.TemporaryDirectory() as cache, service(variables={"NUMBA_CACHE_DIR": cache}) as started:
        jobs, took, silences = [started.submit(100_000.0)], {}, [0.0]
        started.until(lambda: started.states(*jobs) == {"running"})
        started.switch("elastic_fifo")  # what is made ready without being asked for is ready now
        started.switch("round_robin")
        for policy in COMPILED:
            progress = started.row(jobs[0]).progress
            waiting = threading.Thread(target=lambda policy=policy: took.update({policy: started.switch(policy)[0]}))
            waiting.start()
            jobs.append(started.submit(WAITING_EPOCHS))
            last = time.time()
            while waiting.is_alive():
                beat = heartbeat(started.store)
                last = last if beat is None else max(last, beat[0])
                silences.append(time.time() - last)
                time.sleep(LOOK_S)
            waiting.join()
            assert started.row(jobs[0]).progress > progress
        rows = started.over(*jobs[1:])
        started.client.cancel(jobs[0])
        queued = [(row.queued or float("inf")) - row.submitted for row in rows]
    return [
        Check("policies that were compiled and are in force", len(took), "", len(COMPILED), True),
        Check("longest silence of the scheduler meanwhile", max(silences), "s", SILENCE_S, False),
        Check("a job that is submitted meanwhile is queued", max(queued), "s", SILENCE_S, False),
    ], {"from the request to in force [s]": [f"{policy} {seconds:.1f}" for policy, seconds in took.items()]}


def submissions(whole: bool = False) -> Found:
    """Submissions by several clients while both processes are killed again and again, and jobs train meanwhile.

    whole: wait until all have trained, which takes half an hour or more; else until `ENOUGH_OVER` have.
    """
    made: list[str] = []
    left, lock = iter(range(SUBMISSIONS)), threading.Lock()
    began = time.monotonic()
    with service(programs={"tiny": QUICK}) as started:

        def submit() -> None:
            with Client(started.address, started.token, patience=300.0) as client:
                while True:
                    with lock:
                        number = next(left, None)
                    if number is None:
                        return
                    made.append(client.submit("tiny", name=f"job {number}", epochs=1)["id"])

        threads = [threading.Thread(target=submit) for _ in range(SUBMITTERS)]
        for thread in threads:
            thread.start()
        kills = _kill_while(started, made)
        for thread in threads:
            thread.join()
        submitted = time.monotonic() - began
        enough = len(made) if whole else ENOUGH_OVER
        started.until(lambda: sum(map(_states(started).__getitem__, ENDED)) >= enough, PATIENCE_S)
        seconds = time.monotonic() - began
        return _verdict(started, made, kills, enough), {
            f"all submitted, {enough} over after [s]": (round(submitted), round(seconds)),
            "states": dict(_states(started)),
        }


def _states(started: Served) -> Counter[str]:
    return Counter(count_by_state(started.store))


def _kill_while(started: Served, made: list[str]) -> Counter[str]:
    """Kill processes as submissions get on, the web process each time, the scheduler at every fourth; the kills."""
    kills: Counter[str] = Counter()
    while kills["web"] < WEB_KILLS or kills["scheduler"] < SCHEDULER_KILLS:
        goal = min(kills["web"] * SUBMISSIONS // (WEB_KILLS + 1), SUBMISSIONS - 1)
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
    """What the database says of all jobs. enough: of them are to have trained."""
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
        secrets = []
        with started.store.transaction():
            for number in range(CLIENTS):
                add_user(started.store, f"user-{number}", "user", time.time())
                secrets.append(add_token(started.store, f"user-{number}", "", time.time())[1])
        took: list[float] = []
        until = time.monotonic() + SECONDS
        watching = Watching(started.settings.database)
        threads = [
            threading.Thread(target=_submit_steadily, args=(started.address, secret, number, until, took))
            for number, secret in enumerate(secrets)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        watching.end(len(took))
        since = {row[0]: row[1] for row in started.store.rows("SELECT id, submitted FROM jobs")}
        beat = heartbeat(started.store)
        assert beat is not None
        waited = [seen - since[job] for job, seen in watching.seen.items() if job in since]
        for job in running:
            started.client.cancel(job)
    return [
        Check("submissions a second, 32 clients, with a scheduler", len(took) / SECONDS, "1/s", ENOUGH_RATE, True),
        Check("p95 of a submission then", 1000 * _p95(took), "ms", 150.0, False),
        Check("jobs seen in the queue", len(waited), "", len(took), True),
        Check("submitted to queued, p95", _p95(waited), "s", QUEUED_S, False),
        Check("scheduler's longest wait for the database", 1000 * beat[1].longest_wait, "ms", WAIT_MS, False),
    ], {"submitted to queued, median, slowest [s]": (round(statistics.median(waited), 3), round(max(waited), 3))}


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


class Watching(threading.Thread):
    """Notes when each job is in the queue, as somebody sees it who reads the database. seen: s, by job."""

    def __init__(self, store: Path) -> None:
        super().__init__()
        self._path, self._enough = store, float("inf")
        self.seen: dict[str, float] = {}
        self.start()

    def run(self) -> None:
        """Look until all are queued."""
        store = Store(self._path, durable=False)
        last, by = last_event(store), time.monotonic() + PATIENCE_S
        while len(self.seen) < self._enough and time.monotonic() < by:
            events = events_after(store, last)
            now = time.time()
            for event in events:
                last = event.seq
                if event.kind == "job" and event.job and event.body.get("state") == "queued":
                    self.seen.setdefault(event.job, now)
            time.sleep(0 if events else LOOK_S)
        store.close()

    def end(self, jobs: int) -> None:
        """Wait until so many have been seen."""
        self._enough = jobs
        self.join()


def _submit_steadily(address: str, token: str, number: int, until: float, took: list[float]) -> None:
    """One client of all, at its share of the rate."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body, every = json.dumps({"program": "tiny", "epochs": 1}), CLIENTS / RATE
    due = time.monotonic() + every * number / CLIENTS
    while due < until:
        time.sleep(max(due - time.monotonic(), 0.0))
        began = time.perf_counter()
        connection.request("POST", "/api/v1/jobs", body, headers | {"Idempotency-Key": os.urandom(8).hex()})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 201:
            raise AssertionError(f"a submission was answered {answer.status}")
        took.append(time.perf_counter() - began)
        due = max(due + every, time.monotonic() - every)


PARTS: dict[str, Callable[[], Found]] = {
    "switch": switch,
    "compiling": compiling,
    "submissions": submissions,
    "queued": queued,
}
