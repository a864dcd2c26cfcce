"""Another program hears of the ends of jobs, once each, over failures and restarts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rlpto.service.settings import ServiceSettings
from rlpto.service.web import messages
from rlpto.service.web.app import make_app
from rlpto.store.database import Store
from rlpto.store.events import add_event, last_event
from rlpto.store.jobs import JobRow, change_job, insert_job
from tests.service.web.helpers import Receiver, answering, fill, make_settings

WAIT_S = 60.0


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(messages, "FIRST_WAIT_S", 0.01)
    with answering(Receiver()) as found:
        yield found


@contextmanager
def serving(settings: ServiceSettings) -> Iterator[Store]:
    """The web application while the block runs, once it has noted where it begins."""
    store = Store(settings.database)
    with TestClient(make_app(settings), base_url="http://127.0.0.1:8765") as client:
        while store.fact("webhook") is None and settings.web.webhook:
            client.get("/healthz")
        yield store
    store.close()


def end(store: Store, name: str, state: str, reason: str = "") -> str:
    """A job comes and ends at once."""
    with store.transaction():
        row = insert_job(store, JobRow(owner="ann", name=name, program="digits", epochs=1.0), 1.0)
        add_event(store, "job", 1.0, row.id, "ann", {"state": "submitted"})
        change_job(store, row.id, 2.0, state=state, reason=reason)
        add_event(store, "job", 2.0, row.id, "ann", {"state": state, "reason": reason})
    return row.id


def test_a_redirect_is_no_delivery(receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It would be followed by a GET without the message."""
    settings = make_settings(tmp_path / "service", web={"webhook": receiver.address})
    fill(settings)
    with serving(settings) as store:
        receiver.answers = [301]
        moved = end(store, "one", "finished")
        second = end(store, "two", "finished")
        assert receiver.got.get(timeout=WAIT_S)["code"] == 301
        assert receiver.got.get(timeout=WAIT_S)["job"]["id"] == second
    assert "it answers 301 (expected the address that it redirects to)" in caplog.text
    assert f"job {moved}, which is left out" in caplog.text


def test_ends_arrive_once_each_in_order(receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = make_settings(tmp_path / "service", web={"webhook": f"{receiver.address}/secret"})
    fill(settings)
    with serving(settings) as store:
        receiver.answers = [503]
        first = end(store, "one", "finished")
        assert receiver.got.get(timeout=WAIT_S)["code"] == 503
        taken = receiver.got.get(timeout=WAIT_S)
        assert taken["text"] == f"one ({first}) of ann finished"
        assert (taken["job"]["id"], taken["job"]["state"]) == (first, "finished")
        receiver.answers = [410]
        refused = end(store, "two", "failed", "no such file")
        said = receiver.got.get(timeout=WAIT_S)
        assert said["text"] == f"two ({refused}) of ann failed: no such file"
        third = end(store, "three", "cancelled")
        assert receiver.got.get(timeout=WAIT_S)["job"]["id"] == third
        while store.fact("webhook") != str(last_event(store)):  # a kill before that sends it once more
            time.sleep(0.01)
    assert refused in caplog.text
    assert "secret" not in caplog.text
    store = Store(settings.database)
    while_away = end(store, "four", "finished")
    store.close()
    with caplog.at_level(logging.WARNING), serving(settings) as store:
        assert receiver.got.get(timeout=WAIT_S)["job"]["id"] == while_away
        last = end(store, "five", "finished")
        assert receiver.got.get(timeout=WAIT_S)["job"]["id"] == last
    assert receiver.got.empty()


def test_a_name_that_no_host_can_have_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(messages, "FIRST_WAIT_S", 0.01)
    monkeypatch.setenv("no_proxy", "*")
    settings = make_settings(tmp_path / "service", web={"webhook": "http://.chat.example/secret"})
    fill(settings)
    with caplog.at_level(logging.WARNING), serving(settings) as store:
        end(store, "one", "finished")
        until = time.monotonic() + WAIT_S
        while caplog.text.count("tried again") < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert caplog.text.count("webhook at .chat.example: Unicode") >= 2
    assert "secret" not in caplog.text


def test_a_webhook_that_is_set_again_is_not_sent_what_ended_meanwhile(receiver: Receiver, tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "service", web={"webhook": receiver.address})
    fill(settings)
    with serving(settings):
        pass
    with serving(make_settings(tmp_path / "service")) as store:
        end(store, "one", "finished")
    with serving(settings) as store:
        last = end(store, "two", "finished")
        assert receiver.got.get(timeout=WAIT_S)["job"]["id"] == last
