"""`rlpto export --card`, with and without the scores of a submission, and `rlpto hub` against a stand-in of the hub's
HTTP interface; what huggingface_hub does is not replaced."""

import base64
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest
import yaml
from gymnasium import spaces

from rlpto import __version__
from rlpto.agents.archive import AGENT, CHECKPOINT, FORMATS, NODES
from rlpto.agents.card import card_of
from rlpto.agents.nodes_agent import nodes_meaning
from rlpto.agents.policy import pretrained_file
from rlpto.agents.ppo import NodesPolicy
from rlpto.agents.trained import weight_arrays
from rlpto.bench.results import Scores, read_rows, write_rows
from rlpto.bench.suite import EXACT, REALISTIC
from rlpto.io.archive import read_archive, write_archive

SRTF = Path(__file__).parents[2] / "submissions" / "srtf"


@pytest.fixture
def submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A submission of the agent `philly` that has the figures of `srtf`; the present folder is tmp_path."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "scored"
    folder.mkdir()
    shutil.copyfile(pretrained_file("philly"), folder / "mine.safetensors")
    card = yaml.safe_load((SRTF / "card.yaml").read_text()) | {"policies": ["agent:file=mine.safetensors"]}
    (folder / "card.yaml").write_text(yaml.safe_dump(card | {"training_cpu_s": 321.0}))
    rows = [replace(row, policy="agent:file=mine.safetensors") for row in read_rows(SRTF / "results.csv")]
    write_rows(rows, folder / "results.csv")
    return folder


def test_a_card_is_written_if_it_is_asked_for(rlpto, tmp_path: Path) -> None:
    for options, expected in (((), False), (("--card",), True)):
        assert rlpto("export", pretrained_file("philly"), "-o", tmp_path / "a.safetensors", *options).code == 0
        assert (tmp_path / "a.md").is_file() == expected
    assert (tmp_path / "a.md").read_text() == card_of(tmp_path / "a.safetensors")
    rlpto("export", tmp_path / "a.safetensors", "-o", tmp_path / "b.md", "--card").assert_refused(
        "b.md: the name of the card"
    )
    assert not (tmp_path / "b.md").exists()
    rlpto("export", tmp_path / "a.safetensors", "-o", "", "--card").assert_refused("expected the name of a file")
    shutil.copyfile(tmp_path / "a.safetensors", tmp_path / "last.safetensors")
    shutil.copyfile(tmp_path / "a.safetensors", tmp_path / "best.safetensors")
    for name in ("last.safetensors", "best.safetensors"):
        rlpto("export", tmp_path, "-o", tmp_path / name).assert_refused("a checkpoint of a run, expected")
    for name, write in (("notes", lambda path: path.write_text("mine")), ("folder", lambda path: path.mkdir())):
        write(tmp_path / f"{name}.md")
        answer = rlpto("export", tmp_path / "a.safetensors", "-o", tmp_path / f"{name}.safetensors", "--card")
        answer.assert_refused(f"{name}.md: there, and no card of an agent")
        assert not (tmp_path / f"{name}.safetensors").exists()
    assert rlpto("export", tmp_path / "a.safetensors", "-o", tmp_path / "a.safetensors", "--card").code == 0, (
        "a card is written again"
    )


def test_a_card_has_the_scores_of_a_submission_of_the_agent(rlpto, submission: Path, tmp_path: Path) -> None:
    answer = rlpto("export", pretrained_file("philly"), "-o", "a.safetensors", "--card", "--scores", submission)
    assert answer.code == 0, answer
    before, _, shown = (tmp_path / "a.md").read_text().partition("\n## Scores\n")
    assert before == card_of(tmp_path / "a.safetensors")
    assert "`rlpto bench run agent:file=mine.safetensors`" in shown
    assert "Training took 321 CPU-seconds." in shown
    rows = read_rows(submission / "results.csv")
    for division in (REALISTIC, EXACT):
        scores = Scores(rows, division)
        assert scores.cases
        assert "| **{}** | {:.1f} [{:.1f}, {:.1f}] |".format(division, *scores.interval) in shown
        for case, score in scores.by_case().items():
            assert f"| {case} | {score:.1f} |" in shown


