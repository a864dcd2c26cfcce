"""What `rlpto train --cluster ray` refuses before it starts anything."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SMOKE = str(REPOSITORY / "configs" / "ray_smoke.yaml")


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """A run with an agent that comes with RLPTO."""
    run = tmp_path / "agent"
    run.mkdir()
    (run / "best.zip").write_bytes((REPOSITORY / "configs" / "pretrained" / "synthetic.zip").read_bytes())
    return run


def test_an_agent_and_an_experiment_are_needed(rlpto, agent: Path, tmp_path: Path) -> None:
    on_ray = ("train", "-q", "--cluster", "ray")
    rlpto(*on_ray, SMOKE).assert_refused("expected --resume RUN with an agent")
    rlpto(*on_ray, "--resume", agent).assert_refused("expected an experiment file")
    rlpto(*on_ray, SMOKE, "--resume", tmp_path).assert_refused("no best.zip or last.zip there")
    rlpto("train", SMOKE, "--address", "auto").assert_refused("--address: expected --cluster ray")
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
