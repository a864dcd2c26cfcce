"""Branching rollouts have no chance in them, and a portfolio chosen on them is better than its parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Node
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import FloatArray
from rlpto.planning.branching import Branch, Keeper, cost_matrix, drawn_candidates, relative_costs
from rlpto.planning.planner import Planner, PlannerOptions
from rlpto.planning.portfolio import always_tried, choose_greedily, refine
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import random_jobs, random_tables

TIME_ONLY = RewardWeights(accuracy=0, time=1, resources=0, rescale=0)
WORK = 400_000


def kept_states(share: float = 1.0) -> tuple[list[Branch], FloatArray]:
    """States of a run, and the finish times of its jobs."""
    options = PlannerOptions(portfolio=(), perturbations=2)
    planner = Keeper(Planner(options, QueueSettings(), SimulatorSettings(), TIME_ONLY), share, lambda s: len(s.jobs))
    jobs = [replace(one, submit_time=one.submit_time / 50) for one in random_jobs(4, 14, 8, 8)]
    cluster = SimulatedCluster((Node(4), Node(4)), jobs, random_tables(4, 8, 13.0), SimulatorSettings())
    record = run(cluster, planner, QueueSettings(), TIME_ONLY, seed=5)
    return planner.kept, record.jobs.finish_time


@pytest.fixture(scope="module")
def branches() -> list[Branch]:
    return kept_states()[0]


def test_keeping_states_changes_no_plan(branches: list[Branch]) -> None:
    few, finish = kept_states(0.3)
    assert 0 < len(few) < len(branches)
    np.testing.assert_array_equal(finish, kept_states(1.0)[1])
    assert all(branch.seen > 1 for branch in branches), "what the keeper looked at is kept beside the state"


def test_what_a_candidate_costs_in_a_state_depends_on_nothing_else(branches: list[Branch]) -> None:
    candidates = drawn_candidates(branches[0].base[None], 10, 0.4, seed=1)
    matrix = cost_matrix(branches, candidates, WORK, TIME_ONLY)
    np.testing.assert_array_equal(matrix[:, 0], 1.0)
    assert matrix.std(axis=1).max() > 0.001
    backwards = cost_matrix(branches[::-1], candidates[::-1], WORK, TIME_ONLY)[::-1, ::-1]
    np.testing.assert_array_equal(matrix, backwards)
    own = np.repeat(candidates[None], len(branches), axis=0)
    np.testing.assert_array_equal(cost_matrix(branches, own, WORK, TIME_ONLY), matrix)
    np.testing.assert_array_equal(relative_costs(branches[2], candidates[3:5], WORK, TIME_ONLY), matrix[2, 3:5])


def test_a_refined_portfolio_is_never_worse(branches: list[Branch]) -> None:
    candidates = drawn_candidates(branches[0].base[None], 30, 0.4, seed=1)
    matrix = cost_matrix(branches, candidates, WORK, TIME_ONLY)
    tried = always_tried(branches, WORK, TIME_ONLY)
    assert tried.max() <= 1.0
    chosen = candidates[choose_greedily(matrix, 3, tried)]
    found, course = refine(chosen, branches, 30, WORK, TIME_ONLY, seed=0)
    assert np.all(np.diff(course) <= 0)
    assert course[0] < tried.mean()
    best = np.minimum(cost_matrix(branches, found, WORK, TIME_ONLY).min(axis=1), tried)
    assert course[-1] == pytest.approx(best.mean())
    again, _ = refine(chosen, branches, 30, WORK, TIME_ONLY, seed=0)
    np.testing.assert_array_equal(found, again)


@given(seed=st.integers(0, 1000), count=st.integers(1, 6))
def test_greedy_choice_takes_what_adds_most(seed: int, count: int) -> None:
    costs = np.random.default_rng(seed).uniform(0.8, 1.3, (7, 9))
    best = np.random.default_rng(seed + 1).uniform(0.8, 1.0, 7)
    chosen = choose_greedily(costs, count, best)
    assert len(set(chosen)) == len(chosen) <= count
    for one in chosen:
        means = [np.minimum(best, column).mean() for column in costs.T]
        assert means[one] == min(means) < best.mean()
        best = np.minimum(best, costs[:, one])


def test_what_never_helps_is_not_chosen() -> None:
    assert choose_greedily(np.array([[1.2, 1.0], [1.1, np.inf]]), 2, np.ones(2)) == []
