"""The portfolios and proposals that come with RLPTO work by their names, and say how they were made."""

from __future__ import annotations

import pytest

from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.paths import example_config, example_names
from rlpto.planning.planner import Planner
from rlpto.policies.steering_file import load_portfolio


@pytest.mark.parametrize("name", example_names("portfolios"))
def test_every_portfolio_is_several_vectors(name: str) -> None:
    path = example_config(name)
    assert path is not None
    assert len(load_portfolio(path)) == 8
    assert "benchmarks/planning_learning.py" in path.read_text(encoding="utf-8")


def test_an_experiment_gives_a_planner_the_proposals_that_it_names() -> None:
    config = load_config("quickstart", ["workload.days=8", "workload.windows.hours=4"])
    path = example_config("portfolios/pollux-proposals.zip")
    experiment = Experiment(config)
    policy = experiment.policy(f"planner:proposals={path},portfolio=[],perturbations=0")
    assert isinstance(policy, Planner)
    record = experiment.run_policy(policy, experiment.windows()[0], 0, max_hours=3.0)
    assert len(record.decisions.time) > 3
