"""A small evaluation, run once for all tests that read it."""

from pathlib import Path

import pytest

from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.plots import Plot, all_plots
from rlpto.evaluation.runner import Cell, FinishedCell, evaluate
from rlpto.evaluation.tables import Results, results

from .helpers import toy_record

POLICIES = ("fifo", "share", "[optimus] <&> co")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedCell]:
    """Three policies on two windows with three seeds."""
    cells = [Cell(policy, window, seed) for policy in POLICIES for window in ("w0", "w1") for seed in range(3)]
    folder: Path = tmp_path_factory.mktemp("run")
    return evaluate(cells, toy_record, folder, progress=False, config={"toy": 1}, weights=RewardWeights())


@pytest.fixture(scope="session")
def toy_results(finished: list[FinishedCell]) -> Results:
    return results(finished, "noisy")


@pytest.fixture(scope="session")
def toy_plots(toy_results: Results, finished: list[FinishedCell]) -> list[Plot]:
    return all_plots(toy_results, finished, {})
