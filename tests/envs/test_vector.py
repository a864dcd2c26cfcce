"""Environments that step together: spaces, infos, episodes, and the baseline rollout that is subtracted."""

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, RecordVideo, RescaleAction, TransformReward
from gymnasium.wrappers import vector as wrappers
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.settings import EpisodeSettings
from rlpto.envs.vector import ClusterVectorEnv
from rlpto.io.errors import ConfigError
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import random_jobs
from .builders import TABLES, WHOLE, make_setup
from .test_cluster_env import on_object

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
    with pytest.raises(ResetNeeded, match=r"^environments \[0, 1\]: no episode yet: call reset"):
        env.step(ZERO)
    env.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match=r"^environments \[1\]: no episode yet"):
        env.step(ZERO)
    np.testing.assert_array_equal(*env.reset(seed=[7, 7])[0]["jobs"])  # a seed each
    for options in (
        {"workload": 0},
        {"reset_mask": [True]},
        {"reset_mask": [0, 1]},
        {"reset_mask": [False, False]},
        {"reset_mask": [True, True], "workload": 0},
    ):
        with pytest.raises(
            ValueError, match=r"^options .*: expected none, or reset_mask with 2 booleans, one of them True"
        ):
            env.reset(options=options)
    with pytest.raises(ValueError, match="1 of them, expected one for each of 2"):
        env.reset(seed=[7])
    with pytest.raises(ConfigError, match="no workloads to learn from"):
        ClusterVectorEnv(make_setup([]), 2)
    with pytest.raises(ConfigError, match=r"queue\.inside: fair_users, but .* served fifo"):
        ClusterVectorEnv(make_setup(queue=QueueSettings(inside="fair_users")), 2)


@given(
    seed=st.integers(0, 1000),
    mode=st.sampled_from(list(AutoresetMode)),
    hold=st.sampled_from([0.0, 150.0]),
    noisy=st.booleans(),
    mtbf=st.sampled_from([0.0, 1.0]),
    decide_on=st.sampled_from(["events", "interval"]),
    baseline=st.sampled_from(["none", "start_heuristic"]),
    classes=st.sampled_from(["strict", "weighted"]),
    scored=st.booleans(),
    reserve=st.sampled_from([None, 200.0]),
)
@settings(max_examples=8)
def test_it_goes_the_way_of_gymnasiums_own_vector_of_single_environments(
    seed, mode, hold, noisy, mtbf, decide_on, baseline, classes, scored, reserve
):
    """All arrays and infos, and the statistics of episodes. One of gymnasium's steps a cluster object if it can."""
    factor = np.random.default_rng(1).uniform(0.5, 2.0, TABLES.rates.shape)
    setup = make_setup(
        tables=replace(TABLES, score_rates=TABLES.rates * factor) if scored else TABLES,
        noisy=noisy,
        simulator=SimulatorSettings(decide_on=decide_on, failures=FailureSettings(mtbf_hours=mtbf, mttr_hours=0.1)),
        queue=QueueSettings(
            classes=classes,
            aging_normal=400,
            aging_low=600,
            reserve_after=reserve,
        ),
        episode=EpisodeSettings(min_hours=0.1, max_hours=0.3),
        hold=hold,
        baseline=baseline,
    )

    def wrapped(env):
        if mode is not AutoresetMode.DISABLED:  # gymnasium's own then takes the mask away before statistics see it
            env = wrappers.RecordEpisodeStatistics(env)
        if mode is AutoresetMode.NEXT_STEP:  # gymnasium's wrappers of observations want that
            env = wrappers.FlattenObservation(env)
        return wrappers.ClipReward(wrappers.RescaleAction(env, -1.0, 1.0), -50.0, 50.0)

    def check_infos(info, expected):
        """What gymnasium's own has of any environment is the same here."""
        for name, mask in expected.items():
            if name in ("_elapsed", "_workload") and (mode is not AutoresetMode.SAME_STEP or name == "_workload"):
                np.testing.assert_array_equal(info[name], mask)
            if name in ("elapsed", "workload", "began", "length"):
                mask = expected[f"_{name}"]
                np.testing.assert_array_equal(info[name][mask], expected[name][mask])
            if name == "terms":
                for part in REWARD_PARTS:
                    mask = expected["terms"][f"_{part}"]
                    np.testing.assert_array_equal(info["terms"][part][mask], expected["terms"][part][mask])
        for mine, its in zip(info.get("final_obs", ()), expected.get("final_obs", ()), strict=True):
            np.testing.assert_equal(mine, its)

    ours = wrapped(ClusterVectorEnv(setup, 3, autoreset_mode=mode))
    single = partial(ClusterEnv, setup)
    first_one = partial(on_object if baseline == "none" else ClusterEnv, setup)
    theirs = wrapped(SyncVectorEnv([first_one, single, single], autoreset_mode=mode))
    (first, info), (its, expected) = ours.reset(seed=seed), theirs.reset(seed=seed)
    kept = copy.deepcopy(first)
    np.testing.assert_equal(first, its)
    check_infos(info, expected)
    assert ours.unwrapped.np_random_seed == theirs.unwrapped.np_random_seed == (seed, seed + 1, seed + 2)
    rng, finished = np.random.default_rng(0), 0
    for _ in range(60):
        actions = rng.uniform(-1, 1, (3, len(ACTION_FEATURES))).astype(np.float32)
        (*one, info), (*other, expected) = ours.step(actions), theirs.step(actions)
        np.testing.assert_equal(one, other)
        check_infos(info, expected)
        over = one[2] | one[3]
        if mode is AutoresetMode.DISABLED:
            finished += int(over.sum())
            if over.any():
                with pytest.raises(ResetNeeded, match="the episode is over: call reset"):
                    ours.step(actions)
                (seen, info), (its, expected) = (env.reset(options={"reset_mask": over}) for env in (ours, theirs))
                np.testing.assert_equal(seen, its)
                check_infos(info, expected)
        noted, same = info.get("episode"), expected.get("episode")
        assert (noted is None) == (same is None)
        if noted is not None:
            finished += int(info["_episode"].sum())
            np.testing.assert_array_equal(noted["r"], same["r"])
            np.testing.assert_array_equal(noted["l"], same["l"])
    assert finished > 3
    np.testing.assert_equal(first, kept, "arrays that were returned stay as they were")


