"""Environments from configurations, and by name through gymnasium."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

import rlpto.envs  # noqa: F401  registers the environment
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.features import JOB_FEATURES
from rlpto.envs.vector import ClusterVectorEnv
from rlpto.experiments.config import Config, load_config
from rlpto.experiments.environments import EnvPolicy, cluster_env, start_weights, training_setup, vector_env
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.workload import window_seed
from rlpto.io.errors import ConfigError, JobError, PolicyError
from rlpto.performance.profiles import builtin_profiles, profile_yaml
from rlpto.policies.index import Index
from rlpto.policies.index_weights import WEIGHT_NAMES, IndexWeights, save_index_weights
from rlpto.workloads.trace import make_trace, write_trace

from ..small import SMALL

NAME = "rlpto/Cluster-v0"


def at_load(load: float, **changes: object) -> Experiment:
    """The small experiment at another load, with some sections changed."""
    content = SMALL.model_dump() | changes
    content["workload"] = {**content["workload"], "load": load}
    return Experiment(Config.model_validate(content))


def test_gymnasium_makes_one_or_many_by_name():
    env = gymnasium.make(NAME, config=SMALL, baseline="none", render_mode="ansi")
    first = env.reset(seed=1)[0]
    assert env.observation_space.contains(first)
    env.step(env.action_space.sample())
    assert "GPUs held" in env.render()
    again = gymnasium.make(NAME, config=SMALL, baseline="none").reset(seed=1)[0]
    np.testing.assert_array_equal(first["jobs"], again["jobs"])
    assert isinstance(env.unwrapped, ClusterEnv)
    many = gymnasium.make_vec(NAME, num_envs=3, config=SMALL, max_jobs=5, max_episode_steps=2, render_mode="rgb_array")
    assert isinstance(many, ClusterVectorEnv)
    assert many.action_space.shape == (3, len(ACTION_FEATURES))
    seen = many.reset(seed=4)[0]
    single = gymnasium.make(NAME, config=SMALL, max_jobs=5).reset(seed=4)[0]
    np.testing.assert_array_equal(seen["jobs"][0], single["jobs"])
    cuts = [many.step(many.action_space.sample())[3].all() for _ in range(2)]
    assert cuts == [False, True]
    assert [frame.shape for frame in many.render()] == [(360, 640, 3)] * 3


def test_gymnasium_collects_pictures():
    env = gymnasium.make(NAME, config=SMALL, render_mode="rgb_array_list")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert len(env.render()) == 2


@pytest.mark.slow
def test_the_bare_name_is_the_quickstart_and_stable_baselines3_takes_it():
    """By name it asks for pictures, which must not change what is learnt where jobs fit their own speeds."""
    agent = PPO("MultiInputPolicy", NAME, n_steps=16, batch_size=16, n_epochs=1, device="cpu").learn(16)
    assert agent.num_timesteps == 16
    vector = make_vec_env(NAME, n_envs=2, seed=3, env_kwargs={"max_jobs": 4})
    assert vector.reset()["jobs"].shape == (2, 4, len(JOB_FEATURES))
    rewards = []
    for mode in (None, "rgb_array"):
        env = gymnasium.make(NAME, render_mode=mode)
        assert len(env.unwrapped.setup.shape) == 16
        env.reset(seed=1)
        rewards.append([env.step(np.zeros(len(ACTION_FEATURES), np.float32))[1] for _ in range(40)])
    assert rewards[0] == rewards[1]
    assert sum(rewards[0]) == pytest.approx(0.0, abs=1e-9), "action zero earns what the baseline does"


class TestPreparation:
    def test_the_same_config_is_prepared_once_in_a_process(self):
        first, again = cluster_env(SMALL), cluster_env(SMALL)
        assert first.setup is again.setup
        assert cluster_env(SMALL, max_jobs=5).setup is not first.setup
        one, other = first.reset(seed=1), again.reset(seed=2)
        assert one[1] != other[1], "they share nothing that changes"
        np.testing.assert_array_equal(one[0]["jobs"], cluster_env(SMALL).reset(seed=1)[0]["jobs"])

    def test_a_changed_file_is_read_again(self, tmp_path: Path):
        config, weights = tmp_path / "config.yaml", tmp_path / "weights.yaml"
        small = "cluster: {nodes: [{gpus: 8}]}\nworkload: {days: 1, load: 0.5, windows: {hours: 2}}\n"
        save_index_weights(IndexWeights().array(), weights)
        config.write_text(small + "env: {start: weights.yaml}\n")
        first = cluster_env(config)
        assert cluster_env(config).setup is first.setup
        save_index_weights(IndexWeights(gain=2.0).array(), weights)
        second = cluster_env(config)
        assert second.setup.start[0] == 2.0
        config.write_text(small.replace("8", "4") + "env: {start: weights.yaml}\n")
        assert cluster_env(config).setup.shape.capacity == 4

    def test_a_changed_file_in_a_folder_is_read_again(self, tmp_path: Path):
        for name, profile in builtin_profiles().items():
            (tmp_path / f"{name}.yaml").write_text(profile_yaml(profile))
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        given = {"config": SMALL, "overrides": {"profiles.folder": str(tmp_path)}}
        first = cluster_env(**given)
        assert cluster_env(**given).setup is first.setup
        with (tmp_path / f"{name}.yaml").open("a") as file:
            file.write("# edited\n")
        assert cluster_env(**given).setup is not first.setup


class TestOverrides:
    def test_a_list_a_mapping_and_a_nested_mapping_mean_the_same(self):
        path = Path("quickstart")
        one = load_config(path, ["workload.load=1.1", "cluster.nodes.0.count=4", "workload.windows.hours=8"])
        dotted = {"workload.load": 1.1, "cluster.nodes.0.count": 4, "workload.windows.hours": 8}
        nested = {"workload": {"load": 1.1, "windows": {"hours": 8}}, "cluster.nodes": {"0": {"count": 4}}}
        assert one == load_config(path, dotted) == load_config(path, nested)
        assert (one.workload.load, len(one.cluster.shape)) == (1.1, 4)
        assert load_config(SMALL, {"workload.load": 1.1}).workload.load == 1.1

    def test_environments_take_them(self):
        assert cluster_env(SMALL, overrides=["cluster.nodes.0.count=2"]).setup.shape.capacity == 8
        vector = gymnasium.make_vec(NAME, num_envs=2, config=SMALL, overrides={"env": {"max_jobs": 3}})
        assert vector.single_observation_space["mask"].shape == (3,)


class Zero(EnvPolicy):
    """Action zero."""

    config = SMALL
    settings = {"max_jobs": 7}  # noqa: RUF012

    def act(self, observation):
        """Nothing is moved."""
        assert observation["mask"].shape == (7,)
        return np.zeros(len(ACTION_FEATURES), np.float32)


class Leaning(Zero):
    """An action that differs from zero."""

    def act(self, observation):
        """The first weight is moved."""
        return super().act(observation) + np.eye(1, len(ACTION_FEATURES))[0]


class Counting(Zero):
    """An agent with a memory."""

    acts = 0

    def act(self, observation):
        """The number of actions is kept."""
        self.acts += 1
        return super().act(observation)


class TestPolicies:
    def test_an_agent_of_the_environment_decides_for_a_cluster_as_it_does_there(self):
        experiment, window = Experiment(SMALL), "train-000"
        jobs = [experiment.run_policy(policy, window, 0).jobs for policy in (Zero(), Index(), Leaning())]
        np.testing.assert_array_equal(jobs[0].finish_time, jobs[1].finish_time)
        assert not np.array_equal(jobs[0].finish_time, jobs[2].finish_time)
        whole = {"min_hours": 1e6, "max_hours": 1e6, "warm_start": 0}
        env = cluster_env(SMALL, episode=whole, baseline="none")
        env.batch.begin(0, [workload.name for workload in env.setup.workloads].index(f"{window}/0"))
        ended = False
        while not ended:
            ended = env.batch.step(np.eye(1, len(ACTION_FEATURES))).ended[0]
        np.testing.assert_array_equal(env.batch.clusters.jobs(0)["finish_time"], jobs[2].finish_time)

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
    def test_a_copy_changes_nothing_in_the_original(self, copied: Callable[[EnvPolicy], EnvPolicy]):
        policy = Counting()
        Experiment(SMALL).run_policy(policy, "train-000", 0)
        before, other = policy.acts, copied(policy)
        Experiment(SMALL).run_policy(other, "train-000", 0)
        assert (policy.acts, other.acts) == (before, 2 * before)

    def test_an_action_of_another_shape_is_named(self):
        class Wrong(Zero):
            def act(self, observation):
                return super().act(observation)[:3]

        with pytest.raises(PolicyError, match=r"policy Wrong: action of shape \(3,\): expected \(18,\)"):
            Experiment(SMALL).run_policy(Wrong(), "train-000", 0)

    def test_an_action_that_is_no_array_is_named(self):
        class Learning(Zero):
            def act(self, observation):
                return torch.from_numpy(super().act(observation)).requires_grad_()

        with pytest.raises(PolicyError, match=r"policy Learning: action: expected 18 numbers: .*detach\(\)"):
            Experiment(SMALL).run_policy(Learning(), "train-000", 0)


class TestSetup:
    def test_workloads_are_those_that_policies_are_compared_on(self):
        experiment = at_load(0.8, knowledge={"mode": "noisy"})
        setup = training_setup(experiment, "test", seeds=(3, 4))
        assert [workload.name for workload in setup.workloads[:2]] == ["test-000/3", "test-000/4"]
        own = setup.workloads[1]
        cluster = experiment.cluster("test-000", 4)
        assert own.jobs == cluster.jobs
        assert own.seed == window_seed("test-000", 4)
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

    def test_their_jobs_must_be_there(self, tmp_path: Path):
        columns = {"submit_time": 600.0 * np.arange(60), "gpus": np.ones(60, dtype=np.int64)}
        write_trace(make_trace(columns, source="no durations"), tmp_path / "jobs.parquet")
        workload = {"source": "trace", "path": str(tmp_path / "jobs.parquet"), "windows": {"hours": 1}}
        with pytest.raises(JobError, match="train windows: the mapping has left no jobs"):
            training_setup(Experiment(Config.model_validate({"workload": workload})))


def test_the_start_is_the_plain_index_or_what_a_file_says(tmp_path: Path):
    np.testing.assert_array_equal(start_weights(SMALL), IndexWeights().array())
    config = tmp_path / "here" / "config.yaml"
    config.parent.mkdir()
    config.write_text("env: {start: ../weights.yaml}\n")
    index_weights = np.linspace(-1, 1, len(WEIGHT_NAMES))
    save_index_weights(index_weights, tmp_path / "weights.yaml")
    np.testing.assert_array_equal(start_weights(load_config(config)), index_weights)


@pytest.mark.parametrize(
    ("make", "arguments", "said"),
    [
        (cluster_env, {"strat": "x.yaml"}, "environment: strat: unknown key, did you mean start?"),
        (cluster_env, {"start": "~nobody-here/x"}, "environment: start: ~nobody-here/x: no home folder of that user"),
        (cluster_env, {"start": {"gain": 1.0}}, "environment: start: expected a path, got {'gain': 1.0}"),
        (cluster_env, {"max_jobs": {"gain": 1.0}}, "environment: max_jobs: expected a valid integer, got {'gain'"),
        (cluster_env, {"split": "other"}, "split: expected train, validation or test, got 'other'"),
        (cluster_env, {"seeds": 5}, "seeds: expected a list of integers, got 5"),
        (cluster_env, {"seeds": []}, "seeds: expected one integer or more, got none"),
        (cluster_env, {"config": 5}, "config: expected the path of an experiment file"),
        (cluster_env, {"episode": {"min_hours": 9}}, "environment: episode: min_hours 9 is above max_hours 4"),
        # Zero environments ended the process by a segmentation fault.
        (vector_env, {"num_envs": 0}, "num_envs: expected an integer, 1 to 10,000, got 0"),
        (vector_env, {"num_envs": 1.5}, "num_envs: expected an integer, 1 to 10,000, got 1.5"),
        (vector_env, {"seed": -1}, "seed: expected an integer, 0 to"),
        (vector_env, {"max_episode_steps": 0}, "max_episode_steps: expected an integer, 1 to"),
        (vector_env, {"autoreset_mode": "x"}, "autoreset_mode: expected one of NextStep, SameStep, Disabled, got 'x'"),
        (
            cluster_env,
            {"overrides": ["workload.lod=1"]},
            "overrides: workload.lod: unknown key, did you mean workload.load?",
        ),
        (
            cluster_env,
            {"overrides": {"workload.lod": 1}},
            "overrides: workload.lod: unknown key, did you mean workload.load?",
        ),
        (cluster_env, {"overrides": {"workload": {"load": "x"}}}, "overrides: workload.load: "),
        (
            cluster_env,
            {"overrides": {"cluster.nodes.7.gpus": 1}},
            "overrides cluster.nodes.7.gpus=1: the list there has 1",
        ),
        (cluster_env, {"overrides": ["load"]}, "overrides load: expected key=value, such as simulator.interval=30"),
        (cluster_env, {"overrides": "load=1"}, "overrides: expected a list of key=value, or a mapping, got"),
        (cluster_env, {"overrides": [1]}, "overrides: expected a list of key=value, or a mapping, got [1]"),
    ],
)
def test_what_is_wrong_is_named(make: Callable[..., object], arguments: dict[str, object], said: str):
    with pytest.raises(ConfigError) as error:
        make(**{"config": SMALL} | arguments)
    assert str(error.value).startswith(said)
