"""The Python client and the verbs that use it, against a real web process; a thread answers as the scheduler does."""

import csv
import json
import os
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from rlpto.cli.main import make_app
from rlpto.client import Client, ServiceError, note_service, service_is_known
from rlpto.io.errors import ConfigError, RlptoError
from rlpto.store import status
from rlpto.store.checkpoints import write_checkpoint
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import change_job
from rlpto.store.logs import OutputLog, job_folder
from rlpto.store.rows import insert, put
from tests.service.web.helpers import (
    Receiver,
    WebProcess,
    answering,
    fill,
    make_settings,
    scheduler_answers,
    web_process,
)


class Running:
    """A service that answers."""

    def __init__(self, web: WebProcess, folder: Path, tokens: dict[str, str], store: Store) -> None:
        self.web, self.folder, self.tokens, self.store = web, folder, tokens, store

    def client(self, user: str = "ann", **given: Any) -> Client:
        return Client(self.web.address, self.tokens[user], **given)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = make_settings(tmp_path_factory.mktemp("service"))
    tokens = fill(settings)
    with web_process(settings) as web, scheduler_answers(settings.database):
        yield Running(web, settings.folder, tokens, Store(settings.database))


@pytest.fixture
def command(running: Running, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RLPTO_SERVICE", running.web.address)
    monkeypatch.setenv("RLPTO_TOKEN", running.tokens["ann"])
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, code: int = 0, given: str | None = None) -> str:
        done = CliRunner().invoke(make_app(arguments[0]), list(arguments), input=given)
        assert done.exit_code == code, done.output
        return str(done.output)

    return run


def refused(*arguments: str) -> RlptoError:
    error = CliRunner().invoke(make_app(arguments[0]), list(arguments)).exception
    assert isinstance(error, RlptoError)
    assert "\n" not in str(error)
    return error


def new_job(command: Any, *options: str) -> str:
    """The id of a job that the command has submitted."""
    return str(json.loads(command("submit", "-p", "digits", "--json", *options))["id"])


def finish(store: Store, job: str, state: str = "finished") -> None:
    """What the scheduler does when a job is over."""
    with store.transaction():
        change_job(store, job, time.time(), state=state, ended=time.time(), reason="as asked")
        add_event(store, "job", time.time(), job, "ann", {"state": state})


