"""Other programs hear of the ends of jobs, once each, over failures and restarts."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest
from starlette.testclient import TestClient

from rlpto.service.settings import ServiceSettings
from rlpto.service.web import webhook
from rlpto.service.web.app import make_app
from rlpto.store.database import Store
from rlpto.store.events import add_event, last_event
from rlpto.store.jobs import NewJob, change_job, insert_job
from tests.service.web.helpers import fill, make_settings

WAIT_S = 60.0


class Receiver(HTTPServer):
    """Takes what is posted. answers: codes of the next answers; then 204."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.got = list[int](), Queue[dict[str, Any]]()

    def next(self) -> dict[str, Any]:
        return self.got.get(timeout=WAIT_S)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code = self.server.answers.pop(0) if self.server.answers else 204
        self.server.got.put({**body, "code": code, "key": self.headers["Idempotency-Key"]})
        self.send_response(code)
        self.end_headers()

    def log_message(self, format: str, *_: Any) -> None:
        """Silent."""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(webhook, "FIRST_WAIT_S", 0.01)
    found = Receiver()
    thread = Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@contextmanager
def serving(settings: ServiceSettings) -> Iterator[Store]:
    """The web application while the block runs, once it has noted where it begins."""
    store = Store(settings.database)
    with TestClient(make_app(settings), base_url="http://127.0.0.1:8765") as client:
        while store.fact(webhook.FACT) is None:
            client.get("/healthz")
        yield store
    store.close()


def end(store: Store, name: str, state: str, reason: str = "") -> str:
    """A job comes and ends at once."""
    with store.transaction():
        row = insert_job(store, NewJob(owner="ann", name=name, program="digits", epochs=1.0), 1.0)
        add_event(store, "job", 1.0, row.id, "ann", {"state": "submitted"})
        change_job(store, row.id, 2.0, state=state, reason=reason)
        add_event(store, "job", 2.0, row.id, "ann", {"state": state, "reason": reason})
    return row.id


def test_ends_arrive_once_each_in_order(receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = f"http://127.0.0.1:{receiver.server_port}/secret"
    settings = make_settings(tmp_path / "service", web={"webhook": address})
    fill(settings)
    with serving(settings) as store:
        receiver.answers = [503]
        first = end(store, "one", "finished")
        assert receiver.next()["code"] == 503
        taken = receiver.next()
        assert taken["text"] == f"one ({first}) of ann finished"
        assert (taken["job"]["id"], taken["job"]["state"]) == (first, "finished")
        receiver.answers = [410]
        refused = end(store, "two", "failed", "no such file")
        said = receiver.next()
        assert said["text"] == f"two ({refused}) of ann failed: no such file"
        third = end(store, "three", "cancelled")
        assert receiver.next()["job"]["id"] == third
        while store.fact(webhook.FACT) != str(last_event(store)):  # a kill before that sends it once more
            time.sleep(0.01)
    assert refused in caplog.text
    assert "secret" not in caplog.text
    store = Store(settings.database)
    while_away = end(store, "four", "finished")
    store.close()
    with caplog.at_level(logging.WARNING), serving(settings) as store:
        assert receiver.next()["job"]["id"] == while_away
        last = end(store, "five", "finished")
        assert receiver.next()["job"]["id"] == last
    assert receiver.got.empty()
