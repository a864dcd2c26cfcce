"""The web process of a job service: submissions under load, a long history, the first paint, and live pages."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _common import Check

from rlpto.service.settings import ServiceSettings
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import NewJob, State, change_job, insert_job
from rlpto.store.users import add_token, add_user
from tests.service.web.demo import fill_demo
from tests.service.web.helpers import fill, make_settings
from tests.service.web.serving import WebProcess, web_process
from tests.service.web.test_browser import CHROMIUM, FLAGS

Found = tuple[list[Check], dict[str, object]]
CLIENTS, SECONDS = 32, 15.0
HISTORY, PAGES = 10_000, 200
CHANGES, LIVE_MS = 20, 1000.0


@contextmanager
def service(**changes: object) -> Iterator[tuple[WebProcess, ServiceSettings, dict[str, str]]]:
    """A web process with a database of its own, and tokens by user."""
    with tempfile.TemporaryDirectory() as folder:
        settings = make_settings(Path(folder) / "service", quotas={"jobs_queued": 100_000}, **changes)
        tokens = fill(settings)
        with web_process(settings) as web:
            yield web, settings, tokens


def load() -> Found:
    """So many clients that submit as fast as they are answered, each with a token of its own."""
    with service(web={"posts_per_second": 10_000}) as (web, settings, _):
        store = Store(settings.database)
        secrets = []
        for number in range(CLIENTS):
            add_user(store, f"user-{number}", "user", time.time())
            secrets.append(add_token(store, f"user-{number}", "", time.time())[1])
        took: list[float] = []
        apart = multiprocessing.get_context(
            "spawn"
        )  # threads here would wait for the interpreter, not for the database
        wait = apart.Value("d", 0.0)
        until = time.monotonic() + SECONDS
        threads = [threading.Thread(target=_submit_until, args=(web.address, one, until, took)) for one in secrets]
        beside = apart.Process(target=_write_beside, args=(settings.database, until, wait))
        beside.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        beside.join()
    p95 = 1000 * statistics.quantiles(took, n=20)[-1]
    return [
        Check("submissions a second, 32 clients", len(took) / SECONDS, "1/s", 200.0, True),
        Check("p95 of a submission", p95, "ms", 150.0, False),
        Check("longest wait of another writer", 1000 * wait.value, "ms", 100.0, False),
    ], {}


def _submit_until(address: str, token: str, until: float, took: list[float]) -> None:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"program": "digits", "gpus": 2})
    while time.monotonic() < until:
        began = time.perf_counter()
        key = {"Idempotency-Key": os.urandom(8).hex()}
        connection.request("POST", "/api/v1/jobs", body, headers | key)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 201:
            raise AssertionError(f"a submission was answered {answer.status}")
        took.append(time.perf_counter() - began)


def _write_beside(path: Path, until: float, wait: Any) -> None:
    """Write as the scheduler does, ten times a second."""
    store = Store(path, durable=False)
    while time.monotonic() < until:
        store.write("INSERT OR REPLACE INTO status VALUES ('load', ?, '1')", (time.time(),))
        time.sleep(0.1)
    wait.value = store.longest_wait_s


def history() -> Found:
    """Pages and memory with ten thousand jobs that are over."""
    with tempfile.TemporaryDirectory() as folder:
        settings = make_settings(Path(folder) / "service")
        tokens = fill(settings)
        store = Store(settings.database, durable=False)
        with store.transaction():
            for number in range(HISTORY):
                owner, at = ("ann", "bob")[number % 2], 1e9 + number
                job = insert_job(
                    store, NewJob(owner, f"job {number}", "digits", 5.0, labels={"n": str(number % 9)}), at
                )
                change_job(store, job.id, at, state=("finished", "failed")[number % 7 == 0], ended=at + 60)
        with web_process(settings) as web:
            took = [
                _time_pages(web, tokens["root"], query)
                for query in ("", "&state=failed", "&owner=ann", "&owner=bob&state=finished", "&label=n=3")
            ]
            for path in ("/history", "/", "/metrics"):
                _get(web, tokens["root"], path)
            memory = _resident_mb(web.process.pid)
            restarted = time.perf_counter()
            web.process.kill()
            web.process.wait()
            web.start()
            web.wait()
            restarted = time.perf_counter() - restarted
    return [
        Check("slowest page of history, median of its filter", 1000 * max(took), "ms", 20.0, False),
        Check("memory of the web process", memory, "MB", 120.0, False),
        Check("web process answers again after a kill", restarted, "s", 5.0, False),
    ], {}


def _time_pages(web: WebProcess, token: str, query: str) -> float:
    took, cursor = [], ""
    while len(took) < PAGES:
        began = time.perf_counter()
        page = json.loads(_get(web, token, f"/api/v1/jobs?limit=50{query}{cursor}"))
        took.append(time.perf_counter() - began)
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    return statistics.median(took)


def _get(web: WebProcess, token: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(web.address.removeprefix("http://"), timeout=30)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise AssertionError(f"{path} was answered {answer.status}")
    return text


def _resident_mb(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) / 1024


def paint() -> Found:
    """The overview in Chromium, opened for the first time: until it is painted, and what it fetched."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        print("paint skipped: no Chromium is installed")
        return [], {}
    took, sizes, said = [], [], []
    with service() as (web, settings, tokens), sync_playwright() as started:
        fill_demo(settings)
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for number in range(6):
            context = browser.new_context()
            page = context.new_page()
            page.on("console", lambda one: said.append(one.text) if one.type in ("error", "warning") else None)
            secret = {"token": tokens["root"]}
            page.request.post(f"{web.address}/api/v1/session", data=secret, headers={"Origin": web.address})
            page.goto(f"{web.address}/")
            page.wait_for_selector("#gantt[data-bars]")
            paints = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            sent = "performance.getEntries().reduce((sum, one) => sum + (one.transferSize || 0), 0)"
            if number:  # the first one starts the browser's own processes
                took.append(page.evaluate(paints))
            sizes.append(page.evaluate(sent))
            context.close()
        browser.close()
    return [
        Check("first paint, median of five", statistics.median(took), "ms", 500.0, False),
        Check("fetched for it, charts included", max(sizes) / 1000, "kB", 200.0, False),
        Check("errors and warnings on the console", len(said), "", 0, False),
    ], {}


def live() -> Found:
    """From an event in the database to the page that shows it, in Chromium, on a job's page."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        print("live skipped: no Chromium is installed")
        return [], {}
    took = []
    with service() as (web, settings, tokens), sync_playwright() as started:
        job = fill_demo(settings)["running"]
        store = Store(settings.database, durable=False)
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        secret = {"token": tokens["root"]}
        page.request.post(f"{web.address}/api/v1/session", data=secret, headers={"Origin": web.address})
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
            time.sleep(0.3)  # what comes at once is shown at once
        browser.close()
        store.close()
    return [Check("event to page, slowest of 20", max(took), "ms", LIVE_MS, False)], {
        "event to page, median [ms]": round(statistics.median(took))
    }


PARTS: dict[str, Callable[[], Found]] = {
    "load": load,
    "history": history,
    "paint": paint,
    "live": live,
}
