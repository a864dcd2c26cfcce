"""`rlpto cluster`, and what `evaluate` and `train --cluster ray` refuse before they start anything."""

from contextlib import closing
from pathlib import Path

import pytest

from rlpto.cli import cluster
from rlpto.ray_cluster.scheduler import session_folder
from rlpto.store.database import Store
from rlpto.store.requests import get_request, open_requests

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SMOKE = CONFIGS / "ray_smoke.yaml"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--address", "auto"], "--address: expected --cluster ray"),
        (["--keep"], "--keep: expected --cluster ray"),
        (["--cluster", "ray", "--keep"], "a local cluster ends with the command"),
        (["--cluster", "ray", "-j", "2"], "cells run one after the other"),
        (["--cluster", "ray", "--address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1"),
        (
            ["--cluster", "ray", "--set", "cluster.nodes=[{count: 1, gpus: 1}]"],
            "wants 2 GPUs, but the cluster has 1 in all",
        ),
    ],
)
def test_what_no_real_cluster_can_do_is_refused_before_anything_is_written(
    rlpto, tmp_path: Path, options: list[str], expected: str
) -> None:
    rlpto("evaluate", SMOKE, "-q", *options, "--run-dir", tmp_path / "run").assert_refused(expected)
    assert not (tmp_path / "run").exists()


def test_what_is_no_cluster_is_said_and_what_cannot_be_one_refused(
    rlpto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "cluster.json"
    monkeypatch.setenv("RLPTO_STATE", str(state))
    for verb in ("status", "down"):
        assert "no local cluster is up" in rlpto("cluster", verb).out
    for content in ("{}", "[" * 100_000):
        state.write_text(content)
        rlpto("cluster", "status").assert_refused(f"{state}: not the state of a cluster")


def test_a_switch_needs_a_scheduler_at_work_and_a_policy(rlpto, tmp_path: Path) -> None:
    rlpto("cluster", "switch", "las", "--run", tmp_path).assert_refused("0 schedulers are at work there")
    rlpto("cluster", "switch", "no_such", "--run", tmp_path).assert_refused("no policy 'no_such'")


def test_a_switch_that_is_not_answered_is_withdrawn(rlpto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_folder, "sessions_at_work", lambda _: [tmp_path / "state.sqlite"])
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 0.0)
    with closing(Store(tmp_path / "state.sqlite")) as store:
        rlpto("cluster", "switch", "las", "--run", tmp_path).assert_refused("has not answered within 0 s")
        assert list(open_requests(store)) == []
        assert "withdrawn" in str(get_request(store, 1))


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """A run with an agent that comes with RLPTO."""
    run = tmp_path / "agent"
    run.mkdir()
    (run / "best.safetensors").write_bytes((CONFIGS / "pretrained" / "synthetic.safetensors").read_bytes())
    return run


def test_an_agent_and_an_experiment_are_needed(rlpto, agent: Path, tmp_path: Path) -> None:
    on_ray = ("train", "-q", "--cluster", "ray")
    rlpto(*on_ray, SMOKE).assert_refused("expected --resume RUN with an agent")
    rlpto(*on_ray, "--resume", agent).assert_refused("expected an experiment file")
    rlpto(*on_ray, SMOKE, "--resume", tmp_path).assert_refused("no best.safetensors or last.safetensors there")
    rlpto("train", SMOKE, "--address", "auto").assert_refused("--address: expected --cluster ray")
    own = rlpto(*on_ray, SMOKE, "--resume", agent, "--run-dir", agent, "--fresh")
    own.assert_refused(f"--run-dir {agent}: holds the agent that is fine-tuned")
    for seed in (0, 1):
        (agent / f"seed-{seed}").mkdir()
    rlpto(*on_ray, SMOKE, "--resume", agent).assert_refused("holds 2 trainings")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("agent.envs=8", "there is one real cluster"),
        ("agent.loads=[0.5]", "expected null"),
        ("forecast.mode=on", "expected off"),
    ],
)
def test_settings_that_make_no_sense_there(rlpto, agent: Path, setting: str, message: str) -> None:
    rlpto("train", SMOKE, "--cluster", "ray", "--resume", agent, "--set", setting, "-q").assert_refused(message)
    assert not (agent / "ray").exists()


def test_agents_do_not_learn_where_compiled_clusters_lack_what_is_known(rlpto, tmp_path: Path) -> None:
    command = ("train", SMOKE, "--set", "knowledge.remaining=curve", "--run-dir", tmp_path / "run")
    rlpto(*command).assert_refused("expected declared or learnt or unknown")
    assert not (tmp_path / "run").exists()