def test_scores_of_others_and_broken_ones_are_refused_and_few_are_shown(
    rlpto, submission: Path, tmp_path: Path
) -> None:
    mine, other = pretrained_file("philly"), pretrained_file("pollux")
    asked = ("-o", "a.safetensors", "--card", "--scores")
    rlpto("export", other, *asked, submission).assert_refused(
        "scored: a submission of agent:file=mine.safetensors", str(other)
    )
    rlpto("export", mine, *asked, SRTF).assert_refused("a submission of srtf", "philly.safetensors")
    rlpto("export", mine, *asked, tmp_path / "none").assert_refused("none/card.yaml")
    rlpto("export", mine, "-o", "a.safetensors", "--scores", submission).assert_refused(
        "--scores", "expected --card too"
    )
    rows = read_rows(submission / "results.csv")
    for wrong, said in (([], "scored: no results"), (rows[1:], "is missing")):
        write_rows(wrong, submission / "results.csv")
        rlpto("export", mine, *asked, submission).assert_refused(said)
    assert not list(tmp_path.glob("a.*"))
    one_case = [row for row in rows if row.case == "microsoft04-0.9"]
    write_rows(one_case, submission / "results.csv")
    assert rlpto("export", mine, *asked, submission).code == 0
    shown = (tmp_path / "a.md").read_text().partition("\n## Scores\n")[2]
    assert "| microsoft04-0.9 | " in shown
    assert "**" not in shown, "a division that lacks cases has scores by case alone"


TOKEN, COMMIT = "hf_writes", "c0ffee" * 6 + "c0ff"


class Hub(ThreadingHTTPServer):
    """Repositories of the owner `me`, who has TOKEN, with the contents of their files by name."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}


class Handler(BaseHTTPRequestHandler):
    """What huggingface_hub asks for when it makes a repository, commits to it and reads files."""

    protocol_version = "HTTP/1.1"
    server: Hub

    @property
    def is_me(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def do_POST(self) -> None:
        content = self.content()
        if not self.is_me:
            return self.answer(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            return self.create(json.loads(content))
        if self.path == "/api/validate-yaml":
            front = yaml.safe_load(json.loads(content)["content"].split("---\n")[1])
            good = isinstance(front, dict) and "library_name" in front
            return self.answer(200 if good else 400, {"errors": [] if good else [{"message": "no"}], "warnings": []})
        if re.fullmatch(r"/api/models/\w+/\w+/preupload/main", self.path):
            names = [file["path"] for file in json.loads(content)["files"]]
            rows = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            return self.answer(200, {"files": rows})
        if found := re.fullmatch(r"/api/models/(\w+/\w+)/commit/main", self.path):
            for line in map(json.loads, content.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    self.server.files[found[1]][value["path"]] = base64.b64decode(value["content"])
            url = f"http://127.0.0.1/{found[1]}/commit/{COMMIT}"
            return self.answer(200, {"commitUrl": url, "commitOid": COMMIT, "success": True})
        return self.answer(404, {"error": self.path})

    def do_GET(self) -> None:
        place = re.fullmatch(rf"(?P<api>/api/models)?/(\w+/\w+)(?:/resolve/(?:main|{COMMIT})/([\w.]+))?", self.path)
        repo, name = (place[2], place[3]) if place else ("", None)
        files, private = self.server.files.get(repo), self.server.private.get(repo, False)
        if files is None or (private and not self.is_me):
            return self.answer(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if name is None:
            return self.answer(200, {"id": repo, "private": private, "sha": COMMIT, "siblings": []})
        if name not in files:
            return self.answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        return self.answer(200, files[name], {"X-Repo-Commit": COMMIT, "ETag": f'"{hash(files[name])}"'})

    do_HEAD = do_GET  # noqa: N815

    def create(self, wanted: dict[str, Any]) -> None:
        repo = f"{wanted['organization']}/{wanted['name']}"
        if wanted["organization"] != "me":
            return self.answer(403, {"error": "You don't have the rights to create a model under this namespace"})
        is_new = repo not in self.server.files
        if is_new:
            self.server.files[repo], self.server.private[repo] = {}, wanted.get("visibility") == "private"
        return self.answer(200 if is_new else 409, {"url": f"http://127.0.0.1/{repo}"})

    def content(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

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


@pytest.fixture(scope="module")
def started() -> Iterator[Hub]:
    """The stand-in, where huggingface_hub looks for the hub: it reads its environment once, when it is imported."""
    if find_spec("huggingface_hub") is None:
        pytest.skip("huggingface_hub is not installed: pip install -c constraints.txt -e '.[hub]'")
    with pytest.MonkeyPatch.context() as patch, Hub() as server, TemporaryDirectory() as home:
        for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
            patch.delitem(sys.modules, name)
        given = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": home,
            "NO_PROXY": "127.0.0.1,localhost",
        }
        for name, value in given.items():
            patch.setenv(name, value)
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()
        for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
            del sys.modules[name]


@pytest.fixture
def hub(started: Hub) -> Hub:
    """The stand-in without any repository."""
    started.files, started.private = {}, {}
    return started


Ask = Callable[..., Any]


@pytest.fixture
def ask(rlpto: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """`rlpto hub` in the folder tmp_path."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, token: str = TOKEN) -> Any:
        monkeypatch.setenv("HF_TOKEN", token)
        return rlpto("hub", *arguments)

    return run


