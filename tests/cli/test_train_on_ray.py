"""What `rlpto train --cluster ray` refuses before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlpto.cli.main import make_app
from rlpto.io.errors import RlptoError

REPOSITORY = Path(__file__).resolve().parents[2]
SMOKE = str(REPOSITORY / "configs" / "ray_smoke.yaml")


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """A run with an agent that comes with RLPTO."""
    run = tmp_path / "agent"
    run.mkdir()
    (run / "best.zip").write_bytes((REPOSITORY / "configs" / "pretrained" / "synthetic.zip").read_bytes())
    return run


def refused(*arguments: str) -> str:
    error = CliRunner().invoke(make_app(), ["train", *arguments]).exception
    assert isinstance(error, RlptoError), error
    assert "\n" not in str(error)
    return str(error)


def test_an_agent_is_needed_and_an_experiment(agent: Path) -> None:
    assert "expected --resume RUN with an agent" in refused(SMOKE, "--cluster", "ray")
    assert "expected an experiment file" in refused("--cluster", "ray", "--resume", str(agent))
    assert "--address: expected --cluster ray" in refused(SMOKE, "--address", "auto")


def test_a_folder_without_an_agent(tmp_path: Path) -> None:
    assert "no best.zip or last.zip there" in refused(SMOKE, "--cluster", "ray", "--resume", str(tmp_path))


def test_several_agents_are_too_many(agent: Path) -> None:
    for seed in (0, 1):
        (agent / f"seed-{seed}").mkdir()
    assert "holds 2 trainings" in refused(SMOKE, "--cluster", "ray", "--resume", str(agent))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("agent.evolution.generations=5", "takes thousands of episodes"),
        ("agent.envs=8", "there is one real cluster"),
        ("agent.loads=[0.5]", "expected null"),
        ("agent.ppo.rollout=1", "expected 2 or more"),
        ("forecast.mode=perfect", "expected off"),
        ("env.max_jobs=7", "was trained with"),
    ],
)
def test_settings_that_make_no_sense_there(agent: Path, setting: str, message: str) -> None:
    assert message in refused(SMOKE, "--cluster", "ray", "--resume", str(agent), "--set", setting)
    assert not (agent / "ray").exists()


def test_agents_do_not_learn_from_what_jobs_report(tmp_path: Path) -> None:
    run = ("--run-dir", str(tmp_path / "run"))
    assert "agents learn on clusters with exact knowledge" in refused(SMOKE, "--set", "knowledge.mode=online", *run)
    assert "knowledge.remaining learnt" in refused(SMOKE, "--set", "knowledge.remaining=learnt", *run)
    assert not (tmp_path / "run").exists()
