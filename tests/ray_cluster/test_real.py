"""The scheduler over real controllers that really train, on the local cluster that all tests share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.loop import run
from rlpto.core.policy import Policy
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.metrics import measure
from rlpto.experiments import session_loop
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import prepare
from rlpto.experiments.on_ray import RealCells, real_cluster, session_folder, session_of
from rlpto.io.errors import ClusterError, ConfigError, JobError
from rlpto.planning.predictor import predict
from rlpto.planning.snapshot import take_snapshot
from rlpto.policies.registry import make_policy
from rlpto.ray_cluster.controllers import find_controllers
from rlpto.ray_cluster.messages import GPU_TYPE_LABEL, MARKET_LABEL, JobReport
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.nodes.processes import load_factor
from rlpto.ray_cluster.scheduler.backend import NodeInfo, RayBackend
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.connection import Connection, check_training
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_folder import DATABASE, SESSIONS, read_table, remove_sessions
from rlpto.store.status import PredictionRow, nodes
from tests.builders import Scripted
from tests.ray_cluster.conftest import CELL, GPUS, NODES
from tests.ray_cluster.fakes import events_of, node_changes
from tests.ray_cluster.running import make_spec

STEPS = 6
"""Steps of an epoch of the training program: 101 samples in batches of 20."""
REPOSITORY = Path(__file__).resolve().parents[2]


def config(
    jobs: Sequence[Mapping[str, object]],
    pace: float | None = 0.05,
    held: Path | None = None,
    program: Mapping[str, object] | None = None,
    **sections: object,
) -> Config:
    """held: jobs last until there is this file. program: more keys of it. sections: of the configuration, in place of
    those here."""
    keys = {"training": "tests.ray_cluster.programs:Plain", "samples": 101, "epochs": 10, "batch_size": 20}
    if held is not None:
        keys |= {"training": "tests.ray_cluster.programs:Held", "options": {"until": str(held), "pause": 0.3}}
    tiny = {**keys, "pace": pace, **(program or {})}
    given = {
        "cluster": {"nodes": [{"count": NODES, "gpus": GPUS}]},
        "workload": {"source": "jobs", "jobs": [{"model": "tiny", **job} for job in jobs]},
        "simulator": {"interval": 5},
        "ray": {
            "programs": {"tiny": tiny},
            "checkpoint_interval": 2,
            "heartbeat_timeout": 60,
        },  # a busy machine is no fault
        "policies": ["equal_share"],
        "evaluation": {"reference": "equal_share"},
    }
    return Config.model_validate(given | sections)


def wait_until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds * load_factor(), "waited in vain"
        time.sleep(0.1)


@contextmanager
def session(
    settings: Config, folder: Path, *observers: Callable[[RayCluster], None], **more: Any
) -> Iterator[RayCluster]:
    """A session on the cluster that this process is connected to, closed at the end. more: of its `RayBackend`."""
    name = session_of(folder, CELL)
    with SessionDatabase(folder / "state.sqlite") as database:
        cluster = real_cluster(prepare(settings), "jobs", 0, RayBackend(name, **more), database, name, observers)
        yield cluster
        cluster.close()


def schedule(cluster: RayCluster, policy: Policy | None = None) -> RunRecord:
    """Have a policy, `equal_share` by default, schedule all jobs."""
    return run(cluster, policy or make_policy("equal_share"), QueueSettings(), RewardWeights())


def compile_predictions(settings: Config) -> None:
    """Compile what looks ahead, which would otherwise take longer than the jobs of a test."""
    cluster = prepare(settings).cluster("jobs", 0)
    state = Queue(settings.queue).order(cluster.state())
    predict(take_snapshot(cluster, state), make_policy("equal_share"), settings.queue, settings.simulator)


@pytest.mark.slow
@pytest.mark.usefixtures("no_controller_is_left")
def test_jobs_train_to_their_end_under_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predicted: list[Sequence[PredictionRow]] = []
    monkeypatch.setattr(session_loop, "put_all", lambda *given: predicted.append(given[2]))
    settings = config([{"name": "a", "max_gpus": 2}, {"name": "b", "submit": 1, "max_gpus": 2}])
    compile_predictions(settings)
    began = time.time()
    record = RealCells(settings, tmp_path)(CELL)
    assert np.isfinite(record.jobs.finish_time).all()
    assert (record.jobs.final_accuracy > 0.7).all()  # points that a line separates, after ten epochs
    assert set(record.changes.gpus.tolist()) <= {0, 1, 2}
    own = session_folder(tmp_path, CELL)
    columns, rows = read_table(own / DATABASE, "jobs")
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    assert [row["step"] for row in found] == [10 * STEPS] * 2
    assert all(row["submitted"] <= row["queued"] < row["ended"] for row in found)
    assert found[0]["submitted"] > began
    assert list(own.glob("**/step-*.ckpt"))
    assert "no_predictions" not in dict(row[:2] for row in read_table(own / DATABASE, "facts")[1])
    curves = EventAccumulator(str(own))
    curves.Reload()
    assert curves.Scalars("ray_jobs/a/progress")[-1].value > 5.0
    assert len({curve.step for curve in curves.Scalars("ray_reward/sum")}) >= 2
    assert predicted
    for rows in predicted:
        assert all(row.finish is not None and row.finish > max(row.start or 0.0, row.as_of) for row in rows)
        assert {row.job for row in rows} <= {"job-000000", "job-000001"}
    assert not RayBackend(session_of(tmp_path, CELL)).find()


@pytest.mark.slow
@pytest.mark.usefixtures("no_controller_is_left")
@pytest.mark.parametrize("final", [0.55, 1.0])
def test_the_reward_ends_with_the_accuracy_of_real_jobs_if_the_guess_was_wrong(tmp_path: Path, final: float) -> None:
    settings = config([{"name": "a", "max_gpus": 2}], program={"guess": {"untrained": 0.5, "final": final}})
    record = RealCells(settings, tmp_path)(CELL)
    own = session_folder(tmp_path, CELL)
    curves = EventAccumulator(str(own))
    curves.Reload()
    best = max(point.value for point in curves.Scalars("ray_jobs/a/accuracy"))
    assert 0.7 < best < 1.0, "the guess is wrong"
    assert record.jobs.final_accuracy[0] == pytest.approx(best)
    with SessionDatabase(own / DATABASE) as database:
        ((gained, shortfall),) = database.rows("SELECT gained, shortfall FROM jobs")
    assert gained == 1.0
    assert record.decisions.shortfall.sum() == pytest.approx(shortfall)
    assert 0.0 < shortfall < record.jobs.finish_time[0] - record.jobs.submit_time[0]


@pytest.mark.slow
def test_a_frozen_controller_and_killed_workers_are_replaced_and_what_that_costs_is_counted(
    no_controller_is_left: LocalCluster, tmp_path: Path
) -> None:
    calm = {"epochs": 15, "gpus": 2, "min_gpus": 2, "max_gpus": 2}
    settings = config([{"name": "a/b", "epochs": 15}, {"name": "a_b", "epochs": 15}, calm, calm], pace=0.1)
    frozen: list[int] = []
    killed: list[int] = []

    def checkpoint_of(report: JobReport) -> int:
        return report.checkpoint.step if report.checkpoint is not None else 0

    def harm(cluster: RayCluster) -> None:
        """Stop the controller of a job, and end all workers of another, some steps behind their second checkpoint."""
        first, third = (cluster.tracker.reports.get(f"job-{number:06d}") for number in (0, 2))
        if not frozen and first is not None and first.step > checkpoint_of(first) + 5 > 5:
            frozen.append(first.pid)
            os.kill(first.pid, signal.SIGSTOP)
        if not killed and third is not None and third.step > checkpoint_of(third) + 5 > 5:
            killed.extend(no_controller_is_left.worker_pids(third.training_on[0]))  # that node is all its own
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    with session(settings, tmp_path, harm, heartbeat_timeout=12.0 * load_factor()) as cluster:
        record, database = schedule(cluster), cluster.database
        lost = [event for event in events_of(database) if event[1] == "controller_lost"]
        assert [event[2] for event in lost] == ["job-000000"], lost
        assert "left a call unanswered for" in lost[0][5]
        assert [row.step for row in database.jobs()] == [15 * STEPS] * 4
        assert [row.recoveries for row in database.jobs()] == [0, 0, 1, 0]
        assert not Path(f"/proc/{frozen[0]}").exists()
    jobs, found = record.jobs, measure(record)
    assert (jobs.lost_gpu_seconds > 0).tolist() == [True, False, True, False]
    assert (jobs.kept_seconds > 0.8 * np.array([9.0, 9.0, 4.5, 4.5])).all(), "steps as long as their pace"
    shares = jobs.kept_seconds / (jobs.finish_time - jobs.submit_time)
    assert (shares < 1).all()
    assert found["ettr"] == pytest.approx(shares.mean())
    assert found["lost_gpu_hours"] == pytest.approx(jobs.lost_gpu_seconds.sum() / 3600)


@pytest.mark.slow
def test_a_fresh_start_ends_what_a_killed_scheduler_has_left_at_once(
    no_controller_is_left: LocalCluster, tmp_path: Path
) -> None:
    settings = config([{"name": "a", "epochs": 500}, {"name": "b", "epochs": 500}])
    name = session_of(tmp_path, CELL)
    with SessionDatabase(session_folder(tmp_path, CELL) / DATABASE) as database:

        def die(now: RayCluster) -> None:
            if len(now.tracker.reports) == 2 and all(report.training_on for report in now.tracker.reports.values()):
                raise KeyboardInterrupt  # and nothing is closed

        cluster = real_cluster(prepare(settings), "jobs", 0, RayBackend(name), database, name, (die,))
        with pytest.raises(KeyboardInterrupt):
            schedule(cluster)
    pids = [report.pid for report in cluster.tracker.reports.values()]
    os.kill(pids[0], signal.SIGSTOP)  # one of them does not even hear of it
    (session_folder(tmp_path, CELL) / DATABASE).write_bytes(b"damaged")
    remove_sessions(tmp_path)
    assert not (tmp_path / SESSIONS).exists()
    assert find_controllers(name) == {}
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    record = RealCells(config([{"name": "a"}, {"name": "b"}]), tmp_path)(CELL)
    assert np.isfinite(record.jobs.finish_time).all()
    nodes = no_controller_is_left.node_ids
    wait_until(lambda: not any(no_controller_is_left.worker_pids(node) for node in nodes))


def test_jobs_of_a_node_that_dies_go_on_and_a_new_node_counts(
    no_controller_is_left: LocalCluster, tmp_path: Path
) -> None:
    released = tmp_path / "released"
    settings = config([{"name": "a", "gpus": 3, "max_gpus": 3, "epochs": 100}], None, released)
    killed: list[str] = []

    def interfere(cluster: RayCluster) -> None:
        """Once all train: kill a node of the job; once all train again: bring a new one; once it counts: let go."""
        report = cluster.tracker.reports.get("job-000000")
        if report is None or len(report.training_on) < 3 or set(killed) & set(report.training_on):
            return
        if not killed:
            killed.append(cluster.tracker.nodes_of("job-000000")[-1])
            no_controller_is_left.kill_node(killed[0])
        elif len(no_controller_is_left.node_ids) == 3:
            no_controller_is_left.add_node(GPUS)
        elif cluster.up_gpus == 4 * GPUS:
            released.touch()

    try:
        with session(settings, tmp_path, interfere) as cluster:
            assert np.isfinite(schedule(cluster).jobs.finish_time).all()
            kinds = Counter(kind for kind, _ in node_changes(cluster.database))
            assert (kinds["node_down"], kinds["node_up"]) == (1, 5)
            assert cluster.up_gpus == 4 * GPUS
            assert [row.step for row in cluster.database.jobs()] == [100 * STEPS]
    finally:
        while len(no_controller_is_left.node_ids) < 4:
            no_controller_is_left.add_node(GPUS)


@pytest.mark.slow
def test_a_file_on_a_node_drains_it_and_jobs_lose_no_step(
    no_controller_is_left: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job goes on with the workers that it has elsewhere, the other one moves."""
    notice, released = tmp_path / "notice", tmp_path / "released"
    with monkeypatch.context() as patch:
        patch.setenv("RLPTO_TEST_NOTICE", str(notice))
        added = no_controller_is_left.add_node(GPUS, **{MARKET_LABEL: "spot", GPU_TYPE_LABEL: "T4"})
    (info,) = (node for node in RayBackend("").nodes() if node.id == added)
    assert info == NodeInfo(added, GPUS, info.address, info.cpus, "t4", info.host, spot=True)
    jobs = [{"name": name, "gpus": gpus, "max_gpus": gpus, "epochs": 100} for name, gpus in (("a", 3), ("b", 1))]
    seen, steps = list[float](), list[int]()

    def on_the_node(state: ClusterState) -> Allocation:
        """A GPU of the node for each, as long as it is there."""
        seen.append(float(state.leaves_in.min()))
        gpus = state.jobs.requested_gpus
        if added not in cluster.node_ids:
            return Allocation(gpus.copy())
        rows, node = np.zeros((len(gpus), len(state.shape)), dtype=np.int64), cluster.node_ids.index(added)
        rows[:, node], rows[:, node - 1] = 1, gpus - 1
        return Allocation(gpus.copy(), placement=rows)

    def interfere(cluster: RayCluster) -> None:
        """Once both train there the file appears, and once both train elsewhere they may end."""
        reports = [cluster.tracker.reports.get(job) for job in cluster.ids]
        first, second = (report.training_on if report and report.state == "running" else () for report in reports)
        if len(first) < 3 or not second or (added in (*first, *second)) == notice.exists():
            return
        steps.append(sum(report.step for report in reports if report))
        if notice.exists():
            released.touch()
        else:
            notice.write_text("600\n")

    try:
        with session(config(jobs, None, released), tmp_path, interfere, notice_file="$RLPTO_TEST_NOTICE") as cluster:
            schedule(cluster, Scripted(on_the_node))
            database = cluster.database
            assert steps == sorted(steps)
            assert [(row.step, row.recoveries) for row in database.jobs()] == [(100 * STEPS, 0)] * 2, "no step is lost"
            assert [kind for kind, node in node_changes(database) if node == added] == ["node_up", "node_down"]
            assert seen[0] == np.inf
            assert 500.0 < min(seen) <= 600.0, "the policy sees when the node goes"
            (going,) = (node for node in nodes(database) if node.id == added)
            assert going.leaves is not None
            assert {node.spot for node in nodes(database)} == {False, True}
    finally:
        no_controller_is_left.kill_node(added)