@pytest.fixture
def trained_nodes_file(tmp_path: Path) -> Path:
    """A checkpoint of an agent that rents nodes, with weights of zero."""
    network = NodesPolicy(
        spaces.Dict({"nodes": spaces.Box(-1.0, 1.0, (3,))}), spaces.Box(-1.0, 1.0, (1,)), lambda _: 0.0, width=8
    )
    manifest = {
        "format": CHECKPOINT,
        "rlpto": __version__,
        "meaning": nodes_meaning(),
        "network": {"width": 8},
        NODES: {"heuristic": "spare:gpus=4", "features": 3, "gpus": [4.0], "boot": [300.0]},
    }
    write_archive(tmp_path / "last.safetensors", manifest, weight_arrays(network), "one")
    return tmp_path / "last.safetensors"


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    return Path(shutil.copyfile(pretrained_file("philly"), tmp_path / "agent.safetensors"))


def test_an_agent_comes_back_as_it_was_pushed(hub: Hub, ask: Ask, agent: Path) -> None:
    pushed = ask("push", "agent.safetensors", "me/philly", "--private")
    assert (pushed.code, pushed.err) == (0, ""), pushed
    assert hub.private["me/philly"]
    assert hub.files["me/philly"] == {"agent.safetensors": agent.read_bytes(), "README.md": card_of(agent).encode()}
    (agent.parent / "folder").mkdir()
    for _ in range(2):  # the same content may be there
        loaded = ask("load", "me/philly", "-o", "folder/mine.safetensors")
        assert (loaded.code, loaded.err, COMMIT in loaded.out) == (0, "", True), loaded
    assert (agent.parent / "folder" / "mine.safetensors").read_bytes() == agent.read_bytes()
    assert [path.name for path in (agent.parent / "folder").iterdir()] == ["mine.safetensors"]


def test_only_exported_agents_are_pushed_with_cards_of_their_own(hub: Hub, ask: Ask, agent: Path) -> None:
    edited = card_of(agent) + "\nMade by me.\n"
    agent.with_suffix(".md").write_text(edited)
    assert ask("push", "agent.safetensors", "me/philly").code == 0
    assert hub.files["me/philly"]["README.md"].decode() == edited
    shutil.copyfile(pretrained_file("pollux"), agent)
    ask("push", "agent.safetensors", "me/other").assert_refused("agent.md", "the card of another file", "--card")
    archive = read_archive(agent, FORMATS)
    write_archive(agent.with_name("last.safetensors"), archive.manifest | {"format": CHECKPOINT}, archive.arrays, "one")
    ask("push", "last.safetensors", "me/other").assert_refused("last.safetensors", f"expected {AGENT}")
    assert list(hub.files) == ["me/philly"]


def test_an_agent_that_rents_nodes_is_exported_pushed_and_loaded(
    rlpto, hub: Hub, ask: Ask, tmp_path: Path, trained_nodes_file: Path
) -> None:
    out = rlpto("export", trained_nodes_file, "-o", tmp_path / "nodes.safetensors")
    assert (out.code, out.err) == (0, ""), out
    assert "use it as POLICY@agent:file=" in " ".join(out.out.split())
    assert ask("push", "nodes.safetensors", "me/nodes").code == 0
    assert "how many nodes are rented" in hub.files["me/nodes"]["README.md"].decode()
    loaded = ask("load", "me/nodes", "-o", "mine.safetensors")
    assert (loaded.code, "POLICY@agent:file=mine" in loaded.out) == (0, True), loaded


