"""Discounting by time: what a reward counts depends on the hours until it comes, not on the steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlpto.agents.ppo import TimedRolloutBuffer, falling
from rlpto.envs.episodes import action_space, observation_space
from rlpto.envs.settings import EnvSettings

HOUR = 3600.0


def advantages(
    seconds: list[float], rewards: list[float], *, half_life: float, trace: float, ends: int | None = None
) -> np.ndarray:
    """Advantages of one environment with values of 1 everywhere; ends: the step that begins a new episode."""
    settings = EnvSettings(max_jobs=2)
    elapsed = np.zeros(1)
    buffer = TimedRolloutBuffer(
        len(rewards), observation_space(settings), action_space(),
        elapsed=elapsed, half_life=half_life, trace_half_life=trace,
    )  # fmt: skip
    seen = {name: np.zeros((1, *(part.shape or ()))) for name, part in observation_space(settings).items()}
    action = np.zeros((1, *(action_space().shape or ())))
    for step, (passed, reward) in enumerate(zip(seconds, rewards, strict=True)):
        elapsed[:] = passed
        start = np.array([float(step == ends)])
        buffer.add(seen, action, np.array([reward]), start, torch.ones(1), torch.zeros(1))
    buffer.compute_returns_and_advantage(torch.ones(1), np.zeros(1))
    return buffer.advantages[:, 0]


def test_a_reward_counts_half_after_the_half_life_however_many_steps_it_takes() -> None:
    one = advantages([2 * HOUR, HOUR], [0.0, 8.0], half_life=2.0, trace=1e9)
    many = advantages([HOUR / 2] * 4 + [HOUR], [0.0] * 4 + [8.0], half_life=2.0, trace=1e9)
    assert one[0] == pytest.approx(many[0], rel=1e-6)
    # 8 after two hours, and the value of 1 at the end after three, less the value of 1 now.
    assert one[0] == pytest.approx(8.0 * 0.5 + 0.5**1.5 - 1.0, rel=1e-6)


def test_surprises_fade_with_the_trace_half_life() -> None:
    short = advantages([HOUR, HOUR], [0.0, 8.0], half_life=1e9, trace=1.0)
    assert short[1] == pytest.approx(8.0)
    assert short[0] == pytest.approx(4.0)


def test_nothing_is_learned_across_the_end_of_an_episode() -> None:
    cut = advantages([HOUR, HOUR], [1.0, 8.0], half_life=1e9, trace=1e9, ends=1)
    assert cut[0] == pytest.approx(0.0)  # the reward of 1 is what was expected; what follows is another episode


def test_the_learning_rate_falls_to_its_share() -> None:
    rate = falling(2.0, 0.25)
    assert [rate(1.0), rate(0.5), rate(0.0)] == pytest.approx([2.0, 1.25, 0.5])
