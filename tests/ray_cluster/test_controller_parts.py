"""Parts of a job's controller: its retries, its roster of workers, its statistics; and when it counts as hanging."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from rlpto.ray_cluster.controllers import HEARTBEAT_TIMEOUT_S, START_TIMEOUT_S
from rlpto.ray_cluster.job import control_loop, training_group, worker_actors
from rlpto.ray_cluster.job.control_loop import ControlLoop
from rlpto.ray_cluster.job.job_folder import JobFolder
from rlpto.ray_cluster.job.phases import Lifecycle, Phase
from rlpto.ray_cluster.job.reporting import Size, TrainingStatistics
from rlpto.ray_cluster.job.supervision import JOIN_WAIT_S, FailureKind, FaultError, RetryPolicy, WorkerRoster
from rlpto.ray_cluster.job.training_group import TrainingGroup
from rlpto.ray_cluster.job.worker_actors import ParameterServers, Worker
from rlpto.ray_cluster.messages import JobReport, Plan
from rlpto.ray_cluster.scheduler import backend
from rlpto.ray_cluster.worker.actor import Ready
from rlpto.ray_cluster.worker.sampling import Position
from rlpto.ray_cluster.worker.training import Chunk
from rlpto.store.checkpoints import read_newest
from tests.ray_cluster.running import make_spec


@pytest.fixture
def policy(tmp_path: Path) -> RetryPolicy:
    return RetryPolicy(make_spec(tmp_path, retries=3, backoff=0.0))


@pytest.mark.parametrize(
    ("events", "fails"),
    [
        ([event for step in range(34, 74) for event in (("died", step + 5), step + 1)], False),
        ([("died", 7)] * 4, True),
        ([("start", 7)] * 4, True),
        ([("raised", 7)] * 4, True),
        ([6, 7, ("raised", 7)] * 4, True),
        ([event for step in range(0, 400, 10) for event in (step, ("raised", step))], False),
    ],
    ids=["dies again and again", "dies", "does not start", "raises", "raises at one step", "raises further on"],
)
def test_a_job_fails_for_failures_without_progress_in_between(
    policy: RetryPolicy, events: list[int | tuple[FailureKind, int]], fails: bool
) -> None:
    """Numbers are steps that all workers have done. After a death any step counts, although the job went back."""
    failed = []
    for event in events:
        if isinstance(event, int):
            policy.stepped(event, whole=True)
        else:
            failed.append(policy.failed(*event, lasting=False, trains=False))
    assert failed == [False] * (len(failed) - fails) + [True] * fails
    assert policy.may_start_workers()


def test_the_last_survivor_dies_after_other_starts_have_failed(policy: RetryPolicy) -> None:
    for step in range(10, 14):
        assert not policy.failed("start", step, lasting=False, trains=True)
        policy.stepped(step, whole=False)
    assert policy.gave_up
    assert not policy.failed("died", 14, lasting=False, trains=False), "it trained until then"
    assert not policy.gave_up


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


def answering(**answers: Callable[..., Any]) -> Worker:
    """A warm worker without a process, whose calls are answered by these functions, later if they return a future.
    Other calls return None."""

    class Handle:
        def __getattr__(self, method: str) -> Any:
            return SimpleNamespace(remote=lambda *given: SimpleNamespace(future=lambda: call(method, *given)))

    def call(method: str, *given: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            said = answers.get(method, lambda *_: None)(*given)
        except ray.exceptions.RayError as gone:
            done.set_exception(gone)
        else:
            if isinstance(said, Future):
                return said
            done.set_result(said)
        return done

    return Worker("node", Handle(), ready=Ready(0.1, 0.1))


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingGroup:
    """A group without workers yet, of a job with a checkpoint of step 5000."""

    async def gone(_: Worker) -> None: ...

    monkeypatch.setattr(worker_actors, "release", gone)
    monkeypatch.setattr(training_group, "gpu_type_at", lambda _: "")
    monkeypatch.setattr(ray, "put", lambda content: content)
    spec, lifecycle, folder = make_spec(tmp_path), Lifecycle(), JobFolder(make_spec(tmp_path))
    folder.write(5000, b"trained")
    roster, servers = WorkerRoster(spec, lambda: None), ParameterServers(spec, "node")
    return TrainingGroup(spec, lifecycle, roster, servers, TrainingStatistics(), folder)


@pytest.mark.parametrize("leaves", [False, True], ids=["trains on", "is to leave"])
def test_a_newcomer_whose_group_dies_before_it_has_the_state_goes_on_from_the_checkpoint(
    group: TrainingGroup, leaves: bool
) -> None:
    loaded = list[bytes]()

    def die(*_: Any) -> None:
        raise ray.exceptions.RayError

    old = answering(join=die)
    old.current = True
    new = answering(recover=Position, load=loaded.append, state=lambda: (0, b"untrained", True))

    async def scenario() -> None:
        group._roster.training = [old]
        for phase in (Phase.FORMING, Phase.TRAINING):
            group._lifecycle.enter(phase)
        with pytest.raises(FaultError) as found:
            await group.form([new], Plan(("node", "node")))
        await group.keep_survivors(found.value)
        if leaves:
            await group.hand_over()
            group._roster.training = []
        await group.form([new] if leaves else [], Plan(("node",)))

    asyncio.run(scenario())
    assert loaded == [b"trained"]


@pytest.mark.parametrize("stops", [False, True], ids=["has room again", "stops"])
def test_a_job_ends_once_its_final_weights_are_kept_unless_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    monkeypatch.setattr(control_loop, "REFUSED_RETRY_S", 0.01)
    refusals, write = list[Path](), Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if stops or len(refusals) < 3:
            refusals.append(path)
            raise OSError(28, "No space left on device")
        return write(path, content)

    async def scenario() -> JobReport:
        loop = ControlLoop(make_spec(tmp_path), "node", resume=False, restarted=False)
        for phase in (Phase.FORMING, Phase.TRAINING):
            loop._lifecycle.enter(phase)
        loop.command(1, Plan(("node",)))
        loop._roster.training = [answering(state=lambda: (70, b"final", True))]
        ends = asyncio.ensure_future(loop._finish())
        while stops and len(refusals) < 2 and not ends.done():
            await asyncio.sleep(0.01)
        if stops:
            loop.stop()
        await ends
        return loop.report()

    async def gone(_: Worker) -> None: ...

    monkeypatch.setattr(worker_actors, "release", gone)
    monkeypatch.setattr(Path, "write_bytes", full)
    report = asyncio.run(scenario())
    assert "no space left on device" in report.failure
    assert report.state == ("running" if stops else "finished")
    found = read_newest(tmp_path)
    assert (None if found is None else found[1]) == (None if stops else b"final")


def test_a_job_that_is_over_trains_no_further_step_in_another_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk was full when it ended, and meanwhile its workers changed."""

    async def scenario() -> JobReport:
        loop = ControlLoop(make_spec(tmp_path), "node", resume=False, restarted=False)
        for phase in (Phase.FORMING, Phase.TRAINING):
            loop._lifecycle.enter(phase)
        loop.command(1, Plan(("node",)))
        loop._over = True
        loop._roster.training = [answering(state=lambda: (70, b"final", True))]  # which cannot run
        await loop._train()
        return loop.report()

    async def gone(_: Worker) -> None: ...

    monkeypatch.setattr(worker_actors, "release", gone)
    assert asyncio.run(scenario()).state == "finished"


