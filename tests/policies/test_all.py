"""What holds for every registered policy in every state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlpto.core.policy import StandingPolicy
from rlpto.policies.registry import BUILT_IN, make_policy

from .builders import J, make_state, power, states

SPECS = (
    *BUILT_IN,
    "fifo:backfill=true",
    "elastic_fifo:backfill=true",
    "fifo:one_node=true",
    "elastic_fifo:one_node=true",
    "sjf:backfill=true",
    "reward_greedy:horizon=60",
)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=40)
@given(case=states(), seed=st.integers(0, 5))
def test_allocations_are_possible_and_reproducible(spec: str, case: tuple[list[J], int], seed: int) -> None:
    jobs, capacity = case
    policy = make_policy(spec)
    policy.reset(seed)
    allocation = policy(make_state(jobs, capacity))
    gpus = allocation.gpus
    lowest, highest = np.array([job.lowest for job in jobs]), np.array([job.top for job in jobs])
    assert np.issubdtype(gpus.dtype, np.integer)
    assert gpus.shape == (len(jobs),)
    assert np.all((gpus == 0) | ((gpus >= lowest) & (gpus <= highest)))
    assert gpus.sum() <= capacity
    if allocation.order is not None:
        assert sorted(allocation.order) == list(range(len(jobs)))

    policy.reset(seed)
    renamed = [replace(job, name=f"z{len(jobs) - i}") for i, job in enumerate(jobs)]
    again = policy(make_state(renamed, capacity))
    assert np.array_equal(again.gpus, gpus), "the same seed and state give the same GPUs under any names"


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=20)
@given(case=states())
@example(case=([J(work=10.0, speed=(0.001, 0.0005), requested=2, lowest=2, highest=2, delay=4e3)], 2))  # none pays
def test_no_job_that_fits_beside_the_others_is_forgotten_on_an_empty_cluster(
    spec: str, case: tuple[list[J], int]
) -> None:
    jobs, _ = case
    jobs = [replace(job, held=0) for job in jobs]
    capacity = sum(job.requested for job in jobs)
    policy = make_policy(spec)
    policy.reset(0)
    gpus = policy(make_state(jobs, capacity)).gpus
    greedy = spec.startswith(("reward_greedy", "random", "index", "max_throughput"))
    assert gpus.any() or spec == "random"
    if not greedy and spec != "round_robin" and "one_node" not in spec:  # whose jobs wait for room on one node
        assert np.all(gpus > 0), "the cluster has room for every request at once"


@pytest.mark.parametrize("spec", [spec for spec in SPECS if isinstance(make_policy(spec), StandingPolicy)])
def test_a_decision_stands_until_it_says(spec: str) -> None:
    jobs = [
        J(work=5e4, requested=4, highest=6, speed=power(0.7, 6)),
        J(work=2e5, requested=2, highest=6, speed=power(0.7, 6), attained=57000.0),
        J(work=9e4, requested=4, highest=6, speed=power(0.7, 6)),
    ]
    policy = make_policy(spec)
    policy.reset(0)
    state = make_state(jobs, 8)
    gpus = policy(state).gpus
    until = min(policy.stands_until(state), 8000.0)  # type: ignore[attr-defined]
    speed = state.jobs.speed[np.arange(3), gpus]
    later = [
        replace(job, held=int(k), work=job.work - until * rate, attained=job.attained + until * k)
        for job, k, rate in zip(jobs, gpus, speed, strict=True)
    ]
    assert list(policy(make_state(later, 8, time=until)).gpus) == list(gpus)
