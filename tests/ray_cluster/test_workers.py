"""`--workers`: cells on the hosts of a cluster, with the digits of this machine, whatever ends meanwhile."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.nodes.processes import of_folder
from tests.ray_cluster.experiments import write_project
from tests.ray_cluster.joined import REPOSITORY, titled
from tests.ray_cluster.test_real import wait_until

WALL = {"latency_p50", "latency_p99", "wall_seconds"}
TASK = "call_there"
"""In the title of a process that runs a task."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The experiment, and in `here` its results in this process."""
    folder = write_project(tmp_path / "project")
    (tmp_path / "go").touch()
    with start(folder, "here", "--jobs=1") as command:
        assert command.wait() == 0
    (tmp_path / "go").unlink()
    return folder


def start(folder: Path, run: str, *more: str, **variables: str) -> subprocess.Popen[str]:
    """`rlpto evaluate` of three policies, one of which waits for the file `go` next to the folder."""
    policies = f"--policies=fifo,index:weights=mine.yaml,own.py:Own:until={folder.parent}/go"
    rlpto = (sys.executable, "-c", "from rlpto.cli.main import run; run()")
    return subprocess.Popen(
        [*rlpto, "evaluate", "exp.yaml", policies, "--no-report", "-q", f"--run-dir={run}", *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def timeless(folder: Path) -> list[list[str]]:
    """The text of the table of cells, without columns of wall time."""
    with (folder / "cells.csv").open() as file:
        return [[text for key, text in row.items() if key not in WALL] for row in csv.DictReader(file)]


def finish(command: subprocess.Popen[str], folder: Path, run: str) -> None:
    """Let the held policy go on, and compare all digits."""
    (folder.parent / "go").touch()
    said = command.communicate()[1]
    assert command.returncode == 0, said
    assert len(timeless(folder / run)) == 8, "three policies and the lower bound on two windows"
    assert timeless(folder / run) == timeless(folder / "here")


def once(command: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    """Wait until something holds while a command runs."""
    wait_until(lambda: holds() or command.poll() is not None)
    assert command.poll() is None, command.communicate()[1]


def test_killed_processes_change_no_digit(ray_cluster: LocalCluster, project: Path) -> None:
    with start(project, "far", f"--workers={ray_cluster.address}") as command:
        for _ in range(2):
            kill_one(command, ray_cluster)
        finish(command, project, "far")


def kill_one(command: subprocess.Popen[str], cluster: LocalCluster) -> None:
    """Kill a process of a task that is held: the other cells are finished."""

    def found() -> set[int]:
        return titled(of_folder(str(cluster.folder)), TASK)

    once(command, lambda: bool(found()))
    victim = min(found())
    os.kill(victim, signal.SIGKILL)
    once(command, lambda: victim not in found())
