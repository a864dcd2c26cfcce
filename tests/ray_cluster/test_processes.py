"""Folders of local clusters, and this machine's processes and ports."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rlpto.ray_cluster.nodes import processes
from rlpto.ray_cluster.nodes.environment import TOKEN_FILE
from rlpto.ray_cluster.nodes.processes import free_ports, make_folder, remove_dead_folders, started_for, unused_folder

OWNER = """
import sys, tempfile
from rlpto.ray_cluster.nodes.processes import make_folder, unused_folder
tempfile.tempdir = sys.argv[1]
folder = unused_folder()
make_folder(folder)
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where clusters have their folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner(here: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a folder."""
    command = [sys.executable, "-c", OWNER, str(here)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_folder_is_for_its_user_alone_and_its_token_too() -> None:
    folder = unused_folder()
    make_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    other = unused_folder()
    make_folder(other)
    tokens = [(each / TOKEN_FILE).read_text() for each in (folder, other)]
    assert len(set(tokens)) == 2
    assert all(len(token) == 64 for token in tokens)


def test_the_folder_of_a_process_that_was_killed_is_removed_and_no_other(
    here: Path, owner: subprocess.Popen[str]
) -> None:
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    foreign = here / "rl-of-another"
    foreign.mkdir()
    remove_dead_folders()
    assert folder.is_dir(), "its owner lives"
    owner.kill()
    owner.wait()
    with started_for(str(folder)):
        user = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    remove_dead_folders()
    assert folder.is_dir(), "a process of its cluster lives"
    user.communicate()
    remove_dead_folders()
    assert not folder.exists()
    assert foreign.is_dir()


def test_ports_are_free_and_none_that_whoever_connects_may_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text("10003\t60999\n")
    monkeypatch.setattr(processes, "EPHEMERAL", tmp_path / "range")
    with socket.socket() as taken:
        with suppress(OSError):  # another process has it already: Ray's client server does by default
            taken.bind(("", 10001))
        assert sorted(free_ports(2)) == [10000, 10002]
        found = free_ports(4)
    assert len(set(found)) == 4, "more than there are below: the system chooses the others"
    assert 10001 not in found


def test_where_the_system_does_not_tell_it_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "EPHEMERAL", tmp_path / "missing")
    assert len(set(free_ports(3))) == 3
