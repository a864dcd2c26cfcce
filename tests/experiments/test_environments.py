"""Environments from configurations, and by name through gymnasium."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import rlpto.envs  # noqa: F401  registers the environment
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.vector import ClusterVectorEnv
from rlpto.experiments.config import Config, load_config
from rlpto.experiments.environments import cluster_env, start_weights, training_setup, vector_env
from rlpto.experiments.experiment import Experiment
from rlpto.io.errors import ConfigError
from rlpto.policies.index_weights import STEERING_FEATURES, IndexWeights, save_weights

from ..small import SMALL

NAME = "rlpto/Cluster-v0"


def at_load(load: float, **changes: object) -> Experiment:
    """The small experiment at another load, with some sections changed."""
    content = SMALL.model_dump() | changes
    content["workload"] = {**content["workload"], "load": load}
    return Experiment(Config.model_validate(content))


def test_gymnasium_makes_one_or_many_by_name():
    env = gymnasium.make(NAME, baseline="none", render_mode="ansi")
    first = env.reset(seed=1)[0]
    assert env.observation_space.contains(first)
    env.step(env.action_space.sample())
    assert "GPUs held" in env.render()
    again = gymnasium.make(NAME, baseline="none").reset(seed=1)[0]
    np.testing.assert_array_equal(first["jobs"], again["jobs"])
    assert isinstance(env.unwrapped, ClusterEnv)
    many = gymnasium.make_vec(NAME, num_envs=3, max_jobs=5, max_episode_steps=2)
    assert isinstance(many, ClusterVectorEnv)
    assert many.action_space.shape == (3, len(ACTION_FEATURES))
    seen = many.reset(seed=4)[0]
    single = gymnasium.make(NAME, max_jobs=5).reset(seed=4)[0]
    np.testing.assert_array_equal(seen["jobs"][0], single["jobs"])
    cuts = [many.step(many.action_space.sample())[3].all() for _ in range(2)]
    assert cuts == [False, True]


class TestSetup:
    def test_workloads_are_those_that_policies_are_compared_on(self):
        experiment = at_load(0.8, knowledge={"mode": "noisy"})
        setup = training_setup(experiment, "test", seeds=(3, 4))
        assert [workload.name for workload in setup.workloads[:2]] == ["test-000/3", "test-000/4"]
        own = setup.workloads[1]
        cluster = experiment.cluster("test-000", 4)
        assert own.jobs == cluster.jobs
        assert own.seed == experiment.window_seed("test-000", 4)
        assert own.hours == 8.0
        np.testing.assert_array_equal(own.noise.speed, cluster._noise.speed)

    def test_several_loads_share_their_speed_tables(self):
        several = [at_load(load) for load in (0.3, 1.1)]
        setup = training_setup(several)
        assert {workload.name.split("/")[0] for workload in setup.workloads} == {"0.3", "1.1"}
        names = set(setup.tables.types)
        assert all(set(experiment.tables().types) <= names for experiment in several)
        env = ClusterEnv(replace(setup, settings=setup.settings.model_copy(update={"baseline": "none"})))
        for number, workload in enumerate(setup.workloads):
            env.batch.begin(0, number)
            assert env.workload == workload.name

    def test_windows_must_be_there(self):
        with pytest.raises(ConfigError, match="no validation windows with jobs"):
            training_setup(at_load(0.5, workload={**SMALL.workload.model_dump(), "windows":
                                                  {"hours": 8, "train": 1, "validation": 0, "test": 0}}),
                           "validation")  # fmt: skip


def test_the_start_is_the_plain_index_or_what_a_file_says(tmp_path: Path):
    np.testing.assert_array_equal(start_weights(SMALL), IndexWeights().vector())
    config = tmp_path / "here" / "config.yaml"
    config.parent.mkdir()
    config.write_text("env: {start: ../weights.yaml}\n")
    steering = np.linspace(-1, 1, len(STEERING_FEATURES))
    save_weights(steering, tmp_path / "weights.yaml")
    np.testing.assert_array_equal(start_weights(load_config(config)), steering)


@pytest.mark.parametrize(
    ("make", "arguments", "said"),
    [
        (cluster_env, {"strat": "x.yaml"}, "environment: strat: unknown key, did you mean start?"),
        (cluster_env, {"start": "~nobody-here/x"}, "environment: start: ~nobody-here/x: no home folder of that user"),
        (cluster_env, {"split": "other"}, "split: expected train, validation or test, got 'other'"),
        (cluster_env, {"seeds": 5}, "seeds: expected a list of integers, got 5"),
        (cluster_env, {"config": 5}, "config: expected the path of an experiment file"),
        (cluster_env, {"episode": {"min_hours": 9}}, "environment: episode: min_hours 9 is above max_hours 4"),
        # Zero environments ended the process by a segmentation fault.
        (vector_env, {"num_envs": 0}, "num_envs: expected an integer, 1 to 10,000, got 0"),
        (vector_env, {"num_envs": 1.5}, "num_envs: expected an integer, 1 to 10,000, got 1.5"),
        (vector_env, {"seed": -1}, "seed: expected an integer, 0 to"),
        (vector_env, {"max_episode_steps": 0}, "max_episode_steps: expected an integer, 1 to"),
        (vector_env, {"autoreset_mode": "Disabled"}, "autoreset_mode: expected SameStep or NextStep, got 'Disabled'"),
    ],
)
def test_what_is_wrong_is_named(make: Callable[..., object], arguments: dict[str, object], said: str):
    with pytest.raises(ConfigError) as error:
        make(**arguments)
    assert str(error.value).startswith(said)
