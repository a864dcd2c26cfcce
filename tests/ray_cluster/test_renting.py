"""Rented nodes of a real cluster, in virtual time: the provisioner of a configuration decides on them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlpto.core.cluster import Node
from rlpto.core.records import RunRecord
from rlpto.evaluation.metrics import measure
from rlpto.experiments import on_ray
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.on_ray import real_cluster, run_session
from rlpto.experiments.session_loop import session_rules
from rlpto.io.errors import ClusterError, ConfigError
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.renting import DRAIN_S, LocalRental
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from tests.ray_cluster.fakes import FakeBackend, FakeTime
from tests.slow import few

CONFIG = """
cluster: {nodes: [{gpus: 2, price: 3600, rented: {most: 4, boot: 30, idle: 0, minimum: 0}}]}
workload:
  source: jobs
  jobs: %s
ray:
  programs:
    small: {training: "tests.ray_cluster.programs:Plain", samples: 100, batch_size: 10, epochs: 10, pace: 1.0}
simulator: {interval: 60}
reward: {money: 1.0, time: 1.0, accuracy: 0, resources: 0}
policies: [fifo]
"""


class FakeMachines(Executor):
    """Nodes in memory, up once they are asked for; `broken`: they do not start. stillborn: nodes that Ray never sees.
    times: node, begin and end [s]."""

    def __init__(self, backend: FakeBackend) -> None:
        self.backend, self.broken, self.stillborn = backend, False, set[str]()
        self.times: list[tuple[str, float, float]] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*args, **named))
        except ClusterError as error:
            done.set_exception(error)
        return done

    def start(self, node: Node) -> FakeNode:
        if self.broken:
            raise ClusterError("the local Ray cluster does not start: no more sockets")
        name = f"rented{len(self.times) + 1}"
        if name not in self.stillborn:
            self.backend.gpus[name] = node.gpus
        self.times.append((name, self.backend.world.wall, np.inf))
        return FakeNode(name, self)


@dataclass
class FakeNode:
    """A node that was started."""

    node_id: str
    machines: FakeMachines

    def kill_all_processes(self, **_: bool) -> None:
        gone, backend, machines = self.node_id, self.machines.backend, self.machines
        assert all(gone not in one.holding for one in backend.controllers.values()), "ends once jobs have left it"
        backend.gpus.pop(gone, None)
        backend.announced.pop(gone, None)
        machines.times = [
            (name, begin, backend.world.wall if name == gone else end) for name, begin, end in machines.times
        ]


class Session:
    """A session of CONFIG with these jobs. settings: overrides. own: nodes that are always there."""

    def __init__(self, folder: Path, jobs: str, *settings: str, own: int = 0) -> None:
        path = folder / "config.yaml"
        path.write_text(CONFIG % jobs)
        self.experiment = Experiment(load_config(path, settings))
        self.database = SessionDatabase(folder / "session.sqlite")
        self.world = FakeTime()
        self.began = self.world.wall
        self.backend = FakeBackend(self.world, {f"own{number}": 2 for number in range(own)})
        self.machines = FakeMachines(self.backend)

    def run(self, spec: str = "fifo", watch: Callable[[RayCluster], None] = lambda _: None) -> RunRecord:
        cell = replace(self.experiment.cells()[0], policy=spec)
        machines, wall = self.machines, lambda: self.world.wall
        rental = LocalRental(self.experiment.shape, machines.start, machines, self.backend, 0, clock=wall)
        place = (cell.window, cell.seed, self.backend, self.database, "s", (watch,))
        with pytest.MonkeyPatch.context() as patch, closing(rental):
            patch.setattr(on_ray, "session_rules", lambda config: session_rules(config, self.world.clock))
            cluster = real_cluster(self.experiment, *place)
            try:
                return run_session(self.experiment, cell, cluster, None, rental)
            finally:
                cluster.close()
                self.backend.pass_time(0.0)

    def simulated(self, spec: str = "fifo") -> RunRecord:
        return self.experiment.run_cell(replace(self.experiment.cells()[0], policy=spec))


JOBS = (
    "[{name: a, model: small, submit: 5, epochs: 30, gpus: 2, max_gpus: 2},"
    " {name: b, model: small, submit: 130, epochs: 10, gpus: 1, max_gpus: 1},"
    " {name: c, model: small, submit: 140, epochs: 20, gpus: 1, max_gpus: 1},"
    " {name: d, model: small, submit: 600, epochs: 10, gpus: 2, max_gpus: 2}]"
)


@pytest.mark.parametrize(
    "spec", few(["fifo@spare:gpus=2", "fifo@average:factor=2", "fifo@fixed:share=0.5"], "fifo@average:factor=2")
)
def test_a_provisioner_decides_as_in_simulation(tmp_path: Path, spec: str) -> None:
    session = Session(tmp_path, JOBS)
    real, simulated = session.run(spec), session.simulated(spec)
    assert np.isfinite(real.jobs.finish_time).all()
    count = min(len(real.rented.time), len(simulated.rented.time))
    assert abs(len(real.rented.time) - len(simulated.rented.time)) <= 1
    assert real.rented.time == pytest.approx(60.0 * np.arange(len(real.rented.time)), abs=0.2)
    assert real.rented.wanted[:count].tolist() == simulated.rented.wanted[:count].tolist()
    assert real.jobs.start_time == pytest.approx(simulated.jobs.start_time, abs=1.0)
    found, expected = measure(real), measure(simulated)
    for name in ("node_gpu_hours", "idle_gpu_hours", "late_hours", "cost", "idle_cost", "reward_money"):
        assert found[name] == pytest.approx(expected[name], rel=0.06, abs=0.02), name


def test_a_node_boots_is_paid_from_request_to_return_and_starts_hidden(tmp_path: Path) -> None:
    session = Session(tmp_path, "[{model: small, submit: 5, epochs: 10, gpus: 2, max_gpus: 2}]")
    record = session.run("fifo@reactive")
    ((_, begin, end),) = session.machines.times
    assert begin - session.began == pytest.approx(60.0, abs=0.2), "asked for at the first minute with a job"
    assert record.jobs.start_time[0] == pytest.approx(90.0, abs=0.2), "it has joined at once, and boots for 30 s"
    assert record.rented.cost.sum() == pytest.approx(2 * 3600 / 3600 * (end - begin), rel=0.02)
    assert record.decisions.cost.sum() == pytest.approx(record.rented.cost.sum())


FOUR = ", ".join(
    f"{{name: {name}, model: small, submit: 0, epochs: {epochs}, gpus: 1, max_gpus: 1}}"
    for name, epochs in (("a", 20), ("b", 60), ("c", 20), ("d", 60))
)


@pytest.mark.slow
def test_jobs_leave_a_node_that_is_not_worth_its_price_and_lose_nothing(tmp_path: Path) -> None:
    session = Session(tmp_path, f"[{FOUR}]")
    real, simulated = session.run("fifo@reactive"), session.simulated("fifo@reactive")
    assert [node for node, _ in session.backend.drained] == ["rented1"]
    (_, _, end), _ = session.machines.times
    assert end - session.began == pytest.approx(240.0, abs=2.0), "paid until its job has left"
    assert real.jobs.rescales.tolist() == simulated.jobs.rescales.tolist() == [0, 1, 0, 0]
    assert measure(real)["cost"] == pytest.approx(measure(simulated)["cost"], rel=0.05)


@pytest.mark.slow
def test_a_node_whose_end_cannot_be_announced_stays_rented_and_is_returned_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(tmp_path, f"[{FOUR}]")
    session.backend.refusals = ["the head is busy"]
    record = session.run("fifo@reactive")
    assert [node for node, _ in session.backend.drained] == ["rented1", "rented1"]
    assert np.isfinite(record.jobs.finish_time).all()
    assert capsys.readouterr().err.count("node rented1 stays rented, since its end cannot be announced: the head") == 1


def losing(session: Session, time: float) -> Callable[[RayCluster], None]:
    """Lose the first rented node after `time` s."""

    def lose(cluster: RayCluster) -> None:
        if cluster.time > time and "rented1" in session.backend.gpus:
            session.backend.kill_node("rented1")

    return lose


def test_a_node_that_is_lost_is_paid_no_longer_and_asked_for_again(tmp_path: Path) -> None:
    session = Session(tmp_path, "[{model: small, submit: 0, epochs: 40, gpus: 2, max_gpus: 2}]")
    record = session.run("fifo@reactive", losing(session, 100.0))
    assert np.isfinite(record.jobs.finish_time).all()
    (first, _, lost), (second, asked, _) = session.machines.times
    assert (first, second) == ("rented1", "rented2")
    assert lost - session.began == pytest.approx(100.0, abs=1.5)
    assert asked - session.began == pytest.approx(120.0, abs=0.2), "at the next minute"


def test_a_node_that_dies_while_it_boots_is_asked_for_again(tmp_path: Path) -> None:
    session = Session(tmp_path, "[{model: small, submit: 0, epochs: 10, gpus: 2, max_gpus: 2}]")
    record = session.run("fifo@reactive", losing(session, 5.0))
    assert np.isfinite(record.jobs.finish_time).all()
    (_, begin, lost), (_, asked, _) = session.machines.times
    assert lost - begin < 10, "it would have been usable after 30 s, and is paid no longer"
    assert asked - begin == pytest.approx(60.0, abs=0.2), "at the next minute"


def test_a_node_that_is_never_seen_is_asked_for_again(tmp_path: Path) -> None:
    session = Session(tmp_path, "[{model: small, submit: 0, epochs: 10, gpus: 2, max_gpus: 2}]")
    session.machines.stillborn = {"rented1"}
    record = session.run("fifo@reactive")
    assert np.isfinite(record.jobs.finish_time).all()
    (_, begin, lost), (_, asked, _) = session.machines.times
    assert 30 + DRAIN_S < lost - begin < 30 + DRAIN_S + 60
    assert asked >= lost


def test_a_node_that_does_not_answer_for_some_seconds_stays_rented(tmp_path: Path) -> None:
    session = Session(tmp_path, "[{model: small, submit: 0, epochs: 40, gpus: 2, max_gpus: 2}]")

    def fall_silent(cluster: RayCluster) -> None:
        session.backend.silent = {"rented1": session.world.wall} if 100 < cluster.time < 110 else {}

    record = session.run("fifo@reactive", fall_silent)
    assert np.isfinite(record.jobs.finish_time).all()
    assert [node for node, *_ in session.machines.times] == ["rented1"]


def test_a_node_that_does_not_start_ends_the_session_in_one_line(tmp_path: Path) -> None:
    session = Session(tmp_path, "[{model: small, submit: 0, epochs: 1, gpus: 1}]")
    session.machines.broken = True
    with pytest.raises(ClusterError, match="no more sockets"):
        session.run("fifo@reactive")


def test_a_forecast_without_demand_to_learn_from_is_refused_before_anything_starts(tmp_path: Path) -> None:
    settings = "policies=['fifo@forecast']", "evaluation.reference=fifo@forecast"
    session = Session(tmp_path, "[{model: small, submit: 0, epochs: 1, gpus: 1}]", *settings)
    with pytest.raises(ConfigError, match=r"no demand before the test windows to fit .* expected forecast\.demand"):
        session.experiment.check()


def test_a_session_that_goes_on_keeps_what_was_decided(tmp_path: Path) -> None:
    session = Session(tmp_path, "[{model: small, submit: 0, epochs: 60, gpus: 2, max_gpus: 2}]")

    def stop(cluster: RayCluster) -> None:
        if cluster.time > 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.run("fifo@reactive", stop)
    record = session.run("fifo@reactive")
    assert np.isfinite(record.jobs.finish_time).all()
    assert record.rented.time[:3] == pytest.approx([0.0, 60.0, 120.0], abs=0.2)
    assert (np.diff(record.rented.time) > 0).all()


def test_nodes_emptied_together_leave_gpus_for_all_their_jobs(tmp_path: Path) -> None:
    """Two nodes could be emptied singly, but not together, while a young node boots: no running job stands still."""
    kept = [("a", 600, 3), ("b", 132, 3), ("c", 132, 3), ("d", 44, 1), ("e", 150, 1), ("f", 150, 1)]
    jobs = [f"{{name: {name}, model: small, submit: 0, epochs: {work}, gpus: {gpus}, min_gpus: {gpus}, "
            f"max_gpus: {gpus}}}" for name, work, gpus in kept]  # fmt: skip
    jobs.append("{name: g, model: small, submit: 710, epochs: 1, gpus: 1, max_gpus: 1}")
    nodes = "cluster.nodes=[{gpus: 4, price: 3600, rented: {most: 4, boot: 300, idle: 0, minimum: 600}}]"
    record = Session(tmp_path, f"[{', '.join(jobs)}]", nodes).run("fifo@reactive")
    for number in range(len(jobs)):
        mine = (record.changes.job == number) & (record.changes.time >= record.jobs.start_time[number])
        time, held = record.changes.time[mine], record.changes.gpus[mine]
        assert np.diff(time)[held[:-1] == 0].sum() == 0, f"job {record.jobs.names[number]} stands still"
