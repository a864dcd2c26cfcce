"""`rlpto cluster up` and `down`, whatever becomes of the commands."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.nodes.environment import TOKEN_FILE
from rlpto.ray_cluster.nodes.persistent_cluster import (
    StartedCluster,
    missing_nodes,
    noted_cluster,
    running_cluster,
    start_cluster,
    state_file,
    stop_cluster,
)
from rlpto.ray_cluster.nodes.processes import arguments_of, make_folder, mark_of, of_folder, unused_folder
from tests.ray_cluster.test_commands import command, said
from tests.ray_cluster.test_real import wait_until

ONE_NODE = ("--nodes", "1", "--gpus-per-node", "1")


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own cluster is none of the tests' business."""
    monkeypatch.setenv("RLPTO_STATE", str(tmp_path / "cluster.json"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_forged_state_file_ends_and_removes_nothing(tmp_path: Path) -> None:
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


@pytest.mark.cluster
def test_a_start_that_is_killed_leaves_nothing_that_cannot_be_found() -> None:
    """First at a moment that is drawn, which `down` mends; then late, which the next `up` mends."""
    with command("cluster", "up", *ONE_NODE) as early:
        wait_until(lambda: noted_cluster() is not None)
        moment = random.uniform(0, 4)
        print(f"killed after {moment:.2f} s")
        time.sleep(moment)
        early.kill()
    first = noted_cluster()
    assert first is not None
    with command("cluster", "down") as down:
        said(down, 0)
    assert noted_cluster() is None
    assert not of_folder(first.folder)
    assert not Path(first.folder).exists()

    with command("cluster", "up", *ONE_NODE) as late:
        wait_until(lambda: (there := noted_cluster()) is not None and len(of_folder(there.folder)) > 4)
        late.kill()
    second = noted_cluster()
    assert second is not None
    assert running_cluster() is None
    with command("cluster", "up", *ONE_NODE) as again:
        out = said(again, 0)
    try:
        assert "rlpto: starting node 1 of 1" in out, "what it waits for"
        assert not of_folder(second.folder)
        assert not Path(second.folder).exists()
        third = running_cluster()
        assert third is not None
        assert stat.S_IMODE(Path(third.folder, TOKEN_FILE).stat().st_mode) == 0o600
        with pytest.raises(ClusterError, match="a cluster is up already"):
            start_cluster([1])
        (raylet,) = (pid for pid in of_folder(third.folder) if "rlpto_node_1," in " ".join(arguments_of(pid)))
        os.kill(raylet, signal.SIGKILL)
        wait_until(lambda: missing_nodes(third) == [1])
        wait_until(lambda: missing_nodes(third) == [])
    finally:
        ended = stop_cluster()
    assert ended == third
    assert not of_folder(third.folder)
