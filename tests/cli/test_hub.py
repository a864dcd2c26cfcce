"""`rlpto hub` against a stand-in of the hub's HTTP interface; what huggingface_hub does is not replaced."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from rlpto.agents.archive import AGENT, CHECKPOINT, KINDS, read_archive, write_archive
from rlpto.agents.card import card_of
from rlpto.agents.policy import pretrained_file

needs_library = pytest.mark.skipif(
    find_spec("huggingface_hub") is None,
    reason="huggingface_hub is not installed: pip install -c constraints.txt -e '.[hub]'",
)
TOKEN, COMMIT = "hf_writes", "c0ffee" * 6 + "c0ff"


class Hub(ThreadingHTTPServer):
    """Repositories of the owner `me`, who has TOKEN. Files that end in .zip are kept by their digest (LFS)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.blobs: dict[str, bytes] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """What huggingface_hub asks for when it makes a repository, commits to it and reads files."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def do_POST(self) -> None:
        content = self.content()
        if self.path.startswith("/api/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            return self.create(json.loads(content))
        if self.path == "/api/validate-yaml":
            front = yaml.safe_load(json.loads(content)["content"].split("---\n")[1])
            good = isinstance(front, dict) and "library_name" in front
            return self.answer(200 if good else 400, {"errors": [] if good else [{"message": "no"}], "warnings": []})
        if found := re.fullmatch(r"/api/models/(\w+/\w+)/preupload/main", self.path):
            files = json.loads(content)["files"]
            modes = {file["path"]: "lfs" if file["path"].endswith(".zip") else "regular" for file in files}
            rows = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
            return self.answer(200, {"files": rows})
        if self.path.endswith(".git/info/lfs/objects/batch"):
            wanted = json.loads(content)["objects"]
            upload = {one["oid"]: {"upload": {"href": f"{self.server.address}/blobs/{one['oid']}"}} for one in wanted}
            return self.answer(200, {"objects": [one | {"actions": upload[one["oid"]]} for one in wanted]})
        if found := re.fullmatch(r"/api/models/(\w+/\w+)/commit/main", self.path):
            for line in map(json.loads, content.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.server.files[found[1]][value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.server.files[found[1]][value["path"]] = self.server.blobs[value["oid"]]
            url = f"{self.server.address}/{found[1]}/commit/{COMMIT}"
            return self.answer(200, {"commitUrl": url, "commitOid": COMMIT, "success": True})
        return self.answer(404, {"error": self.path})

    def do_PUT(self) -> None:
        content = self.content()
        self.server.blobs[hashlib.sha256(content).hexdigest()] = content
        self.answer(200, {})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if found := re.fullmatch(r"/api/models/(\w+/\w+)", self.path):
            if found[1] not in self.server.files:
                return self.answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            private = self.server.private[found[1]]
            return self.answer(200, {"id": found[1], "private": private, "sha": COMMIT, "siblings": []})
        if found := re.fullmatch(r"/blobs/(\w+)", self.path):
            return self.answer(400 if "Authorization" in self.headers else 200, self.server.blobs[found[1]])
        found = re.fullmatch(rf"/(\w+/\w+)/resolve/(?:main|{COMMIT})/([\w.]+)", self.path)
        return self.resolve(found[1], found[2]) if found else self.answer(404, {"error": self.path})

    def resolve(self, repo: str, name: str) -> None:
        files = self.server.files.get(repo)
        hidden = self.server.private.get(repo) and self.headers.get("Authorization") != f"Bearer {TOKEN}"
        if files is None or hidden:
            return self.answer(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if name not in files:
            return self.answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        digest = hashlib.sha256(files[name]).hexdigest()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"'}
        if not name.endswith(".zip"):
            return self.answer(200, files[name], headers)
        self.server.blobs[digest] = files[name]
        elsewhere = f"http://localhost:{self.server.server_port}/blobs/{digest}"  # another host, which gets no token
        more = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(files[name])), "Location": elsewhere}
        return self.answer(302, {}, headers | more)

    def create(self, wanted: dict[str, Any]) -> None:
        repo = f"{wanted['organization']}/{wanted['name']}"
        if wanted["organization"] != "me":
            return self.answer(403, {"error": "You don't have the rights to create a model under this namespace"})
        is_new = repo not in self.server.files
        if is_new:
            self.server.files[repo], self.server.private[repo] = {}, wanted.get("visibility") == "private"
        return self.answer(200 if is_new else 409, {"url": f"{self.server.address}/{repo}"})

    def content(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, code: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


Ask = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ask(hub: Hub, tmp_path: Path) -> Ask:
    """`rlpto hub` in a process of its own, since huggingface_hub reads its environment once; in the folder tmp_path."""

    def run(*arguments: str, token: str = TOKEN, address: str = hub.address) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        given = {
            "HF_ENDPOINT": address,
            "HF_TOKEN": token,
            "HF_HOME": str(tmp_path / "home"),
            "NO_PROXY": "127.0.0.1,localhost",
        }
        command = [sys.executable, "-m", "rlpto.cli.main", "hub", *arguments]
        environment = kept | given | {"HF_HUB_DISABLE_XET": "1"}  # the stand-in knows the older way to upload
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    return Path(shutil.copyfile(pretrained_file("philly"), tmp_path / "agent.zip"))


def assert_refused(answer: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that holds all parts."""
    assert (answer.returncode, answer.stdout) == (2, ""), answer
    assert answer.stderr.startswith("rlpto: error: ")
    assert answer.stderr.count("\n") == 1, answer.stderr
    for part in parts:
        assert part in answer.stderr


