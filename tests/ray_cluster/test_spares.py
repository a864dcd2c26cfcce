"""Warm processes in reserve: when they are made, and that those who start get them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rlpto.ray_cluster.backend import control_node
from rlpto.ray_cluster.local import LocalCluster
from rlpto.ray_cluster.messages import JobReport
from rlpto.ray_cluster.preload import REHEARSING
from rlpto.ray_cluster.processes import children_titled
from rlpto.ray_cluster.spares import QUIET_SECONDS, ROUNDS, Spares, at_rest
from rlpto.ray_cluster.worker import Ready, TrainWorker
from tests.ray_cluster.running import KILL, PATIENCE, make_spec, running

CALM = JobReport("job", generation=3, applied=3, state="running", holding=("a", "b"), training_on=("b", "a"), pid=7)


class TestAtRest:
    def test_a_job_that_trains_on_all_it_holds_is(self) -> None:
        assert at_rest(CALM, CALM.time + 1)

    @pytest.mark.parametrize(
        "changes",
        [{"applied": 2}, {"training_on": ("a",)}, {"holding": ("a", "b", "c")}, {"state": "finished"}],
        ids=["commanded", "starting", "leaving", "ended"],
    )
    def test_a_job_that_changes_is_not(self, changes: dict[str, object]) -> None:
        assert not at_rest(replace(CALM, **changes), CALM.time + 1)  # type: ignore[arg-type]

    def test_nobody_knows_of_a_job_that_has_not_been_heard_of_lately(self) -> None:
        assert not at_rest(CALM, CALM.time + 10)

    def test_a_job_that_has_ended_and_let_go_is(self) -> None:
        assert at_rest(replace(CALM, state="finished", holding=(), training_on=()), CALM.time + 100)


class Noted(Spares):
    """Notes where a spare would be made, and is done with it at once."""

    def __init__(self, count: int = 1, nodes: tuple[str, ...] = ("head", "a", "b", "c")) -> None:
        super().__init__(count, lambda: "head", lambda: nodes)
        self.made: list[str] = []

    def _touch(self, node: str) -> str:
        self.made.append(node)
        return node

    def _seen_by(self, tasks: list[str]) -> list[tuple[int, list[int]]]:
        return [(1, [2])] * len(tasks)


class Scripted(Noted):
    """One node, on which tasks see one thing after the other."""

    def __init__(self, looks: list[list[tuple[int, list[int]]]]) -> None:
        super().__init__(nodes=("a",))
        self.looks = looks

    def _seen_by(self, tasks: list[str]) -> list[tuple[int, list[int]]]:  # noqa: ARG002
        return self.looks.pop(0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], JobReport]:
    """Sets the clock; gives the report of a job that trains undisturbed then."""

    def at(seconds: float) -> JobReport:
        monkeypatch.setattr(time, "monotonic", lambda: seconds)
        monkeypatch.setattr(time, "time", lambda: seconds)
        return replace(CALM, time=seconds)

    return at


class TestOrder:
    def test_nodes_in_use_come_first_and_each_comes_once(self, now: Callable[[float], JobReport]) -> None:
        spares = Noted()
        for second in range(60):
            spares.tend([now(second)])
        assert spares.made == ["a", "b", "head", "c"]

    def test_a_node_where_somebody_was_replaced_gets_another(self, now: Callable[[float], JobReport]) -> None:
        spares = Noted()
        for second in range(30):
            spares.tend([now(second)])
        del spares.made[:]
        for second in range(30, 60):
            spares.tend([replace(now(second), recoveries=1, holding=("a",), training_on=("a",))])
        assert spares.made == ["a"]

    def test_none_is_made_while_somebody_starts(self, now: Callable[[float], JobReport]) -> None:
        spares = Noted()
        for second in range(30):
            other = replace(now(second), name="other", state="starting", training_on=())
            spares.tend([now(second), other])
        assert not spares.made
        spares.tend([now(31)])
        assert not spares.made, "not at once either"
        spares.tend([now(31 + QUIET_SECONDS)])
        assert spares.made == ["a"]

    def test_all_nodes_are_stocked_before_the_first_job(self, now: Callable[[float], JobReport]) -> None:
        spares = Noted()
        assert not spares.complete
        for second in range(60):
            now(second)
            spares.tend([])
        assert spares.made == ["head", "a", "b", "c"]
        assert spares.complete

    def test_more_tasks_at_once_until_a_process_is_left_over(self, now: Callable[[float], JobReport]) -> None:
        looks = [[(1, [])], [(1, [2]), (2, [1])], [(1, [2, 3]), (2, [1, 3]), (1, [2, 3])]]  # 1 and 2 have served tasks
        spares = Scripted(looks)
        for second in range(30):
            spares.tend([now(second)])
        assert spares.made == ["a"] * (1 + 2 + 3)
        assert not looks
        assert spares.complete

    def test_a_node_where_nothing_helps_is_left_as_it_is(self, now: Callable[[float], JobReport]) -> None:
        spares = Scripted([[(1, [])] for _ in range(100)])
        for second in range(60):
            spares.tend([now(second)])
        assert len(spares.looks) == 100 - ROUNDS
        assert spares.complete

    def test_nodes_without_room_and_settings_without_spares_get_none(self, now: Callable[[float], JobReport]) -> None:
        without, none = Noted(count=0), Noted(nodes=())
        for second in range(30):
            without.tend([now(second)])
            none.tend([now(second)])
        assert without.complete
        assert not without.made
        assert not none.made


def is_warm(pid: int) -> bool:
    """True if a process has imported torch."""
    try:
        return "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def test_a_worker_starts_in_the_process_that_was_kept_for_it(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    a = ray_cluster.node_ids[0]
    spares = Spares(1, control_node, lambda: [a])

    def idle() -> set[int]:
        return {pid for pid in children_titled(ray_cluster.raylet_pid(a), "ray::IDLE") if is_warm(pid)}

    with running(ray_cluster, make_spec(tmp_path, checkpoint_interval=0.5)) as job:
        job.command([a])
        deadline = time.monotonic() + PATIENCE
        while not (idle() and spares.complete):
            assert time.monotonic() < deadline, "no spare was made"
            spares.tend([job.report()])
            time.sleep(0.1)
        kept = idle()
        job.signal_worker(a, KILL)
        job.until(lambda now: now.recoveries == 1)
        assert set(ray_cluster.worker_pids(a)) <= kept


def test_a_worker_waits_for_the_end_of_a_rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlpto.ray_cluster.worker.die_with_parent", lambda: None)
    begun = threading.Event()

    def begin(_: TrainWorker) -> Ready:
        begun.set()
        return Ready(0.0, 0.0)

    monkeypatch.setattr(TrainWorker, "_prepare", begin)
    worker = TrainWorker(make_spec(tmp_path).to_json())
    starting = threading.Thread(target=worker.prepare)
    with REHEARSING:
        starting.start()
        assert not begun.wait(0.5), "torch has one process group in a process"
    assert begun.wait(PATIENCE)
    starting.join()
