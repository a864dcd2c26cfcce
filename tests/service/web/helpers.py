"""A service without a cluster: its store, users of every role, the web application in this process or a real one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any, TypeVar
from urllib.request import urlopen

import yaml
from starlette.testclient import TestClient

from rlpto.service.settings import CatalogueProgram, OptionSettings, ServiceSettings
from rlpto.service.web.app import make_app
from rlpto.store import requests, status
from rlpto.store.database import Store
from rlpto.store.program_keys import SCRIPTS, ProgramKeys
from rlpto.store.programs import all_programs, note_check, set_programs
from rlpto.store.rows import put_all
from rlpto.store.users import Role, add_token, add_user

ServerT = TypeVar("ServerT", bound=HTTPServer)


@contextmanager
def answering(server: ServerT) -> Iterator[ServerT]:
    """A server that answers while the block runs."""
    with server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Receiver(HTTPServer):
    """Takes what is posted. answers: codes of the next answers; then 200. got: bodies, with the code of their answer,
    their key, and when they came [s]."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.got = list[int](), Queue[dict[str, Any]]()
        self.address = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code = self.server.answers.pop(0) if self.server.answers else 200
        key = self.headers["Idempotency-Key"]
        self.server.got.put({**body, "code": code, "key": key, "at": time.monotonic()})
        self.send_response(code)
        self.send_header("Retry-After", "1")
        if code == 301:
            self.send_header("Location", "/moved")
        self.end_headers()
        self.wfile.write(b'{"token": "new"}')

    def log_message(self, format: str, *_: Any) -> None:
        """Silent."""


PROGRAM = CatalogueProgram(
    description="A small network.",
    program=ProgramKeys(training="rlpto.ray_cluster.programs.digits:DigitsMlp", samples=1437, epochs=20),
    options={
        "learning_rate": OptionSettings(type="number", minimum=1e-5, maximum=1, default=0.1),
        "hidden": OptionSettings(type="integer", minimum=1, maximum=512),
        "optimizer": OptionSettings(type="choice", choices=("sgd", "adam")),
    },
    batch_sizes=(32,),
    most_epochs=100,
    most_gpus=8,
)
SCRIPT_PROGRAM = CatalogueProgram(program=ProgramKeys(training=SCRIPTS), most_gpus=8)
ROLES: tuple[tuple[str, Role], ...] = (
    ("ann", "user"),
    ("bob", "user"),
    ("dev", "developer"),
    ("olga", "operator"),
    ("root", "admin"),
)
START_TIMEOUT_S = 60.0
ORIGIN = {"Origin": "http://127.0.0.1:8765"}
POLICIES = ("fifo", "elastic_fifo", "round_robin", "las")


def make_settings(folder: Path, **changes: Any) -> ServiceSettings:
    """Settings of a service in a folder."""
    values: dict[str, Any] = {
        "folder": folder,
        "experiment": "ray_smoke.yaml",
        "programs": {"digits": PROGRAM, "script": SCRIPT_PROGRAM},
        "web": {"posts_per_second": 1000},
    }
    return ServiceSettings.model_validate({**values, **changes})