def test_a_public_repository_is_not_taken_for_a_private_one(hub: Hub, ask: Ask, agent: Path) -> None:
    hub.files["me/open"], hub.private["me/open"] = {}, False
    ask("push", agent.name, "me/open", "--private").assert_refused("a public repository is there")
    assert hub.files["me/open"] == {}


def test_who_may_not_is_refused(hub: Hub, ask: Ask, agent: Path) -> None:
    ask("push", agent.name, "me/mine", token="hf_wrong").assert_refused("me/mine: not authorised (401)", "HF_TOKEN")
    ask("push", agent.name, "other/mine").assert_refused("other/mine: not authorised (403)", "HF_TOKEN")
    assert hub.files == {}
    hub.files["me/mine"], hub.private["me/mine"] = {"agent.safetensors": agent.read_bytes()}, True
    refused = ask("load", "me/mine", "-o", "x.safetensors", token="hf_wrong")
    refused.assert_refused("no such repository, or a private one", "HF_TOKEN")
    assert ask("load", "me/mine", "-o", "x.safetensors").code == 0


def test_what_is_not_there_is_named(hub: Hub, ask: Ask) -> None:
    hub.files["me/empty"] = {}
    ask("load", "me/none", "-o", "x.safetensors").assert_refused("me/none: no such repository")
    ask("load", "me/empty", "-o", "x.safetensors").assert_refused("me/empty: no agent is there", "rlpto hub push")
    ask("load", "me/a..b", "-o", "x.safetensors").assert_refused("me/a..b", "expected a repository as OWNER/NAME")


@pytest.mark.usefixtures("hub")
def test_no_network_is_said_at_once(ask: Ask, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    for name in ("ENDPOINT", "HUGGINGFACE_CO_URL_TEMPLATE"):  # a port that answers nothing
        monkeypatch.setattr(constants, name, re.sub(r":\d+", ":9", getattr(constants, name)))
    ask("load", "me/philly", "-o", "x.safetensors").assert_refused("me/philly: the hub gave no answer")
    ask("push", agent.name, "me/philly").assert_refused("me/philly: the hub gave no answer")


def test_a_file_that_is_no_agent_of_this_version_is_not_put_in_place(
    hub: Hub, ask: Ask, agent: Path, tmp_path: Path
) -> None:
    archive = read_archive(agent, FORMATS)
    foreign = archive.manifest | {"index_weights": {"format": "other"}}
    write_archive(tmp_path / "foreign.safetensors", foreign, archive.arrays, "one")
    agents = {"cut": agent.read_bytes()[:-100], "foreign": (tmp_path / "foreign.safetensors").read_bytes()}
    for name, content in (agents | {"large": bytes(8_000_001)}).items():
        hub.files[f"me/{name}"] = {"agent.safetensors": content}
    before = set(tmp_path.iterdir())
    refused = ask("load", "me/cut", "-o", "x.safetensors")
    refused.assert_refused("me/cut: agent.safetensors", "truncated, damaged or foreign", f"expected {AGENT}")
    ask("load", "me/foreign", "-o", "x.safetensors").assert_refused("me/foreign: agent.safetensors", "no index weights")
    ask("load", "me/large", "-o", "x.safetensors").assert_refused(
        "agent.safetensors has 8000001 bytes, expected at most 8000000"
    )
    assert set(tmp_path.iterdir()) == before


def test_a_target_with_other_content_stays(hub: Hub, ask: Ask, agent: Path, tmp_path: Path) -> None:
    hub.files["me/philly"] = {"agent.safetensors": agent.read_bytes()}
    (tmp_path / "x.safetensors").write_bytes(b"mine")
    (tmp_path / "folder.safetensors").mkdir()
    for name in ("x.safetensors", "folder.safetensors"):
        ask("load", "me/philly", "-o", name).assert_refused(f"{name}: there with other content")
    assert (tmp_path / "x.safetensors").read_bytes() == b"mine"


def test_without_the_library_the_extra_is_named(rlpto, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # as if it were not installed
    for arguments in (("push", agent, "me/philly"), ("load", "me/philly", "-o", agent.with_name("x.safetensors"))):
        rlpto("hub", *arguments).assert_refused(
            "huggingface_hub is not installed; expected the extra hub: pip install 'rlpto[hub]'"
        )
