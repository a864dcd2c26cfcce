from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.index_search import Cost, Goal, Place, change, compiled_cost, costs_in, places_of, simulated_cost
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
@pytest.mark.parametrize("max_hours", [None, 0.4])
def test_compiled_and_simulated_costs_agree(
    project: Path, goal: Goal, changes: list[str], max_hours: float | None
) -> None:
    experiment = Experiment(load_config(project / "exp.yaml", [*changes, "workload.windows.hours=2"]))
    place = Place(0, experiment.windows("train")[0], 3)
    compiled = compiled_cost(experiment, goal, OTHER, place, max_hours)
    simulated = simulated_cost(experiment, goal, OTHER, place, max_hours)
    assert compiled.cost == pytest.approx(simulated.cost, rel=1e-9)
    assert compiled.jobs == simulated.jobs > 5
    if max_hours is None:
        assert simulated.hours <= compiled.hours + 1e-9 <= simulated.hours + 60 / 3600 + 1e-6  # the next decision point


def test_costs_are_the_same_in_one_process_and_in_two(project: Path) -> None:
    overrides = ["workload.windows.limit=2"]
    configs = [load_config(project / "exp.yaml", [*overrides, f"workload.load={load}"]) for load in (0.5, 1.0)]
    places = places_of([Experiment(config) for config in configs], "train")
    assert [place.load for place in places] == [0, 0, 1, 1]
    with costs_in(configs, "reward", 1) as one, costs_in(configs, "reward", 2) as two:
        assert one(OTHER, places, None) == two(OTHER, places, None)


def test_a_queue_that_compiled_code_does_not_know_is_simulated(project: Path) -> None:
    config = load_config(project / "exp.yaml", ["queue.inside=shortest_first"])
    place = Place(0, Experiment(config).windows("train")[0], 0)
    with costs_in([config], "jct", 1) as costs:
        found = costs(OTHER, [place], None)
    assert found == [simulated_cost(Experiment(config), "jct", OTHER, place, None)]


def test_loads_count_alike_and_windows_by_their_jobs() -> None:
    places = [Place(0, "a", 0), Place(0, "b", 0), Place(1, "a", 0)]
    base = [Cost(10.0, 1, 1.0), Cost(20.0, 3, 1.0), Cost(40.0, 10, 1.0)]
    now = [Cost(11.0, 1, 1.0), Cost(21.0, 3, 1.0), Cost(30.0, 10, 1.0)]
    assert change("reward", now, base, places) == pytest.approx((2 / 4 - 10 / 10) / 2)
    assert change("jct", now, base, places) == pytest.approx(((0.1 + 0.05) / 2 - 0.25) / 2)
