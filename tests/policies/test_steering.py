"""Steering by the slope of accuracy ahead."""

from __future__ import annotations

import numpy as np
import pytest

from rlpto.policies.index import Index
from rlpto.policies.index_weights import (
    INDEX_FEATURES,
    IndexWeights,
)
from rlpto.policies.steering import FINISH_VALUE, SCORE_FACTS, fill_score_facts, steer
from tests.builders import job, make_cluster, make_tables

CURVE = np.array([0.1, 0.7, 0.85, 0.89, 0.9])
ZERO = dict.fromkeys(INDEX_FEATURES, 0.0) | {"gain": 1.0}


def state_of(progress: list[float], gpus: int = 8):
    """Jobs of one type that have done so many of four epochs."""
    tables = make_tables([[[[0.01 * k**0.7] * 4 for k in range(1, 9)]]], accuracy=CURVE)
    jobs = [job(i, epochs=4.0, max_gpus=8) for i in range(len(progress))]
    cluster = make_cluster(jobs, tables, [gpus])
    cluster.store.progress[:] = progress
    return cluster.state()


def test_gpus_go_from_a_converged_job_to_one_that_has_yet_to_learn() -> None:
    """Alike in all else, since work that is left is not looked at here."""
    state = state_of([0.0, 3.5])
    assert list(Index(weights=IndexWeights(**ZERO))(state).gpus) == [4, 4]
    early, late = Index(weights=IndexWeights(**(ZERO | {"slope": 1.0})))(state).gpus
    assert early >= 6
    assert late == 8 - early
    assert list(Index(weights=IndexWeights(**(ZERO | {"slope_start": 1.0})))(state_of([3.5, 0.0], 1)).gpus) == [0, 1]


def test_the_feature_is_the_log_of_what_the_module_says() -> None:
    state = state_of([0.0, 1.5, 3.5])
    facts, plain = np.zeros(3, SCORE_FACTS), np.zeros(3, SCORE_FACTS)
    for weights, out in ((ZERO | {"slope": 2.0, "slope_start": 0.5}, facts), (ZERO, plain)):
        steering = IndexWeights(**weights).vector()[None]
        fill_score_facts(0.0, 8, state.jobs.records, steering, state.jobs.speed, out)
    # Best stretches: the first epoch alone; the second; and for the last job its end.
    missing = (0.9 - np.interp([0.0, 1.5, 3.5], np.arange(5), CURVE)) / 0.8
    ahead = [0.6 / 0.8 * 4, 0.15 / 0.8 * 3, 0.01 / 0.8]
    expected = np.log([ahead[0], ahead[1], FINISH_VALUE + missing[2]])
    assert facts["base"] - plain["base"] == pytest.approx(2.0 * expected)
    assert facts["start"] - plain["start"] == pytest.approx(0.5 * expected)


def test_weights_of_zero_change_nothing() -> None:
    state, rng = state_of([0.0, 0.5, 1.5, 2.5, 3.5]), np.random.default_rng(0)
    for _ in range(20):
        weights = IndexWeights(**dict(zip(INDEX_FEATURES, rng.normal(size=len(INDEX_FEATURES)), strict=True))).vector()
        weights[-2:] = 0.0
        blind = state.jobs.records.copy()
        blind["accuracy_ahead"] = blind["accuracy"] = np.nan
        decided = [steer(0.0, 8, view, state.jobs.speed, weights[None]) for view in (state.jobs.records, blind)]
        np.testing.assert_array_equal(*decided)
