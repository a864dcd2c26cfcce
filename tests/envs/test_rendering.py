"""An environment as text."""

from __future__ import annotations

import numpy as np
import pytest

from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.rendering import BAR_CHARACTERS, bar

from ..builders import job, linear_tables
from .builders import WHOLE, make_setup


def test_the_text_shows_every_active_job():
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
    with pytest.raises(ValueError, match="render_mode human: expected ansi or None"):
        ClusterEnv(make_setup(), render_mode="human")