def fill(settings: ServiceSettings) -> dict[str, str]:
    """The programs, policies, nodes, and users of every role; their tokens by name."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    store, now = Store(settings.database), time.time()
    with store.transaction():
        set_programs(store, settings.program_specs)
        put_all(
            store, status.PolicyEntry, [status.PolicyEntry(name, f"the policy {name}", "a paper") for name in POLICIES]
        )
        put_all(store, status.NodeRow, [status.NodeRow(f"node-{n}", 2, True) for n in range(4)])
        rows = [
            status.PreviewRow("digits", metric, gpus, 0.5 / gpus**power, 0.5 * gpus ** (1 - power))
            for metric, power in (("goodput", 0.8), ("throughput", 0.9), ("efficiency", 0.6))
            for gpus in (1, 2, 4, 8)
        ]
        put_all(store, status.PreviewRow, rows)
        requests.add_switch(store, "fifo", "settings", "", now, now)
        tokens = {}
        for name, role in ROLES:
            add_user(store, name, role, now)
            tokens[name] = add_token(store, name, "test", now)[1]
    store.close()
    return tokens


@dataclass
class Api:
    """The application, asked as several users."""

    client: TestClient
    settings: ServiceSettings
    tokens: Mapping[str, str]
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.store = Store(self.settings.database)

    @property
    def service(self) -> Any:
        """What the routes use."""
        return self.client.app.state.service  # type: ignore[attr-defined]

    def __call__(self, method: str, path: str, user: str | None = "ann", **given: Any) -> Any:
        headers = dict(given.pop("headers", {}))
        if user is not None:
            headers.setdefault("Authorization", f"Bearer {self.tokens[user]}")
        url = path if path.startswith("/") else f"/api/v1/{path}"
        return self.client.request(method, url, headers=headers, **given)

    def refuse(self, problem: str) -> None:
        """Have the program digits refused, as the scheduler does it."""
        note_check(self.store, all_programs(self.store)[0], problem)

    def sign_in(self, user: str = "ann", token: str = "") -> Any:
        """A session of this client by a token, from now on that of requests without a user."""
        return self("POST", "session", None, json={"token": token or self.tokens[user]}, headers=ORIGIN)

    def audit(self) -> list[tuple[str, str, str]]:
        """Who did what to what, newest first."""
        rows = self("GET", "audit", "root").json()["audit"]
        return [(row["by"], row["action"], row["target"]) for row in rows]

    def submit(self, user: str = "ann", **body: Any) -> Any:
        answer = self("POST", "jobs", user, json={"program": "digits", **body})
        assert answer.status_code == 201, answer.text
        return answer.json()


def problem(answer: Any, code: int, kind: str) -> str:
    """The detail of an answer that must be a problem."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (answer.status_code, body["status"], body["type"]) == (code, code, f"urn:rlpto:{kind}"), body
    return str(body["detail"])


@contextmanager
def running_api(folder: Path, **changes: Any) -> Iterator[Api]:
    """The application over a new database in a folder. changes: of the settings."""
    settings = make_settings(folder, **changes)
    tokens = fill(settings)
    with TestClient(make_app(settings), base_url=ORIGIN["Origin"], raise_server_exceptions=False) as client:
        yield Api(client, settings, tokens)


class WebProcess:
    """The module as a child, as `rlpto serve` starts it. It can be killed and started again under the same address: its
    socket outlives it."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings, self._log = settings.folder / "settings.yaml", settings.folder / "web.log"
        self._settings.write_text(yaml.safe_dump(settings.model_dump(mode="json")), encoding="utf-8")
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.start()

    def start(self) -> None:
        """Start it; it may not answer yet."""
        number = self._socket.fileno()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rlpto.service.web", str(self._settings), "--fd", str(number)],
                pass_fds=[number],
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
            )

    def wait(self) -> None:
        """Wait until it answers."""
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with urlopen(f"{self.address}/healthz", timeout=5):
                    return
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise AssertionError(f"the web process does not answer: {self.log()[-2000:]}") from None
                time.sleep(0.05)

    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def web_process(settings: ServiceSettings) -> Iterator[WebProcess]:
    """A web process that answers, and ends when it is asked to."""
    web = WebProcess(settings)
    try:
        web.wait()
        yield web
    finally:
        web.process.terminate()
        web.process.wait(30)


@contextmanager
def scheduler_answers(path: Path, policy: Callable[[requests.Request], str] = lambda _: "") -> Iterator[None]:
    """Requests are answered as the scheduler process does it while the block runs. policy: what is wrong with one."""
    stop = Event()

    def run() -> None:
        with closing(Store(path, durable=False)) as store:
            while not stop.wait(0.01):
                for request in requests.open_requests(store):
                    with store.transaction():
                        _answer(store, request, policy(request) if request.kind == "policy" else "")

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _answer(store: Store, request: requests.Request, problem: str) -> None:
    now, said = time.time(), request.body
    if request.kind == "policy" and not problem:
        requests.add_switch(store, said["policy"], request.by, said["reason"], request.at, now)
    if request.kind == "drain":
        status.set_drained(store, said["on"])
    if request.kind == "leave":
        status.note_leaving(store, said["node"], request.at + said["seconds"])
    requests.answer(store, request.seq, now, problem)
