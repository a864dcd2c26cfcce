"""Faults inside a job, done for real: what hangs, raises or is killed, and disks that are damaged or refuse."""

from __future__ import annotations

import io
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ray._private import worker

from rlpto.ray_cluster import health
from rlpto.ray_cluster.controllers import alive_nodes
from rlpto.ray_cluster.health import answering
from rlpto.ray_cluster.messages import FaultTolerance, JobSpec
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.store.checkpoints import list_checkpoints, read_newest, write_checkpoint
from rlpto.store.logs import LOG
from rlpto.store.program_keys import SCRIPTS
from tests.ray_cluster.running import FREEZE, KILL, Running, make_spec

FAULTY = "tests.ray_cluster.programs:Faulty"


@pytest.mark.slow
def test_a_frozen_worker_is_replaced_and_code_that_hangs_is_started_again(
    ray_cluster: LocalCluster, tmp_path: Path
) -> None:
    a, b, c, d = ray_cluster.node_ids
    (tmp_path / "count").mkdir()
    hangs = {"training": FAULTY, "options": {"folder": str(tmp_path / "count"), "kind": "hang", "times": 1}}
    hanging = make_spec(tmp_path / "hangs", id="hangs", **hangs, heartbeat_timeout=3.0)
    freezing = make_spec(tmp_path / "freezes", id="freezes", heartbeat_timeout=3.0)
    with Running(ray_cluster, freezing) as job, Running(ray_cluster, hanging) as other:
        other.command([c, d], wait=False)
        job.command([a, b])
        before = job.steps(5)
        frozen = ray_cluster.worker_pids(b)[0]
        job.signal_worker(b, FREEZE)
        after = job.until(lambda now: now.interruptions.recoveries == 1 and len(now.training_on) == 2)
        assert "does not answer" in after.failure
        assert after.step >= before.step
        job.until(lambda now: len(now.holding) == 2 and not Path(f"/proc/{frozen}").exists())
        report = other.until(lambda now: now.interruptions.recoveries == 1 and now.step > 20)
        assert "hangs: no step within" in report.failure