def test_without_a_seed_episodes_can_be_repeated_and_differ() -> None:
    env = ClusterVectorEnv(make_setup(), 2)
    first, seeds = env.reset()[1], env.np_random_seed
    again = ClusterVectorEnv(make_setup(), 2).reset(seed=list(seeds))[1]
    np.testing.assert_equal(first, again)
    other = ClusterVectorEnv(make_setup(), 2)
    other.reset()
    assert other.np_random_seed != seeds


FLAT = wrappers.FlattenObservation
WRAPPERS = {
    "TransformObservation": lambda env: wrappers.TransformObservation(env, lambda seen: seen),
    "FilterObservation": lambda env: wrappers.FilterObservation(env, ["cluster"]),
    "FlattenObservation": FLAT,
    "ReshapeObservation": lambda env: wrappers.ReshapeObservation(
        FLAT(env), (1, FLAT(env).single_observation_space.shape[0])
    ),
    "RescaleObservation": lambda env: wrappers.RescaleObservation(FLAT(env), -1.0, 1.0),
    "DtypeObservation": lambda env: wrappers.DtypeObservation(FLAT(env), np.float16),
    "NormalizeObservation": lambda env: wrappers.NormalizeObservation(FLAT(env)),
    "TransformAction": lambda env: wrappers.TransformAction(env, lambda action: action),
    "ClipAction": wrappers.ClipAction,
    "RescaleAction": lambda env: wrappers.RescaleAction(env, -1.0, 1.0),
    "TransformReward": lambda env: wrappers.TransformReward(env, lambda reward: reward),
    "ClipReward": lambda env: wrappers.ClipReward(env, -1.0, 1.0),
    "NormalizeReward": wrappers.NormalizeReward,
    "VectorizeTransformObservation": lambda env: wrappers.VectorizeTransformObservation(env, FlattenObservation),
    "VectorizeTransformAction": lambda env: wrappers.VectorizeTransformAction(
        env, RescaleAction, min_action=-1.0, max_action=1.0
    ),
    "VectorizeTransformReward": lambda env: wrappers.VectorizeTransformReward(
        env, TransformReward, func=lambda reward: reward
    ),
    "DictInfoToList": wrappers.DictInfoToList,
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "NumpyToTorch": lambda env: wrappers.NumpyToTorch(env),
}
"""All wrappers of gymnasium for vector environments, but those for images, windows, videos (tested below) and jax."""


@pytest.mark.filterwarnings("ignore:.*(observation space|Casting input|overflow|precision lowered)")
@pytest.mark.parametrize("name", WRAPPERS)
def test_gymnasiums_wrappers_of_vector_environments_work(name: str) -> None:
    if name == "NumpyToTorch":
        pytest.importorskip("array_api_compat")
    setup = make_setup(episode=EpisodeSettings(min_hours=0.1, max_hours=0.2))
    env: Any = WRAPPERS[name](ClusterVectorEnv(setup, 2, render_mode="ansi"))
    seen, _ = env.reset(seed=0)
    over = 0
    env.action_space.seed(0)
    for _ in range(15):
        action = env.action_space.sample()
        seen, reward, ended, cut, _ = env.step(torch.as_tensor(action) if name == "NumpyToTorch" else action)
        over += int((ended | cut).sum())
    assert over > 0
    assert all(np.isfinite(np.asarray(part)).all() for part in (seen.values() if isinstance(seen, dict) else [seen]))
    assert len(reward) == len(env.unwrapped.render()) == 2


@pytest.mark.parametrize("count", [None, 2], ids=["single", "vector"])
def test_episodes_can_be_recorded_as_videos(count: int | None, tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    setup = make_setup(episode=EpisodeSettings(min_hours=0.1, max_hours=0.1))
    if count is None:
        env: Any = RecordVideo(ClusterEnv(setup, "rgb_array"), str(tmp_path), episode_trigger=lambda _: True)
    else:
        vector = ClusterVectorEnv(setup, count, render_mode="rgb_array")
        env = wrappers.RecordVideo(vector, str(tmp_path), episode_trigger=lambda _: True)
    env.reset(seed=0)
    for _ in range(8):
        _, _, ended, cut, _ = env.step(env.action_space.sample())
        if count is None and (ended or cut):
            break
    env.close()
    assert [path.stat().st_size > 1000 for path in tmp_path.glob("*.mp4")]
