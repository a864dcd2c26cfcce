"""`rlpto cluster`, and what `evaluate --cluster ray` refuses before it starts anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlpto.cli.main import make_app
from rlpto.io.errors import ClusterError, ConfigError, JobError, RlptoError

SMOKE = Path(__file__).resolve().parents[2] / "configs" / "ray_smoke.yaml"


def refused(*arguments: str) -> RlptoError:
    """The error that a command ends with."""
    error = CliRunner().invoke(make_app(), list(arguments)).exception
    assert isinstance(error, RlptoError)
    assert "\n" not in str(error)
    return error


class TestEvaluate:
    @pytest.mark.parametrize("option", [["--address", "auto"], ["--keep"]])
    def test_options_of_real_clusters_need_one(self, option: list[str], tmp_path: Path) -> None:
        error = refused("evaluate", str(SMOKE), *option, "--run-dir", str(tmp_path))
        assert str(error).startswith(f"{option[0]}: expected --cluster ray")

    def test_controllers_are_kept_only_on_a_cluster_that_stays(self, tmp_path: Path) -> None:
        error = refused("evaluate", str(SMOKE), "--cluster", "ray", "--keep", "--run-dir", str(tmp_path))
        assert "a local cluster ends with the command" in str(error)

    def test_cells_run_one_after_the_other(self, tmp_path: Path) -> None:
        error = refused("evaluate", str(SMOKE), "--cluster", "ray", "-j", "2", "--run-dir", str(tmp_path))
        assert "cells run one after the other" in str(error)

    def test_no_cluster_at_the_address_and_nothing_is_written(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        command = ("evaluate", str(SMOKE), "--cluster", "ray", "--address", "127.0.0.1:1", "--run-dir", str(folder))
        assert str(refused(*command)).startswith("no Ray cluster at 127.0.0.1:1")
        assert not folder.exists()

    def test_a_job_that_wants_more_than_the_nodes_have(self, tmp_path: Path) -> None:
        one = "cluster.nodes=[{count: 1, gpus: 1}]"
        error = refused("evaluate", str(SMOKE), "--cluster", "ray", "--set", one, "--run-dir", str(tmp_path / "run"))
        assert isinstance(error, JobError)
        assert "wants 2 GPUs, but the cluster has 1 in all" in str(error)

    def test_the_same_jobs_simulated(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "140")
        done = CliRunner().invoke(
            make_app(), ["evaluate", str(SMOKE), "--no-report", "--run-dir", str(tmp_path / "run")]
        )
        assert done.exit_code == 0, done.output
        assert "equal_share" in done.output


class TestCluster:
    def test_without_one_status_and_down_say_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RLPTO_STATE", str(tmp_path / "cluster.json"))
        assert "no local cluster is up" in CliRunner().invoke(make_app(), ["cluster", "status"]).output
        assert "no local cluster is up" in CliRunner().invoke(make_app(), ["cluster", "down"]).output

    @pytest.mark.parametrize(
        "content",
        [
            "{}",
            "[1]",
            '{"address": "", "folder": "", "gpus": [Infinity], "cpus": 1, "durable": false}',
            "[" * 100_000,
        ],
    )
    def test_a_broken_state_file_is_named(self, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        state = tmp_path / "cluster.json"
        state.write_text(content)
        monkeypatch.setenv("RLPTO_STATE", str(state))
        error = refused("cluster", "status")
        assert isinstance(error, ClusterError)
        assert str(error).startswith(f"{state}: not the state of a cluster")

    def test_a_switch_needs_a_scheduler_at_work_and_a_policy(self, tmp_path: Path) -> None:
        assert "0 schedulers are at work there" in str(refused("cluster", "switch", "las", "--run", str(tmp_path)))
        assert isinstance(refused("cluster", "switch", "no_such", "--run", str(tmp_path)), ConfigError)

    def test_up_status_and_down_from_beginning_to_end(self, tmp_path: Path) -> None:
        """With `ray start` itself: one node, a second `up` that is refused, and nothing left in the end."""
        state = tmp_path / "cluster.json"
        environment = {**os.environ, "RLPTO_STATE": str(state)}
        environment.pop("RAY_ADDRESS", None)

        def rlpto(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "rlpto.cli.main", "cluster", *arguments]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

        try:
            up = rlpto("up", "--nodes", "1", "--gpus-per-node", "2")
            assert "1 nodes with 2 GPUs each are up at" in up.stdout, up.stderr
            started = json.loads(state.read_text())
            assert "a cluster is up already at" in rlpto("up").stderr
            status = rlpto("status").stdout
            assert started["address"].rpartition(":")[2] in status
            assert "0 jobs have controllers" in status
        finally:
            down = rlpto("down")
        assert "has ended" in down.stdout
        assert not state.exists()
        assert not Path(started["folder"]).exists()
        arguments = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path)]
        assert not any(started["folder"].encode() in text for text in arguments)
        port = started["address"].rpartition(":")[2]
        assert not any(f":{port}\0".encode() in text for text in arguments), "Ray's server for clients is one of us too"


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True
