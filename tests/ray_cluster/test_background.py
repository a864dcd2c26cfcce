"""`rlpto cluster up` and `down`, whatever becomes of the commands."""

from __future__ import annotations

import random
import stat
import time
from pathlib import Path

import pytest

from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.nodes.background import noted_cluster, running_cluster, start_cluster, stop_cluster
from rlpto.ray_cluster.nodes.environment import TOKEN_FILE
from rlpto.ray_cluster.nodes.processes import of_folder
from tests.ray_cluster.test_commands import command, said
from tests.ray_cluster.test_real import wait_until

ONE_NODE = ("--nodes", "1", "--gpus-per-node", "1")


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own cluster is none of the tests' business."""
    monkeypatch.setenv("RLPTO_STATE", str(tmp_path / "cluster.json"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


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
    finally:
        ended = stop_cluster()
    assert ended == third
    assert not of_folder(third.folder)
