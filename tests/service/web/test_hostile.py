"""What nobody should send: every one is answered by a problem of 400 to 499, and nothing happens."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rlpto.service.web.middleware import LARGEST_BODY_BYTES
from tests.service.web.helpers import Api, WebProcess, web_process

JSON = {"Content-Type": "application/json"}
POST = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
GOOD = {"program": "digits"}
PATHS = ("../../etc/passwd", "/etc/passwd", "..", "a\\b", "file:///etc/passwd", "~/x", "$(id)", "a;b|c&d")
TEXTS = (
    "<script>alert(1)</script>", "'; DROP TABLE jobs; --", "{{7*7}}", "${jndi:x}", "a\x00b", "a\nb", "\u202egnp.exe",
    "\ud800", "\x1b[31m", " a", "x" * 129,
)  # fmt: skip


def body(**changes: object) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


BODIES: dict[str, bytes] = {
    **{f"name {text[:12]!r}": body(name=text) for text in (*PATHS, *TEXTS)},
    **{f"program {text[:12]!r}": body(program=text) for text in (*PATHS, *TEXTS[:2], "", "x" * 65)},
    **{f"choice {text[:12]!r}": body(options={"optimizer": text}) for text in (PATHS[0], TEXTS[0], "y" * 65)},
    "option that is a path": body(options={"../x": 1}),
    "option of another kind": body(options={"hidden": "64"}),
    "option that is nested": body(options={"hidden": {"$gt": 0}}),
    "too many options": body(options={f"a{n}": 1 for n in range(65)}),
    "option without end": b'{"program": "digits", "options": {"learning_rate": Infinity}}',
    "option that is no number": b'{"program": "digits", "options": {"learning_rate": NaN}}',
    "class path": body(training="os:system"),
    "class path with dots": body(training="..os:system"),
    "gpus 2**63": body(gpus=2**63, max_gpus=2**63),
    "gpus of thousands of digits": b'{"program": "digits", "gpus": ' + b"9" * 5000 + b"}",
    "gpus true": body(gpus=True),
    "epochs 1e999": b'{"program": "digits", "epochs": 1e999}',
    "owner of another": body(owner="bob"),
    "label value": body(labels={"a": "<b>"}),
    "prototype": body(__proto__={"admin": True}),
    "empty": b"",
    "two values": b"{}{}",
    "null": b"null",
    "deep lists": b"[" * 30_000,
    "deep objects": b'{"a":' * 10_000,
    "deep and closed": b'{"program":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "not UTF-8": b'{"program": "\xff\xfe"}',
    "NUL bytes": b"\0" * 100,
    "larger than 384 KiB": body(name="x" * 400_000),
}
"""Submissions; values of wrong kinds and out of bounds are drawn in `test_openapi.py`."""


@pytest.fixture(scope="module")
def web(shared_api: Api) -> Iterator[WebProcess]:
    quick = shared_api.settings.web.model_copy(update={"request_seconds": 1.5})
    with web_process(shared_api.settings.model_copy(update={"web": quick})) as process:
        yield process
        assert "Traceback" not in process.log()


def check_refused(answer: Any) -> dict[str, Any]:
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    said: dict[str, Any] = answer.json()
    assert said["status"] == answer.status_code
    assert len(answer.content) < 20_000, "it is not quoted at length"
    return said


@pytest.mark.parametrize("case", BODIES, ids=lambda case: case.encode("ascii", "replace").decode())
def test_submissions(shared_api: Api, case: str) -> None:
    for user in ("ann", "dev"):
        for path in ("jobs", "jobs/validate"):
            check_refused(shared_api("POST", path, user, content=BODIES[case], headers=JSON))
    assert shared_api("GET", "jobs", "root").json()["jobs"] == []


REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "path as id": ("GET", "jobs/../../etc/passwd", {}),
    "encoded path as id": ("GET", "jobs/..%2f..%2fetc%2fpasswd", {}),
    "SQL as id": ("GET", "jobs/j'%20OR%201=1--", {}),
    "long id": ("GET", f"jobs/{'j' * 5000}", {}),
    "logs by path": ("GET", "jobs/..%2fadmin-token/logs", {}),
    "long cursor": ("GET", f"jobs?cursor={'9' * 30}", {}),
    "time without end": ("GET", "allocations?since=1e400", {}),
    "event number": ("GET", "events?once=1", {"headers": {"Last-Event-ID": "1; DROP TABLE events"}}),
    "key with spaces": ("POST", "jobs", {"json": GOOD, "headers": {"Idempotency-Key": "a b"}}),
    "form": ("POST", "jobs", {"data": GOOD}),
    "text": ("POST", "jobs", {"content": json.dumps(GOOD), "headers": {"Content-Type": "text/plain"}}),
    "trace": ("TRACE", "jobs", {}),
    "static by encoded path": ("GET", "/static/..%2f..%2fsettings.py", {}),
    "store": ("GET", "/service.sqlite", {}),
    "other origin": ("POST", "jobs", {"json": GOOD, "headers": {"Origin": "http://evil.example"}}),
    "cross-site": ("POST", "jobs", {"json": GOOD, "headers": {"Sec-Fetch-Site": "cross-site"}}),
    "host": ("GET", "me", {"headers": {"Host": "evil.example"}}),
    "policy by spec": ("PUT", "policy", {"json": {"policy": "agent:run=/etc"}, "headers": {"If-Match": '"1"'}}),
    "token of a user": ("POST", "users/root/tokens", {"json": {}}),
    "own role": ("PATCH", "users/ann", {"json": {"role": "admin"}}),
    "program": ("PUT", "programs/x", {"json": {"program": {"training": "os:system"}}}),
    "session": ("POST", "session", {"json": {"token": {"$ne": ""}}}),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_requests(shared_api: Api, case: str) -> None:
    method, path, given = REQUESTS[case]
    check_refused(shared_api(method, path, "ann", **given))
    assert shared_api("GET", "jobs", "root").json()["jobs"] == []


def test_no_file_was_made_or_read_outside_the_folder(shared_api: Api) -> None:
    names = {path.name for path in shared_api.settings.folder.iterdir()} - {"settings.yaml", "web.log"}
    assert {re.sub("-(wal|shm|turn)$", "", name) for name in names} == {"service.sqlite"}
    assert list(shared_api.settings.folder.parent.iterdir()) == [shared_api.settings.folder]


def test_raw_bytes_do_not_stop_the_server(web: WebProcess) -> None:
    for sent in (
        b"\0" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\nConnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n",
        POST + b"Content-Length: -5\r\n\r\n",
        POST + b"Content-Length: 99999999999\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ):
        answer = exchange(web, sent)
        assert answer.startswith((b"HTTP/1.1 4", b"")), answer[:200]
        assert b"HTTP/1.1 5" not in answer
    web.wait()


def test_a_body_that_never_says_how_long_it_is(shared_api: Api, web: WebProcess) -> None:
    chunk = b"2000\r\n" + b" " * 0x2000 + b"\r\n"
    head = (
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
        + shared_api.tokens["ann"].encode()
        + b"\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert exchange(web, head + chunk * (LARGEST_BODY_BYTES // 0x2000 + 4)).startswith(b"HTTP/1.1 413")


def test_two_lengths_are_refused_and_the_connection_ends(web: WebProcess) -> None:
    both = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = exchange(web, both + b"0\r\n\r\n" + b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"urn:rlpto:bad-framing" in answer
    assert answer.count(b"HTTP/1.1") == 1, "what follows is not read as a request"


def test_requests_that_never_end_are_closed(shared_api: Api, web: WebProcess) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    unfinished = (
        POST + b"Authorization: Bearer " + shared_api.tokens["ann"].encode() + b"\r\nContent-Length: 50\r\n\r\n{"
    )
    sent = [b"", head + b"\r\n" + head, *[head, unfinished] * 50]
    host, port = web.address.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port)), timeout=30) for _ in sent]
    for one, text in zip(slow, sent, strict=True):
        one.sendall(text)
    began = time.monotonic()
    for one in slow[2:]:
        one.sendall(b"x")  # a byte now and then keeps nothing open
    for one in slow:
        while one.recv(65_536):
            pass
        one.close()
    assert time.monotonic() - began >= 1.0, "they had their time"
    web.wait()


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
