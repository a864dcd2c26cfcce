"""What nobody should send: every one is answered by a problem of 400 to 499, and nothing happens."""

from __future__ import annotations

import base64
import io
import json
import random
import re
import socket
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from rlpto.service.web.__main__ import MOST_UNKNOWN
from rlpto.service.web.middleware import LARGEST_BODY_BYTES
from tests.service.web.helpers import Api, WebProcess, running_api, web_process
from tests.slow import few

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


SCRIPT: dict[str, Any] = {"name": "a.py", "source": "from rlpto import elastic", "samples": 9}


def zipped(content: bytes, method: int) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr("a.txt", content)
    return made.getvalue()


def validate(api: Api, user: str, archive: bytes) -> Any:
    script = {**SCRIPT, "files": base64.b64encode(archive).decode()}
    return api("POST", "jobs/validate", user, json={"program": "script", "script": script})


@pytest.mark.parametrize(
    "method", few([zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], zipfile.ZIP_DEFLATED)
)
def test_archives_that_grow_take_no_memory(shared_api: Api, web: WebProcess, method: int) -> None:
    zeros, process = zipped(bytes(10**8), method), psutil.Process(web.process.pid)
    hidden = zeros.replace((10**8).to_bytes(4, "little"), (1).to_bytes(4, "little"))
    before = process.memory_info().rss
    with httpx2.Client(base_url=web.address) as client:
        for user, code, said in (("ann", 403, "only the role developer"), ("dev", 422, "zip archive")):
            script = {**SCRIPT, "files": base64.b64encode(hidden).decode()}
            headers = {"Authorization": f"Bearer {shared_api.tokens[user]}"}
            body = {"program": "script", "script": script}
            answer = client.post("/api/v1/jobs/validate", json=body, headers=headers, timeout=60)
            assert said in check_refused(answer)["detail"]
            assert answer.status_code == code
    assert process.memory_info().rss - before < 30e6


@pytest.mark.parametrize(
    "method",
    few([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], zipfile.ZIP_STORED),
)
def test_damaged_archives_are_no_failures(shared_api: Api, method: int) -> None:
    whole, draw = zipped(b"text " * 40, method), random.Random(method)
    developer = {"Authorization": f"Bearer {shared_api.tokens['dev']}"}
    for number in range(75):
        broken = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            broken[draw.randrange(len(broken))] ^= draw.randint(1, 255)
        answer = validate(shared_api, "dev", bytes(broken))
        place = f"/api/packages/gcs/_ray_pkg_{number}.zip"
        put = shared_api.client.put(place, content=bytes(broken), headers=developer)
        assert (answer.status_code, put.status_code) in ((200, 200), (422, 422)), (answer.text, put.text)
        assert "\n" not in answer.json().get("detail", "")


def test_idle_connections_without_a_token_do_not_keep_others_out(shared_api: Api, web: WebProcess) -> None:
    host, port = web.address.removeprefix("http://").split(":")
    headers = {"Authorization": f"Bearer {shared_api.tokens['ann']}"}
    with httpx2.Client(base_url=web.address, headers=headers) as before, ExitStack() as idle:
        assert before.get("/api/v1/me").status_code == 200
        kept = before.get("/api/v1/me").extensions["network_stream"].get_extra_info("client_addr")
        for number in range(1005):
            one = idle.enter_context(socket.create_connection((host, int(port)), timeout=10))
            if number % 2:
                one.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"[: 30 + number])
        again = before.get("/api/v1/me")
        assert again.status_code == 200
        assert again.extensions["network_stream"].get_extra_info("client_addr") == kept, "the same connection"
        assert httpx2.get(f"{web.address}/api/v1/me", headers=headers).status_code == 200
        assert httpx2.get(f"{web.address}/login").status_code == 200
        open_now = [one for one in psutil.Process(web.process.pid).net_connections() if one.status == "ESTABLISHED"]
        assert len(open_now) <= MOST_UNKNOWN + 5


@pytest.mark.parametrize(
    ("behind_proxy", "origin", "code"),
    [
        (False, "http://127.0.0.1:8765", 201),
        (False, "https://127.0.0.1:8765", 403),
        (False, "http://127.0.0.1", 403),
        (False, "http://127.0.0.1:80", 403),
        (False, "null", 403),
        (True, "https://127.0.0.1:8765", 201),
        (True, "http://127.0.0.1:8765", 403),
        (True, "https://127.0.0.1", 403),
    ],
)
def test_an_origin_is_scheme_host_and_port(tmp_path: Path, behind_proxy: bool, origin: str, code: int) -> None:
    with running_api(tmp_path / "service", web={"behind_proxy": behind_proxy}) as api:
        assert api("POST", "jobs", json=GOOD, headers={"Origin": origin}).status_code == code


@pytest.mark.parametrize(("behind_proxy", "scheme", "port"), [(False, "http", 80), (True, "https", 443)])
def test_the_usual_port_may_be_left_out(tmp_path: Path, behind_proxy: bool, scheme: str, port: int) -> None:
    with running_api(tmp_path / "service", web={"behind_proxy": behind_proxy, "hosts": ["a.example"]}) as api:
        for host in ("a.example", f"a.example:{port}"):
            for origin in (f"{scheme}://a.example", f"{scheme}://A.example:{port}"):
                headers = {"Origin": origin, "Host": host}
                assert api("POST", "jobs", json=GOOD, headers=headers).status_code == 201, headers


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
