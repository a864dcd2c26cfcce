"""Environments that step together: spaces, infos, episodes, and the baseline rollout that is subtracted."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

from rlpto.core.queues import QueueSettings
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.settings import EpisodeSettings
from rlpto.envs.vector import ClusterVectorEnv
from rlpto.io.errors import ConfigError
from rlpto.simulator.settings import SimulatorSettings

from ..builders import random_jobs
from .builders import TABLES, WHOLE, make_setup

ZERO = np.zeros((2, len(ACTION_FEATURES)))


def test_arrays_that_were_returned_stay_as_they_were():
    env = ClusterVectorEnv(make_setup(), 2)
    seen = env.reset(seed=[7, 7])[0]
    np.testing.assert_array_equal(*seen["jobs"])  # a seed each
    kept = {name: part.copy() for name, part in seen.items()}
    for _ in range(5):
        env.step(ZERO)
    for name, part in kept.items():
        np.testing.assert_array_equal(seen[name], part)


def test_the_baseline_rollout_takes_what_the_start_heuristic_earns():
    """Over a whole window rewards sum to the difference of the two totals, for any actions."""
    jobs = [random_jobs(7, 30, 8, 10)]

    def total(scale: float, baseline: str, reward_scale: float = 1.0) -> float:
        env = ClusterVectorEnv(make_setup(jobs, episode=WHOLE, baseline=baseline, reward_scale=reward_scale), 1)
        env.reset(seed=0)
        rng, rewards, ended = np.random.default_rng(0), 0.0, False
        while not ended:
            _, reward, over, _, _ = env.step(scale * rng.normal(size=(1, len(ACTION_FEATURES))))
            rewards, ended = rewards + reward[0], over[0]
        return float(rewards)

    usual, wild = total(0.0, "none"), total(2.0, "none")
    assert wild != pytest.approx(usual, rel=1e-3)
    assert total(2.0, "start_heuristic") == pytest.approx(wild - usual, abs=1e-9)
    assert total(0.0, "start_heuristic") == pytest.approx(0.0, abs=1e-9)
    assert total(2.0, "start_heuristic", 4.0) == pytest.approx((wild - usual) / 4.0, abs=1e-9)


def test_jobs_out_of_sight_go_on_being_scheduled():
    """With room for two jobs in an observation the cluster runs just as with room for all."""
    narrow, wide = (ClusterVectorEnv(make_setup(max_jobs=most), 2, seed=0) for most in (2, 64))
    few, all_of_them = narrow.reset()[0], wide.reset()[0]
    hidden = False
    for _ in range(60):
        np.testing.assert_array_equal(few["jobs"], all_of_them["jobs"][:, :2])
        hidden = hidden or bool((all_of_them["mask"].sum(axis=1) > 2).any())
        few, reward, *_ = narrow.step(ZERO)
        all_of_them, expected, *_ = wide.step(ZERO)
        np.testing.assert_array_equal(reward, expected)
    assert hidden


def test_what_cannot_be_is_refused_in_a_line():
    env = ClusterVectorEnv(make_setup(), 2)
    with pytest.raises(ValueError, match=r"options \['workload'\]"):
        env.reset(options={"workload": 0})
    with pytest.raises(ValueError, match="1 of them, expected one for each of 2"):
        env.reset(seed=[7])
    with pytest.raises(ConfigError, match="no workloads to learn from"):
        ClusterVectorEnv(make_setup([]), 2)
    with pytest.raises(ConfigError, match=r"queue\.inside: fair_users, but .* served fifo"):
        ClusterVectorEnv(make_setup(queue=QueueSettings(inside="fair_users")), 2)
    with pytest.raises(ConfigError, match=r"simulator\.share: in an environment jobs share no GPUs"):
        ClusterVectorEnv(make_setup(simulator=SimulatorSettings(share=2)), 2)


@pytest.mark.parametrize(("mode", "scored"), [(AutoresetMode.SAME_STEP, False), (AutoresetMode.NEXT_STEP, True)])
def test_it_goes_the_way_of_gymnasiums_own_vector_of_single_environments(mode, scored):
    """Wrapped too: observations, rewards, ends, and what statistics of episodes are noted."""
    factor = np.random.default_rng(1).uniform(0.5, 2.0, TABLES.rates.shape)
    tables = replace(TABLES, score_rates=TABLES.rates * factor) if scored else TABLES
    setup = make_setup(tables=tables, episode=EpisodeSettings(min_hours=0.1, max_hours=0.3))

    def wrapped(env):
        env = wrappers.RecordEpisodeStatistics(env)
        if mode is AutoresetMode.NEXT_STEP:  # gymnasium's wrappers of observations want that
            env = wrappers.FlattenObservation(env)
        env = wrappers.RescaleAction(env, -1.0, 1.0)
        return wrappers.ClipReward(env, -50.0, 50.0)

    ours = wrapped(ClusterVectorEnv(setup, 3, autoreset_mode=mode))
    theirs = wrapped(SyncVectorEnv([lambda: ClusterEnv(setup)] * 3, autoreset_mode=mode))
    np.testing.assert_equal(ours.reset(seed=4)[0], theirs.reset(seed=4)[0])
    rng, finished = np.random.default_rng(0), 0
    for _ in range(60):
        actions = rng.uniform(-1, 1, (3, len(ACTION_FEATURES))).astype(np.float32)
        one, other = ours.step(actions), theirs.step(actions)
        for mine, expected in zip(one[:4], other[:4], strict=True):
            np.testing.assert_equal(mine, expected)
        noted, same = one[4].get("episode"), other[4].get("episode")
        assert (noted is None) == (same is None)
        if noted is not None:
            finished += int(one[4]["_episode"].sum())
            np.testing.assert_array_equal(noted["r"], same["r"])
            np.testing.assert_array_equal(noted["l"], same["l"])
    assert finished > 3