class TestErrors:
    def test_an_address_at_which_there_is_no_cluster(self) -> None:
        """In this process, which may be connected already."""
        with pytest.raises(ConfigError, match="--address here: expected auto or HOST:PORT"):
            Connection("here")
        with pytest.raises(ClusterError, match=r"no Ray cluster at 127\.0\.0\.1:1: connection refused"):
            Connection("127.0.0.1:1")

    def test_who_may_connect(self, ray_cluster: LocalCluster, tmp_path: Path) -> None:
        """Who has the token, also where Ray itself keeps it, and the same version."""
        token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text(token)
        program = (
            "import os, sys; from pathlib import Path; import ray\n"
            "from rlpto.io.errors import ClusterError\n"
            "from rlpto.ray_cluster.scheduler.connection import Connection\n"
            "def connect():\n"
            "    try:\n"
            "        with Connection(sys.argv[1]) as found: print('protected', found.protected)\n"
            "    except ClusterError as error: print(error)\n"
            "connect()\n"
            "os.environ['RAY_AUTH_TOKEN'] = '0' * 64; connect()\n"
            "del os.environ['RAY_AUTH_TOKEN']; os.environ['HOME'] = sys.argv[2]; connect()\n"
            "ray.__version__ = '0.0.1'; connect()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, ray_cluster.address, str(tmp_path)],
            cwd=REPOSITORY,
            env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            capture_output=True,
            text=True,
            check=True,
        )
        without, other, same, old = done.stdout.splitlines()
        refused = f"the Ray cluster at {ray_cluster.address} asks for its token: expected the file"
        assert without.startswith(refused)
        assert other.startswith(refused)
        assert same == "protected True"
        assert old.startswith(f"the Ray cluster at {ray_cluster.address} is of another version: ")

    @pytest.mark.usefixtures("ray_cluster")
    def test_training_code_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(JobError, match=r"training program no\.such\.module:Job cannot be used there: ModuleNot"):
            check_training([make_spec(tmp_path, training="no.such.module:Job")])