@needs_library
def test_an_agent_comes_back_as_it_was_pushed(hub: Hub, ask: Ask, agent: Path) -> None:
    pushed = ask("push", "agent.zip", "me/philly", "--private")
    assert (pushed.returncode, pushed.stderr) == (0, ""), pushed
    assert hub.private["me/philly"]
    assert hub.files["me/philly"] == {"agent.zip": agent.read_bytes(), "README.md": card_of(agent).encode()}
    (agent.parent / "folder").mkdir()
    for _ in range(2):  # the same content may be there
        loaded = ask("load", "me/philly", "-o", "folder/mine.zip")
        assert (loaded.returncode, loaded.stderr, COMMIT in loaded.stdout) == (0, "", True), loaded
    assert (agent.parent / "folder" / "mine.zip").read_bytes() == agent.read_bytes()
    assert [path.name for path in (agent.parent / "folder").iterdir()] == ["mine.zip"]


@needs_library
def test_the_card_next_to_an_agent_is_pushed_if_it_is_of_that_agent(hub: Hub, ask: Ask, agent: Path) -> None:
    edited = card_of(agent) + "\nMade by me.\n"
    agent.with_suffix(".md").write_text(edited)
    assert ask("push", "agent.zip", "me/philly").returncode == 0
    assert hub.files["me/philly"]["README.md"].decode() == edited
    shutil.copyfile(pretrained_file("pollux"), agent)
    assert_refused(ask("push", "agent.zip", "me/other"), "agent.md", "the card of another file", "--card")
    assert list(hub.files) == ["me/philly"]


@needs_library
def test_only_exported_agents_are_pushed(hub: Hub, ask: Ask, agent: Path) -> None:
    archive = read_archive(agent, KINDS)
    write_archive(agent.with_name("last.zip"), archive.manifest | {"format": CHECKPOINT}, archive.arrays, "one")
    assert_refused(ask("push", "last.zip", "me/philly"), "last.zip", f"expected {AGENT}")
    assert hub.files == {}


@needs_library
def test_a_public_repository_is_not_taken_for_a_private_one(hub: Hub, ask: Ask, agent: Path) -> None:
    hub.files["me/open"], hub.private["me/open"] = {}, False
    assert_refused(ask("push", agent.name, "me/open", "--private"), "a public repository is there")
    assert hub.files["me/open"] == {}
    assert ask("push", agent.name, "me/open").returncode == 0
    assert set(hub.files["me/open"]) == {"agent.zip", "README.md"}