@pytest.mark.parametrize(("address", "known"), [("http://a", False), ("https://a", True), ("HTTPS://a", True)])
def test_authorities_are_read_only_where_something_is_encrypted(
    address: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read all known authorities takes a tenth of a second, which each command would need."""
    given: dict[str, Any] = {}
    monkeypatch.setattr("rlpto.client.httpx2.Client", lambda **options: given.update(options))
    Client(address, "token")
    trusted = given["verify"]
    assert (trusted is True) == known
    if not known:  # were anything encrypted after all, it would be refused
        assert trusted.verify_mode is ssl.CERT_REQUIRED
        assert trusted.get_ca_certs() == []


def test_without_a_home_folder_no_service_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "RLPTO_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("rlpto.io.files.os.path.expanduser", lambda path: path)  # as for a user without a home
    monkeypatch.chdir(tmp_path)
    assert not service_is_known()
    with pytest.raises(ConfigError, match=r"no home folder: expected a folder for state in \$XDG_STATE_HOME"):
        note_service("http://127.0.0.1:1", tmp_path / "token")
    assert not (tmp_path / "~").exists()


class TestClient:
    def test_pages_are_fetched_as_needed(self, running: Running) -> None:
        with running.client("bob") as client:
            made = [client.submit("digits")["id"] for _ in range(5)]
            assert [job["id"] for job in client.jobs(limit=3)] == made[:1:-1]
            assert [job["id"] for job in client.jobs()] == made[::-1]

    def test_logs_and_curves(self, running: Running) -> None:
        with running.client() as client:
            job = client.submit("digits")["id"]
            writer = OutputLog(job_folder(running.folder, job))
            for number in range(3):
                writer.write(f"epoch {number}", time.time())
                insert(running.store, "points", job=job, at=time.time(), epoch=number, gpus=1, loss=1.0)
            assert [line["text"] for line in client.logs(job)] == ["epoch 0", "epoch 1", "epoch 2"]
            assert [line["n"] for line in client.logs(job, -1)] == [3]
            assert [point["epoch"] for point in client.curves(job)] == [0, 1, 2]
            finish(running.store, job)
            assert len(list(client.logs(job, follow=True))) == 3, "it ends with the job"

    def test_a_killed_web_process_is_waited_for(self, running: Running) -> None:
        with running.client() as client:
            client.me()
            running.web.process.kill()
            running.web.process.wait()
            again = Thread(target=lambda: (time.sleep(1.0), running.web.start()))
            again.start()
            job = client.submit("digits", name="through the gap")
            again.join()
            assert client.job(job["id"])["name"] == "through the gap"
            assert sum(found["name"] == "through the gap" for found in client.jobs()) == 1

    @pytest.mark.parametrize(("refused", "asked"), [([429, 429], 3), ([503], 1)])
    def test_waits_where_it_asked_too_much_and_makes_no_second_token(self, refused: list[int], asked: int) -> None:
        with answering(Receiver()) as server, Client(server.address, "x") as client:
            server.answers = refused
            if asked > 1:
                assert client.make_token("ann") == "new"
            else:
                with pytest.raises(ServiceError, match="answers 503"):
                    client.make_token("ann")
            seen = [server.got.get()["at"] for _ in range(asked)]
            assert server.got.empty()
            assert all(after - before >= 1 for before, after in pairwise(seen)), "as long as the service said"

    def test_what_is_wrong_is_one_line(self, running: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.delenv("RLPTO_TOKEN", raising=False)
        for ask, said in (
            (lambda: Client(running.web.address), "no token for"),
            (lambda: Client(running.web.address, "rlpto_wrong").me(), "expected a token"),
            (lambda: Client("http://127.0.0.1:9", "x", retry_for_s=0.1).me(), "no job service answers at"),
            (lambda: Client("ftp://127.0.0.1", "x").me(), "expected the address of a job service"),
            (lambda: running.client().job("../etc"), "no id of a job"),
        ):
            with pytest.raises(ServiceError, match=said):
                ask()

    def test_the_service_of_this_machine_is_remembered(
        self, running: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        for variable in ("RLPTO_TOKEN", "RLPTO_SERVICE"):
            monkeypatch.delenv(variable, raising=False)
        file = tmp_path / "token"
        file.write_text(running.tokens["root"] + "\n")
        note_service("http://127.0.0.1:9", tmp_path / "none")
        note_service(running.web.address, file)
        assert Client().me()["name"] == Client(running.web.address).me()["name"] == "root"
        with pytest.raises(ServiceError, match="no token for http://other"):
            Client("http://other")
        done = CliRunner().invoke(make_app("jobs"), ["jobs"])
        asked = f"asking {running.web.address}; --service or $RLPTO_SERVICE chooses http://127.0.0.1:9"
        assert asked in done.stderr
        assert "asking" not in CliRunner().invoke(make_app("jobs"), ["jobs", "--service", running.web.address]).stderr
        noted = json.loads((tmp_path / "rlpto" / "services.json").read_text())
        noted["http://127.0.0.1:9"][2] += "0"  # the number of its process belongs to another one now
        (tmp_path / "rlpto" / "services.json").write_text(json.dumps(noted))
        assert "asking" not in CliRunner().invoke(make_app("jobs"), ["jobs"]).stderr, "the other has ended"

    def test_no_token_is_sent_to_where_a_service_has_ended(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        for variable in ("RLPTO_TOKEN", "RLPTO_SERVICE"):
            monkeypatch.delenv(variable, raising=False)
        (tmp_path / "token").write_text("rlpto_secret\n")
        note_service("http://127.0.0.1:9", tmp_path / "token")
        note = tmp_path / "rlpto" / "services.json"
        (address, (token, process, start)) = next(iter(json.loads(note.read_text()).items()))
        assert Client()._http.headers["Authorization"] == "Bearer rlpto_secret"
        for ended in ([token, 2**22 + 1, start], [token, process, f"{start}0"]):  # no process, and a later one
            note.write_text(json.dumps({address: ended}))
            with pytest.raises(ServiceError, match=r"the service at http://127\.0\.0\.1:9 has ended"):
                Client()


class TestCommand:
    def test_submit_from_options_a_file_and_stdin(self, command: Any, tmp_path: Path) -> None:
        said = command("submit", "-p", "digits", "--gpus", "2", "--epochs", "3", "-o", "hidden=8", "-l", "team=x")
        assert "submitted: digits, 2 GPUs, 3 epochs" in said
        file = tmp_path / "job.yaml"
        file.write_text("program: digits\nname: from a file\noptions: {optimizer: adam}\n")
        found = json.loads(command("submit", str(file), "--gpus", "4", "--json"))
        assert (found["name"], found["gpus"], found["options"]["optimizer"]) == ("from a file", 4, "adam")
        assert json.loads(command("submit", "-", "--json", given="{program: digits, epochs: 2}"))["epochs"] == 2
        no_text = CliRunner().invoke(make_app("submit"), ["submit", "-"], input=b"program: \xff").exception
        assert str(no_text).startswith("stdin: not a text in UTF-8, expected a job in YAML")
        assert found["id"] in command("jobs")
        assert "GPU-hours" in command("submit", "-p", "digits", "--check")
        assert "team" not in command("jobs", "--label", "team=y")

    def test_a_script_is_submitted_with_its_arguments(
        self, command: Any, running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "train.py"
        source = "from rlpto import elastic\n"
        file.write_text(source)
        assert "only the role developer" in str(refused("submit", str(file), "--samples", "9"))
        assert "expected --samples N too" in str(refused("submit", str(file)))
        assert "only scripts take this option" in str(refused("submit", "-p", "digits", "--samples", "9"))
        monkeypatch.setenv("RLPTO_TOKEN", running.tokens["root"])
        first = command("user", "add", "eve", "--role", "developer").strip()
        monkeypatch.setenv("RLPTO_TOKEN", command("user", "token", "eve", "--days", "2").strip())
        assert first != os.environ["RLPTO_TOKEN"]
        found = json.loads(command("submit", str(file), "--samples", "9", "--json", "--", "--lr", "0.1"))
        assert (found["program"], found["arguments"], found["samples"]) == ("script", ["--lr", "0.1"], 9)
        assert "--lr 0.1" in command("job", "show", found["id"])
        assert "not measured" in command("submit", str(file), "--samples", "9", "--check")
        command("job", "fetch", found["id"], "-o", str(tmp_path / "mine"))
        assert (tmp_path / "mine" / "script.py").read_text() == source
        file.write_text("def\n")
        assert "train.py: not Python" in str(refused("submit", str(file), "--samples", "9"))

    def test_programs_are_listed_and_changed_by_an_admin(
        self, command: Any, running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "wide.yaml"
        file.write_text("program: {training: 'my.code:Net', epochs: 7}\ndescription: A wide network.\n")
        assert "expected a user of role admin" in str(refused("program", "set", "wide", str(file)))
        monkeypatch.setenv("RLPTO_TOKEN", running.tokens["root"])
        assert command("program", "set", "wide", str(file)) == "wide: unchecked\n"
        assert "A wide network." in command("program", "list")
        assert command("program", "delete", "wide") == ""
        found = [json.loads(line) for line in command("program", "list", "--json").splitlines()]
        assert [row["checked"] for row in found if row["name"] == "wide"] == ["deleted"]

    def test_usage_is_shown_by_user_and_label(self, command: Any, running: Running) -> None:
        job = new_job(command, "-l", "group=z")
        began = time.time() - 7200
        insert(running.store, "spans", job=job, owner="ann", node="n", gpus=2, started=began, ended=began + 3600)
        (row,) = (json.loads(line) for line in command("usage", "--by", "group", "--json").splitlines() if "z" in line)
        assert (row["who"], row["jobs"], row["gpu_hours"]) == ("z", 1, pytest.approx(2.0))
        assert "ann" in command("usage")
        assert "no job has held GPUs" in command("usage", "--days", "0.01")

    def test_waiting_ends_with_the_outcome(self, command: Any, running: Running) -> None:
        def end() -> None:
            with running.client() as client, closing(Store(running.folder / "service.sqlite", durable=False)) as store:
                while not (found := [job["id"] for job in client.jobs() if job["name"] == "waited for"]):
                    time.sleep(0.05)
                finish(store, found[0], "failed")

        ending = Thread(target=end)
        ending.start()
        assert "failed" in command("submit", "-p", "digits", "--name", "waited for", "--wait", code=1)
        ending.join()
        one, other = (new_job(command) for _ in range(2))
        assert command("job", "cancel", one, other).count("will end") == 2
        for job, state in ((one, "finished"), (other, "cancelled")):
            finish(running.store, job, state)
        assert "finished" in command("job", "wait", one)
        assert "cancelled" in command("job", "wait", one, other, code=1)
        assert [found["state"] for found in running.client().wait(other, 30)] == ["cancelled"]

    def test_an_array_is_submitted_and_cancelled(self, command: Any) -> None:
        said = command(
            "submit", "-p", "digits", "--array", "7-9", "-o", "hidden={i}", "-o", "optimizer=sgd", "-l", "a=b"
        )
        assert [line.split(",")[0].split(": ")[1] for line in said.splitlines()] == [f"digits[{n}]" for n in (7, 8, 9)]
        assert "cancel all of your jobs that wait or train with label a=b?" in command(
            "job", "cancel", "--all", "--label", "a=b", code=1, given="n"
        )
        assert "3 of your jobs" in command("job", "cancel", "--all", "--label", "a=b", "--yes")
        assert "expected FIRST-LAST" in str(refused("submit", "-p", "digits", "--array", "3"))
        assert "expected no --array" in str(refused("submit", "-p", "digits", "--array", "1-3", "--check"))
        for arguments in (["j1", "--all"], [], ["j1", "--label", "a=b"]):
            assert "expected ids of jobs, or --all" in str(refused("job", "cancel", *arguments))

    def test_a_node_is_drained_by_the_service(
        self, command: Any, running: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("RLPTO_STATE", str(tmp_path / "cluster.json"))
        monkeypatch.setenv("RLPTO_TOKEN", running.tokens["olga"])
        assert "node node-3 goes in 60 s" in command("cluster", "drain", "node-3", "--in", "60")
        both = ("--service", running.web.address, "--address", "auto")
        assert "expected no --address" in str(refused("cluster", "drain", "node-3", *both))

    def test_a_job_from_show_to_history(self, command: Any, running: Running) -> None:
        job = new_job(command, "--gpus", "2")
        status.set_queue(running.store, [status.QueueRow(job, 1, 3, "3 GPUs are ahead")])
        said = status.PredictionRow(job, time.time(), "fifo", start=time.time() + 600, finish=time.time() + 7200)
        put(running.store, [said])
        assert "place 1, 3 GPUs ahead" in command("job", "show", job)
        assert "in 10 min" in command("queue", "--start")
        put(running.store, [replace(said, start=time.time() - 9)])
        assert "overdue" in command("queue", "--start")
        assert "are simulated under the present policy" in command("queue", "--start")
        assert "priority low now" in command("job", "priority", job, "low")
        assert f"{job} does not start now: held by ann" in command("job", "hold", job)
        assert "held by ann" in command("jobs")
        assert f"{job} may start (it is submitted)" in command("job", "release", job)
        assert "expected one that is over" in str(refused("job", "resubmit", job))
        assert "will end" in command("job", "cancel", job)
        finish(running.store, job, "cancelled")
        assert "is cancelled already" in command("job", "cancel", job)
        again = command("job", "resubmit", job).split()[0]
        assert (again != job, running.client().job(again)["gpus"]) == (True, 2)
        assert job in command("history", "--state", "cancelled")
        assert job not in command("history", "--state", "finished")
        writer = OutputLog(job_folder(running.folder, job))
        writer.write("line \x1b[31mred", 1.0)
        assert command("job", "logs", job).startswith("line \\x1b[31mred")

    def test_text_of_scripts_commands_no_terminal(
        self, command: Any, running: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not by an exception of a script, a line it printed, or an answer of another service."""
        evil = "a \x1b]0;title\x07\x9b31m\r[bold]\u202eb\x7f"
        seen = "a \\x1b]0;title\\x07\\x9b31m\\x0d[bold]\\u202eb\\x7f"
        assert str(RlptoError(evil)) == seen.replace("\\x0d", " ")
        monkeypatch.setenv("COLUMNS", "2000")
        job = new_job(command)
        change_job(running.store, job, time.time(), state="queued", reason=evil)
        put(running.store, [status.QueueRow(job, 1, 0, evil)])
        OutputLog(job_folder(running.folder, job)).write(evil.replace("\r", "\x0b"), 1.0)
        texts = [command(*verb) for verb in (("jobs",), ("queue", "--start"), ("job", "show", job))]
        finish(running.store, job, "failed")
        change_job(running.store, job, time.time(), reason=evil)
        texts += [command("history"), command("job", "wait", job, code=1)]
        assert all(seen in text for text in texts), texts
        assert "\\x1b]0;title" in command("job", "logs", job)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", "".join((*texts, command("job", "logs", job))))

    def test_what_a_job_has_trained_is_fetched(self, command: Any, running: Running, tmp_path: Path) -> None:
        job = new_job(command)
        folder = tmp_path / "mine"
        assert f"job {job} has no checkpoint" in command("job", "fetch", job, "-o", str(folder))
        for epoch in range(3):
            insert(running.store, "points", job=job, at=float(epoch), epoch=float(epoch), gpus=2, loss=0.5)
        OutputLog(job_folder(running.folder, job)).write("half way", 1.0)
        for step in (10, 1_000_000):
            newest = write_checkpoint(job_folder(running.folder, job), step, b"state" * step)
            assert "checkpoint.pt" in command("job", "fetch", job, "-o", str(folder))
            assert (folder / "checkpoint.pt").read_bytes() == b"state" * step
        Path(newest.path).write_bytes(b"damaged")
        command("job", "fetch", job, "-o", str(folder))
        assert (folder / "checkpoint.pt").read_bytes() == b"state" * 10, "the newest that is sound"
        with (folder / "curves.csv").open() as file:
            assert [(row["epoch"], row["loss"]) for row in csv.DictReader(file)] == [
                (f"{n}.0", "0.5") for n in range(3)
            ]
        assert (folder / "log.txt").read_text().endswith(" half way\n")
        assert json.loads((folder / "job.json").read_text())["id"] == job
        assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.pt", "curves.csv", "job.json", "log.txt"]
        assert "no such job" in str(refused("job", "fetch", "jaaaaaaaaaaaa", "-o", str(tmp_path / "none")))
        assert not (tmp_path / "none").exists()

    def test_policies(self, command: Any, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "decides since" in command("policy", "show")
        done = CliRunner().invoke(make_app("policy"), ["policy", "switch", "las"])
        assert "expected a user of role operator" in str(done.exception)
        assert "ready" not in done.stderr
        monkeypatch.setenv("RLPTO_TOKEN", running.tokens["olga"])
        before = running.client("olga").policy()["number"]
        assert "round_robin decides now" in command("policy", "switch", "round_robin", "--reason", "busy")
        assert command("policy", "switch", "round_robin") == "round_robin decides already: nothing was changed\n"
        with running.client("olga") as client:
            assert client.policy()["number"] == before + 1
            assert {"fifo", "las"} <= {policy["name"] for policy in client.policies()}
            with pytest.raises(ServiceError, match="no policy nothing") as error:
                client.switch("nothing")
        assert (error.value.status, error.value.kind) == (422, "not-valid")

    @pytest.mark.usefixtures("command")
    def test_a_token_that_can_be_none_is_refused_and_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RLPTO_TOKEN", "rlpto_abc\r")
        said = str(refused("jobs"))
        assert "a line break" in said
        assert "abc" not in said

    @pytest.mark.usefixtures("command")
    def test_wrong_input_is_one_line(self, tmp_path: Path) -> None:
        assert "expected -p PROGRAM" in str(refused("submit"))
        assert "expected KEY=VALUE" in str(refused("submit", "-p", "digits", "-o", "hidden"))
        job = tmp_path / "job.yaml"
        for text, said in (
            ("epochs: .nan", "finite numbers"),
            ("name: 2024-01-01", "finite numbers"),
            ("self: 3", "body.self"),
            ("1: 3", "a key that is not a string"),
            ("labels: [a]", "labels: expected KEY: VALUE"),
        ):
            job.write_text(f"program: digits\n{text}\n")
            assert said in str(refused("submit", str(job), "-l", "a=b"))
        assert "finite numbers" in str(refused("submit", "-p", "digits", "--name", "\udcff"))
        assert "cannot be read as a certificate" in str(refused("jobs", "--certificate", str(tmp_path / "none.pem")))
        assert "no program" in str(refused("submit", "-p", "nothing"))
        assert "--label team: expected KEY=VALUE" in str(refused("jobs", "--label", "team"))
        assert "--state asleep" in str(refused("history", "--state", "asleep"))
        assert "no such job" in str(refused("job", "show", "jaaaaaaaaaaaa"))
        assert str(tmp_path / "none.yaml") in str(refused("serve", str(tmp_path / "none.yaml")))
