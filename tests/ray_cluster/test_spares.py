"""Warm processes in reserve: when they are made, and that those who start get them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpto.ray_cluster import warming
from rlpto.ray_cluster.backend import keep_spares, places_for_spares
from rlpto.ray_cluster.local import LocalCluster
from rlpto.ray_cluster.messages import JobReport
from rlpto.ray_cluster.processes import IDLE, children_titled
from rlpto.ray_cluster.reserve import Stock, find_reserve, is_warming, start_reserve
from rlpto.ray_cluster.spares import IN_VAIN, QUIET_SECONDS, WARM_SECONDS, Place, Spares, at_rest
from rlpto.ray_cluster.warming import REHEARSING
from rlpto.ray_cluster.worker import Ready, TrainWorker
from tests.ray_cluster.running import KILL, PATIENCE, make_spec, running
from tests.ray_cluster.test_real import wait_until

TO_WARM = 4.0
"""s until a spare is warm in `Noted`."""
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
    """Notes where how many are made; `have`: how many spares each node has, those that are made at once among them.

    machines: of each node. useless: nothing comes of what is made. Nodes that are missing in `have` cannot be asked.
    """

    def __init__(self, count: int = 1, machines: dict[str, str] | None = None, useless: bool = False) -> None:
        self.machines = {"head": "", "a": "", "b": "", "c": ""} if machines is None else machines
        super().__init__(lambda: [Place(node, count, at) for node, at in self.machines.items()])
        self.have = dict.fromkeys(self.machines, 0)
        self.made: list[tuple[str, int]] = []
        self.useless = useless
        self.warm_at = dict.fromkeys(self.machines, 0.0)

    def _ask(self, place: Place) -> Stock | None:
        have = self.have.get(place.node)
        return None if have is None else Stock(have, min(have, time.monotonic() < self.warm_at[place.node]))

    def _answers(self, asked: Iterable[tuple[Place, Stock | None]]) -> dict[Place, Stock | None]:
        return dict(asked)

    def _start(self, place: Place, count: int) -> None:
        self.made.append((place.node, count))
        self.warm_at[place.node] = time.monotonic() + TO_WARM
        self.have[place.node] += 0 if self.useless else count

    def _see_to_refusals(self) -> None:
        self._begun.clear()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], JobReport]:
    """Sets the clock; gives the report of a job that trains undisturbed then."""

    def at(seconds: float) -> JobReport:
        monkeypatch.setattr(time, "monotonic", lambda: seconds)
        monkeypatch.setattr(time, "time", lambda: seconds)
        return replace(CALM, time=seconds)

    return at


class TestOrder:
    def test_all_nodes_are_stocked_before_the_first_job(self, now: Callable[[float], JobReport]) -> None:
        spares = Noted()
        assert not spares.complete
        for second in range(60):
            now(second)
            spares.tend([])
        assert spares.made == [("head", 1), ("a", 1), ("b", 1), ("c", 1)]
        assert spares.complete

    def test_where_somebody_has_started_since_another_is_made(self, now: Callable[[float], JobReport]) -> None:
        spares = Noted()
        for second in range(60):
            spares.tend([now(second)])
        del spares.made[:]
        spares.have["a"] = 0
        for second in range(60, 90):
            spares.tend([now(second)])
        assert not spares.made, "nobody looks while nothing happens"
        for second in range(90, 120):
            spares.tend([replace(now(second), recoveries=1)])
        assert spares.made == [("a", 1)]

    def test_nodes_that_lack_most_come_first_a_few_spares_at_a_time(self, now: Callable[[float], JobReport]) -> None:
        for with_jobs, expected in (
            (False, [("b", 2), ("a", 1), ("b", 1)]),  # two at once, on whatever nodes
            (True, [("b", 1), ("b", 1), ("a", 1), ("b", 1)]),
        ):
            spares = Noted(count=3, machines={"a": "one", "b": "one"})
            spares.have = {"a": 2, "b": 0}
            made_at: list[float] = []
            for tenth in range(300):
                report = now(tenth / 10)
                spares.tend([report] if with_jobs else [])
                made_at += [tenth / 10] * (len(spares.made) - len(made_at))
            assert spares.made == expected
            apart = [after - before for before, after in pairwise(dict.fromkeys(made_at))]
            assert min(apart) >= TO_WARM, "those on one machine share its cores"
            assert spares.complete

    def test_a_spare_that_never_gets_warm_holds_up_others_for_a_while_only(
        self, now: Callable[[float], JobReport]
    ) -> None:
        spares = Noted(machines={"a": "one", "b": "one"})
        spares.tend([now(0)])
        for second in range(1, 5):
            spares.tend([now(second)])
        spares.warm_at["a"] = 1e9
        for second in range(5, int(WARM_SECONDS)):
            spares.tend([now(second)])
        assert spares.made == [("a", 1)]
        assert not spares.complete
        for second in range(int(WARM_SECONDS), int(WARM_SECONDS) + 10):
            spares.tend([now(second)])
        assert spares.made == [("a", 1), ("b", 1)]

    def test_machines_do_not_wait_for_each_other(self, now: Callable[[float], JobReport]) -> None:
        spares = Noted(machines={"a": "one", "b": "two", "c": "three"})
        for second in (0, QUIET_SECONDS, QUIET_SECONDS):
            spares.tend([now(second)])
        assert spares.made == [("a", 1), ("b", 1), ("c", 1)]

    def test_none_is_made_while_somebody_starts(self, now: Callable[[float], JobReport]) -> None:
        spares = Noted()
        for second in range(30):
            other = replace(now(second), name="other", state="starting", training_on=())
            spares.tend([now(second), other])
        assert not spares.made
        spares.tend([now(31)])
        spares.tend([now(31)])
        assert not spares.made, "not at once either"
        for _ in range(2):
            spares.tend([now(31 + QUIET_SECONDS)])
        assert spares.made == [("head", 1)]

    def test_an_answer_from_before_a_start_is_not_believed(self, now: Callable[[float], JobReport]) -> None:
        spares = Noted(machines={"a": ""})
        spares.have["a"] = 1
        spares.tend([now(0)])
        spares.tend([now(2)])  # asks: there is one
        spares.have["a"] = 0  # somebody takes it before the answer is looked at
        for second in (3, 4, 5, 6):
            spares.tend([replace(now(second), generation=4, applied=4)])
        assert spares.made == [("a", 1)]

    def test_a_node_where_nothing_helps_is_left_as_it_is_until_somebody_starts(
        self, now: Callable[[float], JobReport]
    ) -> None:
        spares = Noted(machines={"a": ""}, useless=True)
        for second in range(300):
            spares.tend([now(second)])
        assert spares.made == [("a", 1)] * IN_VAIN
        assert spares.complete
        for second in range(300, 600):
            spares.tend([replace(now(second), recoveries=1)])
        assert spares.made == [("a", 1)] * 2 * IN_VAIN

    def test_a_node_that_cannot_be_asked_or_is_gone_is_nobodys_concern(self, now: Callable[[float], JobReport]) -> None:
        spares = Noted(machines={"a": "one", "b": "two"})
        del spares.have["a"]
        for second in range(60):
            spares.tend([now(second)])
        assert spares.made == [("b", 1)]
        assert spares.complete
        del spares.machines["a"]
        for second in range(60, 120):
            spares.tend([now(second)])
        assert spares.complete

    def test_settings_without_spares_make_none(self, now: Callable[[float], JobReport]) -> None:
        none = Noted(count=0)
        for second in range(30):
            none.tend([now(second)])
        assert none.complete
        assert not none.made
        assert keep_spares(0, 0).complete


class TestPlaces:
    def test_workers_have_theirs_on_nodes_with_gpus_and_runners_on_their_own(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        head = {"NodeID": "h", "NodeManagerAddress": "1.1.1.1", "NodeManagerPort": 1}
        node = {"NodeID": "n", "NodeManagerAddress": "1.1.1.2", "NodeManagerPort": 2, "Resources": {"GPU": 2.0}}
        for own, expected in (({}, {"h": 3, "n": 2}), ({"GPU": 1.0}, {"h": 5, "n": 2})):
            there = [{**head, "Resources": {"node:__internal_head__": 1.0, **own}}, node]
            monkeypatch.setattr("rlpto.ray_cluster.backend.alive_nodes", lambda there=there: there)
            found = places_for_spares(workers=2, runners=3)
            assert {place.node: place.count for place in found} == expected
            assert [place.raylet for place in found] == ["1.1.1.1:1", "1.1.1.2:2"]


def is_warm(pid: int) -> bool:
    """True if a process has imported torch."""
    try:
        return "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def warm(cluster: LocalCluster, node: str) -> set[int]:
    """Processes of a node that nobody uses and that have imported torch."""
    return {pid for pid in children_titled(cluster.raylet_pid(node), IDLE) if is_warm(pid)}


def test_a_worker_starts_in_the_process_that_was_kept_for_it(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    a = ray_cluster.node_ids[0]
    places = [place for place in places_for_spares(2, 0) if place.node == a]
    spares = Spares(lambda: places)
    with running(ray_cluster, make_spec(tmp_path, checkpoint_interval=0.5)) as job:
        job.command([a])
        before = warm(ray_cluster, a)  # of other tests
        deadline = time.monotonic() + PATIENCE
        while not (len(warm(ray_cluster, a) - before) == 2 and spares.complete):
            assert time.monotonic() < deadline, "no spares were made, or too many"
            spares.tend([job.report()])
            time.sleep(0.1)
        kept = warm(ray_cluster, a)
        job.signal_worker(a, KILL)
        job.until(lambda now: now.recoveries == 1)
        assert set(ray_cluster.worker_pids(a)) <= kept


def test_where_ray_does_not_start_processes_ahead_it_is_said(ray_cluster: LocalCluster) -> None:
    other = Place(ray_cluster.node_ids[0], 9, raylet=ray_cluster.address)  # who listens there is no raylet
    spares = Spares(lambda: [other])
    with pytest.warns(UserWarning, match="no processes are kept in reserve, Ray does not start them: UNIMPLEMENTED"):
        spares.stock(PATIENCE)
    assert spares.complete


def test_a_process_is_warming_until_it_is_warm(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    warm = threading.Event()
    monkeypatch.setattr(warming, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(warming, "warm_up", lambda _: warm.wait())
    request.addfinalizer(gc.unfreeze)
    request.addfinalizer(gc.enable)
    gc.disable()
    thread = threading.Thread(target=warming.wait_and_warm_up, args=(False,))
    thread.start()
    wait_until(lambda: is_warming(os.getpid()))
    assert not gc.isenabled()
    warm.set()
    wait_until(lambda: not is_warming(os.getpid()))  # the system's thread may outlive Python's a little
    assert gc.isenabled()


def test_a_worker_collects_garbage_whoever_started_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr("rlpto.ray_cluster.worker.die_with_parent", lambda: None)
    request.addfinalizer(gc.unfreeze)
    request.addfinalizer(gc.enable)
    gc.disable()  # as processes do that import `preload`
    TrainWorker(make_spec(tmp_path).to_json())
    assert gc.isenabled()


def own_pid() -> int:
    return os.getpid()


def test_a_process_that_has_served_a_task_is_no_spare(ray_cluster: LocalCluster) -> None:
    c = ray_cluster.node_ids[2]
    here = NodeAffinitySchedulingStrategy(c, soft=False)
    task = ray.remote(num_cpus=0)(own_pid).options(scheduling_strategy=here)
    served = ray.get(task.remote(), timeout=PATIENCE)
    reserve = start_reserve(c)
    before = ray.get(reserve.stock.remote(), timeout=PATIENCE).spares
    assert served in children_titled(ray_cluster.raylet_pid(c), IDLE)
    (raylet,) = [place.raylet for place in places_for_spares(1, 0) if place.node == c]
    assert ray.get(reserve.start.remote(raylet, 1), timeout=PATIENCE) == ""
    wait_until(lambda: len(set(children_titled(ray_cluster.raylet_pid(c), IDLE)) - {served}) == before + 1)
    wait_until(lambda: ray.get(reserve.stock.remote(), timeout=PATIENCE) == Stock(before + 1, 0))


def test_a_process_is_killed_by_who_keeps_the_reserve_of_its_node(ray_cluster: LocalCluster) -> None:
    a, b, *_ = ray_cluster.node_ids
    assert find_reserve(b) is None
    reserve = start_reserve(a)
    ray.get(reserve.stock.remote(), timeout=PATIENCE)
    found = find_reserve(a)
    assert found is not None
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "Worker"]) as process:
        ray.get(found.kill.remote(process.pid, "Somebody else"), timeout=PATIENCE)
        assert process.poll() is None
        ray.get(found.kill.remote(process.pid, "Worker"), timeout=PATIENCE)
        assert process.wait(PATIENCE) == -KILL


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
