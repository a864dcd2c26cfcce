"""Other programs and owners hear of the ends of jobs, once each, over failures and restarts."""

from __future__ import annotations

import logging
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from email import message_from_bytes, policy
from email.message import Message
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, Session
from pydantic import ValidationError
from starlette.testclient import TestClient

from rlpto.service.settings import ServiceSettings
from rlpto.service.web import messages
from rlpto.service.web.app import make_app
from rlpto.store.database import Store
from rlpto.store.events import add_event, last_event
from rlpto.store.jobs import NewJob, change_job, insert_job
from rlpto.store.users import change_user, get_user
from tests.service.test_parent import make_certificate
from tests.service.web.helpers import Api, Receiver, answering, fill, make_settings, problem, running_api

WAIT_S = 60.0


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(messages, "FIRST_WAIT_S", 0.01)
    with answering(Receiver()) as found:
        yield found


@contextmanager
def serving(settings: ServiceSettings, channel: str = "webhook") -> Iterator[Store]:
    """The web application while the block runs, once it has noted where it begins."""
    store = Store(settings.database)
    with TestClient(make_app(settings), base_url="http://127.0.0.1:8765") as client:
        while store.fact(channel) is None:
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


SENDER, LOGIN, PASSWORD = "rlpto@mail.example", "rlpto@mail.example", "pass word"


class Mailbox:
    """A mail server that wants TLS and a password. answers: to the next recipients and messages; then it takes them."""

    def __init__(self, folder: Path) -> None:
        certificate, key = folder / "mail.pem", folder / "mail.key"
        make_certificate(certificate, key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self.certificate, self.got = certificate, Queue[Message]()
        self.recipients, self.answers = list[str](), list[str]()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])

    def start(self) -> None:
        options = {"tls_context": self._context, "auth_required": True, "authenticator": self._authenticate}
        self._controller = Controller(self, "127.0.0.1", self.port, **options)
        self._controller.start()

    def stop(self) -> None:
        self._controller.stop()

    def _authenticate(self, *given: Any) -> AuthResult:
        login = given[-1]
        return AuthResult(success=(login.login, login.password) == (LOGIN.encode(), PASSWORD.encode()), handled=False)

    async def handle_RCPT(self, _: object, __: object, envelope: Envelope, address: str, ___: object) -> str:
        envelope.rcpt_tos.append(address)
        return self.recipients.pop(0) if self.recipients else "250 OK"

    async def handle_DATA(self, _: object, session: Session, envelope: Envelope) -> str:
        assert session.ssl is not None
        assert envelope.mail_from == SENDER
        mail = message_from_bytes(envelope.content or b"", policy=policy.default)
        assert envelope.rcpt_tos == [mail["To"]]
        answer = self.answers.pop(0) if self.answers else "250 OK"
        if answer.startswith("250"):
            self.got.put(mail)
        return answer

    def next(self) -> tuple[str, str, str]:
        mail: Any = self.got.get(timeout=WAIT_S)
        return mail["To"], mail["Subject"], mail.get_content().strip()


@pytest.fixture
def mailbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    monkeypatch.setattr(messages, "FIRST_WAIT_S", 0.01)
    monkeypatch.setenv("MAIL_PASSWORD", PASSWORD)
    found = Mailbox(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(found.certificate))
    found.start()
    yield found
    found.stop()


def settings_for(mailbox: Mailbox, folder: Path, **changes: Any) -> ServiceSettings:
    values = {"host": "localhost", "port": mailbox.port, "sender": SENDER, "password_env": "MAIL_PASSWORD"}
    settings = make_settings(folder, web={"email": {**values, **changes}})
    fill(settings)
    store = Store(settings.database)
    change_user(store, replace(get_user(store, "ann"), email="ann@x.org"))  # type: ignore[type-var]
    store.close()
    return settings


def test_owners_get_mail_once_each(
    mailbox: Mailbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(messages, "LONGEST_WAIT_S", 0.04)
    settings = settings_for(mailbox, tmp_path / "service")
    with serving(settings, "email") as store:
        mailbox.recipients, mailbox.answers = ["450 later"], ["451 later"]
        first = end(store, "grün", "finished")
        assert mailbox.next() == ("ann@x.org", "grün finished", f"grün ({first}) of ann finished")
        mailbox.recipients = ["550 no such user"]
        refused = end(store, "two", "failed", "no such file")
        mailbox.answers = ["554 spam"]
        also_refused = end(store, "three", "failed", "no such file")
        fourth = end(store, "four", "failed", "no such file")
        assert mailbox.next() == ("ann@x.org", "four failed", f"four ({fourth}) of ann failed: no such file")
        mailbox.recipients = ["452 full"] * 3
        full = end(store, "full", "finished")
        end(store, "behind it", "finished")
        assert mailbox.next()[1] == "behind it finished"
        while store.fact("email") != str(last_event(store)):
            time.sleep(0.01)
        mailbox.stop()
        end(store, "five", "cancelled")
        while "ConnectionRefusedError; tried again" not in caplog.text:
            time.sleep(0.01)
    mailbox.start()
    with serving(settings, "email"):
        assert mailbox.next()[1] == "five cancelled"
    left_out = re.findall(r"the end of job (\w+), which is left out", caplog.text)
    assert left_out == [refused, also_refused, full]
    assert PASSWORD not in caplog.text
    assert mailbox.got.empty()


def test_a_wrong_password_loses_no_message(
    mailbox: Mailbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "wrong word")
    settings = settings_for(mailbox, tmp_path / "service")
    with serving(settings, "email") as store:
        end(store, "one", "finished")
        while "email at localhost: it answers 535; tried again" not in caplog.text:
            time.sleep(0.01)
    assert "wrong word" not in caplog.text
    monkeypatch.setenv("MAIL_PASSWORD", PASSWORD)
    with serving(settings, "email"):
        assert mailbox.next()[1] == "one finished"


def test_no_password_is_sent_in_the_clear(mailbox: Mailbox, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="a password needs starttls: true"):
        settings_for(mailbox, tmp_path, host="mail.example", starttls=False)


def test_users_choose_their_own_address_where_mail_is_sent(shared_api: Api, tmp_path: Path) -> None:
    problem(shared_api("PATCH", "me", json={"email": "ann@x.org"}), 409, "no-mail")
    with running_api(tmp_path, web={"email": {"host": "localhost", "sender": SENDER}}) as api:
        assert api("PATCH", "me", json={"email": "ann@x.org"}).json()["email"] == "ann@x.org"
        for wrong in ("ann", "ann@x.org, bob@x.org", "ann@x.org\nBcc: bob@x.org", "Ann <ann@x.org>", "a@b@c", ""):
            assert api("PATCH", "me", json={"email": wrong}).status_code == 422
        assert api("GET", "me").json()["email"] == "ann@x.org"
        assert api("GET", "me", "bob").json()["email"] is None
        assert api("PATCH", "me", json={"email": None}).json()["email"] is None
