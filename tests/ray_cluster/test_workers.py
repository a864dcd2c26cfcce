"""`--workers`: cells on the hosts of a cluster, with the digits of this machine, whatever ends meanwhile."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rlpto.ray_cluster.nodes.environment import AUTH_MODE, AUTH_TOKEN_PATH
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.nodes.processes import end_cluster, of_folder
from tests.ray_cluster.experiments import write_project
from tests.ray_cluster.joined import REPOSITORY, joined, titled, without_rlpto
from tests.ray_cluster.test_real import wait_until

WALL = {"latency_p50", "latency_p99", "wall_seconds"}
TASK = "call_there"
"""In the title of a process that runs a task."""
KILLS = 20


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


def kept(folder: Path, run: str) -> dict[Path, int]:
    """Files of finished cells, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in (folder / run / "cells").glob("*.json")}


def once(command: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    """Wait until something holds while a command runs."""
    wait_until(lambda: holds() or command.poll() is not None)
    assert command.poll() is None, command.communicate()[1]


def test_a_killed_process_changes_no_digit(ray_cluster: LocalCluster, project: Path) -> None:
    with start(project, "far", f"--workers={ray_cluster.address}") as command:
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


@pytest.mark.slow
def test_whatever_ends_finished_cells_are_kept(ray_cluster: LocalCluster, project: Path) -> None:
    workers = f"--workers={ray_cluster.address}"
    with start(project, "far", workers) as command:
        for _ in range(KILLS):
            kill_one(command, ray_cluster)
        once(command, lambda: len(kept(project, "far")) == 4)
        os.killpg(command.pid, signal.SIGINT)
        said = command.communicate()[1]
        assert command.returncode == 130
    assert said.startswith("rlpto: interrupted; 4 of 6 cells are finished"), said
    before = kept(project, "far")
    wait_until(lambda: not titled(of_folder(str(ray_cluster.folder)), TASK))
    with start(project, "far", workers) as command:
        once(command, lambda: len(titled(of_folder(str(ray_cluster.folder)), TASK)) == 2)
        command.kill()
    wait_until(lambda: not titled(of_folder(str(ray_cluster.folder)), TASK))
    with start(project, "far", workers) as command:
        finish(command, project, "far")
    assert kept(project, "far").items() >= before.items(), "nothing ran again"


@pytest.mark.slow
@pytest.mark.cluster
def test_a_host_without_rlpto_and_these_files_under_the_client(project: Path, tmp_path: Path) -> None:
    """The node sees another folder in place of the inputs'. Its cluster has a token."""
    if os.getuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("needs a root that may mount file systems: the folder of the inputs is hidden from the node")
    python, host = without_rlpto(tmp_path / "bare"), tmp_path / "python"
    host.write_text(
        f'#!/bin/sh\nexec unshare -m sh -c \'mount -t tmpfs tmpfs {project} && exec {python} "$@"\' sh "$@"\n'
    )
    host.chmod(0o755)
    (tmp_path / "token").write_text("0123456789abcdef" * 4)
    secret = {AUTH_MODE: "token", AUTH_TOKEN_PATH: str(tmp_path / "token")}
    with joined(0, str(host), variables=secret) as cluster:
        with start(project, "wrong", f"--workers={cluster.client}", RAY_AUTH_TOKEN="another") as command:
            said = command.communicate()[1]
        assert (command.returncode, said.count("\n")) == (2, 1)
        assert "asks for its token" in said
        assert not (project / "wrong").exists()
        with start(project, "far", f"--workers={cluster.client}", **secret) as command:
            once(command, lambda: len(kept(project, "far")) == 4)
            finish(command, project, "far")
        (tmp_path / "go").unlink()
        for run, address in (("client", cluster.client), ("driver", cluster.address)):
            with start(project, run, f"--workers={address}", **secret) as command:
                once(command, lambda run=run: len(kept(project, run)) == 4)
                if run == "client":
                    os.killpg(command.pid, signal.SIGINT)
                else:
                    end_cluster(Path(cluster.folder))
                said = command.communicate()[1]
            ours = [line for line in said.splitlines() if not line.startswith("[")]  # Ray may add a line of its log
            assert len(ours) == 1, said
            assert ("4 of 6 cells are finished" if run == "client" else "is gone. Start it again") in ours[0]


@pytest.mark.slow
@pytest.mark.cluster
def test_clusters_that_cannot_work_are_one_line(project: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    patched = 'import ray; ray.__version__ = "2.0.0"; from ray.scripts.scripts import main; main()'
    old.write_text(f"#!/bin/sh\nshift 2\nexec {sys.executable} -c '{patched}' \"$@\"\n")
    old.chmod(0o755)
    for python, options, reason in (
        (sys.executable, ("--num-cpus=0",), "has no CPUs: expected nodes with some"),
        (str(old), (), "is of another version"),
    ):
        with joined(0, python, variables={}, options=options) as cluster:
            # Without CPUs Ray's server for clients may fail to start one of its own.
            for address in (cluster.address, *([] if options else [cluster.client])):
                with start(project, "none", f"--workers={address}") as command:
                    said = command.communicate()[1]
                assert (command.returncode, said.count("\n")) == (2, 1), said
                assert reason in said
                assert not (project / "none").exists()


def take_memory(megabytes: int) -> int:
    """Hold more and more memory, up to this."""
    held = []
    while len(held) < megabytes // 100:
        held.append(bytearray(100_000_000))
        time.sleep(0.05)
    return len(held)


MEMORY = """
from rlpto.core.cluster import Node
from rlpto.experiments.ray_workers import RayWorkers
from rlpto.ray_cluster.nodes.local import LocalCluster
from tests.ray_cluster.test_workers import take_memory
with LocalCluster([Node(1, cpus=1)], 0) as cluster, RayWorkers(cluster) as workers:
    list(workers.run(take_memory, [4_000]))
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_a_task_that_needs_more_memory_than_there_is_ends_in_one_line() -> None:
    """A node may use one GB more than this machine uses now. This process may be connected to another cluster."""
    used = psutil.virtual_memory()
    threshold = f"{(used.total - used.available + 1e9) / used.total:.3f}"
    variables = {"RAY_memory_usage_threshold": threshold, "RAY_memory_monitor_refresh_ms": "100"}
    command = [sys.executable, "-c", MEMORY]
    there = {**os.environ, **variables, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(command, env=there, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("rlpto.io.errors.ClusterError")
    assert "several times because its host ran out of memory" in last
