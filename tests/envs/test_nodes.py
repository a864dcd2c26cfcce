"""`rlpto/Nodes-v1`: the environment is the evaluation, minute by minute."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import rlpto.envs  # noqa: F401
from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.nodes import NodesBatch, NodesSetup, play_windows
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.nodes_environments import nodes_setup, nodes_vector_env
from rlpto.io.errors import ConfigError
from rlpto.policies.spec import parse_spec
from rlpto.provisioning.registry import make_provisioner
from rlpto.simulator.settings import SimulatorSettings

SMALL = ["workload.windows.hours=6", "workload.windows.limit=2", "simulator.max_hours=6", "provision=reactive"]
"""Of configs/rented.yaml."""


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return Experiment(load_config("rented", SMALL))


@pytest.fixture(scope="module")
def setup(experiment: Experiment) -> NodesSetup:
    return nodes_setup(experiment, "test")


@pytest.mark.parametrize("spec", ["reactive", "average:factor=2,half_life=5"])
def test_what_the_environment_pays_for_is_what_an_evaluation_counts(experiment, setup, spec):
    parts = play_windows(setup, make_provisioner(parse_spec(spec)))
    weights = experiment.config.reward
    for workload, found in zip(setup.workloads, parts, strict=True):
        window, seed = workload.name.split("/")
        run = experiment.run_policy(experiment.policy("index"), window, int(seed), spec=f"index@{spec}").rented
        assert found[REWARD_PARTS.index("time")] == pytest.approx(-weights.time * run.late.sum() / 3600)
        assert found[REWARD_PARTS.index("money")] == pytest.approx(-weights.money * run.idle_cost.sum())
        assert (run.wanted <= 800).all()


def test_an_episode_lasts_until_all_jobs_are_over_where_an_evaluation_does(experiment):
    unlimited = Experiment(experiment.config.model_copy(update={"simulator": SimulatorSettings()}))
    test_what_the_environment_pays_for_is_what_an_evaluation_counts(
        unlimited, nodes_setup(unlimited, "test"), "reactive"
    )


def test_late_hours_are_the_waiting_of_jobs_of_fixed_sizes(experiment):
    """With nodes for all, whatever is asked for, nobody waits but for the start of the first nodes."""
    window = experiment.windows("test")[0]
    seldom, always = (
        experiment.run_policy(experiment.policy("fifo"), window, 0, spec=f"fifo@fixed:share={share}")
        for share in (0.3, 1)
    )
    waited = (always.jobs.start_time - always.jobs.submit_time)[np.isfinite(always.jobs.start_time)]
    assert always.rented.late.sum() == pytest.approx(waited.sum(), rel=0.02, abs=60)
    assert always.rented.idle_cost.sum() > seldom.rented.idle_cost.sum()


def test_action_zero_is_the_heuristic_and_more_rents_more(setup):
    batch = NodesBatch(setup, 2)
    for actions in (np.zeros((2, 1)), np.full((2, 1), 2.0)):
        for b in range(2):
            batch.begin(b, b)
        total = 0.0
        for _ in range(60):
            total += batch.step(actions).reward.sum()
        ready = batch.state_of_nodes().ready.sum()
        if not actions.any():
            zero = total, ready
    assert ready > zero[1]
    for b in range(2):
        batch.begin(b, b)
    again = 0.0
    for _ in range(60):
        state = batch.state_of_nodes()
        again += batch.rent(state, setup.heuristic(state)).reward.sum()
    assert (again, batch.state_of_nodes().ready.sum()) == zero


def test_gymnasium_and_stable_baselines_take_it():
    env = gymnasium.make("rlpto/Nodes-v1", overrides=SMALL)
    check_env(env.unwrapped, skip_render_check=True)
    seen, info = env.reset(seed=3)
    again, same = env.reset(seed=3)
    assert np.array_equal(seen["nodes"], again["nodes"])
    assert info["workload"] == same["workload"]
    seen, reward, ended, cut, info = env.step(np.zeros(1, dtype=np.float32))
    assert reward <= 0.0
    assert info["elapsed"] == 60.0
    assert info["terms"]["time"] + info["terms"]["money"] == pytest.approx(reward)
    assert not ended
    assert not cut


def test_vector_environments_begin_again_by_themselves():
    envs = nodes_vector_env(3, overrides=SMALL, seed=1)
    envs.reset(seed=1)
    cuts = 0
    for _ in range(365):
        _, _, ended, cut, _ = envs.step(np.zeros((3, 1), dtype=np.float32))
        cuts += int((ended | cut).sum())
    assert cuts >= 3


def test_a_cluster_without_rented_nodes_is_refused_and_so_are_rented_ones_elsewhere():
    with pytest.raises(ConfigError, match="no nodes are rented"):
        gymnasium.make("rlpto/Nodes-v1", config="quickstart")
    with pytest.raises(ConfigError, match="expected rlpto/Nodes-v1"):
        gymnasium.make("rlpto/Cluster-v0", config="rented", overrides=SMALL)


def test_actions_of_another_shape_are_refused(setup):
    batch = NodesBatch(setup, 2)
    batch.reset()
    for actions in (np.zeros(2), np.zeros((2, 2)), np.full((2, 1), np.nan)):
        with pytest.raises(ValueError, match=r"expected finite numbers of shape \(2, 1\)"):
            batch.step(actions)