@pytest.mark.slow
def test_training_code_that_raises_fails_its_job_alone(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    a, b, c, _ = ray_cluster.node_ids
    counts = [tmp_path / "always", tmp_path / "once"]
    for folder in counts:
        folder.mkdir()
    # Without a checkpoint meanwhile: a job that makes progress between failures is tried again for ever.
    patient = {"retries": 1, "pace": 0.05, "checkpoint_interval": 600.0}
    always = make_spec(tmp_path / "a", id="always", training=FAULTY, options={"folder": str(counts[0])}, **patient)
    once = make_spec(
        tmp_path / "b", id="once", training=FAULTY, options={"folder": str(counts[1]), "times": 1}, pace=0.05
    )
    exits = {"source": "print('hello')\nimport sys\nsys.exit(3)\n", "name": "t.py"}
    wrong = make_spec(tmp_path / "c", id="wrong", training=SCRIPTS, options=exits, logs=True)
    with Running(ray_cluster, always) as bad, Running(ray_cluster, once) as good, Running(ray_cluster, wrong) as none:
        bad.command([a], wait=False)
        good.command([b], wait=False)
        none.command([c], wait=False)
        report = none.until(lambda now: now.state == "failed" and not now.holding)
        assert report.failure == "t.py exited with 3 (t.py, line 3)", (
            "what is wrong with the input, without a traceback"
        )
        assert "hello" in (tmp_path / "c" / LOG).read_text()
        report = bad.until(lambda now: now.state == "failed" and not now.holding)
        assert "ValueError: this batch is cursed" in report.failure
        assert "programs.py" in report.failure, "the traceback is kept"
        assert len(list(counts[0].iterdir())) == 2, "one retry, as the job asked for"
        assert "this batch is cursed" in (tmp_path / "a" / "failures.log").read_text()
        report = good.until(lambda now: now.step > 20)
        assert report.interruptions.recoveries == 1


NONFINITE = """
import torch
from rlpto import elastic
net = torch.nn.Linear(1, 1)
data = torch.arange(101.0)[:, None]
with elastic.session(net, torch.optim.SGD(net.parameters(), lr=1e-9), data_size=101, on_nonfinite=RULE) as job:
    for turn, points in enumerate(job.batches(data)):
        job.step(job.model(points).mean() * (float("inf") if turn >= 60 else 1.0))
"""


@pytest.mark.slow
def test_training_that_becomes_nan_fails_and_keeps_its_last_finite_checkpoint(
    ray_cluster: LocalCluster, tmp_path: Path
) -> None:
    a, b, c, _ = ray_cluster.node_ids

    def spec(name: str) -> JobSpec:
        options = {"source": NONFINITE.replace("RULE", repr(name))}
        more = {"pace": 0.03, "checkpoint_interval": 0.3, "epochs": 12.0, "logs": True}
        return make_spec(tmp_path / name, id=name, name=name, training=SCRIPTS, options=options, **more)

    failing, warning = spec("fail"), spec("warn")
    with Running(ray_cluster, failing) as job, Running(ray_cluster, warning) as other:
        job.command([a, b], wait=False)
        other.command([c], wait=False)
        report = job.until(lambda now: now.state == "failed" and not now.holding)
        assert report.checkpoint is not None
        assert re.fullmatch(
            r"job 'fail': the loss is -?(nan|inf) after step \d+ \(epoch [\d.]+\): expected finite numbers; "
            rf"on_nonfinite: warn would go on; its last checkpoint is {re.escape(report.checkpoint.path)}",
            report.failure,
        )
        assert other.until(lambda now: now.state == "finished" and not now.holding).failure == ""
        assert (Path(warning.folder) / LOG).read_text().count("warning: ") == 1
    for folder in (failing.folder, warning.folder):
        checkpoint, state, _ = read_newest(Path(folder))
        weights = torch.load(io.BytesIO(state), weights_only=True)["model"]
        assert all(bool(part.isfinite().all()) for part in weights.values())
        assert 0 < checkpoint.step <= 61


def test_a_killed_controller_goes_on_and_checkpoints_that_are_of_no_use_are_skipped(
    ray_cluster: LocalCluster, tmp_path: Path
) -> None:
    a = ray_cluster.node_ids[0]
    spec = make_spec(tmp_path, checkpoint_interval=0.5)
    with Running(ray_cluster, spec) as job:
        job.command([a])
        before = job.until(lambda now: now.checkpoint is not None and now.checkpoint.step > 20)
        assert before.checkpoint is not None
        os.kill(before.pid, KILL)
        after = job.until(lambda now: now.interruptions.recoveries == 1)
        assert after.generation == before.generation, "the command outlives the controller"
        assert after.step >= before.checkpoint.step
        job.steps(40)
        last = job.stop()
    assert last.checkpoint is not None
    assert last.checkpoint.step == last.step
    assert len(list_checkpoints(tmp_path)) == 2
    sound = Path(last.checkpoint.path)
    content = sound.read_bytes()
    write_checkpoint(tmp_path, last.step + 1000, content[:-100])  # whole, but the program cannot load it
    damaged = write_checkpoint(tmp_path, last.step + 2000, content)
    Path(damaged.path).write_bytes(b"what a failing disk gives back")
    sound.write_bytes(content)  # it was the third
    with Running(ray_cluster, replace(spec, faults=FaultTolerance(retries=0)), resume=True) as job:
        job.command([a])
        resumed = job.steps(1)
        assert last.step < resumed.step < last.step + 1000
        assert resumed.interruptions.recoveries == 1, "what was counted goes on"
    failures = (tmp_path / "failures.log").read_text()
    assert "damaged" in failures
    assert "cannot be loaded" in failures


@pytest.mark.slow
def test_a_disk_that_refuses_is_reported_and_training_goes_on(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    a, b, *_ = ray_cluster.node_ids
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with Running(ray_cluster, make_spec(blocked / "job")) as job:
        job.command([a])
        job.steps(20)
        report = job.command([])
        assert "cannot write" in report.failure
        assert report.checkpoint is None
        # The state is in the controller's memory all the same.
        resumed = job.command([b])
        assert job.steps(1).step > report.step
        assert resumed.state == "running"
    assert read_newest(blocked / "job") is None


@pytest.mark.slow
def test_workers_killed_again_and_again_cost_a_job_time_and_no_more(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    a = ray_cluster.node_ids[0]
    # Without faults the first checkpoint would come after ten minutes: each fault would lead back to the start.
    spec = make_spec(tmp_path, retries=1, checkpoint_interval=600.0)
    with Running(ray_cluster, spec) as job:
        job.command([a])
        reached = 0
        for faults in range(1, 4):
            reached = job.until(lambda now, least=reached: now.step >= least + 20).step  # type: ignore[misc]
            job.signal_worker(a, KILL)
            after = job.until(lambda now, faults=faults: now.interruptions.recoveries == faults)  # type: ignore[misc]
            assert after.state == "running"
        assert job.steps(1).step > 20


def test_a_frozen_node_is_noticed_before_ray_declares_it_dead_and_when_it_is_back(
    ray_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CHECK_TIMEOUT_S", 0.5)
    monkeypatch.setattr(health, "CHECK_INTERVAL_S", 0.1)
    backend, frozen = RayBackend("s"), ray_cluster.node_ids[-1]

    def up() -> set[str]:
        time.sleep(0.01)
        return {node.id for node in backend.nodes()}

    assert frozen in up()
    os.kill(ray_cluster.raylet_pid(frozen), FREEZE)
    try:
        while frozen in up():
            pass
        assert frozen in {node["NodeID"] for node in alive_nodes()}, "Ray has declared it dead"
        assert set(answering(alive_nodes())) == {node["NodeID"] for node in alive_nodes()} - {frozen}
    finally:
        os.kill(ray_cluster.raylet_pid(frozen), signal.SIGCONT)
    while frozen not in up():
        pass
    assert not backend.silent


@pytest.mark.usefixtures("ray_cluster")
def test_rays_own_messages_about_nodes_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """They go through this function of Ray; lines of ours take their place."""
    message = {"lines": ["The node has been marked dead"], "pid": "raylet", "is_err": False}
    worker.print_to_stdstream(message, ignore_prefix=False)
    assert "marked dead" not in "".join(capfd.readouterr())