@needs_library
def test_who_may_not_is_refused(hub: Hub, ask: Ask, agent: Path) -> None:
    assert_refused(ask("push", agent.name, "me/mine", token="hf_wrong"), "me/mine: not authorised (401)", "HF_TOKEN")
    assert_refused(ask("push", agent.name, "other/mine"), "other/mine: not authorised (403)", "HF_TOKEN")
    assert hub.files == {}
    hub.files["me/mine"], hub.private["me/mine"] = {"agent.zip": agent.read_bytes()}, True
    refused = ask("load", "me/mine", "-o", "x.zip", token="hf_wrong")
    assert_refused(refused, "no such repository, or a private one", "HF_TOKEN")
    assert ask("load", "me/mine", "-o", "x.zip").returncode == 0


@needs_library
def test_what_is_not_there_is_named(hub: Hub, ask: Ask) -> None:
    hub.files["me/empty"] = {}
    assert_refused(ask("load", "me/none", "-o", "x.zip"), "me/none: no such repository")
    assert_refused(ask("load", "me/empty", "-o", "x.zip"), "me/empty: no agent is there", "rlpto hub push")
    assert_refused(ask("load", "me/a..b", "-o", "x.zip"), "me/a..b", "expected a repository as OWNER/NAME")


@needs_library
def test_no_network_is_said_at_once(hub: Hub, ask: Ask, agent: Path) -> None:
    hub.server_close()  # its port answers nothing
    assert_refused(ask("load", "me/philly", "-o", "x.zip"), "me/philly: the hub gave no answer")
    assert_refused(ask("push", agent.name, "me/philly"), "me/philly: the hub gave no answer")


@needs_library
def test_a_file_that_is_no_agent_of_this_version_is_not_put_in_place(
    hub: Hub, ask: Ask, agent: Path, tmp_path: Path
) -> None:
    archive = read_archive(agent, KINDS)
    foreign = archive.manifest | {"meaning": archive.manifest["meaning"] | {"steering_features": ["other"]}}
    write_archive(tmp_path / "foreign.zip", foreign, archive.arrays, "one")
    agents = {"cut": agent.read_bytes()[:-100], "foreign": (tmp_path / "foreign.zip").read_bytes()}
    for name, content in (agents | {"large": bytes(8_000_001)}).items():
        hub.files[f"me/{name}"] = {"agent.zip": content}
    before = set(tmp_path.iterdir())
    refused = ask("load", "me/cut", "-o", "x.zip")
    assert_refused(refused, "me/cut: agent.zip", "truncated, damaged or foreign", f"expected {AGENT}")
    assert_refused(ask("load", "me/foreign", "-o", "x.zip"), "me/foreign: agent.zip", "steering_features")
    assert_refused(ask("load", "me/large", "-o", "x.zip"), "agent.zip has 8000001 bytes, expected at most 8000000")
    assert {path for path in tmp_path.iterdir() if path.name != "home"} == before


@needs_library
def test_a_target_with_other_content_stays(hub: Hub, ask: Ask, agent: Path, tmp_path: Path) -> None:
    hub.files["me/philly"] = {"agent.zip": agent.read_bytes()}
    (tmp_path / "x.zip").write_bytes(b"mine")
    (tmp_path / "folder.zip").mkdir()
    for name in ("x.zip", "folder.zip"):
        assert_refused(ask("load", "me/philly", "-o", name), f"{name}: there with other content")
    assert (tmp_path / "x.zip").read_bytes() == b"mine"


def test_without_the_library_the_extra_is_named(rlpto, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # as if it were not installed
    for arguments in (("push", agent, "me/philly"), ("load", "me/philly", "-o", agent.with_name("x.zip"))):
        rlpto("hub", *arguments).assert_refused("huggingface_hub is not installed: pip install 'rlpto[hub]'")
