"""The head of a durable cluster dies and comes back under a job that trains."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.nodes.persistent_cluster import StartedCluster, restart_head, running_cluster
from rlpto.ray_cluster.nodes.processes import arguments_of, head_family, of_folder, signal_to
from tests.ray_cluster.running import KILL
from tests.ray_cluster.test_commands import column, command, experiment, once, said, steps_of

PACE = 0.5


@pytest.mark.cluster
def test_a_head_that_is_killed_comes_back_and_training_never_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLPTO_STATE", str(tmp_path / "cluster.json"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    run = tmp_path / "run"
    file = experiment(tmp_path, workload={"source": "jobs", "jobs": [{"model": "tiny", "epochs": 10_000}]})
    evaluate = ("evaluate", str(file), "--cluster", "ray", "--address", "auto", "--run-dir", str(run), "--no-report")
    pace = ("--set", f"ray.programs.tiny.pace={PACE}")
    with command("cluster", "up", "--durable", "--nodes", "1", "--gpus-per-node", "1") as up:
        said(up, 0)
    started = running_cluster()
    assert started is not None
    try:
        with pytest.raises(ClusterError, match="is alive: expected one that has ended"):
            restart_head(started)
        with command(*evaluate, *pace) as first:
            once(first, lambda: min(steps_of(run), default=0) > 3)
            head = head_family(started.folder)
            assert any("gcs_server" in " ".join(arguments_of(pid)) for pid in head)
            before, killed = steps_of(run)[0], time.monotonic()
            # Its server alone: the head's raylet lives on, and would wait for another server for a quarter of an hour.
            for pid in head:
                if arguments_of(pid)[0].endswith("gcs_server"):
                    signal_to(pid, KILL)
            out = said(first, 2)
            assert out.strip().splitlines()[-1].startswith("rlpto: the head of the Ray cluster at")
            assert time.monotonic() - killed < 60.0, "Ray's own patience"
        with command("cluster", "restart-head") as again:
            assert "the head is back" in said(again, 0)
        with command(*evaluate, *pace) as second:
            once(second, lambda: steps_of(run)[0] > before)
            passed = time.monotonic() - killed
            assert column(run, "recoveries") == [0]
            assert steps_of(run)[0] - before > 0.5 * passed / PACE, "it stood still while the head was gone"
            second.send_signal(signal.SIGINT)
            said(second, 130)
    finally:
        with command("cluster", "down") as down:
            said(down, 0)
    assert not of_folder(started.folder)


def test_only_a_durable_cluster_can_go_on_with_another_head() -> None:
    with pytest.raises(ClusterError, match="expected one of `cluster up --durable`"):
        restart_head(StartedCluster("127.0.0.1:1", "folder", (1,)))
