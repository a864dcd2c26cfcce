"""Parts of a job's controller: its retries, its roster of workers, its statistics; and when it counts as hanging."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from rlpto.ray_cluster.job.worker_roster import JOIN_WAIT_S, WorkerRoster

from rlpto.ray_cluster.controllers import HEARTBEAT_TIMEOUT_S, START_TIMEOUT_S
from rlpto.ray_cluster.job.reporting import Size, TrainingStatistics
from rlpto.ray_cluster.job.supervision import FailureKind, RetryPolicy
from rlpto.ray_cluster.job.worker_actors import Worker
from rlpto.ray_cluster.scheduler import backend
from rlpto.ray_cluster.worker.actor import Ready
from rlpto.ray_cluster.worker.sampling import Position
from rlpto.ray_cluster.worker.training import Chunk
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


def test_the_last_survivor_dies_after_other_starts_have_failed(policy: RetryPolicy) -> None:
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


def test_newcomers_join_together_unless_one_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roster = WorkerRoster(make_spec(tmp_path), lambda: None)
    first, second = Worker("a", None), Worker("b", None)
    roster.starting = [first, second]
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert roster.ready_to_join() == []
    first.ready, first.warm_since = Ready(0.0, 0.0), 100.0
    assert roster.ready_to_join() == [], "the other one is still starting"
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 + JOIN_WAIT_S + 0.1)
    assert roster.ready_to_join() == [first]
    second.ready, second.warm_since = Ready(0.0, 0.0), 101.0
    monkeypatch.setattr(time, "monotonic", lambda: 101.0)
    assert roster.ready_to_join() == [first, second]


def chunk(number: int, batch_size: int, chosen: bool) -> Chunk:
    """Ten steps that end at second `number`."""
    return Chunk(
        position=Position(step=10 * number, progress=10.0 * number),
        steps=10,
        samples=10 * batch_size,
        batch_size=batch_size,
        chosen=chosen,
        loss=1.0,
        noise_scale=100.0,
        accuracy=0.5,
        evaluated_at=1.0,
        finished=False,
        first=number - 1.0,
        ended=float(number),
    )


def test_speeds_by_size_are_those_at_the_jobs_own_batch_sizes() -> None:
    """They are what fits and online estimates rest on."""
    statistics = TrainingStatistics()
    statistics.grouped(Size(1, 1), rescaled=False, faulty_since=None)
    for number in range(1, 4):
        statistics.add([chunk(number, 8, chosen=False)])
    assert (statistics.batch_size, statistics.samples_per_second) == (8, 80.0)
    for number in range(4, 7):
        statistics.add([chunk(number, 32, chosen=True)])
    assert (statistics.batch_size, statistics.samples_per_second) == (32, 320.0)
    (measured,) = statistics.throughput()
    assert (measured.samples_per_second, measured.count) == (80.0, 20)


def test_speeds_on_kinds_of_gpu_are_kept_apart_and_outlive_the_controller() -> None:
    statistics = TrainingStatistics()
    for at, gpu in enumerate(("t4", "a100")):
        statistics.grouped(Size(1, 1, gpu=gpu), rescaled=False, faulty_since=None)
        for number in range(1, 4):
            statistics.add([chunk(10 * at + number, 8 * (1 + at), chosen=False)])
    again = TrainingStatistics()
    again.restore(statistics.lasting())
    found = {size.gpu: size.samples_per_second for size in again.throughput()}
    assert found == {"t4": 80.0, "a100": 160.0}


def test_a_controller_that_has_not_answered_yet_has_the_time_of_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the import of torch takes longer than an answer may."""
    monkeypatch.setattr(backend, "is_alive", lambda _: True)
    asked_before = {"starts": HEARTBEAT_TIMEOUT_S + 1, "hangs": HEARTBEAT_TIMEOUT_S + 1, "never": START_TIMEOUT_S + 1}
    calls = {job: backend._Call(job, 1, time.monotonic() - s, time.monotonic() - s) for job, s in asked_before.items()}
    handles = {job: object() for job in calls}
    found = backend.RayBackend("s", _handles=handles, _asked=dict(calls), _heard={"hangs"})
    found._end_silent()
    assert {job: ending.reason for job, ending in found._ending.items()} == {
        "hangs": f"it left a call unanswered for {HEARTBEAT_TIMEOUT_S + 1:.0f} s",
        "never": f"it did not start within {START_TIMEOUT_S + 1:.0f} s",
    }
