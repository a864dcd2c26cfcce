"""The tuned index: its features, its weights file, and how it steers."""

from __future__ import annotations

import numpy as np
import pytest

from rlpto.io.arrays import FloatArray
from rlpto.policies.greedy import hull_steps
from rlpto.policies.index import Index
from rlpto.policies.index_weights import (
    INDEX_FEATURES,
    IndexWeights,
)
from rlpto.policies.registry import make_policy
from rlpto.policies.steering import SCORE_FACTS, fill_score_facts, steer, step_score

from .builders import J, make_state, power

ZERO = dict.fromkeys(INDEX_FEATURES, 0.0)


def gpus(jobs: list[J], capacity: int, **weights: float) -> list[int]:
    return list(Index(weights=IndexWeights(**(ZERO | weights)))(make_state(jobs, capacity)).gpus)


def test_with_stickiness_alone_running_jobs_keep_their_gpus() -> None:
    jobs = [J(highest=8), J(highest=8, held=3), J(highest=8, held=5)]
    assert gpus(jobs, 8, held=1.0) == [0, 3, 5]


def test_without_stickiness_they_do_not() -> None:
    jobs = [J(speed=power(0.9, 8)), J(speed=power(0.9, 8), held=8)]
    assert gpus(jobs, 8, gain=1.0) == [4, 4]


def test_size_dependent_stickiness_holds_on_to_long_jobs_only() -> None:
    short = [J(work=360, speed=power(0.9, 8)), J(work=360, speed=power(0.9, 8), held=8)]
    long = [J(work=360000, speed=power(0.9, 8)), J(work=360000, speed=power(0.9, 8), held=8)]
    assert gpus(short, 8, gain=1.0, held_remaining=0.5) == [8, 0]
    assert gpus(long, 8, gain=1.0, held_remaining=0.5) == [0, 8]


def test_negative_weight_of_remaining_time_prefers_short_jobs() -> None:
    jobs = [J(work=1e6, highest=8), J(work=10, highest=8)]
    assert gpus(jobs, 8, remaining=-0.25) == [0, 8]
    assert gpus(jobs, 8, remaining=0.25) == [8, 0]


def test_a_large_weight_of_the_start_lets_everyone_in_short_jobs_first() -> None:
    jobs = [J(work=10.0**i, speed=power(0.5, 8)) for i in range(4)]
    assert gpus(jobs, 4, gain=1.0, remaining=-1.0, start=10.0) == [1, 1, 1, 1]
    assert gpus(jobs, 2, gain=1.0, remaining=-1.0, start=10.0) == [1, 1, 0, 0]


def test_no_weights_let_a_lower_class_start_before_a_higher_one() -> None:
    jobs = [J(work=1e6, highest=8, priority=0), J(work=10, highest=8, priority=2)]
    assert gpus(jobs, 1, remaining=-2.0, priority=-5.0) == [1, 0]
    held = [J(work=1e6, highest=8, priority=1), J(work=10, highest=8, priority=2, held=8)]
    assert gpus(held, 8, remaining=-2.0, priority=-5.0, held=4.0) == [1, 7]


def test_a_higher_class_goes_first() -> None:
    jobs = [J(work=1e6, highest=8, priority=0), J(work=10, highest=8, priority=2)]
    assert list(make_policy("index")(make_state(jobs, 1)).gpus) == [1, 0]


def test_attained_service_and_age_are_features() -> None:
    assert gpus([J(attained=1e6), J()], 1, attained=-1.0) == [0, 1]
    state = make_state([J(submitted=0.0), J(submitted=3600.0)], 1, time=7200.0)
    assert list(Index(weights=IndexWeights(**(ZERO | {"age": -1.0})))(state).gpus) == [0, 1]


def test_score_is_the_weighted_sum_of_the_documented_features() -> None:
    job = J(work=7200, speed=(1.0, 1.5, 1.8), held=2, attained=3600.0 * 3, priority=0)
    state = make_state([job, J(speed=power(1, 3))], 4, time=1800.0)
    weights = IndexWeights(
        gain=1.1, remaining=-0.3, remaining_squared=0.05, load_remaining=0.07, priority=1.3, age=0.2,
        attained=-0.1, start=0.6, held=0.4, held_remaining=0.15,
    )  # fmt: skip
    jobs = state.jobs
    steps = hull_steps(jobs.speed, jobs.min_gpus, jobs.max_gpus)
    steering = weights.vector()[None]
    facts = np.zeros(len(jobs), SCORE_FACTS)
    fill_score_facts(state.time, state.capacity, jobs.records, steering, jobs.speed, facts)
    facts["class_start"] = 0.0
    scores = [step_score(0, held, jobs.records, jobs.speed, steps, facts) for held in range(4)]
    r, load = np.log(2.0), np.log(1 + 6 / 4)
    base = -0.3 * r + 0.05 * r * r + 0.07 * r * load + 1.3 + 0.2 * np.log(1.5) - 0.1 * np.log(4.0)
    sticky = 0.4 + 0.15 * r
    expected = [base + 0.6 + sticky, base + 1.1 * np.log(0.5) + sticky, base + 1.1 * np.log(0.3), -np.inf]
    assert scores == pytest.approx(expected)


def test_weights_may_differ_by_job() -> None:
    state = make_state([J(speed=power(0.5, 4)), J(speed=power(0.5, 4))], 4)
    weights = np.tile(IndexWeights().vector(), (2, 1))

    def steered(weights: FloatArray) -> list[int]:
        return list(steer(state.time, state.capacity, state.jobs.records, state.jobs.speed, weights))

    assert steered(weights) == steered(weights[:1]) == [2, 2]
    weights[1, INDEX_FEATURES.index("remaining")] = -1.0
    assert steered(weights) == [1, 3]


def test_fixed_jobs_start_whole_or_not_at_all() -> None:
    fixed = J(lowest=3, requested=3, highest=3)
    assert gpus([fixed, fixed], 5, gain=1.0) == [3, 0]
