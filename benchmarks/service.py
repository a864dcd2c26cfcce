"""The job service: load, a long history, the pages, policies compiled under load, time to the queue, predictions."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _common
import _service_virtual
from _common import Check, Found, NoDataError, progress

from rlpto.service.settings import ServiceSettings
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import JobRow, State, change_job, insert_job
from rlpto.store.status import heartbeat
from rlpto.store.users import add_token, add_user
from tests.service.served import TINY, Served, served
from tests.service.web.demo import fill_demo
from tests.service.web.helpers import WebProcess, fill, make_settings, web_process
from tests.service.web.test_browser import CHROMIUM, FLAGS

CLIENTS, SECONDS = 32, 15.0
HISTORY, PAGES = 10_000, 200
FILTERS = ("", "&state=failed", "&owner=ann", "&owner=bob&state=finished", "&label=n=3")
CHANGES = 20


# The web process ----------------------------------------------------------------------------------------------------


@contextmanager
def web_alone(**changes: object) -> Iterator[tuple[WebProcess, ServiceSettings, dict[str, str]]]:
    """A web process with its own database, and tokens by user."""
    with tempfile.TemporaryDirectory() as folder:
        settings = make_settings(Path(folder) / "service", quotas={"jobs_queued": 100_000}, **changes)
        tokens = fill(settings)
        with web_process(settings) as web:
            yield web, settings, tokens


def load() -> Found:
    """Clients that submit again as soon as they get an answer, each with its own token."""
    with web_alone(web={"posts_per_second": 10_000}) as (web, settings, _):
        apart = multiprocessing.get_context("spawn")
        wait = apart.Value("d", 0.0)
        # A thread here would wait for the interpreter, not for the database.
        other = apart.Process(target=_write_meanwhile, args=(settings.database, time.monotonic() + SECONDS, wait))
        other.start()
        took = submit_at_once(web.address, Store(settings.database), "digits")
        other.join()
    return [
        Check("submissions a second, 32 clients", len(took) / SECONDS, "1/s", 200.0, True),
        Check("p95 of a submission", 1000 * p95(took), "ms", 150.0, False),
        Check("longest wait of another writer", 1000 * wait.value, "ms", 100.0, False),
    ], {}


def submit_at_once(address: str, store: Store, program: str, rate: float | None = None) -> list[float]:
    """Seconds of each submission by CLIENTS users for SECONDS. rate: submissions per second of all users together.
    Default: without a pause."""
    with store.transaction():
        for number in range(CLIENTS):
            add_user(store, f"user-{number}", "user", time.time())
        secrets = [add_token(store, f"user-{number}", "", time.time())[1] for number in range(CLIENTS)]
    every, began = 0.0 if rate is None else CLIENTS / rate, time.monotonic()

    def submit(number: int, token: str) -> list[float]:
        connection, took, due = connected(address), [], began + every * number / CLIENTS
        while max(due, time.monotonic()) < began + SECONDS:
            time.sleep(max(due - time.monotonic(), 0.0))
            start = time.perf_counter()
            answer(connection, token, "POST", "/api/v1/jobs", {"program": program}, 201)
            took.append(time.perf_counter() - start)
            due = max(due + every, time.monotonic() - every)
        return took

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [one for took in pool.map(submit, range(CLIENTS), secrets) for one in took]


def connected(address: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)


def answer(
    connection: http.client.HTTPConnection, token: str, method: str, path: str, body: object = None, status: int = 200
) -> bytes:
    """The service's answer to a request. Raises AssertionError for another status."""
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": os.urandom(8).hex()}
    headers |= {"Content-Type": "application/json"} if body else {}
    connection.request(method, path, json.dumps(body) if body else None, headers)
    found = connection.getresponse()
    text = found.read()
    if found.status != status:
        raise AssertionError(f"{method} {path} was answered {found.status}")
    return text


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _write_meanwhile(path: Path, until: float, wait: Any) -> None:
    """Write as the scheduler does, ten times a second."""
    store = Store(path, durable=False)
    while time.monotonic() < until:
        store.set_fact("load", repr(time.time()))
        time.sleep(0.1)
    wait.value = store.longest_wait_s


def history() -> Found:
    """Pages and memory with ten thousand finished jobs."""
    with tempfile.TemporaryDirectory() as folder:
        settings = make_settings(Path(folder) / "service")
        tokens = fill(settings)
        store = Store(settings.database, durable=False)
        with store.transaction():
            for number in range(HISTORY):
                owner, at = ("ann", "bob")[number % 2], 1e9 + number
                job = insert_job(
                    store, JobRow(owner, f"job {number}", "digits", 5.0, labels={"n": str(number % 9)}), at
                )
                change_job(store, job.id, at, state=("finished", "failed")[number % 7 == 0], ended=at + 60)
        with web_process(settings) as web:
            took = [_time_pages(web, tokens["root"], query) for query in FILTERS]
            for path in ("/history", "/", "/metrics"):
                answer(connected(web.address), tokens["root"], "GET", path)
            status = Path(f"/proc/{web.process.pid}/status").read_text()
            memory = int(status.partition("VmRSS:")[2].split()[0]) / 1024  # MB
    return [
        Check("slowest page of history, median of its filter", 1000 * max(took), "ms", 20.0, False),
        Check("memory of the web process", memory, "MB", 120.0, False),
    ], {}


