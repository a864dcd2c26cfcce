from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from rlpto.io.errors import ClusterError, ConfigError
from rlpto.service.parent import FIRST_BACKOFF_S, Child, serve
from rlpto.service.preparing import prepare
from rlpto.service.settings import ServiceSettings
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
        one.ask_to_end()
        one.wait(10)
        assert not one.alive

    def test_input_at_fault_is_said_at_the_first_start(self, tmp_path: Path) -> None:
        one = child(tmp_path, "http.server", "--nonsense")
        one.look(0.0, print)
        wait_until_dead(one)
        with pytest.raises(ClusterError, match=r"the test process has ended: .*unrecognized arguments"):
            one.look(1.0, print)


class TestServe:
    def serve(self, settings: ServiceSettings) -> None:
        serve(Path("none.yaml"), settings, lambda *_: None, lambda _: None)

    def test_an_address_that_is_taken(self, tmp_path: Path) -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as taken:
            settings = make_settings(tmp_path, web={"port": taken.getsockname()[1]})
            with pytest.raises(ConfigError, match="cannot listen on"):
                self.serve(settings)

    def test_a_folder_where_another_is_at_work(self, tmp_path: Path) -> None:
        import fcntl

        with (tmp_path / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(ClusterError, match="another service is at work in this folder"):
                self.serve(make_settings(tmp_path))

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="cannot make the folder"):
            self.serve(make_settings(tmp_path / "file" / "service"))


class TestPreparing:
    def test_the_first_token_is_kept_and_readable_by_its_owner_alone(self, tmp_path: Path) -> None:
        settings = make_settings(tmp_path / "new", programs=CATALOGUE_PROGRAM)
        token = prepare(settings)
        file = settings.folder / "admin-token"
        assert (file.stat().st_mode & 0o777, file.read_text().strip()) == (0o600, token)
        assert settings.folder.stat().st_mode & 0o077 == 0
        assert prepare(settings) == token

    def test_a_token_that_is_lost_is_replaced(self, tmp_path: Path) -> None:
        settings = make_settings(tmp_path / "new")
        token = prepare(settings)
        (settings.folder / "admin-token").unlink()
        assert prepare(settings) != token
