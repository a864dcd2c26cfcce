from __future__ import annotations

import fcntl
import signal
import socket
import time
from pathlib import Path

import pytest
import yaml

from rlpto.io.errors import ClusterError, ConfigError
from rlpto.service import parent
from rlpto.service.parent import FIRST_BACKOFF_S, TOKEN_FILE, Child, prepare, serve
from rlpto.service.scheduler.process import check
from rlpto.service.settings import ServiceSettings
from rlpto.store.database import Store
from tests.service.web.helpers import make_settings

CATALOGUE_PROGRAM = {"digits": {"program": {"training": "a:B"}}}


def child(tmp_path: Path, *arguments: str) -> Child:
    return Child("test", arguments, tmp_path / "test.log", signal.SIGTERM)


def wait_until_dead(one: Child) -> None:
    until = time.monotonic() + 20
    while one.alive and time.monotonic() < until:
        time.sleep(0.02)
    assert not one.alive


class TestChild:
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

    def test_ends_when_it_is_asked_to(self, tmp_path: Path) -> None:
        one = child(tmp_path, "http.server", "0")
        one.look(0.0, print)
        assert one.alive
        one.end(10)
        assert not one.alive

    def test_input_at_fault_is_said_at_the_first_start(self, tmp_path: Path) -> None:
        one = child(tmp_path, "http.server", "--nonsense")
        one.look(0.0, print)
        wait_until_dead(one)
        with pytest.raises(ClusterError, match=r"the test process has ended: .*unrecognized arguments"):
            one.look(1.0, print)


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

    def test_an_unknown_policy_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"scheduler\.policy: nonsense: expected one of"):
            check(make_settings(tmp_path / "new", scheduler={"policy": "nonsense"}))

    @pytest.fixture
    def unchecked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The settings are not read by a process of their own, which takes seconds."""
        monkeypatch.setattr(parent, "_check", lambda _: None)

    @pytest.mark.usefixtures("unchecked")
    def test_an_address_that_is_taken(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            settings = make_settings(tmp_path / "new", web={"port": taken.getsockname()[1]})
            with pytest.raises(ConfigError, match="cannot listen on"):
                serve_settings(settings)

    @pytest.mark.usefixtures("unchecked")
    def test_a_folder_where_another_is_at_work(self, tmp_path: Path) -> None:
        settings = make_settings(tmp_path / "new")
        settings.folder.mkdir()
        with (settings.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(ClusterError, match="another service is at work in this folder"):
                serve_settings(settings)

    @pytest.mark.usefixtures("unchecked")
    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="cannot make a folder"):
            serve_settings(make_settings(tmp_path / "file"))


class TestPreparing:
    def test_the_first_token_is_kept_and_readable_by_its_owner_alone(self, tmp_path: Path) -> None:
        settings = make_settings(tmp_path / "new", programs=CATALOGUE_PROGRAM)
        assert prepare(settings), "made"
        file = settings.folder / TOKEN_FILE
        token = file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600
        assert not prepare(settings), "it is not shown again"
        assert file.read_text() == token

    def test_a_folder_that_exists_is_made_its_owners_alone(self, tmp_path: Path) -> None:
        settings = make_settings(tmp_path / "old")
        settings.folder.mkdir()
        settings.folder.chmod(0o755)
        Store(settings.database).close()
        settings.database.chmod(0o644)
        prepare(settings)
        assert settings.folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in settings.folder.glob("service.sqlite*")} == {0o600}

    def test_a_token_that_is_lost_is_replaced(self, tmp_path: Path) -> None:
        settings = make_settings(tmp_path / "new")
        prepare(settings)
        file = settings.folder / TOKEN_FILE
        token = file.read_text()
        file.unlink()
        assert prepare(settings)
        assert file.read_text() != token
