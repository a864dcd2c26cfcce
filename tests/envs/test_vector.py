"""Environments that step together: spaces, infos, episodes, and the baseline rollout that is subtracted."""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.queues import ConvergingSettings, QueueSettings
from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.settings import EpisodeSettings
from rlpto.envs.vector import ClusterVectorEnv
from rlpto.io.errors import ConfigError
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import random_jobs
from .builders import TABLES, WHOLE, make_setup

ZERO = np.zeros((2, len(ACTION_FEATURES)))


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
    np.testing.assert_array_equal(*env.reset(seed=[7, 7])[0]["jobs"])  # a seed each
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


@given(
    seed=st.integers(0, 1000),
    mode=st.sampled_from([AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]),
    hold=st.sampled_from([0.0, 150.0]),
    noisy=st.booleans(),
    mtbf=st.sampled_from([0.0, 1.0]),
    decide_on=st.sampled_from(["events", "interval"]),
    baseline=st.sampled_from(["none", "start_heuristic"]),
    gained=st.sampled_from([1.0, 0.6]),
    classes=st.sampled_from(["strict", "weighted"]),
    scored=st.booleans(),
)
@settings(max_examples=8)
def test_it_goes_the_way_of_gymnasiums_own_vector_of_single_environments(
    seed, mode, hold, noisy, mtbf, decide_on, baseline, gained, classes, scored
):
    """Of compiled ones and one that is drawn, wrapped too: all arrays, and what statistics of episodes are noted."""
    factor = np.random.default_rng(1).uniform(0.5, 2.0, TABLES.rates.shape)
    setup = make_setup(
        tables=replace(TABLES, score_rates=TABLES.rates * factor) if scored else TABLES,
        noisy=noisy,
        simulator=SimulatorSettings(decide_on=decide_on, failures=FailureSettings(mtbf_hours=mtbf, mttr_hours=0.1)),
        queue=QueueSettings(
            classes=classes, aging_normal=400, aging_low=600, converging=ConvergingSettings(gained=gained)
        ),
        episode=EpisodeSettings(min_hours=0.1, max_hours=0.3),
        hold=hold,
        baseline=baseline,
    )

    def wrapped(env):
        env = wrappers.RecordEpisodeStatistics(env)
        if mode is AutoresetMode.NEXT_STEP:  # gymnasium's wrappers of observations want that
            env = wrappers.FlattenObservation(env)
        return wrappers.ClipReward(wrappers.RescaleAction(env, -1.0, 1.0), -50.0, 50.0)

    ours = wrapped(ClusterVectorEnv(setup, 3, autoreset_mode=mode))
    single = partial(ClusterEnv, setup)
    theirs = wrapped(SyncVectorEnv([partial(single, "ansi"), single, single], autoreset_mode=mode))
    first = ours.reset(seed=seed)[0]
    kept = copy.deepcopy(first)
    np.testing.assert_equal(first, theirs.reset(seed=seed)[0])
    rng, finished = np.random.default_rng(0), 0
    for _ in range(60):
        actions = rng.uniform(-1, 1, (3, len(ACTION_FEATURES))).astype(np.float32)
        (*one, info), (*other, expected) = ours.step(actions), theirs.step(actions)
        np.testing.assert_equal(one, other)
        stepped = expected.get("_elapsed", np.zeros(3, dtype=np.bool_))  # those that have not begun again
        if stepped.any():
            np.testing.assert_array_equal(info["elapsed"][stepped], expected["elapsed"][stepped])
            for part in REWARD_PARTS:
                np.testing.assert_array_equal(info["terms"][part][stepped], expected["terms"][part][stepped])
        for mine, its in zip(info.get("final_obs", ()), expected.get("final_obs", ()), strict=True):
            np.testing.assert_equal(mine, its)
        noted, same = info.get("episode"), expected.get("episode")
        assert (noted is None) == (same is None)
        if noted is not None:
            finished += int(info["_episode"].sum())
            np.testing.assert_array_equal(noted["r"], same["r"])
            np.testing.assert_array_equal(noted["l"], same["l"])
    assert finished > 3
    np.testing.assert_equal(first, kept, "arrays that were returned stay as they were")
