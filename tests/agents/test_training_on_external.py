"""An agent that goes on learning on clusters that come one at a time; here they are simulated."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlpto.agents.archive import CHECKPOINT, read_archive
from rlpto.agents.settings import LAST
from rlpto.agents.trained import StartingAgent
from rlpto.agents.training import train
from rlpto.agents.training_loop import TrainingResult
from rlpto.envs.episodes import ExternalSetup
from rlpto.envs.settings import EnvSettings
from rlpto.io.errors import CheckpointError, ConfigError
from rlpto.simulator.cluster import SimulatedCluster
from tests.agents.helpers import IDENTITY, NODES, QUEUE, REWARD, SIMULATOR, TABLES, make_settings, workload

FINE = make_settings(steps=24, ppo={"rollout": 8, "batch_size": 8})


@pytest.fixture
def agent(decided: Path) -> Path:
    """The file of a small agent that was trained in simulation."""
    return decided / LAST


class Clusters:
    """Simulated clusters that pass for real ones; counts how many were begun."""

    def __init__(self) -> None:
        self.begun = 0

    def __call__(self) -> SimulatedCluster:
        self.begun += 1
        jobs = workload(20 + self.begun).jobs
        return SimulatedCluster(NODES, jobs, TABLES, SIMULATOR, self.begun)


def tune(agent: Path, folder: Path, clusters: Clusters | None = None, **more: Any) -> TrainingResult:
    start = StartingAgent(agent)
    setup = ExternalSetup(
        clusters or Clusters(), QUEUE, REWARD, start.env(EnvSettings()), start.trained.start, SIMULATOR.interval
    )
    settings, identity = start.settings(more.pop("settings", FINE)), more.pop("identity", IDENTITY)
    return train(setup, settings, folder, identity, starting_agent=start, **more)


def weights(path: Path) -> dict[str, np.ndarray]:
    return read_archive(path, (CHECKPOINT,)).group("policy")


def after(calls: int) -> Iterator[bool]:
    """False so often, then True for ever."""
    for _ in range(calls):
        yield False
    while True:
        yield True


def test_begins_with_the_agent_and_learns(agent: Path, tmp_path: Path) -> None:
    outcome = tune(agent, tmp_path, stop=lambda: True)
    assert (outcome.finished, outcome.steps) == (False, 0)
    first = weights(tmp_path / LAST)
    outcome = tune(agent, tmp_path)
    assert (outcome.finished, outcome.steps) == (True, 24)
    last = weights(tmp_path / LAST)
    assert all(np.array_equal(first[name], array) for name, array in weights(agent).items())
    assert any(not np.array_equal(first[name], last[name]) for name in first)
    assert StartingAgent(tmp_path / LAST).trained.env.max_jobs == StartingAgent(agent).trained.env.max_jobs
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_stops_within_a_rollout_and_goes_on_from_the_last_update(agent: Path, tmp_path: Path) -> None:
    asked = after(13)  # once before each of two rollouts of 8 steps, and after every step
    outcome = tune(agent, tmp_path, stop=lambda: next(asked))
    assert (outcome.finished, outcome.steps) == (False, 8)
    assert read_archive(tmp_path / LAST, (CHECKPOINT,)).manifest["steps"] == 8
    clusters, asked = Clusters(), after(1)
    tune(agent, tmp_path, clusters, resume=True, stop=lambda: next(asked))
    assert clusters.begun == 1, "one episode and not two"
    outcome = tune(agent, tmp_path, resume=True)
    assert (outcome.finished, outcome.steps) == (True, 24)


def test_what_an_agent_cannot_change_is_refused(agent: Path) -> None:
    starting_agent = StartingAgent(agent)
    with pytest.raises(ConfigError, match=r"env\.max_jobs: 7, but the agent of .* was trained with 6"):
        starting_agent.env(EnvSettings(max_jobs=7))
    assert starting_agent.env(EnvSettings(reward_scale=4.0)).reward_scale == 4.0
    with pytest.raises(CheckpointError, match=r"gone\.zip: cannot read the file: no such file"):
        StartingAgent(agent.with_name("gone.zip"))