def _time_pages(web: WebProcess, token: str, query: str) -> float:
    """Median seconds of a page of a listing."""
    took, cursor = list[float](), ""
    while len(took) < PAGES:
        began = time.perf_counter()
        page = json.loads(answer(connected(web.address), token, "GET", f"/api/v1/jobs?limit=50{query}{cursor}"))
        took.append(time.perf_counter() - began)
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    return statistics.median(took)


@contextmanager
def signed_in(web: WebProcess, token: str) -> Iterator[Any]:
    """A page of a new browser context of Chromium, signed in. Playwright's browser is closed afterwards."""
    if CHROMIUM is None:
        raise NoDataError("no Chromium is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        def opened() -> Any:
            page = browser.new_context().new_page()
            data, headers = {"token": token}, {"Origin": web.address}
            page.request.post(f"{web.address}/api/v1/session", data=data, headers=headers)
            return page

        yield opened
        browser.close()


def paint() -> Found:
    """The overview in Chromium, opened for the first time: time until it is painted, and bytes fetched."""
    took, sizes = [], []
    with web_alone() as (web, settings, tokens), signed_in(web, tokens["root"]) as opened:
        fill_demo(settings)
        for number in range(6):
            page = opened()
            page.goto(f"{web.address}/")
            page.wait_for_selector("#gantt[data-bars]")
            paints = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            sent = "performance.getEntries().reduce((sum, one) => sum + (one.transferSize || 0), 0)"
            if number:  # the first one starts the browser's own processes
                took.append(page.evaluate(paints))
            sizes.append(page.evaluate(sent))
            page.context.close()
    return [
        Check("first paint, median of five", statistics.median(took), "ms", 500.0, False),
        Check("fetched for it, charts included", max(sizes) / 1000, "kB", 200.0, False),
    ], {}


def live() -> Found:
    """Time from an event in the database until Chromium shows it on a job's page."""
    took = []
    with web_alone() as (web, settings, tokens), signed_in(web, tokens["root"]) as opened:
        job = fill_demo(settings)["running"]
        store, page = Store(settings.database, durable=False), opened()
        page.goto(f"{web.address}/jobs/{job}")
        page.wait_for_selector("#live[data-state=on]")
        for number in range(CHANGES):
            state: State = ("queued", "running")[number % 2]
            began = time.perf_counter()
            with store.transaction():
                change_job(store, job, time.time(), state=state)
                add_event(store, "job", time.time(), job, "ann", {"state": state})
            page.wait_for_selector(f"#job[data-state={state}]")
            took.append(1000 * (time.perf_counter() - began))
            time.sleep(0.3)  # events in quick succession are shown together
        store.close()
    return [Check("event to page, slowest of 20", max(took), "ms", 1000.0, False)], {
        "event to page, median [ms]": round(statistics.median(took))
    }


# With a scheduler and real jobs -------------------------------------------------------------------------------------

NODES, GPUS = 3, 2
COMPILED = ("pollux", "planner")
SILENCE_S = 3.0
"""Longest time between two heartbeats [s]; they are due every second."""
SLOW = TINY | {"program": {**TINY["program"], "pace": 2.0}}
"""A program with slow steps: its jobs hold GPUs and leave the cores to the service."""
RATE = 230.0
"""Submissions a second of all clients together."""
LOOK_S, PATIENCE_S = 0.02, 7200.0


@contextmanager
def service(**more: Any) -> Iterator[Served]:
    """A separate service, with its own cluster."""
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), NODES, GPUS, **more) as started:
        yield started


def compiling() -> Found:
    """The first switch to policies that have to be compiled, and whether jobs are served meanwhile."""
    with (
        tempfile.TemporaryDirectory() as cache,
        service(variables={"NUMBA_CACHE_DIR": cache}) as started,
        ThreadPoolExecutor(1) as pool,
    ):
        jobs, took, silences = [started.submit(100_000.0)], [], [0.0]
        started.until(lambda: started.states(*jobs) == {"running"})
        started.switch("elastic_fifo")  # compiles now all that is prepared unasked
        started.switch("round_robin")
        for policy in COMPILED:
            progress(f"compiling {policy}")
            epochs = started.row(jobs[0]).progress
            begun = time.monotonic()
            switch = pool.submit(started.switch, policy)
            jobs.append(started.submit(1.0))
            last = time.time()
            while not switch.done():
                beat = heartbeat(started.store)
                last = last if beat is None else max(last, beat[0])
                silences.append(time.time() - last)
                time.sleep(LOOK_S)
            took.append(f"{policy} {time.monotonic() - begun:.1f}")
            switch.result()
            assert started.row(jobs[0]).progress > epochs
        rows = started.over(*jobs[1:])
        started.client.cancel(jobs[0])
        queued = [(row.queued or float("inf")) - row.submitted for row in rows]
    return [
        Check("policies that were compiled and are in force", len(took), "", len(COMPILED), True),
        Check("longest silence of the scheduler meanwhile", max(silences), "s", SILENCE_S, False),
        Check("a job that is submitted meanwhile is queued", max(queued), "s", SILENCE_S, False),
    ], {"from the request to in force [s]": took}


def queued() -> Found:
    """Time until the scheduler has queued the jobs of 32 clients that submit at a steady rate."""
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


PARTS = {"load": load, "history": history, "compiling": compiling, "queued": queued, "paint": paint, "live": live}
PARTS |= {"predictions": _service_virtual.predictions_made}

if __name__ == "__main__":
    _common.main(__doc__, PARTS)
