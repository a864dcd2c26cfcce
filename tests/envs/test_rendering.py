"""Pictures and texts of an environment."""

from __future__ import annotations

import numpy as np
import pytest

from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.rendering import BAR_CHARACTERS, HEIGHT, WIDTH, bar
from rlpto.evaluation.plots import job_colour

from ..builders import job, linear_tables
from .builders import WHOLE, make_setup


def test_an_episode_is_drawn_the_same_every_time():
    pictures = []
    for _ in range(2):
        env = ClusterEnv(make_setup(), render_mode="rgb_array")
        env.reset(seed=2)
        first = env.render()
        for _ in range(10):
            env.step(np.zeros(len(ACTION_FEATURES)))
        pictures.append(env.render())
    assert isinstance(first, np.ndarray)
    assert (first.shape, first.dtype) == ((HEIGHT, WIDTH, 3), np.uint8)
    np.testing.assert_array_equal(*pictures)
    assert not np.array_equal(first, pictures[0])


def test_the_picture_has_the_colours_of_the_jobs():
    setup = make_setup([[job(i, epochs=9.0, gpus=5) for i in range(2)]], tables=linear_tables(1e-4), episode=WHOLE,
                       baseline="none")  # fmt: skip
    env = ClusterEnv(setup, render_mode="rgb_array")
    env.reset(seed=0)
    for _ in range(3):
        env.step(np.zeros(len(ACTION_FEATURES)))
    pixels = env.render()
    for number in range(2):
        colour = np.round(255 * np.array(job_colour(number))).astype(int)
        close = (np.abs(pixels.astype(int) - colour) <= 1).all(axis=-1)
        assert close.mean() > 0.1, "each holds half of the cluster, which fills more than half of the picture"


def test_the_text_tells_of_every_active_job():
    setup = make_setup([[job(0, epochs=3.6, gpus=4, priority=0), job(1, epochs=3.6, gpus=8, priority=2)]],
                       tables=linear_tables(0.001), episode=WHOLE, baseline="none")  # fmt: skip
    env = ClusterEnv(setup, render_mode="ansi")
    env.reset(seed=0)
    env.step(np.zeros(len(ACTION_FEATURES)))
    lines = env.render().splitlines()
    assert "w0  ·  0.02 h  ·  4 of 10 GPUs held  ·  jobs: 1 running, 1 waiting" in lines[0]
    assert lines[1] == "[AAAA......]"
    first, second = (line.split() for line in lines[4:])
    assert first[:5] == ["A", "job0", "high", "4", "4"]
    assert float(first[5]) == pytest.approx((3.6 - 60 * 0.004) / 0.004 / 3600, abs=0.01)
    assert second[:4] == ["job1", "low", "0", "8"]


def test_a_large_cluster_has_a_bar_that_fits():
    text = bar(np.array([100, 28]), 192, 256)
    assert text == f"[{'A' * 25}{'B' * 7}{'.' * 16}{'x' * 16}]  ({BAR_CHARACTERS} of 256 GPUs)"


def test_there_is_nothing_to_see_without_a_render_mode():
    env = ClusterEnv(make_setup())
    env.reset(seed=0)
    assert env.render() is None
    with pytest.raises(ValueError, match="render_mode human: expected rgb_array, ansi or None"):
        ClusterEnv(make_setup(), render_mode="human")
