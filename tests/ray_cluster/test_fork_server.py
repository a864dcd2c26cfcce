"""Processes that are forked from one that has imported: what they are told, whose they are, and when they end."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpto.ray_cluster.nodes import fork_server
from rlpto.ray_cluster.nodes.fork_server import MODULES, SOCKET, ask, forked_for
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.nodes.processes import of_folder, start_time
from tests.ray_cluster.running import FREEZE, KILL, TIMEOUT_S
from tests.ray_cluster.test_real import wait_until

RAYLET = """
import os, subprocess, sys
os.environ["RAY_RAYLET_PID"] = str(os.getpid())
for line in sys.stdin:
    file, *variables = line.split()
    more = dict(variable.split("=") for variable in variables)
    command = [sys.executable, "-c", sys.argv[1], file]
    subprocess.Popen(command, env=os.environ | more, stdin=subprocess.DEVNULL).wait()
"""
"""Starts a process for every line that it reads, with the variables named there."""
PROCESS = """
import os, sys
from pathlib import Path
from rlpto.ray_cluster.nodes.fork_server import ask, has_own_environment
if has_own_environment() or not ask(os.environ["RAY_TMPDIR"], sys.argv[1:]):
    Path(sys.argv[1]).write_text("{}")
"""
"""Has one forked in its place, or says that nobody does."""
SERVER = """
import json, os, sys, time
from pathlib import Path
from rlpto.ray_cluster.nodes import fork_server
fork_server.import_modules = lambda: time.sleep(float(os.environ.get("RAY_IMPORT_SECONDS", "0"))) is None
own = os.getpid()
arguments = fork_server.serve(*sys.argv[2:])
said = {"arguments": arguments, "job": os.environ.get("RAY_JOB_ID"), "pid": os.getpid(), "server": own}
said["leads its group"] = os.getpgrp() == os.getpid()
file = Path(arguments[0])
file.with_suffix(".new").write_text(json.dumps(said))
file.with_suffix(".new").rename(file)
print("said", *arguments[1:], flush=True)
time.sleep(float(os.environ.get("RAY_SECONDS", "0")))
"""
"""A server with nothing to import; what it forks tells in the file that it is given what it was told."""


class Raylet:
    """A process that starts others, each of which has one forked in its place."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._started = folder, 0
        self.process = subprocess.Popen([sys.executable, "-c", RAYLET, PROCESS], stdin=subprocess.PIPE, text=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self, *variables: str) -> dict[str, Any]:
        """What a process says that it starts; nothing if it was not forked."""
        return told(self.begin(*variables))

    def begin(self, *variables: str) -> Path:
        """Start a process: the file in which it will say it."""
        self._started += 1
        file = self._folder / f"{self.pid}-{self._started}"
        assert self.process.stdin is not None
        print(file, *variables, file=self.process.stdin, flush=True)
        return file

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def told(file: Path) -> dict[str, Any]:
    """What a process has written, once it has."""
    wait_until(file.exists)
    wait_until(lambda: bool(file.read_text()))
    said: dict[str, Any] = json.loads(file.read_text())
    return said


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of a cluster. Short, because of the socket."""
    (tmp_path / "server.py").write_text(SERVER)
    monkeypatch.setattr(fork_server, "__file__", str(tmp_path / "server.py"))
    with tempfile.TemporaryDirectory() as own:
        monkeypatch.setenv("RAY_TMPDIR", own)
        yield Path(own)


@pytest.fixture
def raylets(folder: Path) -> Iterator[list[Raylet]]:
    """The head's, with a server, and another one."""
    started = [Raylet(folder) for _ in range(2)]
    fork_server.start(str(folder), started[0].pid)
    yield started
    for raylet in started:
        raylet.kill()
    wait_until(lambda: not of_folder(str(folder)))


