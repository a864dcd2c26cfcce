from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.index_search import Cost, Goal, Place, change, costs_in, places_of
from rlpto.io.errors import ConfigError
from rlpto.policies.index import Index
from rlpto.policies.index_weights import IndexWeights

OTHER = IndexWeights(remaining=-0.7, age=0.4, held=0.3)


@pytest.mark.parametrize("goal", get_args(Goal))
@pytest.mark.parametrize(
    "changes",
    [
        ["knowledge.mode=noisy"],
        ["simulator.failures.mtbf_hours=6", "queue.shrink_lower=false"],
        ["simulator.decide_on=interval", "simulator.placement=most_free", "simulator.epoch_resolution=1"],
    ],
)
def test_costs_are_those_of_the_schedulers_own_loop(project: Path, goal: Goal, changes: list[str]) -> None:
    config = load_config(project / "exp.yaml", [*changes, "workload.windows.hours=2"])
    experiment = Experiment(config)
    window = experiment.windows("train")[0]
    with costs_in([config], goal, 1) as costs:
        (found,) = costs(OTHER, [Place(0, window, 3)], None)
    record = experiment.run_policy(Index(weights=OTHER), window, 3)
    jobs, decisions = record.jobs, record.decisions
    jct = float((jobs.finish_time - jobs.submit_time).sum()) / 3600
    expected = {
        "reward": -float(decisions.reward.sum()),
        "jct": jct,
        "accuracy": (float((jobs.reached_95 - jobs.submit_time).sum()) / 3600) ** 0.8 * jct**0.2,
        "shortfall": (float(decisions.shortfall.sum()) / 3600) ** 0.7 * jct**0.3,
    }
    assert found.cost == pytest.approx(expected[goal], rel=1e-9)
    assert found.jobs == len(jobs.submit_time) > 5


def test_costs_are_the_same_in_one_process_and_in_two(project: Path) -> None:
    overrides = ["workload.windows.limit=2"]
    configs = [load_config(project / "exp.yaml", [*overrides, f"workload.load={load}"]) for load in (0.5, 1.0)]
    places = places_of([Experiment(config) for config in configs], "train")
    assert [place.load for place in places] == [0, 0, 1, 1]
    with costs_in(configs, "reward", 1) as one, costs_in(configs, "reward", 2) as two:
        assert one(OTHER, places, None) == two(OTHER, places, None)


def test_a_queue_that_compiled_code_does_not_know_is_refused(project: Path) -> None:
    config = load_config(project / "exp.yaml", ["queue.inside=shortest_first"])
    place = Place(0, Experiment(config).windows("train")[0], 0)
    with costs_in([config], "jct", 1) as costs, pytest.raises(ConfigError, match=r"queue\.inside: .* fifo"):
        costs(OTHER, [place], None)


def test_loads_count_alike_and_windows_by_their_jobs() -> None:
    places = [Place(0, "a", 0), Place(0, "b", 0), Place(1, "a", 0)]
    base = [Cost(10.0, 1, 1.0), Cost(20.0, 3, 1.0), Cost(40.0, 10, 1.0)]
    now = [Cost(11.0, 1, 1.0), Cost(21.0, 3, 1.0), Cost(30.0, 10, 1.0)]
    assert change("reward", now, base, places) == pytest.approx((2 / 4 - 10 / 10) / 2)
    assert change("jct", now, base, places) == pytest.approx(((0.1 + 0.05) / 2 - 0.25) / 2)
