from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest
import yaml

from rlpto.cli import service as command
from rlpto.io.errors import ClusterError, ConfigError
from rlpto.io.files import FileLock
from rlpto.service import parent
from rlpto.service.parent import FIRST_ADMIN, FIRST_BACKOFF_S, TOKEN_FILE, Child, prepare, serve
from rlpto.service.scheduler.__main__ import check
from rlpto.service.settings import ServiceSettings
from rlpto.store.database import Store
from rlpto.store.users import change_user, get_user, tokens_of
from tests.service.web.helpers import answering, make_settings

CATALOGUE_PROGRAM = {"digits": {"program": {"training": "a:B"}}}


@pytest.fixture(autouse=True)
def handlers_kept() -> Iterator[None]:
    """A service that is run in this process takes its signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_token_of_the_admin_is_printed_on_a_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    settings = make_settings(tmp_path / "service")
    token_file = settings.folder / TOKEN_FILE
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("rlpto.service.settings.load_service", lambda _: settings)
    monkeypatch.setattr(parent, "serve", lambda _, found, ready, __: ready("http://127.0.0.1:1", prepare(found)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    command.serve(tmp_path / "service.yaml")
    printed, token = capsys.readouterr().out, token_file.read_text().strip()
    assert (token in printed, str(token_file) in printed) == (is_terminal, True)
    assert token_file.stat().st_mode & 0o777 == 0o600


def child(tmp_path: Path, *arguments: str) -> Child:
    return Child("test", arguments, tmp_path / "test.log", signal.SIGTERM)


def wait_until_dead(one: Child) -> None:
    until = time.monotonic() + 20
    while one.alive and time.monotonic() < until:
        time.sleep(0.02)
    assert not one.alive


class TestChild:
    def test_secrets_of_the_web_process_are_hidden_from_another(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("SHOWN", "HIDDEN"):
            monkeypatch.setenv(f"RLPTO_{name}", name)
        program = ["timeit", "-n1", "-r1", "import os; print([key for key in os.environ if key.startswith('RLPTO_')])"]
        one = Child("test", program, tmp_path / "test.log", signal.SIGTERM, hidden=["RLPTO_HIDDEN"])
        one.look(0.0, print)
        wait_until_dead(one)
        said = (tmp_path / "test.log").read_text()
        assert ("RLPTO_SHOWN" in said, "HIDDEN" in said) == (True, False)

    def test_is_started_again_later_and_later(self, tmp_path: Path) -> None:
        one, said = child(tmp_path, "this"), list[str]()
        one.look(0.0, said.append)
        for number, now in ((1, 10.0), (2, 20.0)):
            wait_until_dead(one)
            one.look(now, said.append)
            assert not one.alive, "not at once"
            assert said[-1].endswith(f"starting it again in {FIRST_BACKOFF_S * 2 ** (number - 1):g} s")
            one.look(now + 5.0, said.append)
            assert one.restarts == number
        wait_until_dead(one)
        assert (tmp_path / "test.log").read_text().count("Zen of Python") == 3

    def test_input_at_fault_is_said_at_the_first_start(self, tmp_path: Path) -> None:
        one = child(tmp_path, "http.server", "--nonsense")
        one.look(0.0, print)
        wait_until_dead(one)
        with pytest.raises(ClusterError, match=r"the test process has ended: .*unrecognized arguments"):
            one.look(1.0, print)

    def test_a_log_that_cannot_be_written_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "test.log").mkdir()
        with pytest.raises(ConfigError, match=r"test\.log: cannot write the log there: is a directory"):
            child(tmp_path, "this").look(0.0, print)


def make_certificate(certificate: Path, key: Path, *password: str) -> None:
    """A certificate of its own. password: options of `openssl`; none: its key has none."""
    options = ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate), *(password or ["-nodes"])]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *options]
    subprocess.run(command, check=True, capture_output=True)


def serve_settings(settings: ServiceSettings) -> None:
    file = settings.folder.parent / "settings.yaml"
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json")), encoding="utf-8")
    serve(file, settings, lambda *_: None, lambda _: None)


class TestServe:
    def test_wrong_settings_are_one_line_before_anything_is_written(self, tmp_path: Path) -> None:
        settings = make_settings(tmp_path / "new", experiment="none.yaml")
        with pytest.raises(ConfigError, match=r"none\.yaml") as error:
            serve_settings(settings)
        assert "\n" not in str(error.value)
        assert not settings.folder.exists()

    def test_what_the_parent_cannot_do_with_settings_is_refused(self, tmp_path: Path) -> None:
        oidc = {"issuer": "https://sso.example", "client_id": "rlpto", "client_secret_env": "RLPTO_NO_SUCH"}
        for name, change, said in (
            ("scheduler", {"policy": "nonsense"}, r"scheduler\.policy: nonsense: expected one of"),
            ("scheduler", {"policies": {"mine": "agnt:run=/no"}}, r"scheduler\.policies\.mine: no policy 'agnt'"),
            ("scheduler", {"policies": {"mine": "agent:run=/no/run"}}, r"scheduler\.policies\.mine: .*/no/run"),
            ("web", {"oidc": oidc}, r"web\.oidc\.client_secret_env: variable RLPTO_NO_SUCH of the environment"),
        ):
            with pytest.raises(ConfigError, match=said):
                check(make_settings(tmp_path / "new", **{name: change}))

    @pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, to make certificates, is not installed")
    def test_a_certificate_or_a_key_that_is_of_no_use_is_refused(self, tmp_path: Path) -> None:
        certificate, key = tmp_path / "web.pem", tmp_path / "web.key"
        settings = make_settings(tmp_path / "new", web={"certificate": certificate, "key": key})
        refused = r"web: .*web\.pem, .*web\.key: expected a certificate and its key in PEM, without a password: "
        with pytest.raises(ConfigError, match=f"{refused}.*No such file") as error:
            check(settings)
        assert "\n" not in str(error.value)
        make_certificate(certificate, key)
        check(settings)
        for spoil in (
            lambda: key.write_text("nothing"),
            lambda: make_certificate(tmp_path / "other.pem", key),
            lambda: make_certificate(certificate, key, "-passout", "pass:secret"),
        ):
            spoil()
            with pytest.raises(ConfigError, match=refused):
                check(settings)

    @pytest.fixture
    def unchecked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The settings are not read by a process of their own, which takes seconds."""
        monkeypatch.setattr(parent, "_check", lambda _: None)

    @pytest.mark.usefixtures("unchecked")
    def test_an_address_or_a_folder_where_another_is_at_work(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            settings = make_settings(tmp_path / "new", web={"port": taken.getsockname()[1]})
            with pytest.raises(ConfigError, match="cannot listen on"):
                serve_settings(settings)
        with (
            closing(FileLock(settings.folder / "lock")),
            pytest.raises(ClusterError, match="another service is at work in this folder"),
        ):
            serve_settings(settings)

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize(
        ("name", "make", "said"),
        [
            ("", Path.touch, "new: cannot make a folder"),
            ("logs", Path.touch, "logs: cannot keep logs there: file exists; expected a folder"),
            ("lock", Path.mkdir, "lock: cannot lock the folder: is a directory; expected a file"),
            (TOKEN_FILE, Path.mkdir, "token: cannot read the token of the admin: is a directory; expected a file"),
        ],
    )
    def test_a_name_that_is_taken(self, tmp_path: Path, name: str, make: Callable[[Path], None], said: str) -> None:
        settings = make_settings(tmp_path / "new", web={"port": 0})
        if name:
            settings.folder.mkdir()
        make(settings.folder / name)
        with pytest.raises(ConfigError, match=said):
            serve_settings(settings)

    def test_its_own_address_is_not_looked_for_by_way_of_a_proxy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        (tmp_path / "healthz").touch()
        handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
        with answering(HTTPServer(("127.0.0.1", 0), handler)) as server:
            assert parent._answers(f"http://127.0.0.1:{server.server_port}")


class TestPreparing:
    def test_a_token_is_kept_for_its_owner_alone_and_replaced_where_it_is_lost(self, tmp_path: Path) -> None:
        settings = make_settings(tmp_path / "new", programs=CATALOGUE_PROGRAM)
        assert prepare(settings), "made"
        file = settings.folder / TOKEN_FILE
        token = file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600
        assert not prepare(settings), "it is not shown again"
        assert file.read_text() == token
        file.unlink()
        assert prepare(settings)
        assert file.read_text() != token

    def test_a_folder_that_exists_is_made_its_owners_alone(self, tmp_path: Path) -> None:
        settings = make_settings(tmp_path / "old")
        settings.folder.mkdir()
        settings.folder.chmod(0o755)
        Store(settings.database).close()
        settings.database.chmod(0o644)
        prepare(settings)
        assert settings.folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in settings.folder.glob("service.sqlite*")} == {0o600}

    @pytest.mark.parametrize("change", [{"disabled": True}, {"role": "user"}])
    def test_no_token_is_made_for_an_admin_who_is_none_any_more(
        self, tmp_path: Path, change: dict[str, object]
    ) -> None:
        settings = make_settings(tmp_path / "new")
        prepare(settings)
        with closing(Store(settings.database)) as store:
            change_user(store, replace(get_user(store, FIRST_ADMIN), **change))  # type: ignore[type-var]
            (settings.folder / TOKEN_FILE).unlink()
            assert not prepare(settings)
            assert len(tokens_of(store, FIRST_ADMIN, time.time())) == 1
        assert not (settings.folder / TOKEN_FILE).exists()
