"""The environment over plans: true to gymnasium's rules, without chance, and its rewards are what candidates save."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from rlpto.core.cluster import Node
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.plan_env import PERCENT, PlanEnv, look, proposed
from rlpto.envs.settings import EnvSettings
from rlpto.experiments.config import KnowledgeSettings
from rlpto.experiments.environments import SMALL
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ConfigError
from rlpto.planning.branching import Branch, Keeper, cost_matrix, drawn_candidates
from rlpto.planning.planner import Planner, PlannerOptions
from rlpto.planning.portfolio import always_tried
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import random_jobs, random_tables

TIME_ONLY = RewardWeights(accuracy=0, time=1, resources=0, rescale=0)
WORK = 400_000
SEEN = EnvSettings(max_jobs=8)
NOISY = KnowledgeSettings(mode="noisy")
NOTHING = np.zeros(len(ACTION_FEATURES), dtype=np.float32)


def kept_states() -> list[Branch]:
    """States of a small run in which plans are made."""
    planner = Planner(PlannerOptions(portfolio=(), perturbations=2), QueueSettings(), SimulatorSettings(), TIME_ONLY)
    keeper = Keeper(planner, 1.0, look(SEEN))
    jobs = [replace(one, submit_time=one.submit_time / 50) for one in random_jobs(4, 14, 8, 8)]
    cluster = SimulatedCluster((Node(4), Node(4)), jobs, random_tables(4, 8, 13.0), SimulatorSettings())
    run(cluster, keeper, QueueSettings(), TIME_ONLY, seed=5)
    return keeper.kept


@pytest.fixture(scope="module")
def branches() -> list[Branch]:
    return kept_states()


@pytest.fixture(scope="module")
def anchors(branches: list[Branch]) -> FloatArray:
    return drawn_candidates(branches[0].base[None], 3, 0.6, seed=2)[1:]


def test_it_keeps_the_rules_of_gymnasium(branches: list[Branch], anchors: FloatArray) -> None:
    check_env(PlanEnv(branches, SEEN, anchors, WORK, TIME_ONLY), skip_render_check=True)


def test_rewards_of_an_episode_add_up_to_what_all_candidates_save(branches: list[Branch], anchors: FloatArray) -> None:
    env = PlanEnv(branches, SEEN, anchors, WORK, TIME_ONLY)
    costs, standing = cost_matrix(branches, anchors, WORK, TIME_ONLY), always_tried(branches, WORK, TIME_ONLY)
    for i in range(len(branches)):
        observation, info = env.reset(seed=1, options={"branch": i})
        assert info["best"] == standing[i]
        rewards = []
        for slot in range(3):
            assert observation["slot"].tolist() == [float(slot == k) for k in range(3)]
            observation, reward, ended, _, _ = env.step(NOTHING)
            rewards.append(reward)
        assert ended
        assert sum(rewards) == pytest.approx(PERCENT * (standing[i] - min(costs[i].min(), standing[i])))
    with pytest.raises(ResetNeeded):
        env.step(NOTHING)


def test_an_action_is_a_share_of_the_weights_of_its_anchor() -> None:
    anchors = np.array([[2.0, -4.0, 0.0]])
    np.testing.assert_allclose(proposed(anchors, np.array([[0.5, 0.5, 1.0]])), [[3.0, -2.0, 0.3]])
    np.testing.assert_array_equal(proposed(anchors, np.zeros((1, 3))), anchors)


def test_without_states_it_says_so(anchors: FloatArray) -> None:
    with pytest.raises(ConfigError, match="no states"):
        PlanEnv([], SEEN, anchors, WORK, TIME_ONLY)


def test_gymnasium_makes_one_of_an_experiment() -> None:
    env = gymnasium.make("rlpto/Plan-v0", windows=1, slots=2, max_jobs=8)
    first, info = env.reset(seed=3)
    assert first["jobs"].shape[0] == 8
    assert info["best"] <= 1.0
    _, reward, ended, _, _ = env.step(NOTHING)
    assert (reward, ended) == (0.0, False), "the base saves nothing: it is always tried"
    with pytest.raises(ConfigError, match=r"knowledge\.mode"):
        gymnasium.make("rlpto/Plan-v0", config=SMALL.model_copy(update={"knowledge": NOISY}))