def test_survivors_have_the_time_to_end_a_long_step_unless_they_do_not_answer_at_all(
    group: TrainingGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_group, "WORKER_CALL_TIMEOUT_S", 0.05)
    in_step, never = Future[Any](), Future[Any]()
    well, gone = answering(recover=lambda: in_step), answering(abort=lambda: never, recover=lambda: never)

    async def scenario() -> None:
        group._roster.training = [well, gone]
        for phase in (Phase.FORMING, Phase.TRAINING):
            group._lifecycle.enter(phase)
        asyncio.get_running_loop().call_later(0.5, in_step.set_result, Position(step=7))
        assert await group.keep_survivors(FaultError({answering(): "killed"}, [])) == (True, False, 7)

    asyncio.run(scenario())
    assert group._roster.training == [well]


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


def test_speeds_by_kind_of_gpu_are_those_at_the_jobs_own_batch_sizes_and_outlive_the_controller() -> None:
    """They are what fits and online estimates rest on."""
    statistics = TrainingStatistics()
    for at, gpu in enumerate(("t4", "a100")):
        statistics.grouped(Size(1, 1, gpu=gpu), rescaled=False)
        for number in range(1, 7):
            chosen = number > 3
            statistics.add([chunk(10 * at + number, 32 if chosen else 8 * (1 + at), chosen)])
        assert (statistics.batch_size, statistics.samples_per_second) == (32, 320.0)
    again = TrainingStatistics()
    again.restore(json.loads(json.dumps(statistics.lasting())))
    found = {size.gpu: (size.samples_per_second, size.count) for size in again.throughput()}
    assert found == {"t4": (80.0, 20), "a100": (160.0, 20)}
    assert again.figures()["accuracy_curve"] == ((1.0, 0.5),)


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


def test_a_node_that_is_gone_fails_both_calls_to_its_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {number: backend._Call("job", number, 0.0, 0.0) for number in (1, 2)}
    found = backend.RayBackend("s", _handles={"job": object()}, _asked=calls)

    def fail(_: int) -> None:
        raise ray.exceptions.ActorUnschedulableError("its node is dead")

    monkeypatch.setattr(ray, "get", fail)
    assert [found._answer(number) for number in (1, 2)] == [None, None]
    assert {job: ending.reason for job, ending in found._ending.items()} == {"job": "its node is gone"}


def test_an_answer_that_a_later_one_has_overtaken_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    found = backend.RayBackend("s", _asked={number: backend._Call("job", number, 0.0, 0.0) for number in (1, 2, 3)})
    monkeypatch.setattr(ray, "get", lambda number: JobReport("job", generation=number))
    reports = [found._answer(number) for number in (2, 1, 3)]
    assert [report and report.generation for report in reports] == [2, None, 3]
