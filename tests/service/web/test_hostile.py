"""What nobody should send: every one is answered by a problem of 400 to 499, and nothing happens."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rlpto.service.web.app import make_app
from tests.service.web.helpers import Api, fill, make_settings
from tests.service.web.serving import WebProcess, web_process

J = {"Content-Type": "application/json"}
POST = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
DEEP = "[" * 30_000
GOOD = {"program": "digits"}
PATHS = (
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    "a/b",
    "a\\b",
    "file:///etc/passwd",
    "~/x",
    "$(id)",
    "`id`",
    "a;b|c&d",
)
TEXTS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "'; DROP TABLE jobs; --",
    '" OR 1=1',
    "{{7*7}}",
    "${jndi:x}",
    "a\x00b",
    "a\nb",
    "\u202egnp.exe",
    "\ud800",
    "\ufeff",
    "\x1b[31m",
    " a",
    "x" * 129,
)


def body(**changes: object) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


BODIES: dict[str, bytes] = {
    **{f"name {text[:12]!r}": body(name=text) for text in (*PATHS, *TEXTS)},
    **{f"program {text[:12]!r}": body(program=text) for text in (*PATHS, TEXTS[0], TEXTS[2], "", "x" * 65)},
    **{f"choice {text[:12]!r}": body(options={"optimizer": text}) for text in (*PATHS[:3], TEXTS[0], "y" * 65)},
    "option that is a path": body(options={"../x": 1}),
    "option of another kind": body(options={"hidden": "64"}),
    "option that is a list": body(options={"hidden": [64]}),
    "option that is nested": body(options={"hidden": {"$gt": 0}}),
    "options that are a list": body(options=[1]),
    "too many options": body(options={f"a{n}": 1 for n in range(65)}),
    "option without end": b'{"program": "digits", "options": {"learning_rate": Infinity}}',
    "option that is no number": b'{"program": "digits", "options": {"learning_rate": NaN}}',
    "class path": body(training="os:system"),
    "class path of builtins": body(training="builtins:eval"),
    "class path with dots": body(training="..os:system"),
    "gpus 0": body(gpus=0),
    "gpus -1": body(gpus=-1),
    "gpus 10**30": body(gpus=10**30, max_gpus=10**30),
    "gpus 2**63": body(gpus=2**63, max_gpus=2**63),
    "gpus of thousands of digits": b'{"program": "digits", "gpus": ' + b"9" * 5000 + b"}",
    "gpus as text": body(gpus="2"),
    "gpus true": body(gpus=True),
    "gpus 1.5": body(gpus=1.5),
    "gpus null": body(gpus=None),
    "epochs 0": body(epochs=0),
    "epochs 1e308": body(epochs=1e308),
    "epochs 1e999": b'{"program": "digits", "epochs": 1e999}',
    "priority": body(priority="urgent"),
    "owner of another": body(owner="bob"),
    "state": body(state="finished"),
    "id": body(id="jaaaaaaaaaaaa"),
    "label key": body(labels={"a/b": "c"}),
    "label value": body(labels={"a": "<b>"}),
    "label nested": body(labels={"a": {"b": "c"}}),
    "too many labels": body(labels={f"a{n}": "b" for n in range(17)}),
    "prototype": body(__proto__={"admin": True}),
    "empty": b"",
    "no JSON": b"{",
    "two values": b"{}{}",
    "a list": b"[]",
    "a text": b'"digits"',
    "null": b"null",
    "deep lists": DEEP.encode(),
    "deep objects": b'{"a":' * 10_000,
    "deep and closed": b'{"program":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "not UTF-8": b'{"program": "\xff\xfe"}',
    "NUL bytes": b"\0" * 100,
    "larger than 64 KiB": body(name="x" * 70_000),
    "much larger": b" " * 1_000_000,
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    config = make_settings(tmp_path_factory.mktemp("hostile") / "service")
    tokens = fill(config)
    with TestClient(make_app(config), base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as client:
        yield Api(client, config, tokens)


def check_refused(answer: Any) -> dict[str, Any]:
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    said: dict[str, Any] = answer.json()
    assert said["status"] == answer.status_code
    assert len(answer.content) < 20_000, "it is not quoted at length"
    return said


def test_there_are_enough_of_them() -> None:
    assert len(BODIES) + len(REQUESTS) >= 100


@pytest.mark.parametrize("case", BODIES, ids=lambda case: case.encode("ascii", "replace").decode())
@pytest.mark.parametrize("user", ["ann", "dev"])
def test_submissions(api: Api, case: str, user: str) -> None:
    for path in ("jobs", "jobs/validate"):
        check_refused(api("POST", path, user, content=BODIES[case], headers=J))
    assert api("GET", "jobs", "root").json()["jobs"] == []


REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "path as id": ("GET", "jobs/../../etc/passwd", {}),
    "encoded path as id": ("GET", "jobs/..%2f..%2fetc%2fpasswd", {}),
    "twice encoded path": ("GET", "jobs/%252e%252e%252fetc", {}),
    "NUL in id": ("GET", "jobs/a%00b", {}),
    "id of another form": ("GET", "jobs/A1", {}),
    "SQL as id": ("GET", "jobs/j'%20OR%201=1--", {}),
    "long id": ("GET", f"jobs/{'j' * 5000}", {}),
    "logs by path": ("GET", "jobs/..%2fadmin-token/logs", {}),
    "logs of dots": ("GET", "jobs/%2e%2e/logs", {}),
    "line number": ("GET", "jobs/jaaaaaaaaaaaa/logs?from=1e9", {}),
    "line number too large": ("GET", f"jobs/jaaaaaaaaaaaa/logs?from={2**70}", {}),
    "limit": ("GET", "jobs?limit=100000", {}),
    "limit 0": ("GET", "jobs?limit=0", {}),
    "cursor": ("GET", "jobs?cursor=1%20OR%201=1", {}),
    "long cursor": ("GET", f"jobs?cursor={'9' * 30}", {}),
    "state": ("GET", "jobs?state=x'--", {}),
    "owner": ("GET", "jobs?owner=../x", {}),
    "long label": ("GET", f"jobs?label={'x' * 200}", {}),
    "time": ("GET", "allocations?since=nan", {}),
    "time without end": ("GET", "allocations?since=1e400", {}),
    "negative time": ("GET", "decisions?since=-1", {}),
    "event number": ("GET", "events?once=1", {"headers": {"Last-Event-ID": "1; DROP TABLE events"}}),
    "long event number": ("GET", "events?once=1", {"headers": {"Last-Event-ID": "9" * 40}}),
    "key with spaces": ("POST", "jobs", {"json": GOOD, "headers": {"Idempotency-Key": "a b"}}),
    "long key": ("POST", "jobs", {"json": GOOD, "headers": {"Idempotency-Key": "k" * 129}}),
    "empty key": ("POST", "jobs", {"json": GOOD, "headers": {"Idempotency-Key": ""}}),
    "form": ("POST", "jobs", {"data": GOOD}),
    "text": ("POST", "jobs", {"content": json.dumps(GOOD), "headers": {"Content-Type": "text/plain"}}),
    "XML": ("POST", "jobs", {"content": "<a/>", "headers": {"Content-Type": "application/xml"}}),
    "files": ("POST", "jobs", {"files": {"a": b"b"}}),
    "method": ("DELETE", "jobs", {}),
    "own method": ("BREW", "jobs", {}),
    "trace": ("TRACE", "jobs", {}),
    "no address": ("GET", "nothing", {}),
    "other version": ("GET", "/api/v2/jobs", {}),
    "static by path": ("GET", "/static/../settings.py", {}),
    "static by encoded path": ("GET", "/static/..%2f..%2fsettings.py", {}),
    "store": ("GET", "/service.sqlite", {}),
    "other origin": ("POST", "jobs", {"json": GOOD, "headers": {"Origin": "http://evil.example"}}),
    "origin null": ("POST", "jobs", {"json": GOOD, "headers": {"Origin": "null"}}),
    "cross-site": ("POST", "jobs", {"json": GOOD, "headers": {"Sec-Fetch-Site": "cross-site"}}),
    "host": ("GET", "me", {"headers": {"Host": "evil.example"}}),
    "forwarded host": ("GET", "me", {"headers": {"Host": "evil.example", "X-Forwarded-Host": "127.0.0.1"}}),
    "If-Match": ("PATCH", "jobs/jaaaaaaaaaaaa", {"json": {}, "headers": {"If-Match": "*"}}),
    "policy by spec": ("PUT", "policy", {"json": {"policy": "agent:run=/etc"}, "headers": {"If-Match": '"1"'}}),
    "token of a user": ("POST", "users/root/tokens", {"json": {}}),
    "own role": ("PATCH", "users/ann", {"json": {"role": "admin"}}),
    "token by path": ("DELETE", "tokens/..%2fx", {}),
    "days of a token": ("POST", "tokens", {"json": {"days": 1e9}}),
    "session": ("POST", "session", {"json": {"token": {"$ne": ""}}}),
    "long session": ("POST", "session", {"json": {"token": "x" * 5000}}),
    "program": ("PUT", "programs/x", {"json": {"program": {"training": "os:system"}}}),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_requests(api: Api, case: str) -> None:
    method, path, given = REQUESTS[case]
    check_refused(api(method, path, "ann", **given))
    assert api("GET", "jobs", "root").json()["jobs"] == []


def test_no_file_was_made_or_read_outside_the_folder(api: Api) -> None:
    names = {path.name for path in api.settings.folder.iterdir()}
    assert {re.sub("-(wal|shm|turn)$", "", name) for name in names} == {"service.sqlite"}
    assert list(api.settings.folder.parent.iterdir()) == [api.settings.folder]


def test_raw_bytes_do_not_stop_the_server(tmp_path: Path) -> None:
    config = make_settings(tmp_path / "service")
    fill(config)
    with web_process(config) as web:
        for sent in (
            b"\0" * 1000,
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\nConnection: close\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n",
            POST + b"Content-Length: -5\r\n\r\n",
            POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            POST + b"Content-Length: 99999999999\r\n\r\n",
            POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        ):
            answer = exchange(web, sent)
            assert answer.startswith((b"HTTP/1.1 4", b"")), answer[:200]
            assert b"HTTP/1.1 5" not in answer
        web.wait()
        assert "Traceback" not in web.log()


def test_a_body_that_never_says_how_long_it_is(tmp_path: Path) -> None:
    config = make_settings(tmp_path / "service")
    token = fill(config)["ann"].encode()
    with web_process(config) as web:
        chunk = b"2000\r\n" + b" " * 0x2000 + b"\r\n"
        head = (
            b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + token + b"\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        assert exchange(web, head + chunk * 12).startswith(b"HTTP/1.1 413")


def test_two_lengths_are_refused_and_the_connection_ends(tmp_path: Path) -> None:
    config = make_settings(tmp_path / "service")
    fill(config)
    with web_process(config) as web:
        both = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = exchange(web, both + b"0\r\n\r\n" + b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"urn:rlpto:bad-framing" in answer
        assert answer.count(b"HTTP/1.1") == 1, "what follows is not read as a request"


def test_requests_that_never_end_are_closed(tmp_path: Path) -> None:
    config = make_settings(tmp_path / "service", web={"request_seconds": 1.5})
    token = fill(config)["ann"].encode()
    head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    body = POST + b"Authorization: Bearer " + token + b"\r\nContent-Length: 50\r\n\r\n{"
    with web_process(config) as web:
        host, port = web.address.removeprefix("http://").split(":")
        slow = [socket.create_connection((host, int(port)), timeout=30) for _ in range(102)]
        for number, one in enumerate(slow):
            one.sendall(b"" if number == 0 else head + b"\r\n" + head if number == 1 else body if number % 2 else head)
        began = time.monotonic()
        for one in slow[2:]:
            one.sendall(b"x")  # a byte now and then keeps nothing open
        for one in slow:
            while one.recv(65_536):
                pass
            one.close()
        assert time.monotonic() - began >= 1.0, "they had their time"
        web.wait()
        assert "Traceback" not in web.log()


def exchange(web: WebProcess, sent: bytes) -> bytes:
    """What a server answers to raw bytes, until it closes or is silent for a while."""
    host, port = web.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=2) as connection:
        found = b""
        try:
            connection.sendall(sent)
            while part := connection.recv(65_536):
                found += part
        except OSError:
            pass
        return found
