"""Folders of local clusters: whose they are, what is in them, and when they are removed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlpto.ray_cluster.nodes.environment import TOKEN_FILE
from rlpto.ray_cluster.nodes.processes import make_folder, remove_dead_folders, started_for, unused_folder

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
    foreign = here / "rl-of-somebody-else"
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
