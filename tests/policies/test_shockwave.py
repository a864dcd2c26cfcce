"""Shockwave: what is predicted of jobs whose speed changes, the plan of rounds, and who runs first."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterShape, ClusterState, Node
from rlpto.core.job_store import JobStore
from rlpto.core.job_table import JobTable
from rlpto.policies.registry import make_policy
from rlpto.policies.shockwave import BASES, LOGS, Outlook, ShockwaveOptions, outlook, plan_rounds

from ..builders import job, make_tables
from .builders import J, make_state


def test_speeds_not_seen_yet_are_as_likely_as_those_seen() -> None:
    tables = make_tables([[[[0.01, 0.01, 0.01, 0.02]]]])  # epochs of 100, 100, 100 and 50 s
    store = JobStore.from_jobs([job(0, epochs=4.0)], tables)
    shape = ClusterShape((Node(1),))

    def seen(progress: float) -> Outlook:
        store.progress[:] = progress
        return outlook(ClusterState(0.0, JobTable(store, tables, np.arange(1), store.priority, 1), shape, 60.0))

    assert seen(0.0).left[0] == pytest.approx(4 * 75.0), "both speeds alike"
    assert (seen(2.0).left[0], seen(2.0).had[0]) == (pytest.approx(2 * 66.667, rel=1e-3), 200.0)
    assert seen(2.0).pace[0] == pytest.approx(0.01 / 4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_a_plan_is_as_good_as_trying_everything(seed: int) -> None:
    rng = np.random.default_rng(seed)
    left, done = rng.uniform(50.0, 900.0, 3), rng.uniform(0.0, 0.9, 3)
    now = Outlook(left, left, done, (1 - done) / left)
    weight, gpus, least = rng.uniform(1.0, 50.0, 3), rng.integers(1, 3, 3), np.array([0.0, 1.0, 0.0])
    rule = ShockwaveOptions(ahead=3, makespan=float(rng.choice([0.0, 1e-3])))

    def worth(rounds: tuple[int, ...]) -> float:
        if gpus @ rounds > 3 * 3 or (rounds < least).any():
            return -np.inf
        trained = np.minimum(rule.round * np.array(rounds), left)
        gained = float(weight @ np.interp(done + now.pace * trained, BASES, LOGS)) / 9
        return gained - rule.makespan * float((left - trained).max())

    found = plan_rounds(now, weight, least, gpus, 3, rule)
    best = max(map(worth, product(range(4), repeat=3)))
    assert worth(tuple(found.tolist())) >= best - 2e-3 * abs(best)


def test_jobs_take_turns_and_the_longest_never_waits() -> None:
    policy = make_policy("shockwave:round=60,ahead=4")
    jobs = [J(work=500.0, speed=(1.0,)), *(J(work=60.0, speed=(1.0,)) for _ in range(3))]
    ran = []
    for number in range(4):
        ran.append(policy(make_state(jobs, 2, time=60.0 * number)).gpus)
        jobs = [
            J(work=one.work - 60.0 * int(gpus), speed=one.speed, held=int(gpus)) if one.work > 60.0 else one
            for one, gpus in zip(jobs, ran[-1], strict=True)
        ]
    assert [gpus[0] for gpus in ran] == [1] * 4
    assert all(gpus.sum() == 2 for gpus in ran)