def test_who_is_forked_goes_on_as_who_asked(
    raylets: list[Raylet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = raylets[0].start()
    monkeypatch.setenv("RAY_JOB_ID", "02000000")
    monkeypatch.setattr(os, "getppid", lambda: raylets[0].pid)
    read, write = os.pipe()
    before = os.dup(1)
    os.dup2(write, 1)
    try:
        assert ask(os.environ["RAY_TMPDIR"], [str(tmp_path / "mine"), "--more=1"])
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(write)
    with open(read) as output:  # to its end: nobody but who was forked holds it
        assert output.read() == "said --more=1\n"
    said = told(tmp_path / "mine")
    assert said["arguments"] == [str(tmp_path / "mine"), "--more=1"]
    assert (first["job"], said["job"]) == (None, "02000000")
    assert said["leads its group"]
    assert said["server"] == first["server"] == raylets[1].start()["server"]


def test_whoever_is_unlike_the_server_starts_by_itself(raylets: list[Raylet], monkeypatch: pytest.MonkeyPatch) -> None:
    assert raylets[0].start("RAY_OF_A_PROCESS=1")
    assert not raylets[0].start("OF_A_RUNTIME_ENVIRONMENT=1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {99})
    assert not ask(os.environ["RAY_TMPDIR"], ["unused"])


def test_the_server_bears_nonsense_and_ends_with_the_last_raylet(folder: Path, raylets: list[Raylet]) -> None:
    first = raylets[0].start()
    for nonsense in (b"", b"0", b"0[]", b"0null", b"0too short"):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(folder / SOCKET))
            peer.sendall(nonsense)
    assert raylets[1].start()["server"] == first["server"]
    raylets[0].kill()
    assert raylets[1].start()["server"] == first["server"], "without the head, which may come back"
    fork_server.start(str(folder), raylets[1].pid)
    assert raylets[1].start()["server"] == first["server"], "there is no second one"
    raylets[1].kill()
    wait_until(lambda: start_time(first["server"]) is None)
    assert not ask(str(folder), ["too late"])


def test_what_is_forked_is_known_and_ends_with_its_raylet_even_if_it_is_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_SECONDS", "600")
    raylets = [Raylet(folder) for _ in range(2)]
    fork_server.start(str(folder), raylets[0].pid)
    (one, other, third) = (raylet.start()["pid"] for raylet in (*raylets, raylets[1]))
    assert [sorted(forked_for(str(folder), raylet.pid)) for raylet in raylets] == [[one], sorted([other, third])]
    os.kill(third, KILL)
    wait_until(lambda: forked_for(str(folder), raylets[1].pid) == [other])
    os.kill(one, FREEZE)
    raylets[0].kill()
    wait_until(lambda: start_time(one) is None)
    assert start_time(other) is not None
    raylets[1].kill()
    wait_until(lambda: not of_folder(str(folder)) and start_time(other) is None)


def test_a_raylet_that_ends_while_the_server_imports_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_IMPORT_SECONDS", "1")
    raylet = Raylet(folder)
    fork_server.start(str(folder), raylet.pid)
    raylet.begin()
    raylet.kill()
    wait_until(lambda: not of_folder(str(folder)))


def test_nobody_is_forked_for_who_has_given_up(
    folder: Path, raylets: list[Raylet], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = raylets[0].start()
    monkeypatch.setattr(fork_server, "FORK_TIMEOUT_S", 0.2)
    os.kill(first["server"], signal.SIGSTOP)
    assert not ask(str(folder), [str(folder / "late")])
    os.kill(first["server"], signal.SIGCONT)
    assert raylets[0].start()["server"] == first["server"]
    assert not (folder / "late").exists()


def test_who_is_forked_and_cannot_be_noted_is_not_there_twice(folder: Path, raylets: list[Raylet]) -> None:
    first = raylets[0].start()
    shutil.rmtree(folder / fork_server.FORKED)
    assert not raylets[0].start("RAY_SECONDS=600")
    assert "FileNotFoundError" in (folder / fork_server.LOG).read_text()
    wait_until(lambda: not of_folder(str(folder)) - {first["server"]})


@pytest.mark.parametrize(
    ("built_for", "gpu", "uses"), [("13.0", True, True), ("13.0", False, False), (None, True, False)]
)
def test_nothing_is_forked_where_torch_would_use_gpus(
    built_for: str | None, gpu: bool, uses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gpu:
        (tmp_path / "gpu").touch()
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(fork_server, "GPUS", (str(tmp_path / "gpu"),))
    assert fork_server.uses_gpus() is uses
    assert not uses or not fork_server.import_modules()


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        # Ray's library keeps the driver's id that it finds when it is loaded.
        (MODULES, "ray"),
        # Seconds, for those who only schedule.
        (
            ("rlpto.experiments.on_ray", "rlpto.ray_cluster.scheduler.cluster", "rlpto.ray_cluster.job.controller"),
            "torch",
        ),
    ],
    ids=["fork server", "scheduler"],
)
def test_what_is_imported_does_without(modules: tuple[str, ...], unwanted: str) -> None:
    program = (
        "import sys; from importlib import import_module\n"
        "for module in sys.argv[2:]: import_module(module)\n"
        "sys.exit(sys.argv[1] in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, unwanted, *modules], check=False).returncode == 0


def test_it_is_used_where_it_was_tested_and_not_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fork_server.program() == fork_server.__file__
    monkeypatch.setenv("RLPTO_FORK_SERVER", "0")
    assert fork_server.program() is None
    monkeypatch.delenv("RLPTO_FORK_SERVER")
    monkeypatch.setattr(fork_server.metadata, "version", lambda _: "2.61.0")
    assert fork_server.program() is None


class Forked:
    """An actor that tells what its process is."""

    def tell(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "server": os.getppid(),
            "job": os.environ["RAY_JOB_ID"],
            "imported": gc.get_freeze_count() > 100_000,
            "looks for garbage": gc.isenabled(),
            "random": np.random.random(),
        }


def start(node: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """An actor on a node, and what it tells."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    actor: Any = ray.remote(Forked)
    handle = actor.options(num_cpus=0, scheduling_strategy=here, **options).remote()
    return handle, ray.get(handle.tell.remote(), timeout=TIMEOUT_S)


@pytest.mark.skipif(fork_server.uses_gpus(), reason="processes start by themselves where torch uses GPUs")
def test_processes_of_a_cluster_are_forked_from_one(ray_cluster: LocalCluster) -> None:
    a, b, *_ = ray_cluster.node_ids
    one, first = start(a)
    other, second = start(b)
    assert first["server"] == second["server"] != ray_cluster.raylet_pid(a)
    assert first["pid"] in forked_for(str(ray_cluster.folder), ray_cluster.raylet_pid(a))
    assert first["imported"]
    assert first["looks for garbage"]
    assert first["job"] == second["job"] == ray.get_runtime_context().get_job_id()
    assert first["random"] != second["random"]
    ray.kill(one)
    wait_until(lambda: start_time(first["pid"]) is None)
    assert ray.get(other.tell.remote(), timeout=TIMEOUT_S)["pid"] == second["pid"], "each ends for itself"
    ray.kill(other)
    _, unlike = start(a, runtime_env={"env_vars": {"MKL_NUM_THREADS": "1"}})
    assert unlike["server"] == ray_cluster.raylet_pid(a), "its imports may read that"
