"""The environments as stable-baselines3 sees them, and their state."""

import json
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.sb3 import SB3ClusterEnv
from rlpto.envs.vector import ClusterVectorEnv
from rlpto.io.errors import CheckpointError
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from .builders import make_setup

FAILING = SimulatorSettings(failures=FailureSettings(mtbf_hours=1.0, mttr_hours=0.1))


def actions(seed: int, steps: int, count: int = 3) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=(steps, count, len(ACTION_FEATURES))).astype(np.float32)


def trajectory(env: SB3ClusterEnv, moves: np.ndarray[Any, Any]) -> list[Any]:
    """Everything a learner sees, wall clock apart."""
    seen: list[Any] = []
    for move in moves:
        observation, rewards, over, infos = env.step(move)
        for info in infos:
            if "episode" in info:
                info["episode"].pop("t")
                info["terminal_observation"] = {k: v.tolist() for k, v in info["terminal_observation"].items()}
        seen.append(({k: v.tolist() for k, v in observation.items()}, rewards.tolist(), over.tolist(), infos,
                     env.batch.elapsed.tolist()))  # fmt: skip
    return seen


def as_bytes(state: dict[str, Any]) -> dict[str, bytes]:
    """A state in a form that compares whole: its records hold NaN."""
    return {name: json.dumps(value).encode() if name == "rngs" else value.tobytes() for name, value in state.items()}


def test_it_steps_as_the_vector_environment_does():
    env, vector = SB3ClusterEnv(make_setup(), 3), ClusterVectorEnv(make_setup(), 3, autoreset_mode="SameStep")
    assert env.seed(5) == [5, 6, 7]
    vector.batch.seed(5)
    np.testing.assert_array_equal(env.reset()["jobs"], vector.reset()[0]["jobs"])
    elapsed = env.batch.elapsed
    sums, steps, seconds = np.zeros((3, len(REWARD_PARTS) + 1)), np.zeros(3, dtype=int), np.zeros(3)
    over_in_all = 0
    for move in actions(0, 80):
        observation, rewards, over, infos = env.step(move)
        expected, reward, ended, cut, more = vector.step(move)
        for name, part in observation.items():
            np.testing.assert_array_equal(part, expected[name])
        np.testing.assert_array_equal(rewards, reward.astype(np.float32))
        np.testing.assert_array_equal(over, ended | cut)
        np.testing.assert_array_equal(env.batch.elapsed, more["elapsed"])
        assert env.batch.elapsed is elapsed, "a rollout buffer keeps this very array"
        sums += np.stack([*(more["terms"][name] for name in REWARD_PARTS), reward], axis=1)
        steps += 1
        seconds += more["elapsed"]
        for b, info in enumerate(infos):
            if not over[b]:
                assert info == {}
                continue
            assert info["TimeLimit.truncated"] == cut[b]
            np.testing.assert_array_equal(info["terminal_observation"]["jobs"], more["final_obs"][b]["jobs"])
            assert list(info["terms"].values()) == pytest.approx(sums[b, :-1])
            assert (info["episode"]["r"], info["episode"]["l"]) == (pytest.approx(sums[b, -1]), steps[b])
            assert info["elapsed"] == pytest.approx(seconds[b])
            assert info["workload"] in {"w0", "w1", "w2"}
            sums[b], steps[b], seconds[b] = 0.0, 0, 0.0
            over_in_all += 1
    assert over_in_all >= 3


def test_a_restored_state_goes_on_bit_for_bit(tmp_path):
    setup = make_setup(noisy=True, simulator=FAILING)
    env = SB3ClusterEnv(setup, 3, seed=0)
    env.reset()
    trajectory(env, actions(1, 25))
    state = env.batch.state()
    arrays = {name: value for name, value in state.items() if name != "rngs"}
    np.savez(tmp_path / "state.npz", **arrays)
    rngs = json.loads(json.dumps(state["rngs"]))
    expected = trajectory(env, actions(2, 60))
    assert any(any(over) for _, _, over, _, _ in expected), "new episodes are drawn, too"

    later = SB3ClusterEnv(setup, 3, seed=9)
    later.reset()
    trajectory(later, actions(3, 7))
    with np.load(tmp_path / "state.npz", allow_pickle=False) as saved:
        last = later.batch.restore({**{name: saved[name] for name in saved.files}, "rngs": rngs})
    np.testing.assert_array_equal(last.jobs, state["observation.jobs"])
    assert trajectory(later, actions(2, 60)) == expected


def test_a_foreign_state_is_refused_and_changes_nothing():
    env, larger = SB3ClusterEnv(make_setup(), 2, seed=0), SB3ClusterEnv(make_setup(), 3, seed=0)
    env.reset()
    larger.reset()
    before = env.batch.state()
    with pytest.raises(CheckpointError, match=r"^state of environments: elapsed: shape \(3,\), expected \(2,\)"):
        env.batch.restore(larger.batch.state())
    with pytest.raises(CheckpointError, match=r"world\.jobs\.max_gpus: missing"):
        env.batch.restore({name: value for name, value in before.items() if name != "world.jobs.max_gpus"})
    with pytest.raises(CheckpointError, match="rngs: expected 2 random number generators"):
        env.batch.restore({**before, "rngs": []})
    assert as_bytes(env.batch.state()) == as_bytes(before)


def test_the_interface_of_a_vec_env():
    env = SB3ClusterEnv(make_setup(), 3)
    assert isinstance(env, VecEnv)
    assert env.get_attr("render_mode") == [None] * 3
    assert env.get_attr("num_envs", 1) == [3]
    assert not env.has_attr("something")
    env.set_attr("note", 1)
    assert env.get_attr("note", [0, 2]) == [1, 1]
    with pytest.raises(ValueError, match="share their attributes"):
        env.set_attr("note", 2, 0)
    assert env.env_method("seed", 4, indices=[0]) == [[4, 5, 6]]
    with pytest.raises(AttributeError):
        env.env_method("something")
    assert env.env_is_wrapped(Monitor) == [False] * 3
