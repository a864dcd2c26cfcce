"""The commands a user types, on the cluster that all tests share: left, gone on with, switched, wrong; what stays."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import psutil
import pytest
import ray
import yaml
from ray.util import list_named_actors

from rlpto.agents.archive import CHECKPOINT
from rlpto.agents.settings import LAST
from rlpto.envs.settings import EnvSettings
from rlpto.io.archive import read_archive
from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.controllers import alive_nodes, all_controllers
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.nodes.processes import family_of, load_factor
from rlpto.ray_cluster.scheduler.connection import only_scheduler, schedulers
from rlpto.ray_cluster.scheduler.session_folder import DATABASE, SESSIONS, read_table
from tests.agents.helpers import make_setup, train_small
from tests.ray_cluster.conftest import GPUS, NODES
from tests.ray_cluster.joined import titled
from tests.ray_cluster.test_real import REPOSITORY, STEPS, wait_until
from tests.service.served import Served, write_settings

EPOCHS = 100
PLAIN = {"training": "tests.ray_cluster.programs:Plain", "pace": 0.2}
ONE_JOB = ("--set", "workload.jobs=[{model: tiny, epochs: 4}]")
IDLE = "ray::IDLE"
"""In the title of a process that no actor is in."""


def experiment(folder: Path, program: Mapping[str, object] = PLAIN, **changes: object) -> Path:
    """The file of an experiment with two small jobs of a program."""
    jobs = [{"name": "a", "max_gpus": 2}, {"name": "b", "max_gpus": 2}]
    content = {
        "name": "commands",
        "workload": {"source": "jobs", "jobs": [{"model": "tiny", "epochs": EPOCHS, **job} for job in jobs]},
        "simulator": {"interval": 2},
        "ray": {
            "heartbeat_timeout": 60,
            "programs": {"tiny": {**program, "samples": 101, "epochs": EPOCHS, "batch_size": 20}},
            "checkpoint_interval": 2,
        },
        "policies": ["elastic_fifo"],
        "evaluation": {"reference": "elastic_fifo"},
        **changes,
    }
    path = folder / "commands.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs, and does not outlive the test."""
    started = subprocess.Popen(
        [sys.executable, "-c", "from rlpto.cli.main import run; run()", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this command alone, as in a terminal of its own
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


def said(started: subprocess.Popen[str], code: int) -> str:
    """What a command has printed once it has ended, as it was to end."""
    try:
        out, err = started.communicate(timeout=240 * load_factor())
    except subprocess.TimeoutExpired:
        started.send_signal(signal.SIGABRT)  # it prints where each of its threads is
        out, err = started.communicate()
    assert started.returncode == code, out + err
    return out + err


def database_of(run: Path) -> Path | None:
    return next(iter(sorted((run / SESSIONS).glob(f"*/{DATABASE}"))), None)


def column(run: Path, name: str) -> list[object]:
    """A column of the table of jobs of the only session of a run; empty before there is one."""
    database = database_of(run)
    if database is None:
        return []
    columns, rows = read_table(database, "jobs")
    return [row[columns.index(name)] for row in rows]


def steps_of(run: Path) -> list[int]:
    """Steps that each job of a run has done."""
    return [int(str(step)) for step in column(run, "step")]


def events_of(run: Path) -> list[str]:
    """What has happened in a session so far; of changes of the policy: which."""
    names, rows = read_table(database, "events") if (database := database_of(run)) else ([], [])
    events = [json.loads(row[names.index("body")]) for row in rows]
    return [event["detail"] if event.get("what") == "policy" else event.get("what") for event in events]


def once(started: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    """Wait until something holds, while a command runs."""

    def looked() -> bool:
        assert started.poll() is None, started.communicate()
        return holds()

    wait_until(looked)


def listening(pid: int) -> list[tuple[IPv6Address | IPv4Address, int]]:
    """Addresses and ports at which a process listens; IPv4 ones that are written as IPv6 count as what they are."""
    try:
        found = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:  # it has ended
        return []
    places = [(ip_address(one.laddr.ip), one.laddr.port) for one in found if one.status == psutil.CONN_LISTEN]
    return [(getattr(address, "ipv4_mapped", None) or address, port) for address, port in places]


@pytest.mark.slow
def test_an_evaluation_is_watched_switched_left_and_gone_on_with(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    run, released, cluster_folder = tmp_path / "run", tmp_path / "released", str(ray_cluster.folder)
    idle_before = titled(family_of(cluster_folder), IDLE)  # of other tests
    options = {"until": str(released), "pause": 0.3}  # jobs last till then
    held = {"training": "tests.ray_cluster.programs:Held", "options": options}
    evaluate = ("evaluate", str(experiment(tmp_path, held)), "--cluster", "ray", "--address", ray_cluster.address)
    whole = (*evaluate, "--run-dir", str(run), "--no-report", "--quiet")

    with command(*whole, "--keep") as first:
        once(first, lambda: min(steps_of(run), default=0) > 3)
        places = [place for pid in (*family_of(cluster_folder), first.pid) for place in listening(pid)]
        assert int(ray_cluster.address.rpartition(":")[2]) in {port for _, port in places}, "the head's is among them"
        assert not [place for place in places if not place[0].is_loopback]
        message = f"another scheduler is at work on this Ray cluster, for {run} (process {first.pid} on "
        with pytest.raises(ClusterError, match=re.escape(message)), only_scheduler(tmp_path / "other"):
            pass
        with command("cluster", "switch", "las", "--run", str(run)) as switch:  # takes seconds to start
            said(switch, 0)
        first.send_signal(signal.SIGINT)
        said(first, 130)
    assert {job for _, job in all_controllers()} == {"job-000000", "job-000001"}, "they were to be kept"

    with command(*whole) as second:  # takes the controllers over, and is killed
        once(second, lambda: "scheduler_returned" in events_of(run))
        second.kill()
    before = steps_of(run)
    with command(*whole) as third:  # takes them over again, and is left: now they write checkpoints and end
        once(third, lambda: events_of(run).count("scheduler_returned") == 2)
        assert all(step >= known for step, known in zip(steps_of(run), before, strict=True))
        third.send_signal(signal.SIGTERM)  # as Ctrl-C
        said(third, 130)
    wait_until(lambda: all_controllers() == {})  # Ray lists an actor for a moment after it has ended

    released.touch()
    with command(*whole) as fourth:
        assert "worker died" not in said(fourth, 0), "a controller that ends in peace is no fault to Ray"
    assert column(run, "state") == ["finished"] * 2
    assert steps_of(run) == [EPOCHS * STEPS] * 2
    assert column(run, "recoveries") == [0] * 2
    events = events_of(run)
    assert events.count("scheduler_returned") == 3
    assert events.count("elastic_fifo -> las") == 1
    assert (run / "summary.csv").is_file()
    assert len(ray_cluster.node_ids) == NODES
    with command("cluster", "status", "--address", ray_cluster.address) as status:
        shown = said(status, 0)
    assert f"scheduler of {run} (ended)" in shown
    assert len(re.findall(r"finished .* 100%", shown)) == 2
    with only_scheduler(tmp_path / "other"):
        assert [other.alive for other in schedulers()][-4:] == [False] * 4
    # Nothing stays on the cluster: Ray ends what belonged to a driver shortly after it.
    own = ray.get_runtime_context().get_job_id()
    wait_until(lambda: all(own in actor["name"] for actor in list_named_actors(all_namespaces=True)))
    wait_until(lambda: idle_before >= titled(family_of(cluster_folder), IDLE))
    assert not any(ray_cluster.worker_pids(node) for node in ray_cluster.node_ids)


@pytest.mark.slow
def test_an_agent_goes_on_learning_on_real_jobs_and_can_be_left(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    agent, folder = tmp_path / "agent", tmp_path / "agent" / "ray"
    own = EnvSettings()
    train_small(agent, make_setup(max_jobs=own.max_jobs, horizon=own.horizon))
    learning = {"agent": {"steps": 6, "ppo": {"rollout": 2, "batch_size": 2}}}
    path = experiment(tmp_path, simulator={"interval": 1}, **learning)
    train = ("train", str(path), "--cluster", "ray", "--address", ray_cluster.address, "--resume", str(agent), "-q")

    def steps() -> int:
        there = folder / LAST
        return int(read_archive(there, (CHECKPOINT,)).manifest["steps"]) if there.is_file() else -1

    with command(*train) as first:
        once(first, lambda: steps() >= 2)
        first.send_signal(signal.SIGINT)
        assert f"agent:run={folder}" in said(first, 130)
    assert 2 <= steps() < 6
    assert all_controllers() == {}
    with command(*train) as second:
        said(second, 0)
    assert steps() == 6
    assert list(folder.glob("events.*"))
    assert len(list((folder / SESSIONS).glob("episode-*/events.out.tfevents.*"))) >= 2
    assert all_controllers() == {}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_cluster_of_somebody_else_on_this_machine_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLPTO_STATE", str(tmp_path / "cluster.json"))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with command("cluster", "status", "--address", "auto") as status:
        assert "no Ray cluster of yours on this machine" in said(status, 2)


@pytest.mark.slow
def test_after_ctrl_c_jobs_are_left_as_the_settings_say(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    def workers() -> set[int]:
        return {pid for node in ray_cluster.node_ids for pid in ray_cluster.worker_pids(node)}

    path = write_settings(tmp_path, 1, 1, scheduler={"address": ray_cluster.address}, on_stop="keep")
    service = Served(path)
    try:
        job = service.submit(1000.0, GPUS)
        service.until(lambda: service.row(job).progress > 1.0)
        found = [node["gpus"] for node in service.client.nodes()]
        assert found == [GPUS] * NODES, "those that are there, not the experiment's"
        before = workers()
        assert len(before) == GPUS
        service.end(signal.SIGINT)
        progress = service.row(job).progress
        assert workers() == before, "keep: it trains on"

        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "on_stop": "end"}))
        service.start()
        service.until(lambda: service.row(job).progress > progress)
        assert workers() == before, "it was taken up"
        service.end(signal.SIGINT)
        assert workers() == set(), "end: it has written a checkpoint and waits"
        assert list(service.settings.folder.rglob("step-*.ckpt"))
        assert service.row(job).ended is None
        assert len(alive_nodes()) == NODES + 1, "the cluster is not the service's to end"
    finally:
        service.close()
