"""Which failures count against a job, and what makes them forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.ray_cluster.job.supervision import FailureKind, RetryPolicy
from tests.ray_cluster.running import make_spec


@pytest.fixture
def policy(tmp_path: Path) -> RetryPolicy:
    return RetryPolicy(make_spec(tmp_path, retries=3, backoff=0.0))


def test_workers_that_keep_dying_fail_no_job_that_trains_in_between(policy: RetryPolicy) -> None:
    step = 34
    for _ in range(40):
        assert not policy.failed("died", step + 5, lasting=False, trains=False)
        step += 1  # it went back, and has not passed the step of the fault
        policy.stepped(step, whole=True)
    assert policy.may_start_workers()


def test_the_last_survivor_dies_after_starts_beside_it_have_failed(policy: RetryPolicy) -> None:
    for step in range(10, 14):
        assert not policy.failed("start", step, lasting=False, trains=True)
        policy.stepped(step, whole=False)
    assert policy.gave_up
    assert not policy.failed("died", 14, lasting=False, trains=False), "it trained until then"
    assert not policy.gave_up


@pytest.mark.parametrize("kind", ["died", "start", "raised"])
def test_failures_without_a_step_in_between_fail_the_job(policy: RetryPolicy, kind: FailureKind) -> None:
    assert [policy.failed(kind, 7, lasting=False, trains=False) for _ in range(4)] == [False, False, False, True]


def test_code_that_raises_at_one_step_fails_the_job_although_it_trains_up_to_there(policy: RetryPolicy) -> None:
    failed = []
    for _ in range(4):
        policy.stepped(6, whole=True)
        policy.stepped(7, whole=True)
        failed.append(policy.failed("raised", 7, lasting=False, trains=False))
    assert failed == [False, False, False, True]


def test_code_that_raises_further_on_each_time_is_tried_again(policy: RetryPolicy) -> None:
    for step in range(0, 400, 10):
        policy.stepped(step, whole=True)
        assert not policy.failed("raised", step, lasting=False, trains=False)
