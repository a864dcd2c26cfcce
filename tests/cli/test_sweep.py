"""`rlpto sweep`: what a space may be. The trials themselves are trainings, see test_train."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.experiments.sweep import Range, read_space


def test_a_space_has_choices_and_ranges(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(
        "agent.ppo.learning_rate: {low: 1e-4, high: 1e-2, log: true}\n"
        "agent.network.width: [16, 32]\n"
        "agent.ppo.epochs: {low: 2, high: 6}\n"
    )
    assert read_space(space) == {
        "agent.ppo.learning_rate": Range(low=1e-4, high=1e-2, log=True),
        "agent.network.width": [16, 32],
        "agent.ppo.epochs": Range(low=2, high=6),
    }


@pytest.mark.parametrize(
    "wrong", ["3", "[]", "{low: 2}", "{low: 3, high: 2}", "{low: 0, high: 1, log: true}", "{low: a, high: b}"]
)
def test_anything_else_is_refused_with_its_line(rlpto, project: Path, wrong: str) -> None:
    (project / "space.yaml").write_text(f"agent.ppo.epochs: [1, 2]\nagent.ppo.clip: {wrong}\n")
    rlpto("sweep", "exp.yaml", "--space", "space.yaml").assert_refused(
        "space.yaml:2", "agent.ppo.clip", "low below high"
    )
    assert not (project / "runs").exists()


def test_it_says_what_it_waits_for_before_that_begins(rlpto, project: Path) -> None:
    (project / "space.yaml").write_text("agent.ppo.clip: [0.1, 0.2]\n")
    answer = rlpto("sweep", "exp.yaml", "--space", "space.yaml", "--set", "workload.windows.validation=0")
    waited, refused = answer.err.splitlines()
    assert waited == "rlpto: checking that trials can be compared on validation windows"
    assert refused.startswith("rlpto: error: exp.yaml: no validation windows")


def test_a_key_that_the_configuration_lacks_is_refused(rlpto, project: Path) -> None:
    (project / "space.yaml").write_text("agent.ppo.clib: [0.1, 0.2]\n")
    rlpto("sweep", "exp.yaml", "--space", "space.yaml").assert_refused("space.yaml: agent.ppo.clib", "agent.ppo.clip")
    (project / "space.yaml").write_text("agent.ppo.clip: [0.1, 0.2]\n")
    rlpto("sweep", "exp.yaml", "--space", "space.yaml", "--resume").assert_refused("runs/small-sweep")
