"""Processes that are forked from one that has imported: what they are told, whose they are, and when they end."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpto.ray_cluster.nodes import fork_server
from rlpto.ray_cluster.nodes.fork_server import MACHINE, MODULES, ask, machine_socket, node_socket
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.nodes.processes import NODE, name_of, of_folder, start_time, with_children
from tests.ray_cluster.running import KILL, PATIENCE
from tests.ray_cluster.test_real import wait_until

RAYLET = """
import os, subprocess, sys
os.environ["RAY_RAYLET_PID"] = str(os.getpid())
for line in sys.stdin:
    subprocess.Popen([sys.executable, "-c", sys.argv[1], *line.split()], stdin=subprocess.DEVNULL).wait()
"""
"""Starts a process for every line that it reads."""
PROCESS = """
import json, os, sys, time
from pathlib import Path
from rlpto.ray_cluster.nodes import fork_server
fork_server._import_most = lambda: time.sleep(float(os.environ.get("IMPORT_SECONDS", "0"))) is None
sockets = fork_server.node_socket(os.getppid()), fork_server.machine_socket(sys.argv[1:])
arguments = fork_server.hand_over(sys.argv[1:])
status = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
said = {"arguments": arguments, "variable": os.environ.get("ONE"), "job": os.environ.get("RAY_JOB_ID")}
said |= {"leads its group": os.getpgrp() == os.getpid(), "sockets": sockets}
said |= {"node": os.getppid(), "machine": int(status[1])}
own = Path(arguments[0])
own.with_suffix(".new").write_text(json.dumps(said))
own.with_suffix(".new").rename(own)
print("said", *arguments[1:], flush=True)
"""
"""Tells in the file that it is given what it was told, and whose child it is."""


class Raylet:
    """A process that starts others, each of which has one forked in its place. cluster: which it says it is of."""

    def __init__(self, folder: Path, cluster: str) -> None:
        self._folder, self._cluster = folder, cluster
        self._started = 0
        self.process = subprocess.Popen([sys.executable, "-c", RAYLET, PROCESS], stdin=subprocess.PIPE, text=True)

    def start(self) -> dict[str, Any]:
        """What a process says that it starts."""
        return told(self.begin())

    def begin(self) -> Path:
        """Start a process: the file in which it will say it."""
        self._started += 1
        file = self._folder / f"{self.process.pid}-{self._started}"
        assert self.process.stdin is not None
        print(file, f"--cluster-id={self._cluster}", file=self.process.stdin, flush=True)
        return file

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def told(file: Path) -> dict[str, Any]:
    """What a process has written, once it has."""
    wait_until(file.exists)
    said: dict[str, Any] = json.loads(file.read_text())
    return said


@pytest.fixture
def raylets(tmp_path: Path) -> Iterator[list[Raylet]]:
    """Two on one machine, and one of another cluster."""
    started = [Raylet(tmp_path, f"{tmp_path.name}-{cluster}") for cluster in "aab"]
    yield started
    for raylet in started:
        raylet.kill()


def test_who_is_forked_goes_on_as_who_asked(
    raylets: list[Raylet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = raylets[0].start()
    monkeypatch.setenv("ONE", "of mine")
    monkeypatch.setenv("RAY_JOB_ID", "02000000")
    read, write = os.pipe()
    before = os.dup(1)
    os.dup2(write, 1)
    try:
        assert ask(first["sockets"][0], [str(tmp_path / "mine"), "--more=1"])
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(write)
    with open(read) as output:  # to its end: nobody but who was forked holds it
        assert output.read() == "said --more=1\n"
    said = told(tmp_path / "mine")
    assert said["arguments"] == [str(tmp_path / "mine"), "--more=1"]
    assert (said["variable"], said["job"]) == ("of mine", "02000000")
    assert said["leads its group"]
    assert said["node"] == first["node"]
    assert first["variable"] is None


def test_nodes_of_a_cluster_have_servers_of_their_own_and_import_once(raylets: list[Raylet]) -> None:
    first, second, elsewhere = (raylet.start() for raylet in raylets)
    assert len({said["node"] for said in (first, second, elsewhere)}) == 3
    assert first["machine"] == second["machine"] != elsewhere["machine"]
    assert name_of(first["machine"]) == MACHINE
    a, b, _ = (raylet.process.pid for raylet in raylets)
    assert first["node"] in with_children({a}) - with_children({b})
    again = raylets[0].start()
    assert (again["node"], again["machine"]) == (first["node"], first["machine"])
    os.kill(first["node"], KILL)
    wait_until(lambda: start_time(first["node"]) is None)
    mended = raylets[0].start()
    assert mended["node"] != first["node"]
    assert mended["machine"] == first["machine"]


def test_servers_bear_nonsense_and_end_with_their_raylets(raylets: list[Raylet]) -> None:
    first, second, elsewhere = (raylet.start() for raylet in raylets)
    for name in first["sockets"]:
        for nonsense in (b"", b"\0\0", b"\0\0\0\x02[]", b"\0\0\0\x04null", b"\0\0\0\x09too short"):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(name)
                peer.sendall(nonsense)
    assert not ask(first["sockets"][1], ["without a socket"])
    assert raylets[0].start()["node"] == first["node"]
    raylets[0].kill()
    wait_until(lambda: start_time(first["node"]) is None)
    assert not ask(first["sockets"][0], ["too late"])
    assert raylets[1].start()["machine"] == second["machine"]
    raylets[1].kill()
    wait_until(lambda: start_time(second["machine"]) is None)
    assert start_time(elsewhere["machine"]) is not None


def test_a_raylet_that_ends_while_its_process_imports_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPORT_SECONDS", "1")
    raylet = Raylet(tmp_path, tmp_path.name)
    raylet.begin()
    wait_until(lambda: bool(of_folder(str(tmp_path))))
    raylet.kill()
    wait_until(lambda: not of_folder(str(tmp_path)))


def test_nobody_is_forked_for_who_has_given_up(
    raylets: list[Raylet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = raylets[0].start()
    monkeypatch.setattr(fork_server, "PATIENCE", 0.2)
    os.kill(first["node"], signal.SIGSTOP)
    assert not ask(first["sockets"][0], [str(tmp_path / "late")])
    os.kill(first["node"], signal.SIGCONT)
    assert raylets[0].start()["node"] == first["node"]
    assert not (tmp_path / "late").exists()


def test_a_server_of_somebody_else_is_left_alone(raylets: list[Raylet], monkeypatch: pytest.MonkeyPatch) -> None:
    (name, _) = raylets[0].start()["sockets"]
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: 12345)
        assert not ask(name, ["theirs"])


def test_only_processes_alike_share_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, other = ["--node-id=1", "--cluster-id=1"], ["--cluster-id=2"]
    node, machine = node_socket(1), machine_socket(cluster)
    monkeypatch.setenv("RAY_JOB_ID", "other driver")
    assert (node_socket(1), machine_socket(cluster)) == (node, machine)
    assert node_socket(2) != node
    assert machine_socket(other) != machine
    monkeypatch.setenv("RAY_RAYLET_PID", "2")
    assert machine_socket(cluster[::-1]) == machine
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "sched_getaffinity", lambda _: {99})
        assert machine_socket(cluster) != machine
    monkeypatch.setenv("OF_A_RUNTIME_ENVIRONMENT", "1")
    assert node_socket(1) != node
    assert machine_socket(cluster) != machine


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
    assert not uses or not fork_server._import_most()


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        # Ray's library keeps the driver's id that it finds when it is loaded.
        (MODULES, "ray"),
        # Seconds, for those who only schedule.
        (("rlpto.runs.real", "rlpto.ray_cluster.scheduler.cluster", "rlpto.ray_cluster.job.controller"), "torch"),
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


def start(node: str) -> tuple[Any, dict[str, Any]]:
    """An actor on a node, and what it tells."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    actor: Any = ray.remote(Forked)
    handle = actor.options(num_cpus=0, scheduling_strategy=here).remote()
    return handle, ray.get(handle.tell.remote(), timeout=PATIENCE)


@pytest.mark.skipif(fork_server.uses_gpus(), reason="processes start by themselves where torch uses GPUs")
def test_processes_of_a_node_are_forked_from_one_of_it(ray_cluster: LocalCluster) -> None:
    a = ray_cluster.node_ids[0]
    one, first = start(a)
    other, second = start(a)
    assert first["server"] == second["server"] != ray_cluster.raylet_pid(a)
    name = name_of(first["server"])
    assert name == f"{NODE}{ray_cluster.raylet_pid(a)}"
    assert first["server"] in with_children({ray_cluster.raylet_pid(a)})
    assert first["imported"]
    assert first["looks for garbage"]
    assert first["job"] == second["job"] == ray.get_runtime_context().get_job_id()
    assert first["random"] != second["random"]
    ray.kill(one)
    wait_until(lambda: start_time(first["pid"]) is None)
    assert ray.get(other.tell.remote(), timeout=PATIENCE)["pid"] == second["pid"], "each ends for itself"
    os.kill(first["server"], KILL)
    again, third = start(a)
    assert name_of(third["server"]) == name
    assert third["server"] != first["server"]
    for handle in (other, again):
        ray.kill(handle)
