"""Clusters that commands start: up, down, killed, without a head, and what is left of them."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.nodes import persistent_cluster
from rlpto.ray_cluster.nodes.environment import TOKEN_FILE
from rlpto.ray_cluster.nodes.persistent_cluster import (
    StartedCluster,
    missing_nodes,
    noted_cluster,
    restart_head,
    running_cluster,
    start_cluster,
    state_file,
    stop_cluster,
)
from rlpto.ray_cluster.nodes.processes import (
    arguments_of,
    family_of,
    free_ports,
    head_family,
    make_folder,
    mark_of,
    of_folder,
    start_time,
    started_for,
    unused_folder,
    with_children,
)
from tests.ray_cluster.running import KILL
from tests.ray_cluster.test_commands import ONE_JOB, REPOSITORY, column, command, experiment, once, said, steps_of
from tests.ray_cluster.test_real import wait_until

ONE_NODE = ("--nodes", "1", "--gpus-per-node", "1")
ONE_GPU = ("--set", "cluster.nodes=[{count: 1, gpus: 1}]")


PACE = 0.2
NO_AGENT = """
import sys, time
while any(one.endswith("dashboard/agent.py") for one in sys.orig_argv):
    time.sleep(1.0)
"""
"""A `sitecustomize.py`, run whenever Python starts: with it the dashboard's agent of a node never gets to its work."""
HEAD = "from rlpto.ray_cluster.nodes.local import LocalCluster\nwith LocalCluster([]) as cluster: print(cluster.folder)"
Remains = tuple[StartedCluster, subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedCluster]:
    """A durable cluster of one node, whose first start was killed; gone without a trace at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLPTO_STATE", str(tmp_path_factory.mktemp("state") / "cluster.json"))
        patch.delenv("RAY_ADDRESS", raising=False)
        with command("cluster", "up", *ONE_NODE) as killed:
            wait_until(lambda: noted_cluster() is not None)
            time.sleep(random.uniform(0, 2))
            killed.kill()
        before = noted_cluster()
        assert before is not None
        with command("cluster", "up", "--durable", *ONE_NODE) as up:
            assert "rlpto: starting node 2 of 2" in said(up, 0), "what it waits for"
        started = running_cluster()
        assert started is not None
        assert started.folder != before.folder
        assert not of_folder(before.folder)
        assert not Path(before.folder).exists()
        try:
            yield started
        finally:
            with command("cluster", "down") as down:
                said(down, 0)
        assert noted_cluster() is None
        assert not of_folder(started.folder)
        assert not Path(started.folder).exists()


def test_a_forged_state_file_ends_and_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPTO_STATE", str(tmp_path / "cluster.json"))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("three years")
    (foreign / TOKEN_FILE).write_text("0" * 64)
    forged = StartedCluster("127.0.0.1:1", str(foreign), (1,), mark=mark_of("0" * 64))
    state_file().write_text(json.dumps(asdict(forged)))
    with subprocess.Popen([sys.executable, "-c", "input()", f"{foreign}/thesis.tex"], stdin=subprocess.PIPE) as reader:
        with pytest.raises(ClusterError, match=r"which `rlpto cluster up` has not made: nothing was ended"):
            stop_cluster()
        assert reader.poll() is None
        reader.communicate()
    assert (foreign / "thesis.tex").exists()
    own = unused_folder()
    make_folder(own)
    try:
        state_file().write_text(json.dumps(asdict(replace(forged, folder=str(own)))))
        with pytest.raises(ClusterError, match="nothing was ended"):
            stop_cluster()
        assert (own / TOKEN_FILE).exists(), "of another cluster of this user"
    finally:
        shutil.rmtree(own)


@pytest.fixture
def remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remains]:
    """A noted cluster of which one process lives, which does not listen at its address."""
    monkeypatch.setenv("RLPTO_STATE", str(tmp_path / "cluster.json"))
    folder = unused_folder()
    make_folder(folder, "0" * 64)
    noted = StartedCluster(f"127.0.0.1:{free_ports(1)[0]}", str(folder), (1,), mark=mark_of("0" * 64))
    state_file().write_text(json.dumps(asdict(noted)))
    with started_for(noted.folder):
        left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: noted.alive == 1)
        yield noted, left
    finally:
        left.kill()
        left.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_cluster_without_a_head_is_ended_by_the_next_start(remains: Remains, monkeypatch: pytest.MonkeyPatch) -> None:
    noted, left = remains

    def no_ray(*_: object) -> str:
        raise ClusterError("no Ray in this test")

    monkeypatch.setattr(persistent_cluster, "_start_nodes", no_ray)
    assert running_cluster() is None
    with pytest.raises(ClusterError, match="no Ray in this test"):
        start_cluster([1])
    assert left.wait(10) == -signal.SIGTERM
    assert not Path(noted.folder).exists()
    assert noted_cluster() is None


def test_a_durable_cluster_without_a_head_or_one_whose_head_listens_is_kept(remains: Remains) -> None:
    noted, _ = remains
    with socket.create_server(("127.0.0.1", int(noted.address.rpartition(":")[2]))):
        assert running_cluster() == noted
    with pytest.raises(ClusterError, match="expected one of `cluster up --durable`"):
        restart_head(noted)
    durable = replace(noted, durable=True)
    state_file().write_text(json.dumps(asdict(durable)))
    assert running_cluster() == durable
    with pytest.raises(ClusterError, match="a cluster is up already"):
        start_cluster([1])


def test_what_an_end_that_was_killed_has_left_is_no_cluster(remains: Remains, monkeypatch: pytest.MonkeyPatch) -> None:
    noted, left = remains

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", int(noted.address.rpartition(":")[2]))):
        with monkeypatch.context() as patch:
            patch.setattr(persistent_cluster, "end_cluster", killed)
            with pytest.raises(KeyboardInterrupt):
                stop_cluster()
        assert left.poll() is None
        assert running_cluster() is None, "its head still listens, but its nodes may be gone"
        stop_cluster()
    assert left.wait(10) == -signal.SIGTERM
    assert not Path(noted.folder).exists()
    assert noted_cluster() is None


@pytest.mark.slow
@pytest.mark.cluster
def test_a_node_that_is_killed_comes_back(durable: StartedCluster) -> None:
    assert stat.S_IMODE(Path(durable.folder, TOKEN_FILE).stat().st_mode) == 0o600
    with pytest.raises(ClusterError, match="a cluster is up already"):
        start_cluster([1])
    with command("cluster", "status") as status:
        shown = said(status, 0)
    assert durable.address in shown
    assert "0 jobs have controllers" in shown
    (raylet,) = (pid for pid in of_folder(durable.folder) if "rlpto_node_1," in " ".join(arguments_of(pid)))
    os.kill(raylet, KILL)
    wait_until(lambda: missing_nodes(durable) == [1])
    wait_until(lambda: missing_nodes(durable) == [])


@pytest.mark.slow
@pytest.mark.cluster
def test_a_head_that_is_killed_comes_back_and_training_never_stops(durable: StartedCluster, tmp_path: Path) -> None:
    run = tmp_path / "run"
    file = experiment(tmp_path, workload={"source": "jobs", "jobs": [{"model": "tiny", "epochs": 10_000}]})
    evaluate = ("evaluate", str(file), "--cluster", "ray", "--address", "auto", "--run-dir", str(run), "--no-report")
    pace = ("--set", f"ray.programs.tiny.pace={PACE}")
    with pytest.raises(ClusterError, match="is alive: expected one that has ended"):
        restart_head(durable)
    with command(*evaluate, *pace) as first:
        once(first, lambda: min(steps_of(run), default=0) > 3)
        killed = time.monotonic()
        # Its server alone: the head's raylet lives on, and would wait for another server for a quarter of an hour.
        servers = [pid for pid in head_family(durable.folder) if arguments_of(pid)[0].endswith("gcs_server")]
        assert len(servers) == 1
        os.kill(servers[0], KILL)
        out = said(first, 2)
        assert out.strip().splitlines()[-1].startswith("rlpto: the head of the Ray cluster at")
    before = steps_of(run)[0]  # the last report
    with command("cluster", "restart-head") as again:
        assert "the head is back" in said(again, 0)
    with command(*evaluate, *pace) as second:
        once(second, lambda: steps_of(run)[0] > before)
        passed = time.monotonic() - killed
        assert column(run, "recoveries") == [0]
        assert steps_of(run)[0] - before > 0.2 * passed / PACE, "it stood still while the head was gone"
        second.send_signal(signal.SIGINT)
        said(second, 130)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_node_joins_although_its_agent_never_starts(tmp_path: Path) -> None:
    """Its raylet would wait 15 s for the port of one, and then abort: on a very busy machine agents start later."""
    (tmp_path / "sitecustomize.py").write_text(NO_AGENT)
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{tmp_path}"}
    ended = subprocess.run([sys.executable, "-c", HEAD], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert not Path(ended.stdout.strip()).exists()


@pytest.mark.slow
@pytest.mark.cluster
def test_an_evaluation_with_a_cluster_of_its_own_that_is_terminated_ends_all_of_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate = ("evaluate", str(experiment(tmp_path)), "--cluster", "ray", "--run-dir", str(run), "--no-report")
    with command(*evaluate, *ONE_GPU, *ONE_JOB) as started:
        once(started, lambda: bool(column(run, "state")))
        arguments = " ".join(one for child in with_children({started.pid}) for one in arguments_of(child))
        (folder,) = set(re.findall(r"--raylet_socket_name=(\S+?)/ray/session", arguments))
        family = family_of(folder)
        assert family
        started.terminate()
        said(started, 130)
    assert column(run, "state") != ["finished"]
    assert not of_folder(folder)
    assert not [pid for pid, ticks in family.items() if start_time(pid) == ticks]
    assert not Path(folder).exists()
