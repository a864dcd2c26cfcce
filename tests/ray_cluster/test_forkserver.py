"""Processes that are forked from one that has imported: what they are told, whose they are, and when they end."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpto.ray_cluster.forkserver import MODULES, SERVER, ask, socket_name
from rlpto.ray_cluster.local import LocalCluster
from rlpto.ray_cluster.processes import name_of, start_time, with_children
from tests.ray_cluster.running import KILL, PATIENCE
from tests.ray_cluster.test_real import wait_until

SERVE = """
import json, os, socket, sys
from pathlib import Path
from rlpto.ray_cluster.forkserver import Server
name, raylet, folder = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(chr(0) + name)
listener.listen()
arguments = Server(listener, int(raylet)).serve(["first"])
said = {"arguments": arguments, "variable": os.environ.get("ONE"), "job": os.environ.get("RAY_JOB_ID")}
own = Path(folder, arguments[0])
own.with_suffix(".new").write_text(json.dumps(said | {"group": os.getpgrp() == os.getpid()}))
own.with_suffix(".new").rename(own)
print("said", *arguments, flush=True)
"""


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes], subprocess.Popen[str]]]:
    """A fork server whose processes tell in a file what they were told: its socket, its "raylet", and itself."""
    name = f"rlpto-test-{os.getpid()}-{folder.name}"
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as raylet,
        subprocess.Popen(
            [sys.executable, "-c", SERVE, name, str(raylet.pid), str(folder)], stderr=subprocess.PIPE, text=True
        ) as serving,
    ):
        try:
            wait_until((folder / "first").exists)
            yield "\0" + name, raylet, serving
        finally:
            raylet.kill()
            serving.communicate(timeout=PATIENCE)


def test_who_is_forked_goes_on_as_who_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(tmp_path) as (name, raylet, serving):
        monkeypatch.setenv("ONE", "of mine")
        monkeypatch.setenv("RAY_JOB_ID", "02000000")
        read, write = os.pipe()
        before = os.dup(1)
        os.dup2(write, 1)
        try:
            assert ask(name, ["second", "--more=1"])
        finally:
            os.dup2(before, 1)
            os.close(before)
            os.close(write)
        with open(read) as output:  # to its end: nobody but who was forked holds it
            assert output.read() == "said second --more=1\n"
        said = json.loads((tmp_path / "second").read_text())
        expected = {"arguments": ["second", "--more=1"], "variable": "of mine", "job": "02000000", "group": True}
        assert said == expected
        assert json.loads((tmp_path / "first").read_text())["variable"] is None
        assert os.getpgid(serving.pid) == os.getpgid(raylet.pid)


def test_a_server_bears_nonsense_and_ends_with_its_raylet(tmp_path: Path) -> None:
    with server(tmp_path) as (name, raylet, serving):
        for nonsense in (b"", b"\0\0", b"\0\0\0\x02[]", b"\0\0\0\x09too short"):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(name)
                peer.sendall(nonsense)
        assert ask(name, ["after"])
        wait_until((tmp_path / "after").exists)
        assert serving.poll() is None
        raylet.kill()
        assert serving.wait(PATIENCE) == 0
        assert not ask(name, ["too late"])


def test_only_processes_alike_share_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    name = socket_name(1)
    monkeypatch.setenv("RAY_JOB_ID", "other driver")
    assert socket_name(1) == name
    assert socket_name(2) != name
    monkeypatch.setenv("OF_A_RUNTIME_ENVIRONMENT", "1")
    assert socket_name(1) != name


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        # Ray's library keeps the driver's id that it finds when it is loaded.
        (MODULES, "ray"),
        # Seconds, for those who only schedule.
        (("rlpto.cli.real", *(f"rlpto.ray_cluster.{name}" for name in ("backend", "live", "runner"))), "torch"),
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


def test_processes_of_a_node_are_forked_from_one_of_it(ray_cluster: LocalCluster) -> None:
    a = ray_cluster.node_ids[0]
    one, first = start(a)
    other, second = start(a)
    assert first["server"] == second["server"] != ray_cluster.raylet_pid(a)
    assert name_of(first["server"]) == SERVER
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
    assert name_of(third["server"]) == SERVER
    assert third["server"] != first["server"]
    for handle in (other, again):
        ray.kill(handle)
